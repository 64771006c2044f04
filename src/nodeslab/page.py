"""`write_page`: everything about one fit on one offline HTML page."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import nodeslab
from nodeslab import metrics, plot
from nodeslab.bench import cpu
from nodeslab.diagram import columns
from nodeslab.io import example_of
from nodeslab.model import Bayesian
from nodeslab.prediction import ClassPrediction, Prediction, RegressionPrediction, inputs_for, predict
from nodeslab.sheet import sheet
from nodeslab.sizes import ROWS, Size, sizes
from nodeslab.svg import inline, styled, text_of
from nodeslab.training import History

__all__ = ["write_page"]

PANEL = (4.2, 3.1)  # inches: at a phone's width the letters are still 11 pixels high
DRAWS, SEED = 100, 0
MOST = 5000  # test rows; more are thinned out evenly
LAYERS, OUTPUTS = 6, 4  # box plots, and panels of predictions, of at most so many

CSS = """
.lead { font-size: 1.15rem; max-width: 46rem } section > p { max-width: 46rem }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); gap: .5rem 1.5rem }
.panels figure { margin: .5rem 0; max-width: 31rem } figcaption { margin-top: .25rem }
.numbers td, .numbers thead th { text-align: right; white-space: nowrap } .words td { overflow-wrap: anywhere }
@media print { .panels { grid-template-columns: 1fr 1fr } .lead { font-size: 1em } }
"""


@dataclass(frozen=True)
class Target:
    """What was predicted: its name, its own units, and its classes."""

    name: str
    center: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(1))
    scale: np.ndarray[Any, Any] = field(default_factory=lambda: np.ones(1))
    classes: tuple[str, ...] | None = None

    def units(self, output: int) -> tuple[float, float]:
        """Center and scale of one output."""
        center, scale = (float(v[output if len(v) > 1 else 0]) for v in (self.center, self.scale))
        return center, scale


@dataclass(frozen=True)
class Panel:
    """A figure on the page: its name there, what it shows in words, how to read it, and what draws it."""

    name: str
    label: str
    caption: str
    draw: Callable[[Axes], object]

    def __str__(self) -> str:
        with styled(self.name):
            figure = Figure(figsize=PANEL, layout="constrained")
            self.draw(figure.subplots())
            svg = inline(text_of(figure), self.name, self.label)
        return f"<figure>{svg}<figcaption>{html.escape(self.caption)}</figcaption></figure>"


def write_page(
    file: str | os.PathLike[str],
    model: Bayesian,
    history: History,
    *,
    title: str,
    settings: Mapping[str, object],
    X: Any = None,
    y: Any = None,
    unit_scale: tuple[Any, Any] | None = None,
    target: str,
    features: Sequence[str],
    classes: Sequence[str] | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Write one HTML file that shows a fit and needs nothing else: no network, no other file.

    X, y: test rows in the network's units; without them there are no predictions on the page. unit_scale: (center,
    scale) of the target, so that predictions are shown in its own units. The same arguments give the same bytes, but
    for what is measured.
    """
    if not isinstance(model, Bayesian):
        raise TypeError(f"model must come from ns.bayesian, got {type(model).__name__}.")
    if (X is None) != (y is None):
        raise ValueError("X and y are the test rows: pass both, or neither.")
    if X is not None and model.likelihood is None:
        raise ValueError("The model has no likelihood, so it cannot predict y: fit it first, or pass no test rows.")
    out = Path(file)
    if not out.parent.is_dir():
        raise ValueError(f"Cannot write {out}: the folder {out.parent} does not exist; make it first.")
    if out.is_dir():
        raise ValueError(f"Cannot write {out}: it is a folder; give a file's name.")
    center, scale = (np.atleast_1d(np.asarray(v, dtype=np.float64)) for v in unit_scale or (0.0, 1.0))
    goal = Target(target, center, scale, None if classes is None else tuple(map(str, classes)))
    shown = None if X is None else _shown(model, X, y)
    example = example_of(model.mean(), model.row) if X is None else tuple(x[:2] for x in inputs_for(model, X))
    before, after, trouble = _sizes(model, example)
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="lead">{html.escape(_sentence(model, history, goal, features, shown, before, after))}</p>',
        _section("The network", "", _network(model)),
        _section("Which nodes are needed", "", _nodes(model)),
        _section("Training", _trained(history), _training(history)),
        _section("Predictions", *_predictions(shown, goal)),
        _size_table(before, after, trouble, _alone(model, shown, goal)),
        _settings(model, history, settings, features, goal),
    ]
    if notes:
        items = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
        parts.append(f'<section class="card"><h2>Notes</h2><ul>{items}</ul></section>')
    body = "\n".join(["<header>", *parts[:2], "</header><main>", *parts[2:], "</main>"])
    _put(out, sheet(title, body, CSS))


def _put(out: Path, text: str) -> None:
    """In one step: after a crash the file is the old one or the new one."""
    aside = out.with_name(f".{out.name}.partial")
    with open(aside, "w", encoding="utf-8") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    os.replace(aside, out)


def _section(heading: str, words: str, panels: Sequence[Panel]) -> str:
    said = f"<p>{html.escape(words)}</p>" if words else ""
    drawn = f'<div class="panels">{"".join(map(str, panels))}</div>' if panels else ""
    return f"<section><h2>{heading}</h2>{said}{drawn}</section>"


def _table(head: Sequence[str], rows: Sequence[Sequence[object]], kind: str, label: str) -> str:
    """The first column names the row. kind: "numbers", set to the right, or "words", broken where they must."""
    top = "".join(f'<th scope="col">{html.escape(h)}</th>' for h in head)
    lines = "".join(
        f'<tr><th scope="row">{html.escape(str(row[0]))}</th>'
        + "".join(v if isinstance(v, Cell) else f"<td>{html.escape(str(v))}</td>" for v in row[1:])
        + "</tr>"
        for row in rows
    )
    top = f"<thead><tr>{top}</tr></thead>" if any(head) else ""
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{html.escape(label)}">'
        f'<table class="{kind}">{top}<tbody>{lines}</tbody></table></div>'
    )


class Cell(str):
    """A cell's own HTML: what is measured can be told by its class from what the fit alone decides."""

    __slots__ = ()

    @classmethod
    def measured(cls, value: str) -> Cell:
        return cls(f'<td class="measured">{html.escape(value)}</td>')


# ---- what was found --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shown:
    """Predictions of the test rows, and their truths; `of`: how many rows there were."""

    inputs: tuple[Tensor, ...]
    prediction: Prediction
    y: Tensor
    of: int


def _shown(model: Bayesian, X: Any, y: Any) -> Shown:
    inputs, truth = inputs_for(model, X), torch.as_tensor(np.asarray(y))
    rows = len(inputs[0])
    if len(truth) != rows:
        raise ValueError(f"X has {rows} rows and y has {len(truth)}; they must be the same.")
    if rows > MOST:
        kept = torch.from_numpy(np.linspace(0, rows - 1, MOST).round().astype(np.int64))
        inputs, truth = tuple(x[kept] for x in inputs), truth[kept]
    return Shown(inputs, predict(model, inputs, draws=DRAWS, seed=SEED), truth, rows)


def _left(model: Bayesian) -> tuple[int, int]:
    records = model.nodes()
    return sum(r.open for r in records), sum(r.total for r in records)


def _percent(share: float) -> str:
    return f"{share:.1%}" if 0 < share < 0.0995 else f"{share:.0%}"


def _sentence(
    model: Bayesian,
    history: History,
    goal: Target,
    features: Sequence[str],
    shown: Shown | None,
    before: Size | None,
    after: Size | None,
) -> str:
    """What was fitted and what came of it, for somebody who reads no further."""
    count, total = _left(model)
    task = f"To predict {goal.name} from {len(features):,} column{'s' if len(features) != 1 else ''}"
    if total:
        said = [f"{task}, {count:,} of {total:,} nodes are needed"]
    else:
        nodes = sum(p.geometry.nodes for p in model._posteriors() if not p.output)
        said = [f"{task}, all {nodes:,} nodes stay, since this prior closes none"]
    if before and after and total:
        share = _percent(after.multiplications / before.multiplications)
        said[0] += f": the network that is left does {share} of the multiplications"
    shut = [r.path or "(net)" for r in model.nodes() if not r.open]
    if shut:
        said.append(
            f"But no node of layer {', '.join(shut)} is open: the network that is cut no longer looks at what comes "
            "before it, so train longer, or with another seed or a weaker prior"
        )
    if shown is not None:
        p, rows = shown.prediction, f"{shown.of:,} rows that the fit has not seen"
        if isinstance(p, ClassPrediction):
            said.append(f"On {rows} it names the right class {_percent(_accuracy(shown))} of the time")
        else:
            held, _ = plot.coverages(p, shown.y, (0.9,))
            said.append(
                f"On {rows} its typical error (RMSE) is {_errors(p, shown.y, goal)}, and its 90% intervals hold "
                f"{_percent(float(held[0]))} of the truths"
            )
    return ". ".join(said) + "."


def _accuracy(shown: Shown) -> float:
    return metrics.accuracy(*plot.class_rows(shown.prediction, shown.y))


def _errors(prediction: Prediction, y: Tensor, goal: Target) -> str:
    """The RMSE of each output, in the target's units."""
    p, truth = plot.regression_rows(prediction, y)
    mean = p.mean.cpu().reshape(truth.shape)
    each = [metrics.rmse(mean[:, i], truth[:, i]) * goal.units(i)[1] for i in range(truth.shape[1])]
    return " and ".join(f"{v:.3g}" for v in each[:OUTPUTS]) + (" ..." if len(each) > OUTPUTS else "")


def _alone(model: Bayesian, shown: Shown | None, goal: Target) -> str:
    """What the plain network answers by itself, without draws."""
    if shown is None:
        return ""
    net = model.mean().cpu().eval()
    with torch.no_grad():
        out = torch.cat([net(*(x[i : i + 1024].cpu() for x in shown.inputs)) for i in range(0, len(shown.y), 1024)])
    p = shown.prediction
    if isinstance(p, ClassPrediction):
        sure = torch.sigmoid(out) if p.binary else torch.softmax(out, 1)
        one = ClassPrediction(sure, torch.zeros_like(sure), torch.zeros_like(sure), p.binary)
        share = metrics.accuracy(*plot.class_rows(one, shown.y))
        return f"By itself, without draws, it names the right class of {_percent(share)} of the test rows. "
    one_draw = RegressionPrediction(out.reshape(p.mean.shape)[None], torch.zeros(()))
    return f"By itself, without draws, its RMSE on the test rows is {_errors(one_draw, shown.y, goal)}. "


def _network(model: Bayesian) -> list[Panel]:
    count, total = _left(model)
    widths = ", ".join(f"{c.name} {c.count}" for c in columns(model))
    return [
        Panel(
            "before",
            f"The network before training, all {total:,} nodes open.",
            "Before: every node is open." if total else "Before training.",
            lambda ax: plot.network(model, ax, before=True),
        ),
        Panel(
            "after",
            f"The network after training, {count:,} of {total:,} nodes open: {widths}.",
            "After: blue nodes are needed, hollow ones have closed and can be cut out without changing an answer."
            if total
            else "After training: no node can close under this prior.",
            lambda ax: plot.network(model, ax),
        ),
    ]


def _nodes(model: Bayesian) -> list[Panel]:
    records = model.nodes()
    each = ", ".join(f"{r.open} of {r.total} in layer {r.path or '(net)'}" for r in records)
    each = each or "none, as no node can close"
    panels = [
        Panel(
            "inclusion",
            f"The inclusion probability of every node, sorted: above one half are {each}.",
            "How probable it is that each node is needed. Those above the dotted line stay.",
            lambda ax: plot.inclusion(model, ax),
        )
    ]
    paths = [p.path for p in model._posteriors() if not p.output][:LAYERS]
    for i, path in enumerate(paths):
        panels.append(
            Panel(
                f"weights{i}",
                f"Box plots of the magnitudes of the weights into each node of layer {path or '(net)'}.",
                f"The weights into each node of layer {path or '(net)'}, over draws from the posterior: blue nodes are "
                "open, grey ones closed.",
                lambda ax, path=path: plot.weights(model, ax, path=path),  # type: ignore[misc]
            )
        )
    return panels


def _trained(history: History) -> str:
    if not len(history):
        return "There is no record of the training."
    why = {
        "epochs": "all that were asked for",
        "converged": "until nothing changed any more",
        "callback": "then stopped",
    }
    seconds = sum(history.column("seconds"))
    return f"{len(history):,} epochs ({why.get(history.stopped, history.stopped)}) in {seconds:,.0f} seconds."


def _training(history: History) -> list[Panel]:
    if not len(history):
        return []
    first, last = history[0], history[-1]
    return [
        Panel(
            "elbo",
            f"The ELBO over the epochs, from {first.elbo:.4g} to {last.elbo:.4g} nats.",
            "The ELBO: how well the network explains the data, less what it costs in complexity. Higher is better; a "
            "flat end means that more epochs would change little.",
            lambda ax: plot.elbo(history, ax),
        ),
        Panel(
            "open",
            f"Open nodes over the epochs, from {sum(first.open.values())} to {sum(last.open.values())}.",
            "How many nodes are open.",
            lambda ax: plot.open_nodes(history, ax),
        ),
        Panel(
            "flops",
            f"Multiplications left over the epochs, from {first.flops_ratio:.1%} to {last.flops_ratio:.1%}.",
            "Multiplications that the open nodes need, as a share of the whole network's.",
            lambda ax: plot.flops(history, ax),
        ),
    ]


def _predictions(shown: Shown | None, goal: Target) -> tuple[str, list[Panel]]:
    if shown is None:
        return "No test rows were given, so nothing is predicted here.", []
    p = shown.prediction
    words = f"{len(shown.y):,} of the {shown.of:,} test rows" if len(shown.y) < shown.of else f"{shown.of:,} test rows"
    words += f", which the fit has not seen; {DRAWS} draws of the weights for each."
    if isinstance(p, ClassPrediction):
        rows, labels = plot.class_rows(p, shown.y)
        right = metrics.accuracy(rows, labels)
        words += (
            f" Accuracy {right:.1%}, log loss {metrics.categorical_nll(rows, labels):.3f} nats, "
            f"Brier score {metrics.brier(rows, labels):.3f}."
        )
        panel = Panel(
            "confusion",
            f"How often each class of {goal.name} is taken for each other; {right:.0%} are right.",
            "Each row is a true class: blue is right, red is taken for another class.",
            lambda ax: plot.confusion(p, shown.y, ax, classes=goal.classes),
        )
        reading = (
            "When the model is 80% sure, is it right 80% of the time? Points on the line say yes; the bars are what "
            "chance allows, and larger points have more rows."
        )
        return words, [panel, _calibration(shown, reading)]
    assert isinstance(p, RegressionPrediction)
    _, truth = plot.regression_rows(p, shown.y)
    density = f"; mean log density {float(p.log_density(shown.y).mean()):.3f} nats" if bool((p.noise > 0).all()) else ""
    words += f" RMSE {_errors(p, shown.y, goal)}{density}."
    panels = []
    for i in range(min(truth.shape[1], OUTPUTS)):
        which = goal.name if truth.shape[1] == 1 else f"{goal.name}, output {i + 1}"
        panels.append(
            Panel(
                f"predictions{i}",
                f"Predictions of {which} with 90% intervals against the truth.",
                f"{which}: each line is a 90% interval, its dot the prediction; on the diagonal it equals the truth.",
                lambda ax, i=i: _drawn(ax, shown, goal, i),  # type: ignore[misc]
            )
        )
    reading = (
        "Do the intervals hold what they promise? On the line they do; in the grey band the difference can be chance."
    )
    return words, [*panels, _calibration(shown, reading)]


def _drawn(ax: Axes, shown: Shown, goal: Target, output: int) -> None:
    center, scale = goal.units(output)
    plot.predictions(shown.prediction, shown.y, ax, center=center, scale=scale, output=output)


def _calibration(shown: Shown, reading: str) -> Panel:
    if isinstance(shown.prediction, ClassPrediction):
        error = metrics.ece(*plot.class_rows(shown.prediction, shown.y), bins=10)
        label = f"Reliability diagram: the expected calibration error is {error:.3f}."
    else:
        held, _ = plot.coverages(shown.prediction, shown.y, (0.5, 0.9))
        label = f"Coverage: 50% intervals hold {held[0]:.0%} of the truths, 90% intervals {held[1]:.0%}."
    return Panel("calibration", label, reading, lambda ax: plot.calibration(shown.prediction, shown.y, ax))


# ---- sizes and settings ----------------------------------------------------------------------------------------------


def _sizes(model: Bayesian, example: tuple[Tensor, ...] | None) -> tuple[Size | None, Size | None, str]:
    """Before, after, and why there are none."""
    if example is None:
        return None, None, "What its inputs look like is not known, so the network was not run."
    try:
        return *sizes(model, example), ""
    except ValueError as e:
        return None, None, str(e)


def _bytes(count: int) -> str:
    return f"{count / 1000:,.1f} kB" if count < 1e6 else f"{count / 1e6:,.1f} MB"


def _size_table(before: Size | None, after: Size | None, trouble: str, own: str) -> str:
    heading = '<section class="card"><h2>Size and speed</h2>'
    if before is None or after is None:
        return f"{heading}<p>{html.escape(trouble)}</p></section>"

    def row(name: str, show: Callable[[float], str], field: str) -> list[str]:
        a, b = getattr(before, field), getattr(after, field)
        return [name, show(a), show(b), _percent(b / a)]

    rows = [
        row("parameters", "{:,}".format, "parameters"),
        row("multiplications for a row", "{:,}".format, "multiplications"),
        row("file", lambda v: _bytes(int(v)), "bytes"),
    ]
    timed = row(f"milliseconds for {ROWS:,} rows", "{:.3f}".format, "ms")
    rows.append([timed[0], *map(Cell.measured, timed[1:])])
    table = _table(["", "before", "after", "left"], rows, "numbers", "Size and speed before and after")
    words = (
        "Before is the plain network with all of its nodes, after is the plain network that "
        f"<code>nodeslab shrink</code> writes. {html.escape(own)}Times are medians on one thread, measured in turn "
        f'when this page was written (<span class="measured">{html.escape(cpu() or "this machine")}</span>).'
    )
    return f"{heading}{table}<p>{words}</p></section>"


def _word(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, (float, np.floating)):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {_word(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(map(_word, value)) or "none"
    return str(value)


def _plan(model: Bayesian) -> Iterator[list[str]]:
    records = {r.path: r for r in model.nodes()}
    for p in model._posteriors():
        r = records.get(p.path)
        nodes = f"{r.open:,} of {r.total:,}" if r else f"{p.geometry.nodes:,}"
        chance = "-" if p.inclusion_prior is None or p.output else f"{p.inclusion_prior:.3g}"
        yield [p.path or "(net)", p.prior.describe(), nodes, chance]


def _settings(
    model: Bayesian, history: History, settings: Mapping[str, object], features: Sequence[str], goal: Target
) -> str:
    likelihood = "-" if model.likelihood is None else repr(model.likelihood)
    rows = [(str(k).replace("_", " "), _word(v)) for k, v in settings.items()]
    own = [
        ("target", goal.name + (f": {', '.join(goal.classes)}" if goal.classes else "")),
        (
            "columns",
            ", ".join(features) if len(features) <= 60 else f"{', '.join(features[:60])}, ... ({len(features):,})",
        ),
        ("training rows", f"{model.n:,}"),
        ("likelihood", likelihood),
        ("seed of the training", str(history.seed) if len(history) else "-"),
        ("seed of the predictions here", str(SEED)),
        ("nodeslab, torch", f"{nodeslab.__version__}, {torch.__version__}"),
    ]
    rows += [(name, value) for name, value in own if name not in dict(rows)]
    layers = _table(["layer", "prior", "open nodes", "λ"], list(_plan(model)), "plain", "The layers and their priors")
    return (
        f"<section><h2>Settings</h2>{_table(['', ''], rows, 'words', 'Settings of this fit')}"
        f"<h3>Layers</h3>{layers}"
        "<p>λ is the prior probability that a node of the layer is needed.</p></section>"
    )
