"""The two simulation studies' data, as the paper generates them (section 6.1, 6.2 and appendix B)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["Simulated", "simulation_1", "simulation_2"]

Array = NDArray[np.float64]


POPULATION = 1_000_000  # rows, from which the target's mean and standard deviation are taken


@dataclass(frozen=True, eq=False)
class Simulated:
    """X, the noisy y, the noise that is in it. sigma is the noise's standard deviation, center and spread are the mean
    and standard deviation of y: of the law that the rows come from, hence the same for every seed."""

    X: Array
    y: Array
    noise: Array
    sigma: float
    center: float
    spread: float


def _truth_1(X: Array) -> Array:
    first = 1.0 / (1.0 + np.exp(-(10 * X[:, 0] + 15 * X[:, 1] - 5)))
    second = 1.0 / (1.0 + np.exp(-(-15 * X[:, 0] + 10 * X[:, 1] + 5)))
    out: Array = 4 - 3 * first + 3 * second
    return out


def _truth_2(X: Array) -> Array:
    out: Array = 7 * X[:, 1] / (1 + X[:, 0] ** 2) + np.sin(X[:, 2] * X[:, 3]) + 2 * X[:, 4]
    return out


@cache
def _law(study: int) -> tuple[float, float]:
    """Mean and standard deviation of the noiseless target."""
    stream = np.random.default_rng(2**32)
    size = (POPULATION, 2 if study == 1 else 5)
    y0 = _truth_1(stream.uniform(-1.0, 1.0, size)) if study == 1 else _truth_2(stream.standard_normal(size))
    return float(y0.mean()), float(y0.std())


def simulation_1(rows: int, seed: int) -> Simulated:
    """y = 4 - 3 s(10 x_1 + 15 x_2 - 5) + 3 s(-15 x_1 + 10 x_2 + 5) + e, x ~ U([-1, 1]^2), s the sigmoid.

    The noise has 5 % of the standard deviation of the rest (appendix B, simulation study I).
    """
    stream = np.random.default_rng(seed)
    X = stream.uniform(-1.0, 1.0, (rows, 2))
    center, spread = _law(1)
    sigma = 0.05 * spread
    noise = sigma * stream.standard_normal(rows)
    return Simulated(X, _truth_1(X) + noise, noise, sigma, center, float(np.hypot(spread, sigma)))


def simulation_2(rows: int, seed: int) -> Simulated:
    """y = 7 x_2 / (1 + x_1^2) + sin(x_3 x_4) + 2 x_5 + e, all of them N(0, 1) (simulation study II)."""
    stream = np.random.default_rng(seed)
    X = stream.standard_normal((rows, 5))
    noise = stream.standard_normal(rows)
    center, spread = _law(2)
    return Simulated(X, _truth_2(X) + noise, noise, 1.0, center, float(np.hypot(spread, 1.0)))
