"""Data sets: Concrete ships with the package; the others are read from the folder named by NODESLAB_DATA."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Standardised", "Table", "concrete", "folder", "split", "uci"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """A regression set as published: X (n, columns), y (n,), and the names of the columns."""

    name: str
    X: Array
    y: Array
    columns: tuple[str, ...]
    target: str


@dataclass(frozen=True)
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
    text = resources.files(__name__).joinpath("concrete.csv").read_text()
    rows = list(csv.reader(text.splitlines()))
    values = np.array(rows[1:], dtype=np.float64)
    return Table("concrete", values[:, :-1], values[:, -1], tuple(rows[0][:-1]), rows[0][-1])


def folder() -> Path:
    """The folder of the environment variable NODESLAB_DATA."""
    value = os.environ.get("NODESLAB_DATA")
    if not value:
        raise ValueError("This data set is read from a folder: set the environment variable NODESLAB_DATA to it.")
    path = Path(value)
    if not path.is_dir():
        raise ValueError(f"NODESLAB_DATA names {path}, which is not a folder.")
    return path


def uci(name: str) -> Table:
    """One of "concrete", "wine", "power", "kin8nm" and "protein", from NODESLAB_DATA/uci/NAME.npz."""
    path = folder() / "uci" / f"{name}.npz"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.npz"))) or "none"
        raise ValueError(f"There is no data set {name!r} in {path.parent}; it holds {known}.")
    with np.load(path, allow_pickle=False) as f:
        return Table(name, f["X"], f["y"], tuple(map(str, f["feature_names"])), str(f["target_name"]))


def split(table: Table, index: int) -> Standardised:
    """Train/test split `index` of the Hernandez-Lobato and Adams (2015) protocol: 90 % of the rows for training.

    The splits are drawn one after the other from RandomState(1), as their published indices are.
    """
    if index < 0:
        raise ValueError(f"The split's index must be at least 0, got {index}.")
    n = len(table.y)
    stream = np.random.RandomState(1)
    for _ in range(index + 1):
        order = stream.choice(n, n, replace=False)
    train, test = order[: round(n * 0.9)], order[round(n * 0.9) :]
    X, y = table.X[train], table.y[train]
    center, scale = X.mean(0), X.std(0)
    y_mean, y_scale = float(y.mean()), float(y.std())
    return Standardised(
        (X - center) / scale,
        (y - y_mean) / y_scale,
        (table.X[test] - center) / scale,
        (table.y[test] - y_mean) / y_scale,
        y_mean,
        y_scale,
    )
