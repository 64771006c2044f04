"""Regression sets: Concrete ships with the package; the others are read from a data folder, or fetched into one."""

from __future__ import annotations

import csv
import hashlib
import os
import shutil
import zipfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nodeslab.datasets.fetching import alone, cache, fetch_file, locate
from nodeslab.datasets.published import REGRESSION, Regression

__all__ = ["Standardised", "Table", "concrete", "fetch_uci", "split", "uci"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Table:
    """A regression set as published: X (n, columns), y (n,), and the names of the columns.

    train: how many rows from the first are for training, where the publisher fixed that.
    """

    name: str
    X: Array
    y: Array
    columns: tuple[str, ...]
    target: str
    train: int | None = None


@dataclass(frozen=True, eq=False)
class Standardised:
    """A training and a test part, both in the training part's units: mean 0 and standard deviation 1."""

    X: Array
    y: Array
    X_test: Array
    y_test: Array
    y_mean: float
    y_scale: float

    def original(self, y: Any) -> Array:
        """A target in standard units, back in its own."""
        return np.asarray(y, dtype=np.float64) * self.y_scale + self.y_mean


def concrete() -> Table:
    """Concrete Compressive Strength (I-C. Yeh, UCI, doi 10.24432/C5PK67, CC BY 4.0): 1030 rows, 8 inputs, MPa."""
    text = resources.files("nodeslab.datasets").joinpath("concrete.csv").read_text()
    rows = list(csv.reader(text.splitlines()))
    values = np.array(rows[1:], dtype=np.float64)
    return Table("concrete", values[:, :-1], values[:, -1], tuple(rows[0][:-1]), rows[0][-1])


def uci(name: str) -> Table:
    """One of "concrete", "wine", "power", "kin8nm" and "protein", checked against the published numbers.

    It is read from uci/NAME.npz in NODESLAB_DATA or the cache, and fetched into the cache where it is in neither.
    """
    if name not in REGRESSION:
        raise ValueError(f"There is no regression set {name!r}; there are {', '.join(REGRESSION)}.")
    known = REGRESSION[name]
    path = locate(known.file)
    if path is None and name == "concrete":
        return concrete()
    return _read(path or fetch_uci(name), known)


def _read(path: Path, known: Regression) -> Table:
    again = f"delete it, and fetch it again with: nodeslab data {known.name}"
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as f:
            table = Table(known.name, f["X"], f["y"], tuple(map(str, f["feature_names"])), str(f["target_name"]))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as e:
        raise ValueError(f"{path} cannot be read as a data set ({e}); {again}.") from e
    if digest(table.X, table.y) != known.digest:
        raise ValueError(f"{path} does not hold the published numbers of {known.name}; {again}.")
    return table


def digest(X: Array, y: Array) -> str:
    """sha256 of the numbers: X row by row, then y, as little-endian float64."""
    both = (np.ascontiguousarray(a, dtype="<f8").tobytes() for a in (X, y))
    return hashlib.sha256(b"".join(both)).hexdigest()


def fetch_uci(name: str, base: str | None = None, to: Path | None = None) -> Path:
    """uci/NAME.npz in a folder, made from the benchmark's text files if their numbers are the published ones.

    base: a mirror that holds uci/NAME/data.txt, index_features.txt and index_target.txt.
    """
    known = REGRESSION[name]
    target = (cache() if to is None else to) / known.file
    with alone(target):
        if target.is_file():  # another process was first, or it was there
            try:
                _read(target, known)
                return target
            except ValueError:
                target.unlink()
        X, y = _from_texts(known, base, to)
        aside = target.with_name(f".{target.name}")
        with aside.open("wb") as out:
            np.savez_compressed(
                out,
                X=np.asfortranarray(X),
                y=y,
                feature_names=np.array(known.columns),
                target_name=np.array(known.target),
            )
        os.replace(aside, target)
    return target


def _from_texts(known: Regression, base: str | None, to: Path | None) -> tuple[Array, Array]:
    """X and y from data.txt and its two indices, if they are the published numbers; the texts are not kept."""
    texts = [fetch_file(file, base, to) for file in known.texts]
    try:
        values, features, target = (np.loadtxt(path, ndmin=2) for path in texts)
        X, y = values[:, features.ravel().astype(int)], values[:, int(target.ravel()[0])]
        right = digest(X, y) == known.digest
    except (ValueError, IndexError):
        right = False
    finally:
        shutil.rmtree(texts[0].parent)
    if not right:
        raise ValueError(
            f"What came from {known.texts[0].address if base is None else base} are not the published numbers of "
            f"{known.name}; name another mirror, or set NODESLAB_DATA to a folder that holds {known.file}."
        )
    return X, y


def split(table: Table, index: int) -> Standardised:
    """Train/test split `index` of the Hernandez-Lobato and Adams (2015) protocol: 90 % of the rows for training.

    The splits are drawn one after the other from RandomState(1), as their published indices are. A table with a split
    of its publisher's has that one, as split 0.
    """
    if index < 0:
        raise ValueError(f"The split's index must be at least 0, got {index}.")
    n = len(table.y)
    if table.train is not None:
        if index > 0:
            raise ValueError(f"{table.name} has one fixed split, number 0, got {index}.")
        train, test = slice(0, table.train), slice(table.train, n)
        return _standardised(table.X[train], table.y[train], table.X[test], table.y[test])
    stream = np.random.RandomState(1)
    for _ in range(index + 1):
        order = stream.choice(n, n, replace=False)
    first, rest = order[: round(n * 0.9)], order[round(n * 0.9) :]
    return _standardised(table.X[first], table.y[first], table.X[rest], table.y[rest])


def _standardised(X: Array, y: Array, X_test: Array, y_test: Array) -> Standardised:
    center, scale = X.mean(0), X.std(0)
    y_mean, y_scale = float(y.mean()), float(y.std())
    return Standardised(
        (X - center) / scale,
        (y - y_mean) / y_scale,
        (X_test - center) / scale,
        (y_test - y_mean) / y_scale,
        y_mean,
        y_scale,
    )
