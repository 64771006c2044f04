"""The numbers to be met: the paper's tables (`paper.json`), and what its authors recorded for the image figures.

`authors_curves.csv` holds six columns of the records in the authors' public repository (jsanket12/SS_IG on GitHub):
every fifth epoch of 1200, sparsities, compression and FLOPs as means over ten draws.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from statistics import fmean
from typing import Any

__all__ = ["Printed", "authors_curve", "authors_last", "paper"]


@dataclass(frozen=True)
class Printed:
    """A number as the paper prints it, "7.92 ± 0.68": mean, standard deviation (None without one), decimals."""

    text: str

    @property
    def mean(self) -> float:
        return float(self.text.split(" ± ")[0])

    @property
    def sd(self) -> float | None:
        _, found, sd = self.text.partition(" ± ")
        return float(sd) if found else None

    @property
    def decimals(self) -> int:
        return len(self.text.split(" ± ")[0].partition(".")[2])


@cache
def paper() -> dict[str, Any]:
    """The paper's tables."""
    return dict(json.loads(resources.files("nodeslab.paper").joinpath("paper.json").read_text(encoding="utf-8")))


@cache
def _curves() -> dict[tuple[str, str, str], dict[str, list[float]]]:
    text = resources.files("nodeslab.paper").joinpath("authors_curves.csv").read_text()
    curves: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for line in csv.DictReader(text.splitlines()):
        columns = curves.setdefault((line["network"], line["dataset"], line["model"]), {})
        for name, value in list(line.items())[3:]:
            if value:
                columns.setdefault(name, []).append(float(value))
    return curves


def authors_curve(network: str, data: str, model: str) -> dict[str, list[float]]:
    """The authors' records of one training, column by column; of "mlp" or "lenet" on one data set."""
    return _curves()[network, data, model]


def authors_last(
    network: str, data: str, model: str, column: str, epochs: int = 50, end: float | None = None
) -> float | None:
    """The mean of a column over the last epochs of the authors' records, up to `end`; None where they recorded none."""
    curve = authors_curve(network, data, model)
    if column not in curve:
        return None
    last = curve["epoch"][-1] if end is None else min(end, curve["epoch"][-1])
    return fmean(v for e, v in zip(curve["epoch"], curve[column], strict=True) if last - epochs < e <= last)
