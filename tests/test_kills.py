"""A fit that is killed at any moment, inside a write too, and started again ends with the same bits."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nodeslab as ns
from nodeslab import sealed

KILLS = 100


def _fit(file: Path | None) -> ns.Bayesian:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    X = torch.randn(60, 3)
    y = torch.sin(X[:, 0])
    model = ns.bayesian(nn.Sequential(nn.Linear(3, 10), nn.Tanh(), nn.Linear(10, 1)), ns.ssig(), n=60)
    ns.fit(
        model,
        (X, y),
        likelihood=ns.Gaussian(1.0),
        epochs=60,
        batch_size=20,
        lr=1e-2,
        seed=1,
        checkpoint=file,
        checkpoint_seconds=0,
        progress=False,
    )
    return model


def _child(file: Path, inside: int | None) -> None:
    """Fit; with `inside`, die at that call of the file system in a write: in fsync, in link, in a rename."""
    if inside is not None:
        left = [inside]

        def dying(real: Any) -> Any:
            def call(*args: Any, **options: Any) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **options)

            return call

        for name in ("fsync", "link", "replace"):
            setattr(os, name, dying(getattr(os, name)))
    _fit(file)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork: a hundred fresh interpreters would take too long")
def test_a_hundred_kills(tmp_path: Path) -> None:
    reference = [p.detach() for p in _fit(None).parameters()]
    begun = time.perf_counter()
    _fit(tmp_path / "timing")
    whole = time.perf_counter() - begun
    chance = random.Random(0)
    context = multiprocessing.get_context("fork")
    kills = inside_writes = runs = 0
    while kills < KILLS:
        file = tmp_path / f"run{runs}"
        runs += 1
        for _ in range(5):
            inside = chance.randrange(1, 120) if chance.random() < 0.5 else None
            child = context.Process(target=_child, args=(file, inside))
            child.start()
            if inside is None:
                time.sleep(chance.random() * whole)
                child.kill()
            child.join()
            if child.exitcode == -signal.SIGKILL:
                kills += 1
                inside_writes += inside is not None
            if file.exists():
                meta, _ = sealed.read(file, "checkpoint")  # never half written
                if meta["epoch"] == 60:
                    break
        resumed = [p.detach() for p in _fit(file).parameters()]
        assert all(torch.equal(a, b) for a, b in zip(reference, resumed, strict=True))
    assert inside_writes >= 20
    leftovers = {p.name for p in tmp_path.iterdir()}
    assert all(n.startswith(("run", "timing", ".run")) for n in leftovers)
