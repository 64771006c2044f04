"""Predictions of a trained model with many draws, against as many passes of the plain network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nodeslab.bench import against, interleaved, machine, mlp
from nodeslab.bench.digits import Digits, digits
from nodeslab.bench.train import BATCH, fit_mlp, fresh
from nodeslab.checks import whole
from nodeslab.io import load
from nodeslab.model import Bayesian
from nodeslab.prediction import predict as predictions
from nodeslab.shrinking import shrink

__all__ = ["predict"]

ROWS_AT_ONCE = 4096  # of `predict` and of the plain passes
DRAWS = (1, 10, 100)


def predict(
    rounds: int = 5,
    epochs: int = 100,
    model: Path | None = None,
    draws: int = 30,
    more: tuple[int, ...] = DRAWS,
    data: Digits | None = None,
) -> dict[str, Any]:
    """MNIST's test images; model: a file of ns.save's, a network of 784 inputs; otherwise one is trained (compact)."""
    whole("rounds", rounds)
    data = digits() if data is None else data
    trained = _trained(data, epochs) if model is None else _loaded(model)
    small = shrink(trained, data.X_test[:2], bayesian=True)
    assert isinstance(small, Bayesian)
    left = {r.path: r.open for r in trained.nodes()}
    result: dict[str, Any] = {"bench": "predict", "open": "-".join(map(str, left.values())), **machine()}
    for count in (draws, *more):
        runs: dict[str, Callable[[], object]] = {
            "plain": _passes(mlp(), data.X_test, count),
            "predict": _predicted(trained, data.X_test, count),
            "predict, shrunk": _predicted(small, data.X_test, count),
        }
        case = against(interleaved(runs, rounds, warm=1), "plain")
        result[f"{len(data.X_test)} images, {count} draws"] = case
    return result


def _predicted(model: Bayesian, X: Tensor, draws: int) -> Callable[[], object]:
    return lambda: predictions(model, X, draws=draws, seed=0, batch_size=ROWS_AT_ONCE)


def _passes(net: nn.Module, X: Tensor, count: int) -> Callable[[], object]:
    """What an ensemble of plain networks would cost: a pass and a softmax for each draw."""

    def run() -> None:
        with torch.inference_mode():
            for _ in range(count):
                torch.cat([torch.softmax(net(part), 1) for part in torch.split(X, ROWS_AT_ONCE)])

    return run


def _trained(data: Digits, epochs: int) -> Bayesian:
    model = fresh(0, len(data.y))
    fit_mlp(model, data, epochs, BATCH, compact=True, seed=0)
    return model


def _loaded(file: Path) -> Bayesian:
    model = load(file)
    if not isinstance(model, Bayesian):
        raise ValueError(f"--model {file} holds a plain network; give a file of a Bayesian model.")
    return model
