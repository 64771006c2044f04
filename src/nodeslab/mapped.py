"""numpy.memmap read block after block; pages that were read are handed back, so that they do not pile up."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from nodeslab.data import same_rows
from nodeslab.streamed import BLOCK_BYTES, Reader, Rows

__all__ = ["Mapped"]


class Mapped(Reader):
    """Inputs and targets of which some are memmaps; the others are arrays in memory. Rows first."""

    def __init__(self, inputs: Sequence[np.ndarray[Any, Any]], y: np.ndarray[Any, Any]) -> None:
        self.inputs, self.y = tuple(inputs), y
        names = ["X"] if len(self.inputs) == 1 else [f"X[{i}]" for i in range(len(self.inputs))]
        for name, array in zip((*names, "y"), (*self.inputs, y), strict=True):
            if array.ndim == 0 or array.size == 0:
                raise ValueError(f"{name} has shape {array.shape}; a memmap must have rows first, and at least one.")
            same_rows(array, y, (name, "y"))
        self.row_bytes = sum(a.nbytes // len(a) for a in (*self.inputs, y))
        step = max(1, BLOCK_BYTES // max(1, self.row_bytes))
        self.sizes = [min(step, len(y) - i) for i in range(0, len(y), step)]
        self._step = step

    def read(self, block: int) -> Rows:
        rows = slice(block * self._step, (block + 1) * self._step)
        return tuple(_copy(x[rows]) for x in self.inputs), _copy(self.y[rows])

    def targets(self, block: int) -> np.ndarray[Any, Any]:
        return _copy(self.y[block * self._step : (block + 1) * self._step])

    def describe(self) -> str:
        return repr([(a.shape, a.dtype.str) for a in (*self.inputs, self.y)])


def _copy(part: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The part in memory; the pages of the file that it was read from no longer count as the process's own."""
    out = np.array(part, order="C", subok=False)
    file = part
    while isinstance(file, np.ndarray):
        if isinstance(file, np.memmap) and file.mode == "c":
            return out  # its pages may hold changes that are nowhere else
        if file.base is None:
            return out
        file = file.base
    if sys.platform == "linux" and isinstance(file, mmap.mmap):
        begin = np.frombuffer(file, dtype=np.uint8).__array_interface__["data"][0]
        first = part.__array_interface__["data"][0] - begin
        reach = [(n - 1) * stride for n, stride in zip(part.shape, part.strides, strict=True)]
        low = (first + sum(min(r, 0) for r in reach)) // mmap.PAGESIZE * mmap.PAGESIZE
        high = first + sum(max(r, 0) for r in reach) + part.itemsize
        file.madvise(mmap.MADV_DONTNEED, low, high - low)
    return out
