"""What a run trains and is tested on: a row's data set, split and standardised, as tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nodeslab import datasets
from nodeslab.datasets import Images, Table
from nodeslab.paper.rows import Row
from nodeslab.paper.simulations import simulation_1, simulation_2

__all__ = ["Case", "Flipped", "case_for", "missing"]

SIMULATIONS = {"sim1": simulation_1, "sim2": simulation_2}
IMAGES = {"mnist": datasets.mnist, "fashion-mnist": datasets.fashion_mnist}


@dataclass(frozen=True, eq=False)
class Case:
    """Training and test rows. scale: what one standard unit of the target is in its own; sigma_noise: what is known of
    the noise, in standard units. noise_rmse: how large the noise itself came out in training and test rows.
    """

    X: Tensor
    y: Tensor
    X_test: Tensor
    y_test: Tensor
    sha256: str
    scale: float = 1.0
    sigma_noise: float | None = None
    noise_rmse: tuple[float, float] | None = None

    def head(self, rows: tuple[int, int] | None) -> Case:
        """The first rows of each part."""
        if rows is None:
            return self
        train, test = rows
        return replace(self, X=self.X[:train], y=self.y[:train], X_test=self.X_test[:test], y_test=self.y_test[:test])


@dataclass(frozen=True, eq=False)
class Flipped:
    """Shuffled batches of images, each flipped from left to right with probability 1/2; another choice every time.

    The choices are those of torch's generator on the CPU, wherever the images are.
    """

    X: Tensor
    y: Tensor
    batch_size: int
    shape: tuple[int, ...]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.y))
        choices = (torch.rand(len(self.y), 1, 1, 1) < 0.5).to(self.X.device)
        for rows, chosen in zip(
            torch.split(order, self.batch_size), torch.split(choices, self.batch_size), strict=True
        ):
            images = self.X[rows.to(self.X.device)].reshape(len(rows), 1, 28, 28)
            yield torch.where(chosen, images.flip(3), images).reshape(len(rows), *self.shape), self.y[rows]


def missing(row: Row) -> str | None:
    """A sentence when a row's data set is not on this machine, for those who would not have it fetched."""
    if row.data in SIMULATIONS or datasets.holding(row.data, read=False).where is not None:
        return None
    return f"the data set is not here; get it with: nodeslab data {row.data}"


def case_for(row: Row, seed: int) -> Case:
    """The data of a run."""
    if row.data in SIMULATIONS:
        return _simulated(row, seed)
    if row.data in IMAGES:
        flat = isinstance(row.network, tuple)
        return _images(row.data, row.pixels, flat).head(row.data_rows)
    table, sha256 = _table(row.data)
    data = datasets.split(table, seed)
    X, y, X_test, y_test = (_float(a) for a in (data.X, data.y, data.X_test, data.y_test))
    return Case(X, y, X_test, y_test, sha256, data.y_scale).head(row.data_rows)


def _simulated(row: Row, seed: int) -> Case:
    if row.data_rows is None:
        raise ValueError(f"experiments.json, row {row.name}: data_rows says how many rows a simulation draws; give it.")
    train, test = row.data_rows
    drawn = SIMULATIONS[row.data](train + test, seed)
    halves = (slice(0, train), slice(train, None))
    y = (drawn.y - drawn.center) / drawn.spread
    noise = [float(np.sqrt(np.mean(drawn.noise[part] ** 2))) for part in halves]
    X, target, X_test, y_test = (_float(a[part]) for part in halves for a in (drawn.X, y))
    return Case(
        X,
        target,
        X_test,
        y_test,
        sha256=_digest(drawn.X, drawn.y),
        scale=drawn.spread,
        sigma_noise=drawn.sigma / drawn.spread,
        noise_rmse=(noise[0], noise[1]),
    )


@cache
def _table(name: str) -> tuple[Table, str]:
    table = datasets.year() if name == "year" else datasets.uci(name)
    return table, _digest(table.X, table.y)


@cache
def _images(name: str, pixels: int, flat: bool) -> Case:
    found: Images = IMAGES[name]()
    shape = (-1, 784) if flat else (-1, 1, 28, 28)
    X, X_test = (torch.from_numpy(a).reshape(shape).float() / pixels for a in (found.X, found.X_test))
    sha256 = _digest(found.X, found.y, found.X_test, found.y_test)
    return Case(X, torch.from_numpy(found.y), X_test, torch.from_numpy(found.y_test), sha256)


def _float(values: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).float()


def _digest(*arrays: Any) -> str:
    """sha256 of the numbers, one array after the other."""
    both = hashlib.sha256()
    for array in arrays:
        both.update(np.ascontiguousarray(array).tobytes())
    return both.hexdigest()
