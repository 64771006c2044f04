"""An experiment is rows of data; a row and a seed (or split) is one run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from importlib import resources
from typing import Any

__all__ = ["MODELS", "NAMES", "Row", "experiments", "rows_of"]

#: The models, by the name that a row gives them and by the paper's.
MODELS = {"ss-ig": "SS-IG", "sv-bnn": "SV-BNN", "hs-bnn": "HS-BNN", "vbnn": "VBNN"}


@dataclass(frozen=True)
class Row:
    """Everything that a run depends on, its seed aside.

    network: hidden widths, or "lenet". prior: None (the corollary's lambda_l), "authors" (their image code's) or
    a number; exponents: lambda_l = exp(-exponent) / k_(l+1) instead. edge_layers: L in SV-BNN's lambda.
    sigma: sigma_e, or "learn"; sigma_units: what it is 1 in: "standard" (the standardised target), "raw" (its own
    units) or "noise" (the standard deviation of the noise that was put in). Schedules are the arguments of `ns.Ramp`.
    every, last, last_every: an epoch in how many is measured, and in the last so many epochs.
    """

    experiment: str
    name: str
    data: str
    model: str
    network: tuple[int, ...] | str
    activation: str
    init: str
    epochs: int
    lr: float
    batch_size: int
    seeds: int
    optimiser: str = "adam"
    data_rows: tuple[int, int] | None = None
    pixels: int = 255
    flips: bool = False
    prior: float | str | None = None
    exponents: tuple[float, ...] | None = None
    edge_layers: int | None = None
    slab: float = 1.0
    rho: float = -6.0
    gate_start: float = 0.99
    gradient: str = "gumbel"
    sigma: float | str = 1.0
    sigma_units: str = "standard"
    likelihood_schedule: tuple[Any, ...] | None = None
    lr_schedule: tuple[Any, ...] | None = None
    gate_rate: float = 1.0
    spread_rate: float = 1.0
    compact: bool = False
    draws: int = 30
    curve_draws: int = 10
    every: int = 5
    last: int = 0
    last_every: int = 10
    keep_weights: bool = False
    quick: bool = False

    def measured(self, epoch: int) -> bool:
        """True for the epochs whose figures go into the record."""
        step = self.last_every if epoch > self.epochs - self.last else self.every
        return epoch % step == 0 or epoch in (1, self.epochs)

    def settings(self) -> dict[str, Any]:
        """As JSON has it: what a record must agree with. How many seeds are wanted is no part of a run."""
        out: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        del out["seeds"]
        return out


def experiments() -> dict[str, Any]:
    """All experiments as they are written down: what, notes, common, quick, rows."""
    text = resources.files("nodeslab.paper").joinpath("experiments.json").read_text()
    return dict(json.loads(text))


NAMES = tuple(experiments())


def rows_of(names: Iterable[str], quick: bool = False, seeds: int | None = None) -> list[Row]:
    """The rows of experiments ("uci"), of a part of one ("uci/concrete") or single ones ("uci/concrete/ss-ig")."""
    known = experiments()
    found: list[Row] = []
    for name in names:
        experiment = name.split("/")[0]
        if experiment not in known:
            raise ValueError(f"There is no experiment {name!r}; there are {', '.join(known)}.")
        rows = [_row(experiment, row, known[experiment], quick) for row in known[experiment]["rows"]]
        chosen = [r for r in rows if (r.name + "/").startswith(name.rstrip("/") + "/")]
        if not chosen:
            raise ValueError(f"{experiment} has no row {name!r}; it has {', '.join(r.name for r in rows)}.")
        found += [r for r in chosen if r not in found]
    return (
        found if seeds is None else [replace(r, seeds=min(seeds, r.seeds) if r.data in FIXED else seeds) for r in found]
    )


#: Data sets with no more splits than their rows ask for.
FIXED = ("year",)


def _row(experiment: str, row: dict[str, Any], whole: dict[str, Any], quick: bool) -> Row:
    full = {**whole["common"], **row}
    given = {**full, **(whole["quick"] if quick else {}), "quick": quick}
    given["seeds"] = min(given["seeds"], full["seeds"])
    wrong = [key for key in given if key not in {f.name for f in fields(Row)}]
    if wrong:
        raise ValueError(f"experiments.json, row {row['name']}: {wrong[0]!r} is no setting of a row; see Row.")
    tuples: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    return Row(experiment=experiment, **tuples)
