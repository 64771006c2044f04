"""The short version of benchmarks/uci.py: the first splits, at the paper's settings."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import numpy as np
import pytest

from nodeslab import datasets

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import uci


def _mean(name: str, model: str, splits: int = 3) -> tuple[float, float]:
    rmse, nodes = zip(*(uci.one(name, model, i) for i in range(splits)), strict=True)
    return statistics.mean(rmse), statistics.mean(nodes)


def test_concrete() -> None:
    """The bars are for the mean of 20 splits, which lie within half a standard deviation (0.25) of three."""
    dense, _ = _mean("concrete", "VBNN")
    sparse, nodes = _mean("concrete", "SS-IG")
    assert dense <= 7.6 + 0.25
    assert sparse <= 7.92 + 0.25
    assert nodes <= 0.42


def test_wine(data_folder: str) -> None:
    rmse, nodes = _mean("wine", "SS-IG")
    assert rmse <= 0.66 + 0.02
    assert nodes <= 0.18 + 0.03


def test_splits_are_the_published_ones(data_folder: str) -> None:
    """Drawn again from RandomState(1), against the indices on file."""
    for name in ("concrete", "wine"):
        table = datasets.uci(name)
        stored = np.load(Path(data_folder) / "uci" / "splits" / f"{name}.npz")
        for i in (0, 7, 19):
            part = datasets.split(table, i)
            assert np.allclose(part.original(part.y_test), table.y[stored["test"][i]])
            assert np.allclose(part.original(part.y), table.y[stored["train"][i]])
    shipped, published = datasets.concrete(), datasets.uci("concrete")
    assert np.array_equal(shipped.X, published.X)
    assert np.array_equal(shipped.y, published.y)
    assert shipped.columns == published.columns


def test_standardised_by_the_training_part() -> None:
    part = datasets.split(datasets.concrete(), 2)
    assert np.allclose(part.X.mean(0), 0)
    assert np.allclose(part.X.std(0), 1)
    assert part.y.std() == pytest.approx(1)
    assert len(part.y) == 927
    assert len(part.y_test) == 103


def test_splits_are_numbered_from_0() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        datasets.split(datasets.concrete(), -1)
