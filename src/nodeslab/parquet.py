"""Parquet files as data: columns of numbers, read a row group at a time through pyarrow (extra `parquet`)."""

from __future__ import annotations

import glob
import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nodeslab.checks import whole
from nodeslab.streamed import Reader, Rows

__all__ = ["Parquet", "RowGroups", "pyarrow_modules"]


@dataclass(frozen=True)
class Parquet:
    """The rows of one Parquet file, or of all that a pattern such as "data/*.parquet" names, in the order of names.

    y is the column `target`, X the columns `features` (default: all others) in this order; all must hold numbers. A
    fit shuffles row groups, and rows within 64 MiB of them: files written with row groups of about 10,000 rows are
    shuffled well, and memory is bounded by 64 MiB or the largest row group. Predictions come batch by batch, and are
    those of one call, because the same seed gives the same draws:

        table = ns.Parquet("houses.parquet", target="price")
        model = ns.bayesian(net, ns.ssig(), n=table.rows)
        ns.fit(model, table, likelihood=ns.Gaussian("learn"), seed=0)
        for X, y in table.batches():
            p = ns.predict(model, X, seed=0)
    """

    path: str | os.PathLike[str]
    target: str
    features: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.path, (str, os.PathLike)):
            raise TypeError(f"Parquet: path must be a file or a pattern, got {self.path!r}.")
        if not isinstance(self.target, str):
            raise TypeError(f"Parquet: target must be the name of a column, got {self.target!r}.")
        if self.features is not None:
            if isinstance(self.features, str) or not all(isinstance(f, str) for f in self.features):
                raise TypeError(f"Parquet: features must be a list of names of columns, got {self.features!r}.")
            object.__setattr__(self, "features", tuple(self.features))
            if not self.features or self.target in self.features:
                raise ValueError(
                    f"Parquet: features must be at least one column and not the target, got {list(self.features)}."
                )

    def files(self) -> list[Path]:
        """The files that `path` names, sorted."""
        text = os.fspath(self.path)
        if os.path.isdir(text):
            raise ValueError(f"{text} is a folder; give a pattern of its files, such as {text.rstrip('/')}/*.parquet.")
        found = [text] if os.path.exists(text) else sorted(glob.glob(text))
        if not found:
            raise FileNotFoundError(f"There is no file {text}; give a Parquet file or a pattern that matches some.")
        return [Path(f) for f in found]

    @property
    def rows(self) -> int:
        """The number of rows in all files, which their footers say."""
        return sum(RowGroups(self).sizes)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of X's columns."""
        return RowGroups(self).features

    def batches(self, rows: int = 65_536) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        """(X, y) for at most so many rows at a time, in the files' order."""
        step, reader = whole("rows", rows), RowGroups(self)
        for group in range(len(reader.sizes)):
            (X,), y = reader.read(group)
            for i in range(0, len(y), step):
                yield X[i : i + step], y[i : i + step]


class RowGroups(Reader):
    """The row groups of all files, one after the other; empty ones are left out."""

    def __init__(self, table: Parquet) -> None:
        self._arrow, self._parquet = pyarrow_modules()
        self.target = table.target
        self.files = table.files()
        opened = [self._open(file) for file in self.files]
        self._metadata = [f.metadata for f in opened]
        schema = opened[0].schema_arrow
        self.features = table.features or tuple(n for n in schema.names if n != table.target)
        if not self.features:
            raise ValueError(f"{self.files[0]} has no column but {table.target!r}; X needs at least one.")
        for file, one in zip(self.files, opened, strict=True):
            self._check(file, one.schema_arrow)
        self._groups = [
            (i, g) for i, m in enumerate(self._metadata) for g in range(m.num_row_groups) if m.row_group(g).num_rows
        ]
        if not self._groups:
            raise ValueError(f"{os.fspath(table.path)} has no rows.")
        self.sizes = [self._metadata[i].row_group(g).num_rows for i, g in self._groups]
        # one type for all blocks: a file may hold as integers what another one holds as floats
        numbers = [self._dtype(f.schema_arrow.field(n).type) for f in opened for n in self.features]
        self._type = np.result_type(*numbers)
        self._target_type = np.result_type(*(self._dtype(f.schema_arrow.field(self.target).type) for f in opened))
        self.row_bytes = self._type.itemsize * len(self.features) + self._target_type.itemsize

    def _open(self, file: Path, metadata: Any = None) -> Any:
        try:
            return self._parquet.ParquetFile(file, metadata=metadata)
        except (self._arrow.ArrowException, OSError) as e:
            raise ValueError(f"{file} cannot be read as Parquet ({str(e).rstrip('.')}); is it another format?") from e

    def _check(self, file: Path, schema: Any) -> None:
        """Every column is there once and holds numbers."""
        types = self._arrow.types
        for name in (*self.features, self.target):
            if schema.names.count(name) != 1:
                raise ValueError(
                    f"{file} has {schema.names.count(name)} columns called {name!r}, one was expected; it has "
                    f"{', '.join(map(repr, schema.names))}."
                )
            kind = schema.field(name).type
            if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind):
                continue
            advice = "turn it into a number, such as days, or leave it out of features"
            if types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind):
                advice = "encode it as numbers or leave it out of features"
            raise TypeError(f"Column {name!r} of {file} holds {kind}, not numbers; {advice}.")

    def _dtype(self, kind: Any) -> np.dtype[Any]:
        if self._arrow.types.is_decimal(kind):
            return np.dtype(np.float64)
        number: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return number

    def _columns(self, block: int, names: tuple[str, ...]) -> list[np.ndarray[Any, Any]]:
        i, group = self._groups[block]
        with self._open(self.files[i], self._metadata[i]) as file:
            table = file.read_row_group(group, columns=list(names), use_threads=False)
        out = []
        for name in names:
            column = table.column(name)
            if column.null_count:
                before = sum(self._metadata[i].row_group(g).num_rows for g in range(group))
                row = before + int(np.flatnonzero(column.is_null().to_numpy())[0])
                raise ValueError(
                    f"{self.files[i]} has an empty value at row {row}, column {name!r}; impute it or drop the row."
                )
            if self._arrow.types.is_decimal(column.type):
                column = column.cast(self._arrow.float64())
            out.append(column.to_numpy())
        return out

    def read(self, block: int) -> Rows:
        *inputs, y = self._columns(block, (*self.features, self.target))
        X = np.empty((len(y), len(inputs)), dtype=self._type)
        for i, column in enumerate(inputs):
            X[:, i] = column
        return (X,), y.astype(self._target_type)

    def targets(self, block: int) -> np.ndarray[Any, Any]:
        return self._columns(block, (self.target,))[0].astype(self._target_type)

    def describe(self) -> str:
        return repr([list(self.sizes), self.features, self.target, str(self._type), str(self._target_type)])


def pyarrow_modules() -> tuple[Any, Any]:
    """pyarrow and pyarrow.parquet, or a sentence where they are not installed."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as e:
        raise ValueError('Parquet files are read by pyarrow: pip install "nodeslab[parquet]".') from e
