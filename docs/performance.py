"""Writes docs/performance.md and its pictures from the records in docs/performance/ (needs matplotlib).

    python docs/performance.py                    # from the records
    python docs/performance.py --measure          # all benches first, one after the other (about an hour, two cores)
    python docs/performance.py --measure step     # only this one first

A record is what `nodeslab bench NAME --json` prints; benches whose record is missing are left out of the page.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

DOCS = Path(__file__).parent
BENCHES = {
    "step": ["--rounds", "60"],
    "train": ["--epochs", "100", "--seeds", "3"],
    "train-300": ["--epochs", "300", "--seeds", "1"],
    "replicas": ["--rounds", "3"],
    "predict": ["--rounds", "7"],
    "scale": ["--rounds", "15"],
    "peers": ["--rounds", "30"],
    "infer": ["--rounds", "40"],
    "precision": ["--rounds", "20", "--epochs", "20", "--seeds", "2"],
}
COLOURS = {"ss-ig": "C0", "plain": "0.45", "authors": "C3", "peer": "C1"}

Record = dict[str, Any]


def measure(name: str, folder: Path) -> None:
    """Run a bench in a process of its own, and keep what it prints."""
    command = [sys.executable, "-m", "nodeslab", "bench", name.partition("-")[0], *BENCHES[name], "--json"]
    print(" ".join(command[2:]), flush=True)
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    aside = folder / f".{name}.json"
    aside.write_text(said)
    os.replace(aside, folder / f"{name}.json")


def records(folder: Path) -> dict[str, Record]:
    return {n: json.loads((folder / f"{n}.json").read_text()) for n in BENCHES if (folder / f"{n}.json").is_file()}


def cases(record: Record) -> dict[str, dict[str, Any]]:
    return {k: v for k, v in record.items() if isinstance(v, dict)}


def case(record: Record, start: str) -> dict[str, Any]:
    """The one case whose name begins so."""
    return next(rows for name, rows in cases(record).items() if name.startswith(start))


# ---- tables --------------------------------------------------------------------------------------------------------

HEADS = {
    "ms": "ms",
    "seconds": "s",
    "ratio": "ratio",
    "ratio_quartiles": "quartiles",
    "of_authors": "of the authors' way",
    "accuracy": "accuracy",
    "accuracy_sd": "± sd",
    "open": "open nodes",
    "open_sd": "± sd",
    "accuracy_apart": "accuracies apart, in sd",
    "open_apart": "nodes apart, in sd",
    "difference": "largest difference",
    "rmse": "test RMSE, MPa",
    "us_per_row": "µs a row",
    "epoch_seconds": "s an epoch",
    "from_linear": "off a straight line",
    "peak_gib": "peak, GiB",
    "data_gib": "data, GiB",
    "plain_ms": "plain, ms",
    "dense_ms": "dense, ms",
    "shrunk_ms": "shrunk, ms",
    "speedup": "times as fast",
    "reached": "of the ideal",
    "not_installed": "",
}


def shown(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return " to ".join(shown(name, v) for v in value)
    if name in ("accuracy", "accuracy_sd"):
        return f"{value:.2%}".replace("%", " %")
    if isinstance(value, float):
        return f"{value:.2g}" if 0 < abs(value) < 0.01 else f"{value:,.3f}" if abs(value) < 10 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def table(rows: dict[str, dict[str, Any]], bars: dict[tuple[str, str], str]) -> list[str]:
    """One case as Markdown; bars: {(row, figure): the bar and whether it holds}."""
    figures = [f for f in HEADS if f != "not_installed" and any(f in row for row in rows.values())]
    lines = [
        "| | " + " | ".join(HEADS[f] for f in figures) + " | bar |",
        "| --- |" + " ---: |" * len(figures) + " --- |",
    ]
    for name, row in rows.items():
        cells = [shown(f, row.get(f)) for f in figures]
        if "not_installed" in row:
            cells[0] = "not installed"
        held = "; ".join(f"{HEADS[f]} {bars[name, f]}" for f in figures if (name, f) in bars)
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {held} |")
    return lines


def flat(rows: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Rows that are held in groups, under both names."""
    out: dict[str, dict[str, Any]] = {}
    for name, row in rows.items():
        if isinstance(row, dict):
            inner = {f"{name}/{k}": v for k, v in row.items() if isinstance(v, dict)}
            out |= inner or {name: row}
    return out


def tables(record: Record) -> list[str]:
    lines: list[str] = []
    for name, rows in cases(record).items():
        bars = {
            (b["row"], b["figure"]): f"{b['bar'].removeprefix('bar ')} {'holds' if b['holds'] else '**missed**'}"
            for b in record["bars"]
            if b["case"] == name
        }
        lines += ["", f"**{name}**", "", *table(flat(rows), bars)]
    return lines


# ---- pictures ------------------------------------------------------------------------------------------------------


def grid(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set(xlabel=x, ylabel=y)
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def powers(axes: Axes, ticks: list[float]) -> None:
    """A logarithmic axis that is marked where something was measured."""
    axes.set_xscale("log")
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: big(v)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="minor", length=0)


def big(v: float) -> str:
    return f"{v / 1e6:g}M" if v >= 1e6 else f"{v / 1e3:g}k" if v >= 1e4 else f"{v:g}"


def kind(name: str) -> str:
    """Whose step it is."""
    if name == "plain":
        return "plain"
    return "ss-ig" if "nodeslab" in name else "authors" if "authors" in name else "peer"


def draw_peers(record: Record, file: Path) -> None:
    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    for axes, (name, rows) in zip(figure.subplots(1, 2), cases(record).items(), strict=True):
        there = {n: r for n, r in rows.items() if "ratio" in r}
        names = sorted(there, key=lambda n: -there[n]["ratio"])
        colours = [COLOURS[kind(n)] for n in names]
        ratios = [there[n]["ratio"] for n in names]
        low, high = zip(*(there[n]["ratio_quartiles"] for n in names), strict=True)
        errors = [[max(r - a, 0) for r, a in zip(ratios, low, strict=True)]]
        errors += [[max(a - r, 0) for r, a in zip(ratios, high, strict=True)]]
        axes.barh(names, ratios, xerr=errors, color=colours, error_kw={"elinewidth": 1, "alpha": 0.6})
        for i, (r, top) in enumerate(zip(ratios, high, strict=True)):
            axes.text(max(r, top) + 0.03, i, f"{r:.2f}", va="center", fontsize=9)
        axes.set_xlim(0, max([*ratios, *high]) * 1.15)
        grid(axes, name, "step, plain network = 1", "")
        axes.grid(axis="y", visible=False)
    figure.savefig(file, dpi=110)


def draw_train(record: Record, file: Path) -> None:
    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    total = record["epochs"]
    compact = next(rows for name, rows in cases(record).items() if name.endswith("epochs, compact"))
    dense = next(rows for name, rows in cases(record).items() if name.endswith("not compact"))
    curves = {
        "authors' way": (compact["authors' layers"], COLOURS["authors"], "-"),
        "SS-IG, not compact": (dense["ss-ig"], COLOURS["ss-ig"], ":"),
        "plain network": (compact["plain"], COLOURS["plain"], "-"),
        "SS-IG, compact": (compact["ss-ig"], COLOURS["ss-ig"], "-"),
    }
    for label, (row, colour, style) in curves.items():
        ms = row["epoch_ms"]
        step = max(1, total // len(ms))
        left.plot([1 + step * i for i in range(len(ms))], ms, style, color=colour, label=label)
    left.set_ylim(0, 1.35 * max(max(row["epoch_ms"]) for row, _, _ in curves.values()))  # room for the legend
    grid(left, "784-400-400-10 on MNIST, batch 1024", "epoch", "ms for this epoch")
    left.legend(frameon=False, fontsize=9, ncols=2, loc="upper center")
    names = list(curves)
    seconds = [curves[n][0]["seconds"] for n in names]
    right.barh(names, seconds, color=[curves[n][1] for n in names])
    for i, s in enumerate(seconds):
        right.text(s + max(seconds) * 0.015, i, f"{s:.0f} s", va="center", fontsize=9)
    right.set_xlim(0, max(seconds) * 1.15)
    grid(right, f"{total} epochs", "seconds", "")
    right.grid(axis="y", visible=False)
    figure.savefig(file, dpi=110)


def curve(axes: Axes, rows: dict[str, dict[str, Any]], numbers: list[float], label: str, colour: str = "C0") -> None:
    ratios = [r["ratio"] for r in rows.values()]
    low, high = zip(*(r["ratio_quartiles"] for r in rows.values()), strict=True)
    axes.plot(numbers, ratios, "o-", color=colour, label=label, markersize=4)
    axes.fill_between(numbers, low, high, color=colour, alpha=0.15, linewidth=0)


def number_in(name: str) -> float:
    """The first number of a name such as "784-100-100-10" (its second), "batch 64", "1000 rows"."""
    parts = [p for p in name.replace("-", " ").split() if p.isdigit()]
    return float(parts[1] if name.startswith("784-") else parts[0])


def draw_growth(record: Record, file: Path) -> None:
    figure = Figure(figsize=(9.5, 6.6), layout="constrained")
    (width, batch), (time, memory) = figure.subplots(2, 2)
    for axes, start, x, bar in (
        (width, "step against plain, by width", "nodes in each of two layers", 1.25),
        (batch, "step against plain, by batch", "rows in a batch", None),
    ):
        rows = case(record, start)
        numbers = [number_in(n) for n in rows]
        curve(axes, rows, numbers, "SS-IG")
        axes.axhline(1.0, color=COLOURS["plain"], linewidth=1)
        if bar is not None:
            axes.axhline(bar, color="C3", linewidth=1, linestyle="--", label=f"bar {bar}")
            axes.legend(frameon=False, fontsize=9)
        powers(axes, numbers)
        axes.set_ylim(0.9, max(1.3, *(r["ratio_quartiles"][1] * 1.05 for r in rows.values())))
        grid(axes, start, x, "step, plain network = 1")
    rows = case(record, "one epoch")
    numbers = [number_in(n) for n in rows]
    each = [r["ratio"] for r in rows.values()]  # to rows in memory, so that the machine's moods cancel
    time.plot(numbers, [v / each[0] for v in each], "o-", markersize=4)
    time.axhspan(0.85, 1.15, color="C3", alpha=0.08, linewidth=0)
    time.axhline(1.0, color=COLOURS["plain"], linewidth=1)
    time.set_ylim(0.7, 1.3)
    powers(time, numbers)
    grid(time, "20 columns from a file: time a row", "rows", "fewest rows = 1, bar ± 0.15")
    memory.plot(numbers, [r["peak_gib"] for r in rows.values()], "o-", markersize=4, label="held at most")
    memory.plot(numbers, [r["data_gib"] for r in rows.values()], "s:", color="0.45", markersize=4, label="the file")
    memory.axhline(1.2, color="C3", linewidth=1, linestyle="--", label="bar 1.2")
    memory.set_ylim(0, 1.3)
    powers(memory, numbers)
    grid(memory, "20 columns from a file: memory", "rows", "GiB above the interpreter")
    memory.legend(frameon=False, fontsize=9, loc="center left")
    figure.savefig(file, dpi=110)


def draw_many(predict: Record | None, replicas: Record | None, file: Path) -> None:
    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    if predict is not None:
        found = sorted(cases(predict).items(), key=lambda item: int(item[0].split(", ")[1].split()[0]))
        numbers = [float(n.split(", ")[1].split()[0]) for n, _ in found]
        for i, row in enumerate(("predict", "predict, shrunk")):
            curve(left, {n: rows[row] for n, rows in found}, numbers, row, f"C{i}")
        left.axhline(1.0, color=COLOURS["plain"], linewidth=1)
        left.axhline(0.35, color="C3", linewidth=1, linestyle="--", label="bar 0.35 (30 draws)")
        powers(left, numbers)
        left.set_ylim(0)
        left.legend(frameon=False, fontsize=9)
        grid(left, f"10,000 images, nodes {predict['open']}", "draws", "as many plain passes = 1")
    if replicas is not None:
        found = sorted(cases(replicas).items(), key=lambda item: int(item[0].split(", ")[1].split()[0]))
        numbers = [float(n.split(", ")[1].split()[0]) for n, _ in found]
        curve(right, {n: rows["together"] for n, rows in found}, numbers, "together")
        right.axhline(1.0, color=COLOURS["plain"], linewidth=1)
        right.axhline(1 / 6, color="C3", linewidth=1, linestyle="--", label="bar 1/6 (20 splits)")
        powers(right, numbers)
        right.set_ylim(0)
        right.legend(frameon=False, fontsize=9)
        grid(right, "splits of Concrete in one batched run", "splits", "one after the other = 1")
    figure.savefig(file, dpi=110)


# ---- the page ------------------------------------------------------------------------------------------------------

WORDS = {
    "step": "A training step: what `ns.fit` does with one batch, against the same plain network with torch's "
    "fused Adam, in the same memory format. Below it, the KL and the gradients in float64 against "
    "torch.distributions and autograd.",
    "train": "A whole fit of the paper's MLP on MNIST, at the authors' priors, batch 1024, rate 1e-3. After each "
    "epoch of the fit an epoch of the plain network (fused Adam) and of the authors' way (a module for "
    "each layer, nothing fused) is timed. The fit's own time is all that passes between two calls of its "
    "callback: steps, records and cuts. Accuracy is that of 30 draws; *apart* is the difference of the "
    "means over the sum of both standard deviations.",
    "train-300": "The same with 300 epochs.",
    "replicas": "The paper's network for Concrete, 50 nodes, batch 128, on the published splits: `ns.fit_replicas` "
    "against one `ns.fit` after the other.",
    "predict": "MNIST's test images through the trained and compacted network: `ns.predict` against as many passes "
    "and softmaxes of the plain network, and the same for the network that `ns.shrink(..., "
    "bayesian=True)` cuts.",
    "scale": "A 20-50-1 network on rows in a file (numpy memmap), each number of rows in a process of its own; the "
    "time is the median epoch's, over that of 100,000 rows in memory in the same process. Memory is the "
    "highest resident size above what the process held before it opened the file. The steps are of "
    "784-w-w-10, random rows.",
    "peers": "The step of other packages, each as its documentation shows it: networks with a Gaussian posterior "
    "and no selection, in one process with ours. `benchmarks/peers.txt` says how to install them.",
    "precision": "`ns.fit(..., amp=True)`: the forward pass and its gradients in bfloat16; draws, KL and Adam in "
    "float32. Below the steps, MNIST after fits of both, over the seeds. It pays where the processor multiplies "
    "bfloat16 in hardware.",
    "infer": "Networks cut to what the paper's authors were left with, against dense ones, on one thread.",
}
PICTURES = {
    "peers": ("peers", "Bars: the time of a training step for each package, the plain network being 1."),
    "train": (
        "train",
        "Left: milliseconds for each epoch, falling as nodes close. Right: seconds for all epochs.",
    ),
    "scale": ("growth", "Four curves: cost by width, by batch, time a row by rows, and memory by rows."),
    "predict": ("many", "Left: cost of predictions by draws. Right: cost of fits by replicas."),
}


def page(found: dict[str, Record], docs: Path) -> str:
    lines = [
        "# Performance",
        "",
        "Every figure is a ratio to something that was run in the same process, in turn, so that a slow moment of "
        "the machine hits both; medians, with quartiles over the rounds. `nodeslab bench NAME` measures one, "
        "`--guard` ends with status 1 where it is worse than its bar, and `python docs/performance.py --measure` "
        "measures all of them and writes this page.",
    ]
    for name, record in found.items():
        title = f"nodeslab bench {name.partition('-')[0]}"
        if name == "train-300":
            title += " --epochs 300"
        lines += ["", f"## `{title}`", "", WORDS[name]]
        lines += ["", f"{record['cpu'] or record['machine']}, {record['threads']} threads, torch {record['torch']}."]
        picture, alternative = PICTURES.get(name, ("", ""))
        if picture and (docs / f"performance-{picture}.png").is_file():
            lines += ["", f"![{alternative}](performance-{picture}.png)"]
        lines += tables(record)
    return "\n".join(lines) + "\n"


def draw(found: dict[str, Record], docs: Path) -> None:
    if "peers" in found:
        draw_peers(found["peers"], docs / "performance-peers.png")
    if "train" in found:
        draw_train(found["train"], docs / "performance-train.png")
    if "scale" in found:
        draw_growth(found["scale"], docs / "performance-growth.png")
    if "predict" in found or "replicas" in found:
        draw_many(found.get("predict"), found.get("replicas"), docs / "performance-many.png")


def main(docs: Path = DOCS, folder: Path = DOCS / "performance", measured: list[str] | None = None) -> None:
    folder.mkdir(exist_ok=True)
    for name in measured or []:
        measure(name, folder)
    found = records(folder)
    draw(found, docs)
    (docs / "performance.md").write_text(page(found, docs))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs="*", choices=list(BENCHES), metavar="NAME")
    args = parser.parse_args()
    main(measured=None if args.measure is None else args.measure or list(BENCHES))
