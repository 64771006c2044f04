"""bfloat16 autocast (`ns.fit(..., amp=True)`): what a step gains by it, and what a fit loses."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from nodeslab.bench import against, interleaved, lenet, machine, mlp
from nodeslab.bench.digits import Digits, digits
from nodeslab.bench.train import BATCH, bayesian_accuracy, fit_mlp, fresh, spread_of
from nodeslab.checks import whole
from nodeslab.likelihoods import Categorical
from nodeslab.model import bayesian
from nodeslab.spec import ssig
from nodeslab.training import single_steps

__all__ = ["precision"]


def precision(
    rounds: int = 30, epochs: int = 30, seeds: int = 3, data: Digits | None = None, batch_size: int = BATCH
) -> dict[str, Any]:
    """The step of SS-IG in float32 and under autocast; MNIST's test accuracy and open nodes after fits of both."""
    whole("rounds", rounds)
    data = digits() if data is None else data
    result: dict[str, Any] = {"bench": "precision", "epochs": epochs, "seeds": seeds, **machine()}
    cases: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
        "mlp 784-400-400-10, batch 1024": (mlp(), (1024, 784)),
        "lenet-caffe, batch 256": (lenet(), (256, 1, 28, 28)),
    }
    for name, (net, shape) in cases.items():
        X, y = torch.randn(shape), torch.randint(0, 10, (shape[0],))
        runs = {
            row: single_steps(bayesian(copy.deepcopy(net), ssig(), n=60_000), (X, y), Categorical(), amp=amp)
            for row, amp in (("float32", False), ("bfloat16", True))
        }
        result[name] = against(interleaved(runs, rounds), "float32")
    fits = {}
    for row, amp in (("float32", False), ("bfloat16", True)):
        outcomes = []
        for seed in range(seeds):
            model = fresh(seed, len(data.y))
            left = fit_mlp(model, data, epochs, batch_size, True, seed, amp=amp)
            outcomes.append((bayesian_accuracy(model, data), left))
        fits[row] = spread_of(outcomes)
    result[f"784-400-400-10, {epochs} epochs, compact"] = fits
    return result
