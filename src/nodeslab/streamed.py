"""Data larger than memory: dealt out in shuffled blocks of rows, through a buffer of bounded size."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nodeslab.data import NARROW, as_inputs, as_targets, refuse_constant_columns

__all__ = ["BLOCK_BYTES", "BUFFER_BYTES", "Reader", "Rows", "Streamed"]

#: What is read at once where the reader may choose, and what is held in memory to shuffle rows in.
BLOCK_BYTES, BUFFER_BYTES = 2**20, 2**26
#: As many blocks stand for all the data when a checkpoint is compared with them.
SAMPLED = 8

Rows = tuple[tuple[np.ndarray[Any, Any], ...], np.ndarray[Any, Any]]


class Reader(ABC):
    """Rows in blocks: `sizes` says how many rows each block has, `row_bytes` what a row takes in memory."""

    sizes: Sequence[int]
    row_bytes: int

    @abstractmethod
    def read(self, block: int) -> Rows:
        """Inputs and targets of a block, as copies in memory."""

    @abstractmethod
    def targets(self, block: int) -> np.ndarray[Any, Any]:
        """The targets of a block alone."""

    @abstractmethod
    def describe(self) -> str:
        """What the data are, without their values: shapes and types."""


class Streamed:
    """Blocks in random order, and their rows in random order within a buffer of 64 MiB.

    Every row comes once in an epoch. The places of blocks are uniform over the epoch, those of rows over their buffer
    of G blocks: a batch of B rows is a random sample of G blocks that were themselves drawn at random. Its mean has the
    variance of B independent rows and about 1/G of that between the means of blocks: nothing where the file's order
    says nothing, and little in a sorted file while G is large (64 blocks of 1 MiB of a memmap). Data that fit into
    one buffer are dealt out as arrays in memory are, to the bit.
    """

    def __init__(self, reader: Reader, dtype: torch.dtype, keep_integers: bool, batch_size: int) -> None:
        self.reader, self.dtype, self.keep_integers, self.batch_size = reader, dtype, keep_integers, batch_size
        self.starts = np.concatenate([[0], np.cumsum(reader.sizes, dtype=np.int64)])
        self.rows: int | None = int(self.starts[-1])
        self.spread = torch.zeros(())  # the targets' standard deviation, once they were surveyed

    # ---- before the first epoch ----------------------------------------------------------------------------

    def first(self) -> tuple[tuple[Tensor, ...], Tensor]:
        inputs, y = self.reader.read(0)
        rows = np.arange(min(self.batch_size, len(y)))
        return self._cast(tuple(x[rows] for x in inputs), y[rows], rows)

    def refuse_constant_columns(self) -> None:
        """As for arrays; blocks are read until every column of the tables has shown two values."""
        inputs, _ = self.reader.read(0)
        tables = [] if self.keep_integers else [i for i, x in enumerate(inputs) if x.ndim == 2 and x.shape[1] <= NARROW]
        heads = {i: inputs[i][:1].copy() for i in tables}
        others = {i: head.copy() for i, head in heads.items()}
        for block in range(len(self.reader.sizes)):
            if all(bool((others[i] != heads[i]).all()) for i in tables):
                return
            inputs, _ = self.reader.read(block)
            for i in tables:
                differs = inputs[i] != heads[i]
                place = differs.argmax(0)[None]
                there = np.take_along_axis(differs, place, 0)
                others[i][there] = np.take_along_axis(inputs[i], place, 0)[there]
        for i in tables:
            name = "X" if len(inputs) == 1 else f"X[{i}]"
            refuse_constant_columns(as_inputs(np.concatenate([heads[i], others[i]]), self.dtype, name), name)

    def survey(self, check: Callable[[Tensor], Tensor]) -> Tensor:
        """The least and the largest target of each column as two rows, and `spread`; one pass, block after block.

        check: what a likelihood makes of targets. Means and squares are joined as Chan, Golub and LeVeque do.
        """
        count, mean, squares = 0, torch.zeros(()), torch.zeros(())
        low = high = torch.zeros(())
        for blocks in self._buffers(list(range(len(self.reader.sizes)))):
            rows = np.arange(self.starts[blocks[0]], self.starts[blocks[-1] + 1])
            y = check(as_targets(np.concatenate([self.reader.targets(b) for b in blocks]), "y", rows))
            least, most, values = y.amin(0), y.amax(0), y.double()
            new_mean = values.mean(0)
            new_squares = (values - new_mean).square().sum(0)
            if count == 0:
                low, high, mean, squares = least, most, new_mean, new_squares
                self.spread = values.std(0)  # as of arrays in memory, to the bit, if this is all
            else:
                low, high = torch.minimum(low, least), torch.maximum(high, most)
                delta, total = new_mean - mean, count + len(y)
                squares = squares + new_squares + delta.square() * (count * len(y) / total)
                mean = mean + delta * (len(y) / total)
                self.spread = torch.sqrt(squares / (total - 1))
            count += len(y)
        return torch.stack([low, high])

    def fingerprint(self) -> bytes:
        """Of the data's shape, types and a sample of blocks: enough to tell another data set from this one."""
        digest = hashlib.sha256(self.reader.describe().encode())
        last = len(self.reader.sizes) - 1
        for block in sorted({last * i // (SAMPLED - 1) for i in range(SAMPLED)}):
            inputs, y = self.reader.read(block)
            for array in (*inputs, y):
                digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return digest.digest()

    # ---- an epoch ------------------------------------------------------------------------------------------

    def epoch(self, skip: int = 0) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
        """The batches of an epoch from the one numbered `skip`; what comes before it is not read."""
        # all that is random is drawn here, so that the fit's own draws between batches do not come in between
        if self.rows is not None and self.rows * self.reader.row_bytes <= BUFFER_BYTES:
            order = torch.randperm(self.rows).numpy()
            return self._deal([(list(range(len(self.reader.sizes))), order)], skip * self.batch_size)
        blocks: list[int] = torch.randperm(len(self.reader.sizes)).tolist()
        seed = int(torch.randint(2**62, ()))
        return self._deal([(b, seed + i) for i, b in enumerate(self._buffers(blocks))], skip * self.batch_size)

    def _buffers(self, order: list[int]) -> list[list[int]]:
        """Blocks in this order, as many together as the buffer holds (one, where it is larger than that)."""
        buffers: list[list[int]] = []
        room = 0
        for block in order:
            size = self.reader.sizes[block] * self.reader.row_bytes
            if not buffers or size > room:
                buffers.append([])
                room = BUFFER_BYTES
            buffers[-1].append(block)
            room -= size
        return buffers

    def _deal(
        self, buffers: list[tuple[list[int], int | np.ndarray[Any, Any]]], start: int
    ) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
        """Batches of the rows from the one numbered `start` on. A buffer is its blocks, and its rows' order or seed."""
        parts: list[tuple[Rows, np.ndarray[Any, Any]]] = []  # of a batch that began in an earlier buffer
        for blocks, dealt in buffers:
            size = sum(self.reader.sizes[b] for b in blocks)
            if start >= size:
                start -= size
                continue
            if isinstance(dealt, int):
                order = torch.randperm(size, generator=torch.Generator().manual_seed(dealt % 2**63)).numpy()
            else:
                order = dealt
            (inputs, y), numbers = self._load(blocks, size)
            while start < size:
                missing = self.batch_size - sum(len(rows) for _, rows in parts)
                chosen = order[start : start + missing]
                parts.append(((tuple(x[chosen] for x in inputs), y[chosen]), numbers[chosen]))
                start += missing
                if len(chosen) == missing:
                    yield self._join(parts)
                    parts = []
            start = 0
            del inputs, y  # before the next buffer is made
        if parts:
            yield self._join(parts)

    def _load(self, blocks: list[int], size: int) -> tuple[Rows, np.ndarray[Any, Any]]:
        """The rows of some blocks, and the number of each in the whole of the data."""
        filled: list[np.ndarray[Any, Any]] = []
        numbers = np.empty(size, dtype=np.int64)
        at = 0
        for block in blocks:
            inputs, y = self.reader.read(block)
            if not filled:
                filled = [np.empty((size, *part.shape[1:]), dtype=part.dtype) for part in (*inputs, y)]
            for whole, part in zip(filled, (*inputs, y), strict=True):
                whole[at : at + len(y)] = part
            numbers[at : at + len(y)] = np.arange(self.starts[block], self.starts[block + 1])
            at += len(y)
        return (tuple(filled[:-1]), filled[-1]), numbers

    def _join(self, parts: list[tuple[Rows, np.ndarray[Any, Any]]]) -> tuple[tuple[Tensor, ...], Tensor]:
        if len(parts) == 1:
            (inputs, y), rows = parts[0]
            return self._cast(inputs, y, rows)
        inputs = tuple(np.concatenate(pieces) for pieces in zip(*(i for (i, _), _ in parts), strict=True))
        y, rows = np.concatenate([y for (_, y), _ in parts]), np.concatenate([rows for _, rows in parts])
        return self._cast(inputs, y, rows)

    def _cast(
        self, inputs: tuple[np.ndarray[Any, Any], ...], y: np.ndarray[Any, Any], rows: np.ndarray[Any, Any]
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """A batch in the model's type, every value finite."""
        names = ["X"] if len(inputs) == 1 else [f"X[{i}]" for i in range(len(inputs))]
        cast = (as_inputs(x, self.dtype, n, self.keep_integers, rows) for x, n in zip(inputs, names, strict=True))
        return tuple(cast), as_targets(y, "y", rows)
