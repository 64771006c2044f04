"""Repetitions: the same numbers, in order, from every backend."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nodeslab as ns


def _task(epochs: int, seed: int) -> dict[str, Any]:
    """A fit, and what it ran on."""
    torch.manual_seed(seed)
    X = torch.randn(40, 3)
    model = ns.bayesian(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)), ns.ssig(), n=40)
    history = ns.fit(model, (X, X[:, 0]), likelihood=ns.Gaussian(1.0), epochs=epochs, seed=seed, progress=False)
    return {"seed": seed, "elbo": history.column("elbo"), "threads": torch.get_num_threads()}


def test_every_backend_gives_the_same_bits() -> None:
    """Two workers of a local Dask cluster, two processes, and one after the other."""
    task, seeds = partial(_task, 3), [5, 0, 3]
    serial = ns.repeat(task, seeds, backend="serial")
    assert [r["seed"] for r in serial] == seeds
    assert {r["threads"] for r in serial} == {1}
    assert len({r["elbo"][-1] for r in serial}) == 3
    assert ns.repeat(task, seeds, workers=2) == serial
    pytest.importorskip("distributed")
    assert ns.repeat(task, seeds, backend="dask", workers=2) == serial


def test_a_cluster_that_is_there_is_used() -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        before = client.id
        assert ns.repeat(abs, [-1, -2], backend="dask") == [1, 2]
        assert distributed.get_client().id == before


def test_threads_of_the_caller_come_back() -> None:
    torch.set_num_threads(2)
    try:
        assert ns.repeat(lambda row: torch.get_num_threads(), [0], backend="serial") == [1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def _kind(array: np.ndarray[Any, Any]) -> str:
    return f"{type(array).__name__}, {array.nbytes}, {array.flags.writeable}"


def test_large_arrays_arrive_as_arrays() -> None:
    """Not as the memmaps that joblib would make of them, which fit reads in another way."""
    large = np.zeros(2**20)
    assert ns.repeat(_kind, [large, large], workers=2) == [_kind(large)] * 2


def test_a_tasks_error_is_the_callers() -> None:
    with pytest.raises(ZeroDivisionError):
        ns.repeat(lambda row: 1 // row, [1, 0], workers=2)
    assert ns.repeat(_task, []) == []


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"backend": "threads"}, "threads draw from one torch generator"),
        ({"backend": "spark"}, "must be one of 'processes', 'dask', 'ray', 'serial', got 'spark'"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"task": 3}, "must be a function of one row, got 3"),
    ],
)
def test_a_sentence(options: dict[str, Any], word: str) -> None:
    with pytest.raises((ValueError, TypeError), match=word):
        ns.repeat(**({"task": abs, "rows": [1]} | options))


@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_a_missing_package_is_named(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def without(name: str, *more: Any) -> Any:
        if name.split(".")[0] in ("distributed", "ray"):
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(ValueError, match=rf'pip install "nodeslab\[{backend}\]"'):
        ns.repeat(abs, [1], backend=backend)
