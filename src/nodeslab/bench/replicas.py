"""Many small fits as one batched run, against the same fits one after the other."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from nodeslab import datasets
from nodeslab.bench import against, machine
from nodeslab.checks import whole
from nodeslab.likelihoods import Gaussian
from nodeslab.model import Bayesian, bayesian
from nodeslab.prediction import predict
from nodeslab.replicas import fit_replicas
from nodeslab.spec import ssig
from nodeslab.training import fit

__all__ = ["replicas"]

BATCH, RATE, HIDDEN = 128, 1e-3, 50
COUNTS = (1, 2, 5, 10)


def replicas(rounds: int = 3, epochs: int = 500, splits: int = 20, counts: tuple[int, ...] = COUNTS) -> dict[str, Any]:
    """The paper's network for Concrete on its first splits; counts: smaller numbers of replicas, for a tenth of the
    epochs."""
    for name, value in (("rounds", rounds), ("epochs", epochs), ("splits", splits)):
        whole(name, value)
    result: dict[str, Any] = {"bench": "replicas", "epochs": epochs, "splits": splits, **machine()}
    result[f"concrete, {splits} splits, {epochs} epochs"] = _case(splits, epochs, rounds)
    short = max(1, epochs // 10)
    for count in counts:
        result[f"concrete, {count} splits, {short} epochs"] = _case(count, short, rounds)
    return result


def _models(parts: list[datasets.Standardised]) -> list[Bayesian]:
    out = []
    for i, part in enumerate(parts):
        torch.manual_seed(i)
        net = nn.Sequential(nn.Linear(part.X.shape[1], HIDDEN), nn.Sigmoid(), nn.Linear(HIDDEN, 1))
        out.append(bayesian(net, ssig(), n=len(part.y), init="uniform"))
    return out


def _case(splits: int, epochs: int, rounds: int) -> dict[str, Any]:
    table = datasets.concrete()
    parts = [datasets.split(table, i) for i in range(splits)]
    seeds = list(range(splits))
    times: dict[str, list[float]] = {"lone": [], "together": []}
    for _ in range(rounds):
        alone, together = _models(parts), _models(parts)
        begun = time.perf_counter()
        fit_replicas(
            together,
            [(p.X, p.y) for p in parts],
            likelihood=Gaussian(1.0),
            epochs=epochs,
            batch_size=BATCH,
            lr=RATE,
            seeds=seeds,
            progress=False,
        )
        times["together"].append(time.perf_counter() - begun)
        begun = time.perf_counter()
        for model, part, seed in zip(alone, parts, seeds, strict=True):
            fit(
                model,
                (part.X, part.y),
                likelihood=Gaussian(1.0),
                epochs=epochs,
                batch_size=BATCH,
                lr=RATE,
                seed=seed,
                progress=False,
            )
        times["lone"].append(time.perf_counter() - begun)
    rows = against(times, "lone")
    for name, models in (("lone", alone), ("together", together)):
        rows[name]["rmse"] = round(_rmse(models, parts), 3)
        rows[name]["open"] = sum(m.nodes()[0].open for m in models) / splits
    return rows


def _rmse(models: list[Bayesian], parts: list[datasets.Standardised]) -> float:
    """The mean test RMSE over the splits, in MPa."""
    total = 0.0
    for model, part in zip(models, parts, strict=True):
        mean = predict(model, part.X_test, draws=30, seed=0).mean[:, 0].double().numpy()
        total += float(((mean - part.y_test) ** 2).mean() ** 0.5 * part.y_scale)
    return total / len(parts)
