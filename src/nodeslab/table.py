"""A file becomes a table: columns as they stand in a CSV, Parquet or .npz file; what is no table is a sentence."""

from __future__ import annotations

import csv
import re
import zipfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nodeslab.parquet import pyarrow_modules

__all__ = ["Array", "Table", "Texts", "read_table"]

#: What stands for a gap, in any case; in a table of texts a gap is "".
GAPS = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "<na>", "nat"})
#: A column with this share of numbers is one of numbers that holds something odd.
MOSTLY = 0.8
SHOWN = 8  # names in a sentence

DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}([-/.]\d{1,2}([T ].*)?)?|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2})( .*)?|\d{1,2}:\d{2}(:\d{2}.*)?"
)
#: Numbers as people write them: 1,234.5 or 12,5 or 30 % or $ 5.
WRITTEN = re.compile(r"[^\w\s]?\s?[-+]?\d[\d,.' ]*\s?([^\w\s]|[A-Z]{3})?")

Array = np.ndarray[Any, np.dtype[np.float64]]
Texts = np.ndarray[Any, np.dtype[np.object_]]


@dataclass(frozen=True)
class Table:
    """Columns by name: texts as in the file ("" is a gap), or numbers (NaN is a gap), each as long as the others."""

    file: Path
    columns: dict[str, Texts | Array]

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values())))

    def names(self) -> str:
        """The columns in a sentence."""
        return listed(self.columns)

    def without(self, names: Collection[str]) -> Table:
        """The other columns."""
        for name in names:
            self.column(name)
        return Table(self.file, {k: v for k, v in self.columns.items() if k not in names})

    def column(self, name: str) -> Texts | Array:
        if name not in self.columns:
            hint = ""
            if all(_is_number(k) for k in self.columns):
                hint = "; its first line must hold the names"
            raise ValueError(f"{self.file} has no column called {name!r}; it has {self.names()}{hint}.")
        return self.columns[name]

    def numbers(self, name: str) -> Array:
        """A column's numbers, NaN for a gap; a sentence for what is none, and for infinity."""
        column = self.column(name)
        values = _as_numbers(column)
        if values is None:
            row = next(i for i, text in enumerate(column) if text and not _is_number(text))
            raise ValueError(
                f"Column {name!r} of {self.file} must hold numbers, but holds {_short(column[row])} in row {row}; mend "
                "it or leave it empty."
            )
        if np.isinf(values).any():
            row = int(np.flatnonzero(np.isinf(values))[0])
            raise ValueError(
                f"Column {name!r} of {self.file} holds {values[row]:g} in row {row}; leave it empty or drop the row."
            )
        return values

    def texts(self, name: str) -> Texts:
        """A column's texts, "" for a gap; a number as it is written shortest."""
        column = self.column(name)
        if column.dtype == object:
            return column.astype(object, copy=False)
        return np.array(["" if np.isnan(v) else f"{v:.15g}" for v in column.tolist()], dtype=object)

    def is_category(self, name: str) -> bool:
        """False for numbers, True for texts; dates, and numbers that cannot be read as such, are refused."""
        column = self.column(name)
        if _as_numbers(column) is not None:
            return False
        seen = {text for text in column if text}
        odd = sorted(text for text in seen if not _is_number(text))
        row = next(i for i, text in enumerate(column) if text == odd[0])
        where = f"Column {name!r} of {self.file} holds"
        if all(DATE.fullmatch(text) for text in odd):
            raise ValueError(
                f"{where} dates or times (such as {_short(odd[0])} in row {row}); turn them into numbers, such as days "
                f"since the first, the month and the weekday, or leave the column out: --drop {name}."
            )
        if all(WRITTEN.fullmatch(text) for text in odd):
            raise ValueError(
                f"{where} {_short(odd[0])} in row {row}; write numbers plainly, with a point and without separators or "
                f"units (1234.5), or leave the column out: --drop {name}."
            )
        strange = set(odd)
        share = 1.0 - sum(text in strange for text in column) / sum(text != "" for text in column)
        if share >= MOSTLY:
            raise ValueError(
                f"{where} {_short(odd[0])} in row {row}, while {share:.0%} of its values are numbers; mend it or leave "
                f"it empty, or take all of them for texts: --categories {name}."
            )
        return True


def listed(names: Collection[str]) -> str:
    """Names in a sentence, the first few of many."""
    shown = list(names)
    rest = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN + 1 else ""
    return ", ".join(shown[: SHOWN if rest else None]) + rest


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _as_numbers(column: Texts | Array) -> Array | None:
    """Float64 with NaN for gaps, or None where a text is no number."""
    if column.dtype != object:
        return column.astype(np.float64, copy=False)
    try:
        return np.array([text or "nan" for text in column], dtype=np.float64)
    except ValueError:
        return None


# ---- files ---------------------------------------------------------------------------------------------------------


def read_table(file: Path) -> Table:
    """The columns of a .csv (names in the first line), a .parquet, or an .npz with X (X[0], X[1], ...) and others."""
    kind = file.suffix.lower()
    if file.is_dir():
        raise ValueError(f"{file} is a folder; give a .csv, .parquet or .npz file.")
    if not file.is_file():
        raise FileNotFoundError(f"There is no file {file}.")
    readers = {".csv": _csv, ".parquet": _parquet, ".npz": _npz}
    if kind not in readers:
        raise ValueError(f"{file} must be a .csv, .parquet or .npz file, got {kind or 'no ending'}.")
    columns = readers[kind](file)
    table = Table(file, columns)
    if table.rows == 0:
        raise ValueError(f"{file} has columns ({table.names()}) and no rows.")
    return table


def _csv(file: Path) -> dict[str, Texts | Array]:
    try:
        with open(file, newline="", encoding="utf-8-sig") as f:
            first = f.readline()
            f.seek(0)
            separator = "," if "," in first else next((s for s in ";\t" if s in first), ",")
            rows = [row for row in csv.reader(f, delimiter=separator) if row]
    except (csv.Error, UnicodeError) as e:
        raise ValueError(f"{file} cannot be read as a CSV file ({e}); save it as plain CSV in UTF-8.") from e
    if not rows:
        raise ValueError(f"{file} is empty; a line of names and rows of values were expected.")
    header = [name.strip() for name in rows[0]]
    for i, row in enumerate(rows[1:]):
        if len(row) != len(header):
            raise ValueError(
                f"{file} has {len(row)} values in row {i}, but {len(header)} columns; a text that holds a "
                f"{separator!r} must stand in quotes."
            )
    columns: list[Texts] = [
        np.array([_text(v) for v in column], dtype=object) for column in zip(*rows[1:], strict=True)
    ]
    return _named(file, header, columns or [np.empty(0, dtype=object) for _ in header])


def _text(value: str) -> str:
    stripped = value.strip()
    return "" if stripped.lower() in GAPS else stripped


def _named(file: Path, names: list[str], columns: list[Any]) -> dict[str, Texts | Array]:
    """Columns under names of their own; one without a name, as an index that was written along, has its place's."""
    full = [name or f"(column {i})" for i, name in enumerate(names)]
    twice = sorted({name for name in full if full.count(name) > 1}, key=full.index)
    if twice:
        raise ValueError(f"{file} has {full.count(twice[0])} columns called {twice[0]!r}; give each its own name.")
    return dict(zip(full, columns, strict=True))


def _parquet(file: Path) -> dict[str, Texts | Array]:
    pa, pq = pyarrow_modules()
    try:
        with pq.ParquetFile(file) as opened:
            table = opened.read(use_threads=False)
    except (pa.ArrowException, OSError) as e:
        said = (str(e).strip().splitlines() or [type(e).__name__])[0].rstrip(".")
        raise ValueError(f"{file} cannot be read as Parquet ({said}); is it another format?") from e
    names = [str(name) for name in table.column_names]
    columns = [_arrow(file, name, column, pa) for name, column in zip(names, table.columns, strict=True)]
    return _named(file, names, columns) if columns else _nothing(file)


def _nothing(file: Path) -> dict[str, Texts | Array]:
    raise ValueError(f"{file} has no columns.")


def _arrow(file: Path, name: str, column: Any, pa: Any) -> Texts | Array:
    kind, types = column.type, pa.types
    if types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if types.is_null(kind):
        return np.full(len(column), np.nan)
    if types.is_boolean(kind):
        column, kind = column.cast(pa.int8()), pa.int8()
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        numbers: Array = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)
        return numbers
    texts = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    if texts or types.is_temporal(kind):
        return np.array(["" if v is None else _text(str(v)) for v in column.to_pylist()], dtype=object)
    raise TypeError(f"Column {name!r} of {file} holds {kind}, neither numbers nor texts; leave it out of the file.")


def _npz(file: Path) -> dict[str, Texts | Array]:
    try:
        with open(file, "rb") as f, np.load(f, allow_pickle=False) as opened:
            arrays = {name: opened[name] for name in opened}
    except (EOFError, OSError, TypeError, ValueError, AttributeError, KeyError, zipfile.BadZipFile) as e:
        raise ValueError(
            f"{file} cannot be read as an .npz file ({e}); write it with numpy.savez(file, X=X, y=y)."
        ) from e
    if "X" not in arrays or arrays["X"].ndim != 2 or 0 in arrays["X"].shape:
        what = f"X of shape {arrays['X'].shape}" if "X" in arrays else listed(arrays) or "nothing"
        raise ValueError(f"{file} holds {what}; an array X of shape (n, columns) was expected.")
    X = arrays.pop("X")
    columns: dict[str, Texts | Array] = {f"X[{i}]": X[:, i] for i in range(X.shape[1])}
    for name, array in arrays.items():
        if array.shape not in ((len(X),), (len(X), 1)):
            raise ValueError(f"{file} has X of shape {X.shape} and {name} of shape {array.shape}; (n,) was expected.")
        columns[name] = array.reshape(-1)
    for name, column in {"X": X, **arrays}.items():
        if column.dtype.kind not in ("fiub" if name == "X" else "fiubU"):
            raise TypeError(f"{name} in {file} has type {column.dtype}; it must hold real numbers.")
    return {
        name: np.array([_text(v) for v in c], dtype=object) if c.dtype.kind == "U" else c.astype(np.float64)
        for name, c in columns.items()
    }
