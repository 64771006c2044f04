"""Data sets: Concrete ships with the package; the others are read from NODESLAB_DATA, or fetched into the cache."""

from __future__ import annotations

from nodeslab.datasets.contents import Holding, fetch, holding
from nodeslab.datasets.fetching import cache, folder
from nodeslab.datasets.images import Images, fashion_mnist, mnist
from nodeslab.datasets.published import NAMES
from nodeslab.datasets.songs import year
from nodeslab.datasets.tables import Standardised, Table, concrete, split, uci

__all__ = [
    "NAMES",
    "Holding",
    "Images",
    "Standardised",
    "Table",
    "cache",
    "concrete",
    "fashion_mnist",
    "fetch",
    "folder",
    "holding",
    "mnist",
    "split",
    "uci",
    "year",
]
