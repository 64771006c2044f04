"""The paper's figures, drawn from records; what was not run says so in its panel."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from nodeslab.paper.claims import Records, last_of
from nodeslab.paper.published import Printed, authors_curve, paper
from nodeslab.paper.rows import MODELS, rows_of
from nodeslab.plot import box_plots
from nodeslab.svg import BLUE, GREEN, ORANGE, PURPLE, styled, text_of

__all__ = ["FIGURES", "save"]

COLOURS = {"SS-IG": BLUE, "SV-BNN": ORANGE, "HS-BNN": GREEN, "VBNN": PURPLE}
DATA = {
    "concrete": "Concrete",
    "wine": "Wine",
    "power": "Power Plant",
    "kin8nm": "Kin8nm",
    "protein": "Protein",
    "year": "Year",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
}


def _not_run(ax: Axes, what: str = "not run") -> None:
    ax.text(0.5, 0.5, what, transform=ax.transAxes, ha="center", va="center", alpha=0.7)


def _share(ax: Axes, label: str) -> None:
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set_ylabel(label)


def _legend(figure: Figure, axes: Any, columns: int = 6) -> None:
    """One legend for all panels, above them."""
    found: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if found:
        figure.legend(found.values(), found.keys(), loc="outside upper center", ncols=min(len(found), columns))


# ---- simulation I ----------------------------------------------------------------------------------------------------


def sim1(records: Records) -> Figure:
    """Box plots of the incoming weights of each node, the largest 20."""
    figure = Figure(figsize=(9, 5.6), layout="constrained")
    axes = figure.subplots(2, 2, sharey="row")
    for (width, model), ax in zip(product((20, 100), ("vbnn", "ss-ig")), axes.flat, strict=True):
        name = MODELS[model]
        ax.set_title(f"{name}, {width} hidden nodes" + (" (the 20 largest)" if width > 20 else ""))
        ax.set_xlabel("hidden node, by its largest weight")
        if model == "vbnn":
            ax.set_ylabel("|incoming weight|")
        found = records.get(f"sim1/{width}/{model}")
        if not found:
            _not_run(ax)
            continue
        box_plots(ax, sorted(found[0]["weights"], key=lambda w: -max(w))[:20], COLOURS[name])
    return figure


# ---- simulation II ---------------------------------------------------------------------------------------------------


def sim2(records: Records) -> Figure:
    """Test RMSE against the open nodes of both layers, a point for each seed; the paper's points and the noise."""
    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    ax = figure.subplots()
    floors = []
    marks: dict[str, str] = {}
    for row in rows_of(["sim2"]):
        name, what = MODELS[row.model], row.name.removeprefix("sim2/" + row.model)
        label = f"{name}, ours" + what.replace("-", ", ")
        marks[row.name] = "o^v"[sum(n.startswith(f"sim2/{row.model}") for n in marks)]
        for i, record in enumerate(records.get(row.name, [])):
            last = record["row"]["last"]
            layers = [last_of(record, f"nodes_mean_{path}", last, "median") or 0.0 for path in record["nodes"]]
            count = sum(share * total for share, total in zip(layers, record["nodes"].values(), strict=True))
            rmse = last_of(record, "test_rmse", last) or math.nan
            mark: dict[str, Any] = {"ls": "", "marker": marks[row.name], "color": COLOURS[name], "alpha": 0.7}
            ax.plot([count], [rmse], **mark, label=None if i else label)
            floors.append(record["final"]["noise_rmse_test"])
    for name in MODELS.values():
        printed = paper()["sim2"][name]
        nodes = 20 * sum(printed["nodes"] or (1.0, 1.0))
        test = Printed(printed["test_rmse"])
        ax.errorbar(
            nodes, test.mean, test.sd, fmt="D", mfc="none", color=COLOURS[name], capsize=3, label=f"{name}, paper"
        )
    if floors:
        ax.axhspan(min(floors), max(floors), color="0.5", alpha=0.2, lw=0)
        ax.axhline(fmean(floors), color="0.5", lw=1, ls="--", label="noise in the test rows")
    else:
        _not_run(ax, "ours: not run")
    ax.set_xlabel("open nodes, of 20 + 20")
    ax.set_ylabel("test RMSE, last 1000 epochs")
    ax.set_xlim(0, 42)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(figure, [ax], 3)
    return figure


# ---- UCI -------------------------------------------------------------------------------------------------------------


def uci(records: Records) -> Figure:
    """Test RMSE of each model, and the nodes left, beside the paper's: mean and one standard deviation."""
    figure = Figure(figsize=(10.5, 5.6), layout="constrained")
    axes = figure.subplots(2, 6)
    for column, data in enumerate(("concrete", "wine", "power", "kin8nm", "protein", "year")):
        above, below = axes[:, column]
        ran = False
        for at, (model, name) in enumerate(MODELS.items()):
            published, found = paper()["uci"][data][name], records.get(f"uci/{data}/{model}", [])
            ran = ran or bool(found)
            _pair(above, at, name, published["rmse"], [r["final"]["test_rmse"] for r in found])
            _pair(below, at, name, published.get("nodes"), [r["final"]["nodes_mean_0"] for r in found])
        above.set_title(DATA[data] if ran else f"{DATA[data]}\n(ours: not run)")
        for ax in (above, below):
            ax.set_xticks(range(4), list(MODELS.values()), rotation=60)
            ax.set_xlim(-0.6, 3.6)
        below.set_ylim(0, 1.05)
        below.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        above.tick_params(labelbottom=False)
    axes[0, 0].set_ylabel("test RMSE")
    axes[1, 0].set_ylabel("nodes left")
    figure.align_ylabels(axes[:, 0])
    marks = [("o", "none", "paper"), ("s", "0.5", "ours")]
    handles = [
        Line2D([], [], marker=m, ls="", color="0.5", markerfacecolor=fill, label=label) for m, fill, label in marks
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=2)
    return figure


def _pair(ax: Axes, at: int, name: str, printed: str | None, ours: list[float]) -> None:
    bars: dict[str, Any] = {"color": COLOURS[name], "capsize": 2.5, "ms": 5, "lw": 1.2}
    if printed is not None:
        number = Printed(printed)
        ax.errorbar(at - 0.17, number.mean, number.sd, fmt="o", mfc="none", **bars)
    if ours:
        ax.errorbar(at + 0.17, fmean(ours), stdev(ours) if len(ours) > 1 else None, fmt="s", **bars)


# ---- images ----------------------------------------------------------------------------------------------------------

PANELS = {
    "mlp": [
        ("test accuracy", "test_accuracy", "test_accuracy"),
        ("compression ratio", "compression_ratio", "compression_draws"),
        ("nodes left, layer 1", "sparsity_fc1", "nodes_draws_0"),
        ("nodes left, layer 2", "sparsity_fc2", "nodes_draws_2"),
    ],
    "lenet": [
        ("test accuracy", "test_accuracy", "test_accuracy"),
        ("compression ratio", "compression_ratio", "compression_draws"),
        ("FLOPs ratio", "flops_ratio", "flops_draws"),
    ],
}


def _images(experiment: str) -> Callable[[Records], Figure]:
    def draw(records: Records) -> Figure:
        panels = PANELS[experiment]
        figure = Figure(figsize=(3.0 * len(panels) + 0.5, 5.8), layout="constrained")
        axes = figure.subplots(2, len(panels), sharex=True)
        for row, data in enumerate(("mnist", "fashion-mnist")):
            absent = [
                name for m, name in MODELS.items() if m != "hs-bnn" and not records.get(f"{experiment}/{data}/{m}")
            ]
            for ax, (label, theirs, ours) in zip(axes[row], panels, strict=True):
                _curves(ax, records, experiment, data, theirs, ours)
                _share(ax, label)
                ax.set_title(DATA[data])
            if absent:
                axes[row, 0].set_title(f"{DATA[data]}\nours not run: {', '.join(absent)}")
            for ax in axes[row]:
                if row:
                    ax.set_xlabel("epoch")
        _legend(figure, axes.flat)
        return figure

    return draw


def _curves(ax: Axes, records: Records, experiment: str, data: str, theirs: str, ours: str) -> None:
    ends: list[float] = []
    highest = 0.0
    for model, name in MODELS.items():
        if model == "hs-bnn":
            continue
        curve = authors_curve(experiment, data, name)
        if theirs in curve:
            ax.plot(
                curve["epoch"], curve[theirs], ls="--", lw=1, color=COLOURS[name], alpha=0.8, label=f"{name}, authors"
            )
            ends += _settled(curve["epoch"], curve[theirs])
            highest = max(highest, *curve[theirs])
        elif model == "vbnn":  # it selects nothing, and they drew nothing
            continue
        found = records.get(f"{experiment}/{data}/{model}", [])
        for i, record in enumerate(found):
            own = record["curve"]
            ax.plot(own["epoch"], own[ours], lw=1.4, color=COLOURS[name], label=None if i else f"{name}, ours")
            ends += _settled(own["epoch"], own[ours])
            highest = max(highest, *own[ours])
    if theirs == "test_accuracy":
        low = min(ends)  # the first epochs, far below, are cut off
        margin = 0.05 * (highest - low)
        ax.set_ylim(max(0.0, low - margin), min(1.0, highest + margin))
    else:
        ax.set_ylim(-0.02, 1.02)


def _settled(epochs: list[float], values: list[float]) -> list[float]:
    """A curve after its first steps."""
    return [v for e, v in zip(epochs, values, strict=True) if e >= min(50, epochs[-1])]


# ---- widths ----------------------------------------------------------------------------------------------------------


def widths(records: Records) -> Figure:
    """Bars of accuracy and of closed nodes for 400, 800 and 1200 nodes, over the last 50 epochs."""
    figure = Figure(figsize=(8.5, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    sizes = (400, 800, 1200)
    values = []
    for k, model in enumerate(("ss-ig", "vbnn")):
        for at, width in enumerate(sizes):
            found = [last_of(r, "test_accuracy", 50) for r in records.get(f"widths/{width}/{model}", [])]
            kept = [v for v in found if v is not None]
            if kept:
                values.append(fmean(kept))
                name = MODELS[model]
                left.bar(at + 0.36 * (k - 0.5), values[-1], 0.34, color=COLOURS[name], label=name)
    for layer, (path, colour) in enumerate((("0", COLOURS["SS-IG"]), ("2", "#8fbbe8")), 1):
        for at, width in enumerate(sizes):
            found = [last_of(r, f"nodes_mean_{path}", 50) for r in records.get(f"widths/{width}/ss-ig", [])]
            kept = [1.0 - v for v in found if v is not None]
            if kept:
                label = f"SS-IG, closed in layer {layer}"
                right.bar(at + 0.36 * (layer - 1.5), fmean(kept), 0.34, color=colour, label=label)
    goals = paper()["widths"]["closed"]
    for goal, style, layer in zip(goals, ("--", ":"), (1, 2), strict=True):
        right.axhline(goal, color="0.5", lw=1, ls=style, label=f"paper, layer {layer}: over {goal:.0%}")
    for ax, label in ((left, "test accuracy"), (right, "closed nodes")):
        ax.set_xticks(range(3), [f"{w}-{w}" for w in sizes])
        ax.set_xlim(-0.6, 2.6)
        ax.set_xlabel("hidden widths")
        _share(ax, label)
    right.set_ylim(0, 1.02)
    if values:
        left.set_ylim(max(0.0, min(values) - 0.6 * (1 - min(values))), 1.0)
    else:
        _not_run(left, "ours: not run")
        _not_run(right, "ours: not run")
    _legend(figure, (left, right), 3)
    return figure


FIGURES: dict[str, Callable[[Records], Figure]] = {
    "sim1": sim1,
    "sim2": sim2,
    "uci": uci,
    "mlp": _images("mlp"),
    "lenet": _images("lenet"),
    "widths": widths,
}


def save(experiment: str, records: Records, folder: Path) -> str:
    """Draw an experiment's figure to FOLDER/EXPERIMENT.svg and .png; the SVG's text."""
    with styled(experiment):
        figure = FIGURES[experiment](records)
        figure.savefig(folder / f"{experiment}.png", dpi=150, facecolor="white")
        text = text_of(figure)
    (folder / f"{experiment}.svg").write_text(text, encoding="utf-8")
    return text
