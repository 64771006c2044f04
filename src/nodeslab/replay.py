"""A training step recorded on a CUDA device and replayed: one launch instead of some hundred.

A recording is of one shape of batch and of tensors that stay where they are. While it is made the step's Python runs;
when it is replayed it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Replay"]

WARM = 3  # steps of each shape that run as they are, before one is recorded: what is made at first use is there then


class Replay:
    """Calls `body(*tensors)`, which works in place on the device alone, by a recording of it for each shape."""

    def __init__(self, body: Callable[..., None], device: torch.device) -> None:
        self.body, self.device = body, device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.pool: Any = None
        self.recorded: dict[Any, tuple[Any, tuple[Tensor, ...]]] = {}
        self.seen: dict[Any, int] = {}

    def __call__(self, *tensors: Tensor) -> None:
        key = tuple((t.shape, t.dtype) for t in tensors)
        self.seen[key] = self.seen.get(key, 0) + 1
        if self.seen[key] <= WARM:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self.stream):
                self.body(*(t.to(self.device) for t in tensors))
            torch.cuda.current_stream(self.device).wait_stream(self.stream)
            return
        if key not in self.recorded:
            self.recorded[key] = self._record(tensors)
        graph, own = self.recorded[key]
        for mine, t in zip(own, tensors, strict=True):
            mine.copy_(t, non_blocking=True)
        graph.replay()

    def _record(self, tensors: tuple[Tensor, ...]) -> tuple[Any, tuple[Tensor, ...]]:
        own = tuple(t.to(self.device, copy=True) for t in tensors)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            self.body(*own)
        self.pool = graph.pool()
        return graph, own
