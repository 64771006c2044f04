"""The same task for many seeds or settings: results in order, the same numbers on every backend."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import joblib
import torch

from nodeslab.checks import whole
from nodeslab.parallel import alone

__all__ = ["BACKENDS", "repeat"]

Row = TypeVar("Row")
Result = TypeVar("Result")

#: joblib's name of each backend.
BACKENDS = {"processes": "loky", "dask": "dask", "ray": "ray", "serial": "sequential"}


def repeat(
    task: Callable[[Row], Result], rows: Iterable[Row], *, backend: str = "processes", workers: int | None = None
) -> list[Result]:
    """[task(row) for row in rows], each on one torch thread, by several workers at a time.

    task: a function that can be pickled and takes its randomness from its row (a seed, or whatever says it).
    backend: "processes" on this machine; "dask", on the cluster of the current dask.distributed Client, or a local one
        that lives as long as the call; "ray", likewise; "serial", one after the other in this process.
    workers: how many at a time; by default one for each core, or all that a cluster has.
    """
    if not callable(task):
        raise TypeError(f"repeat: task must be a function of one row, got {task!r} of type {type(task).__name__}.")
    if backend == "threads":
        raise ValueError(
            'repeat: backend="threads" would mix the random numbers of tasks, because all threads draw from one torch '
            'generator; take "processes".'
        )
    if backend not in BACKENDS:
        raise ValueError(f"repeat: backend must be one of {', '.join(map(repr, BACKENDS))}, got {backend!r}.")
    count = None if workers is None else whole("repeat: workers", workers)
    todo = list(rows)
    if backend == "serial" or not todo:
        return [_alone(task, row) for row in todo]
    # max_nbytes: joblib would hand large arrays over as memmaps, which a fit reads in another way than arrays
    with (
        _cluster(backend, count),
        joblib.parallel_config(BACKENDS[backend], n_jobs=-1 if count is None else count, max_nbytes=None),
    ):
        done: list[Result] = joblib.Parallel()(joblib.delayed(_alone)(task, row) for row in todo)
    return done


def _alone(task: Callable[[Row], Result], row: Row) -> Result:
    """One task on one thread: sums are split between threads, and would round differently on other machines."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with alone():
            return task(row)
    finally:
        torch.set_num_threads(before)


@contextmanager
def _cluster(backend: str, workers: int | None) -> Iterator[None]:
    """What a backend of joblib needs to be there: a cluster that is running already, or one of its own."""
    if backend == "dask":
        distributed = _extra("dask")
        try:
            distributed.get_client()
        except ValueError:
            cluster = distributed.LocalCluster(
                n_workers=workers or joblib.cpu_count(), threads_per_worker=1, dashboard_address=None
            )
            with cluster, distributed.Client(cluster):
                yield
            return
    elif backend == "ray":
        _extra("ray").register_ray()
    yield


def _extra(backend: str) -> Any:
    try:
        return importlib.import_module({"dask": "distributed", "ray": "ray.util.joblib"}[backend])
    except ImportError as e:
        raise ValueError(f'backend="{backend}" needs another package: pip install "nodeslab[{backend}]".') from e
