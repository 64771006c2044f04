"""Measurements: ratios to the plain network, in one process, interleaved, medians of many."""

from __future__ import annotations

import copy
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nodeslab.likelihoods import Categorical
from nodeslab.model import bayesian
from nodeslab.spec import ssig
from nodeslab.training import single_steps

__all__ = ["against", "interleaved", "lenet", "machine", "mlp", "step"]


def mlp(activation: type[nn.Module] = nn.SiLU, width: int = 400) -> nn.Sequential:
    """The paper's 784-400-400-10."""
    return nn.Sequential(
        nn.Linear(784, width), activation(), nn.Linear(width, width), activation(), nn.Linear(width, 10)
    )


def lenet(activation: type[nn.Module] = nn.SiLU) -> nn.Sequential:
    """The paper's LeNet-Caffe: 20 and 50 channels of 5 x 5, 800 and 500 nodes."""
    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.MaxPool2d(2),
        activation(),
        nn.Conv2d(20, 50, 5),
        nn.MaxPool2d(2),
        activation(),
        nn.Flatten(),
        nn.Linear(800, 800),
        activation(),
        nn.Linear(800, 500),
        activation(),
        nn.Linear(500, 10),
    )


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def interleaved(runs: dict[str, Callable[[], object]], rounds: int, repeat: int = 1) -> dict[str, list[float]]:
    """Seconds of each run, taken in turn so that a slow moment of the machine hits all of them.

    repeat: how often a run is done for one reading, where it is too short for the clock.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(rounds + 3):
        for name, run in runs.items():
            begun = time.perf_counter()
            for _ in range(repeat):
                run()
            if i >= 3:  # the first rounds warm up caches and allocators
                times[name].append((time.perf_counter() - begun) / repeat)
    return times


def against(times: dict[str, list[float]], base: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, values in times.items():
        ratios = [v / b for v, b in zip(values, times[base], strict=True)]
        quarters = statistics.quantiles(ratios, n=4)
        out[name] = {
            "ms": round(1e3 * statistics.median(values), 3),
            "ratio": round(statistics.median(values) / statistics.median(times[base]), 4),
            "ratio_quartiles": [round(quarters[0], 4), round(quarters[2], 4)],
        }
    return out


def _plain_step(net: nn.Module, X: Tensor, y: Tensor, fused: bool) -> Callable[[], object]:
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=fused)

    def run() -> None:
        F.cross_entropy(net(X), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run


def step(rounds: int = 60) -> dict[str, Any]:
    """One training step of SS-IG against the same plain network with Adam: the step that `ns.fit` takes."""
    result: dict[str, Any] = {"bench": "step", **machine()}
    generator = torch.Generator().manual_seed(0)
    cases: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
        "mlp 784-400-400-10, batch 1024": (mlp(), (1024, 784)),
        "lenet-caffe, batch 256": (lenet(), (256, 1, 28, 28)),
    }
    for name, (net, shape) in cases.items():
        X = torch.randn(shape, generator=generator)
        y = torch.randint(0, 10, (shape[0],), generator=generator)
        model = bayesian(net, ssig(), n=60_000)
        runs = {
            "plain": _plain_step(copy.deepcopy(net), X, y, fused=True),
            "ss-ig": single_steps(model, (X, y), Categorical()),
            "plain, Adam not fused": _plain_step(copy.deepcopy(net), X, y, fused=False),
        }
        result[name] = against(interleaved(runs, rounds), "plain")
    return result
