"""YearPredictionMSD: the year of a song from its timbre, with the publisher's split between artists."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import numpy as np

from nodeslab.datasets.fetching import fetch_file, locate
from nodeslab.datasets.published import YEAR
from nodeslab.datasets.tables import Table

__all__ = ["COLUMNS", "ROWS", "TRAIN", "fetch_year", "year"]

ROWS, TRAIN = 515_345, 463_715  # never shuffle across the line: no artist is on both sides of it
TEXT = "YearPredictionMSD.txt"
COLUMNS = tuple(f"timbre_average_{i}" for i in range(1, 13)) + tuple(f"timbre_covariance_{i}" for i in range(1, 79))


def year(file: str | os.PathLike[str] | None = None, rows: int = ROWS, train: int = TRAIN) -> Table:
    """YearPredictionMSD (UCI, doi 10.24432/C50K61, CC BY 4.0): 515,345 songs, 90 inputs; the first 463,715 to train on.

    file: YearPredictionMSD.txt, or a .zip that holds it. By default it is looked for in year/ in NODESLAB_DATA and the
    cache, and fetched (211 MB). rows, train: the numbers that are expected, for a file of the same format.
    """
    if not 0 < train < rows:
        raise ValueError(f"year: 0 < train < rows is needed, got train={train}, rows={rows}.")
    path = _find() if file is None else Path(file)
    if not path.is_file():
        raise ValueError(f"There is no file {path}; give YearPredictionMSD.txt, or the .zip that holds it.")
    values = _read(path)
    if values.shape != (rows, 1 + len(COLUMNS)):
        raise ValueError(
            f"{path} holds {values.shape[0]} rows of {values.shape[1]} numbers; expected are {rows} rows of "
            f"{1 + len(COLUMNS)}: fetch it again with: nodeslab data year."
        )
    target = values[:, 0].copy()
    odd = np.flatnonzero((target != np.round(target)) | (target < 1900) | (target > 2100))
    if len(odd):
        raise ValueError(
            f"{path} has {target[odd[0]]:g} in column 1 of row {odd[0] + 1}, where a year is expected: fetch it again "
            "with: nodeslab data year."
        )
    return Table("year", values[:, 1:], target, COLUMNS, "year", train)


def _find() -> Path:
    return locate(f"year/{TEXT}") or locate(TEXT) or locate(YEAR.path) or fetch_year()


def fetch_year(base: str | None = None, to: Path | None = None) -> Path:
    """The archive into a folder; one that is no whole archive is not kept."""
    path = fetch_file(YEAR, base, to)
    if not zipfile.is_zipfile(path):
        path.unlink()
        raise ValueError(
            f"What came from {base or YEAR.address} is not a .zip; name another mirror: nodeslab data year."
        )
    return path


def _read(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    try:
        if path.suffix != ".zip":
            return np.loadtxt(path, delimiter=",", ndmin=2)
        with zipfile.ZipFile(path) as archive:
            inside = next((name for name in archive.namelist() if Path(name).name == TEXT), None)
            if inside is None:
                raise ValueError(f"it holds no {TEXT}")
            with archive.open(inside) as stream:
                return np.loadtxt(io.TextIOWrapper(stream, "ascii"), delimiter=",", ndmin=2)
    except (ValueError, zipfile.BadZipFile, OSError) as e:
        raise ValueError(f"{path} cannot be read ({e}); fetch it again with: nodeslab data year.") from e
