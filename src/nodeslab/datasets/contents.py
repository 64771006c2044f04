"""What is there of the data sets, and getting what is not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nodeslab.datasets.fetching import locate
from nodeslab.datasets.images import fetch_images, images
from nodeslab.datasets.published import IMAGES, NAMES, REGRESSION, YEAR
from nodeslab.datasets.songs import TEXT, fetch_year, year
from nodeslab.datasets.tables import fetch_uci, uci

__all__ = ["Holding", "fetch", "holding"]


@dataclass(frozen=True)
class Holding:
    """A data set on this machine. where: its place, or None; rows, columns: what reading and checking it gave."""

    name: str
    where: str | None
    rows: int | None = None
    columns: int | None = None

    def __str__(self) -> str:
        if self.where is None:
            return f"{self.name:<14} not here; get it with: nodeslab data {self.name}"
        size = "" if self.rows is None else f"{self.rows:>7,} x {self.columns:<4} checked; "
        return f"{self.name:<14} {size}{self.where}"


def _known(name: str) -> None:
    if name not in NAMES:
        raise ValueError(f"There is no data set {name!r}; there are {', '.join(NAMES)}.")


def _where(name: str) -> str | None:
    if name in IMAGES:
        places = [locate(f.path) for f in IMAGES[name]]
        return None if None in places else str(places[0].parent)  # type: ignore[union-attr]
    if name == "year":
        found = locate(f"year/{TEXT}") or locate(TEXT) or locate(YEAR.path)
        return None if found is None else str(found)
    path = locate(REGRESSION[name].file)
    return "ships with the package" if path is None and name == "concrete" else None if path is None else str(path)


def holding(name: str, read: bool = True) -> Holding:
    """What is there of a data set; read: it is read and checked too (YearPredictionMSD takes half a minute)."""
    _known(name)
    where = _where(name)
    if where is None or not read:
        return Holding(name, where)
    if name in IMAGES:
        found = images(name)
        return Holding(name, where, len(found.y) + len(found.y_test), found.X[0].size)
    table = year() if name == "year" else uci(name)
    return Holding(name, where, len(table.y), len(table.columns))


def fetch(name: str, base: str | None = None, to: Path | None = None) -> None:
    """Get a data set's files into the folder `to` (the cache by default), from their public addresses or a mirror."""
    _known(name)
    if name in IMAGES:
        fetch_images(name, base, to)
    elif name == "year":
        fetch_year(base, to)
    else:
        fetch_uci(name, base, to)
