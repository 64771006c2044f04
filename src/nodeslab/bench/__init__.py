"""Measurements: ratios to the plain network, in one process, interleaved, medians of many."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["against", "cpu", "interleaved", "lenet", "machine", "mlp", "one_thread", "plain_step"]


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
        "cpu": cpu(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def cpu() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


@contextmanager
def one_thread() -> Iterator[None]:
    """With more, the idle threads of each runtime and session spin on and take the others' cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def interleaved(
    runs: dict[str, Callable[[], object]], rounds: int, repeat: int = 1, warm: int = 3
) -> dict[str, list[float]]:
    """Seconds of each run, taken in turn so that a slow moment of the machine hits all of them.

    repeat: how often a run is done for one reading, where it is too short for the clock. warm: rounds that do not
    count, in which caches and allocators fill.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(rounds + warm):
        for name, run in runs.items():
            begun = time.perf_counter()
            for _ in range(repeat):
                run()
            if i >= warm:
                times[name].append((time.perf_counter() - begun) / repeat)
    return times


def against(times: dict[str, list[float]], base: str) -> dict[str, Any]:
    """{name: ms, ratio to the base (of medians), and the quartiles of the ratio over the rounds}."""
    out: dict[str, Any] = {}
    for name, values in times.items():
        ratios = [v / b for v, b in zip(values, times[base], strict=True)]
        low, high = spread(ratios)
        out[name] = {
            "ms": round(1e3 * statistics.median(values), 3),
            "ratio": round(statistics.median(values) / statistics.median(times[base]), 4),
            "ratio_quartiles": [low, high],
        }
    return out


def spread(values: list[float]) -> tuple[float, float]:
    """The quartiles; of a single value, that value."""
    if len(values) < 2:
        return round(values[0], 4), round(values[0], 4)
    quarters = statistics.quantiles(values, n=4)
    return round(quarters[0], 4), round(quarters[2], 4)


def plain_step(net: nn.Module, X: Tensor, y: Tensor, fused: bool = True) -> Callable[[], object]:
    """A training step of a network without a prior, with Adam."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=fused)

    def run() -> None:
        F.cross_entropy(net(X), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run
