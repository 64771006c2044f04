"""Where a fit's batches come from: arrays in memory, files, or any DataLoader; and the randomness that deals them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from nodeslab.data import as_inputs, as_targets, refuse_constant_columns, same_rows
from nodeslab.layers import takes_integers
from nodeslab.mapped import Mapped
from nodeslab.model import Bayesian
from nodeslab.parquet import Parquet, RowGroups
from nodeslab.prediction import inputs_for
from nodeslab.streamed import Reader, Streamed

__all__ = ["Arrays", "Batch", "Loader", "Randomness", "Source", "source_for"]

Batch = tuple[tuple[Tensor, ...], Tensor]


class Arrays:
    """Arrays in memory: a permutation for each epoch, of which every batch gathers its own rows."""

    def __init__(self, inputs: tuple[Tensor, ...], y: Tensor, batch_size: int) -> None:
        self.inputs, self.y, self.batch_size = inputs, y, batch_size
        self.rows: int | None = len(y)

    def first(self) -> Batch:
        k = min(self.batch_size, len(self.y))
        return tuple(x[:k] for x in self.inputs), self.y[:k]

    def epoch(self, skip: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from the one numbered `skip`; the order is drawn at once."""
        parts = torch.split(torch.randperm(len(self.y)).to(self.y.device), self.batch_size)[skip:]
        # not all at once: fresh memory for the whole of the data would cost more than the copying
        return ((tuple(_gathered(x, rows) for x in self.inputs), _gathered(self.y, rows)) for rows in parts)


def _gathered(x: Tensor, rows: Tensor) -> Tensor:
    """Some rows, in the memory format of x; index_select is the faster one, and gives contiguous memory."""
    return x.index_select(0, rows) if x.is_contiguous() else x[rows]


class Loader:
    """Any DataLoader (or other iterable that can be gone through again) of (x, y) pairs."""

    def __init__(self, loader: Iterable[Any], model: Bayesian) -> None:
        self.loader, self.model = loader, model
        self.rows: int | None = None
        if isinstance(loader, DataLoader):
            try:
                self.rows = len(loader.dataset)  # type: ignore[arg-type]
            except TypeError:
                self.rows = None
        self.batch_size = 0
        if iter(loader) is loader:
            raise TypeError(f"data is a {type(loader).__name__}, which can be gone through once; give a DataLoader.")

    def _batch(self, item: Any) -> Batch:
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise TypeError(f"A DataLoader must give pairs (x, y), got {type(item).__name__}; adapt its dataset.")
        x, y = item
        inputs = inputs_for(self.model, tuple(x) if isinstance(x, list) else x, "x of a batch")
        target = as_targets(y, "y of a batch")
        same_rows(inputs[0], target, ("x of a batch", "y"))
        return inputs, target

    def first(self) -> Batch:
        before = Randomness.now(self)
        try:
            for item in self.loader:
                batch = self._batch(item)
                named = self.loader.batch_size if isinstance(self.loader, DataLoader) else None
                self.batch_size = named or len(batch[1])
                return batch
        finally:
            before.put_back(self)
        raise ValueError("The DataLoader gives no batch: its dataset is empty.")

    def epoch(self, skip: int = 0) -> Iterator[Batch]:
        """The loader's batches from the one numbered `skip`: it must make the others too, to be in the same state."""
        items = iter(self.loader)
        for _ in range(skip):
            next(items, None)
        return map(self._batch, items)


Source = Arrays | Loader | Streamed


@dataclass
class Randomness:
    """The states of all generators that a fit's data may draw from: torch's, numpy's, Python's, the loader's own."""

    tensors: dict[str, Tensor]
    python: Any

    @classmethod
    def now(cls, source: Source) -> Randomness:
        numpy_state: Any = np.random.get_state(legacy=True)
        tensors = {"torch": torch.get_rng_state()}
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            tensors |= {f"cuda{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
        tensors["numpy"] = torch.from_numpy(numpy_state[1].astype(np.int64))
        tensors |= {name: g.get_state() for name, g in generators(source).items()}
        version, numbers, extra = random.getstate()
        rest = [str(numpy_state[0]), int(numpy_state[2]), int(numpy_state[3]), float(numpy_state[4])]
        return cls(tensors, [version, list(numbers), extra, rest])

    def put_back(self, source: Source) -> None:
        torch.set_rng_state(self.tensors["torch"])
        cuda = [self.tensors[k] for k in sorted(k for k in self.tensors if k.startswith("cuda"))]
        if cuda and torch.cuda.is_available():  # a fit that was begun there may go on elsewhere
            torch.cuda.set_rng_state_all(cuda)
        version, numbers, extra, rest = self.python
        np.random.set_state((rest[0], self.tensors["numpy"].numpy().astype(np.uint32), *rest[1:]))
        random.setstate((version, tuple(numbers), extra))
        for name, g in generators(source).items():
            g.set_state(self.tensors[name])


def generators(source: Source) -> dict[str, torch.Generator]:
    """Generators of a loader's own, and of its sampler's."""
    if not isinstance(source, Loader) or not isinstance(source.loader, DataLoader):
        return {}
    places: dict[str, Any] = {"loader": source.loader}
    for name in ("sampler", "batch_sampler"):
        place = getattr(source.loader, name)
        while place is not None and name not in places and len(places) < 50:  # a sampler may hold another one
            places[name] = place
            place, name = getattr(place, "__dict__", {}).get("sampler"), f"{name}.sampler"
    found = {name: getattr(place, "__dict__", {}).get("generator") for name, place in places.items()}
    return {name: g for name, g in found.items() if isinstance(g, torch.Generator)}


def _mapped(model: Bayesian, X: Any, y: Any) -> Mapped | None:
    """X (or several) and y where at least one of them is a memmap; None where all are in memory."""
    several = X if isinstance(X, tuple) else (X,)
    if not any(isinstance(part, np.memmap) for part in (*several, y)):
        return None
    exact = torch.float64 if next(model.posteriors.parameters()).dtype == torch.float64 else torch.float32
    keep = takes_integers(model.net)
    inputs = [x if isinstance(x, np.memmap) else as_inputs(x, exact, "X", keep).numpy() for x in several]
    return Mapped(inputs, y if isinstance(y, np.memmap) else as_targets(y).numpy())


def _streamed(model: Bayesian, reader: Reader, batch_size: int, allow_constant: bool) -> Streamed:
    dtype = next(model.posteriors.parameters()).dtype
    source = Streamed(reader, dtype, takes_integers(model.net), batch_size)
    if source.rows == 1:
        raise ValueError("data has one row; a fit needs at least two.")
    if not allow_constant:
        source.refuse_constant_columns()
    return source


def source_for(model: Bayesian, data: Any, batch_size: int, allow_constant: bool) -> Source:
    if isinstance(data, Parquet):
        return _streamed(model, RowGroups(data), batch_size, allow_constant)
    if isinstance(data, (tuple, list)):
        if len(data) != 2:
            raise ValueError(f"data must be a pair (X, y), got {len(data)} parts; several inputs go as ((X1, X2), y).")
        mapped = _mapped(model, *data)
        if mapped is not None:
            return _streamed(model, mapped, batch_size, allow_constant)
        inputs, y = inputs_for(model, data[0]), as_targets(data[1])
        same_rows(inputs[0], y)
        if len(y) < 2:
            raise ValueError("data has one row; a fit needs at least two.")
        if not allow_constant:
            for i, x in enumerate(inputs):
                refuse_constant_columns(x, "X" if len(inputs) == 1 else f"X[{i}]")
        return Arrays(inputs, y, batch_size)
    if isinstance(data, Tensor) or not isinstance(data, Iterable):
        raise TypeError(f"data must be a pair (X, y), ns.Parquet or a DataLoader, got {type(data).__name__}.")
    return Loader(data, model)
