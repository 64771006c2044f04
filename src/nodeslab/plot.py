"""Plots of a model, of its training and of its predictions, on matplotlib axes.

Each function draws into `ax`, or into a figure of its own, and returns the axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from nodeslab import diagram, metrics
from nodeslab.checks import probability, whole
from nodeslab.data import as_targets, same_rows
from nodeslab.incoming import incoming_weights, posterior_of
from nodeslab.likelihoods import Bernoulli, Categorical, Gaussian
from nodeslab.model import Bayesian
from nodeslab.prediction import ClassPrediction, Prediction, RegressionPrediction
from nodeslab.svg import BLUE, GREEN, GREY, ORANGE, PURPLE, RED
from nodeslab.training import History

__all__ = [
    "calibration",
    "confusion",
    "elbo",
    "flops",
    "inclusion",
    "network",
    "open_nodes",
    "predictions",
    "weights",
]

CYCLE = (BLUE, ORANGE, GREEN, PURPLE, RED, GREY)
LEVELS = tuple(round(0.05 * i, 2) for i in range(1, 20))
PART = 4_000_000  # draws x values at a time

Array = NDArray[np.float64]


def _axes(ax: Axes | None) -> Axes:
    """The axes that are given, or new ones."""
    if ax is not None:
        if not isinstance(ax, Axes):
            raise TypeError(f"ax must be matplotlib axes, got {type(ax).__name__}; leave it out for a new figure.")
        return ax
    from matplotlib import pyplot as plt

    _, made = plt.subplots(layout="constrained")
    return made


def _model(model: object) -> Bayesian:
    if not isinstance(model, Bayesian):
        raise TypeError(f"model must come from ns.bayesian, got {type(model).__name__}.")
    return model


def _history(history: object) -> History:
    if not isinstance(history, History):
        raise TypeError(f"history must be what ns.fit returned, got {type(history).__name__}.")
    if not len(history):
        raise ValueError("history has no epochs: there is nothing to draw.")
    return history


def _share_of(axis: Any) -> None:
    axis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _nothing(ax: Axes, what: str) -> Axes:
    ax.text(0.5, 0.5, what, transform=ax.transAxes, ha="center", va="center")
    return ax


# ---- the network -----------------------------------------------------------------------------------------------------


def network(model: Bayesian, ax: Axes | None = None, *, before: bool = False) -> Axes:
    """Every node as a dot, layer by layer: filled where it is open, hollow where it has closed.

    before: as it was, with all nodes open.
    """
    ax = _axes(ax)
    diagram.draw(_model(model), ax, before)
    return ax


def inclusion(model: Bayesian, ax: Axes | None = None) -> Axes:
    """gamma_lj, the probability that each node is open, from the largest down; a line for each layer.

    With more than six layers, a box for each.
    """
    records = _model(model).nodes()
    ax = _axes(ax)
    ax.set_ylim(-0.03, 1.03)
    ax.set_ylabel("probability that a node is needed")
    if not records:
        return _nothing(ax, "no node can close under this prior")
    values = [np.sort(r.inclusion.detach().cpu().double().numpy())[::-1] for r in records]
    ax.axhline(0.5, color=GREY, linewidth=1, linestyle=":")
    if len(records) > len(CYCLE):
        box_plots(ax, values, BLUE)
        ax.set_xlabel("layer, from the inputs to the output")
        return ax
    single = len(records) == 1
    for record, gamma, colour in zip(records, values, CYCLE, strict=False):
        n = len(gamma)
        at = np.arange(1, n + 1) if single else (np.arange(n) + 0.5) / n
        label = f"layer {record.path or '(net)'}: {record.open:,} of {n:,} open"
        ax.plot(at, gamma, marker="o" if n <= 100 else "", markersize=3, linewidth=1.2, color=colour, label=label)
    if not single:
        _share_of(ax.xaxis)
    ax.set_xlabel("nodes, the most probable first" + ("" if single else ", as a share of the layer"))
    ax.legend(loc="best")
    return ax


def box_plots(ax: Axes, boxes: Sequence[Sequence[float] | Array], colours: str | Sequence[str]) -> None:
    """A box for each sequence of values, its whiskers over all of them; every other one is numbered."""
    each = [colours] * len(boxes) if isinstance(colours, str) else colours
    drawn = ax.boxplot(boxes, widths=0.6, patch_artist=True, showfliers=False, whis=(0, 100))
    for i, colour in enumerate(each):
        drawn["boxes"][i].set(facecolor=colour + "55", edgecolor=colour, linewidth=1.0)
        drawn["medians"][i].set(color=colour, linewidth=1.8)
        for part in (*drawn["whiskers"][2 * i : 2 * i + 2], *drawn["caps"][2 * i : 2 * i + 2]):
            part.set(color=colour, linewidth=1.0)
    step = max(2, len(boxes) // 10)
    ax.set_xticks(range(1, len(boxes) + 1, step), [str(i) for i in range(1, len(boxes) + 1, step)])


def weights(
    model: Bayesian,
    ax: Axes | None = None,
    *,
    path: str | None = None,
    largest: int = 20,
    draws: int = 10,
    seed: int = 0,
) -> Axes:
    """Box plots of |w| of the weights into each node over some draws, as in the paper's first simulation.

    path: the layer; the first one by default. largest: how many nodes, those with the largest weights. Open nodes
    are blue, closed ones grey.
    """
    posterior = posterior_of(_model(model), path)
    count = whole("largest", largest)
    values = incoming_weights(model, posterior.path, whole("draws", draws), seed).double()
    order = torch.argsort(values.amax(1), descending=True, stable=True)[:count]
    mask = posterior.open().cpu()
    ax = _axes(ax)
    box_plots(ax, [values[i].numpy() for i in order], [BLUE if mask[i] else GREY for i in order])
    ax.set_xlabel("nodes, by their largest weight" + (f" (the first {count})" if len(values) > count else ""))
    ax.set_ylabel("|incoming weight|")
    return ax


# ---- training --------------------------------------------------------------------------------------------------------


def elbo(history: History, ax: Axes | None = None) -> Axes:
    """The ELBO of each epoch, in nats; the steep beginning may lie below the frame."""
    epochs, values = _history(history).column("epoch"), history.column("elbo")
    ax = _axes(ax)
    ax.plot(epochs, values, color=BLUE, linewidth=1.2)
    settled = np.array(values[len(values) // 20 :])
    low, high = float(settled.min()), float(max(values))
    if high > low:
        ax.set_ylim(low - 0.08 * (high - low), high + 0.08 * (high - low))
    return _over_epochs(ax, "ELBO, nats")


def open_nodes(history: History, ax: Axes | None = None) -> Axes:
    """How many nodes are open after each epoch, a line for each layer."""
    epochs, by_layer = _history(history).column("epoch"), history.column("open")
    ax = _axes(ax)
    paths = list(by_layer[-1])
    if not paths:
        _nothing(ax, "no node can close under this prior")
    for i, path in enumerate(paths):
        label = f"layer {path or '(net)'}"
        colour = CYCLE[i % len(CYCLE)]
        ax.plot(epochs, [of[path] for of in by_layer], color=colour, linewidth=1.2, label=label)
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    if 1 < len(paths) <= 2 * len(CYCLE):
        ax.legend(loc="best", ncols=1 + len(paths) // 7)
    return _over_epochs(ax, "open nodes")


def flops(history: History, ax: Axes | None = None) -> Axes:
    """The multiplications that are left after each epoch, as a share of the dense network's."""
    epochs, ratios = _history(history).column("epoch"), history.column("flops_ratio")
    ax = _axes(ax)
    ax.plot(epochs, ratios, color=BLUE, linewidth=1.2)
    ax.set_ylim(0.0, 1.04)
    _share_of(ax.yaxis)
    return _over_epochs(ax, "multiplications left (FLOPs ratio)")


def _over_epochs(ax: Axes, label: str) -> Axes:
    ax.set_xlabel("epoch")
    ax.set_ylabel(label)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    return ax


# ---- predictions -----------------------------------------------------------------------------------------------------


def predictions(
    prediction: Prediction,
    y: Any,
    ax: Axes | None = None,
    *,
    level: float = 0.9,
    center: float = 0.0,
    scale: float = 1.0,
    output: int = 0,
    most: int = 300,
) -> Axes:
    """The predicted mean of each row against the truth, with its central interval of probability `level`.

    center, scale: shown are center + scale y, the target's own units. output: which one, of a network with several.
    most: more rows than so many are thinned out evenly; the share of truths that is written is of all rows.
    """
    p, truth = regression_rows(prediction, y)
    level = probability("level", level)
    at = whole("output", output, least=0)
    if at >= truth.shape[1]:
        raise ValueError(f"output must be below {truth.shape[1]}, the number of the network's outputs, got {at}.")
    low, mean, high, true = (
        center + scale * v.double().reshape(len(truth), -1)[:, at].numpy() for v in (*_around(p, level), truth)
    )
    inside = (low <= true) & (true <= high)
    shown = np.unique(np.linspace(0, len(true) - 1, min(len(true), whole("most", most))).round().astype(int))
    ax = _axes(ax)
    ends = [min(true[shown].min(), mean[shown].min()), max(true[shown].max(), mean[shown].max())]
    ax.plot(ends, ends, color=GREY, linewidth=1, zorder=1)
    for mask, colour, label in ((inside, BLUE, "the interval holds the truth"), (~inside, RED, "it does not")):
        rows = shown[mask[shown]]
        ax.vlines(true[rows], low[rows], high[rows], color=colour, linewidth=0.8, alpha=0.55)
        ax.plot(true[rows], mean[rows], "o", markersize=3, color=colour, label=f"{label}: {mask.mean():.0%}")
    ax.set_xlabel("truth")
    ax.set_ylabel(f"prediction, {level:.0%} interval")
    ax.legend(loc="best")
    return ax


def _around(p: RegressionPrediction, level: float) -> tuple[torch.Tensor, ...]:
    low, high = p.interval(level)
    return low.cpu(), p.mean.cpu(), high.cpu()


def regression_rows(prediction: object, y: Any) -> tuple[RegressionPrediction, torch.Tensor]:
    """A prediction of numbers, and the truths as (rows, outputs)."""
    if isinstance(prediction, ClassPrediction):
        raise TypeError("prediction is of classes, which have no intervals; see plot.confusion and plot.calibration.")
    if not isinstance(prediction, RegressionPrediction):
        raise TypeError(f"prediction must be what ns.predict returned, got {type(prediction).__name__}.")
    truth = Gaussian().targets(as_targets(y), prediction.mean).cpu()
    same_rows(prediction.mean, truth, ("The prediction", "y"))
    return prediction, truth.reshape(len(truth), -1)


def confusion(
    prediction: Prediction, y: Any, ax: Axes | None = None, *, classes: Sequence[object] | None = None
) -> Axes:
    """How often each true class (a row, adding up to 100 %) is taken for each class."""
    p, labels = class_rows(prediction, y)
    k = p.shape[1]
    names = [str(c) for c in (range(k) if classes is None else classes)]
    if len(names) != k:
        raise ValueError(f"classes must name the network's {k} classes, got {len(names)}.")
    table = torch.zeros(k, k, dtype=torch.float64)
    table.index_put_((labels, p.argmax(1)), torch.ones(len(labels), dtype=torch.float64), accumulate=True)
    share = (table / table.sum(1, keepdim=True).clamp_min(1.0)).tolist()
    ax = _axes(ax)
    for i in range(k):
        for j in range(k):
            colour = BLUE if i == j else RED
            # clear cells are left out: a hundred classes make ten thousand of them
            if share[i][j] > 0 or k <= 12:
                ax.fill_between(
                    [j - 0.5, j + 0.5], i - 0.5, i + 0.5, color=colour, alpha=0.45 * share[i][j], linewidth=0
                )
            if k <= 12:
                ax.text(j, i, f"{share[i][j]:.0%}", ha="center", va="center", size=9 if k <= 8 else 7)
    ax.set_xlim(-0.5, k - 0.5)
    ax.set_ylim(k - 0.5, -0.5)
    if k <= 20:
        short = [n if len(n) <= 14 else n[:13] + "…" for n in names]
        long = sum(map(len, short)) > 40
        ax.set_xticks(range(k), short, rotation=60 if long else 0, ha="right" if long else "center", parse_math=False)
        ax.set_yticks(range(k), short, parse_math=False)
    ax.set_xlabel("predicted class")
    ax.set_ylabel("true class")
    return ax


def calibration(prediction: Prediction, y: Any, ax: Axes | None = None, *, bins: int = 10) -> Axes:
    """Numbers: the share of truths in the central intervals, against their probability.
    Classes: how often the named class is right, against how sure the model was (a reliability diagram in `bins`).

    Shaded, or as bars: where 90 % of such points would lie by chance, if the model were perfectly calibrated.
    """
    ax = _axes(ax)
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1, label="perfect")
    if isinstance(prediction, ClassPrediction):
        p, labels = class_rows(prediction, y)
        share, confidence, accuracy = (v.numpy() for v in metrics.reliability(p, labels, bins))
        full = share > 0
        share, confidence, accuracy = share[full], confidence[full], accuracy[full]
        wide = _scatter(confidence, share * len(labels))
        error = f"calibration error (ECE): {metrics.ece(p, labels, bins):.3f}"
        ax.vlines(confidence, np.clip(confidence - wide, 0, 1), np.clip(confidence + wide, 0, 1), color=GREY, alpha=0.7)
        ax.plot(confidence, accuracy, color=BLUE, linewidth=1)
        ax.scatter(confidence, accuracy, s=12 + 120 * share, color=BLUE, zorder=3, label=error)
        ax.set_xlabel("probability of the named class")
        ax.set_ylabel("share that is right")
    else:
        held, count = coverages(prediction, y, LEVELS)
        levels = np.array(LEVELS)
        wide = _scatter(levels, count)
        ax.fill_between(levels, levels - wide, levels + wide, color=GREY, alpha=0.25, linewidth=0, label="chance")
        at_90 = held[LEVELS.index(0.9)]
        ax.plot(levels, held, "o-", markersize=3, linewidth=1.2, color=BLUE, label=f"90% intervals hold {at_90:.0%}")
        ax.set_xlabel("probability of the interval")
        ax.set_ylabel("share of truths in it")
    for axis in (ax.xaxis, ax.yaxis):
        _share_of(axis)
    ax.set_xlim(-0.02, 1.02)
    ax.set_ylim(-0.02, 1.02)
    ax.legend(loc="upper left")
    return ax


def _scatter(p: Array, count: Any) -> Array:
    """Half of what 90 % of shares of `count` values lie within, by the binomial's normal approximation."""
    out: Array = 1.645 * np.sqrt(p * (1.0 - p) / count)
    return out


def coverages(prediction: Prediction, y: Any, levels: Iterable[float]) -> tuple[Array, int]:
    """The share of truths in the central interval of each level, and how many truths there are.

    y lies in the interval of level c exactly when (1 - c) / 2 <= F(y) <= (1 + c) / 2, F its predicted distribution:
    one pass instead of two quantiles for each level.
    """
    p, truth = regression_rows(prediction, y)
    wanted = np.array(list(levels))
    if not bool((p.noise > 0).all()):  # the draws alone: their quantiles, interpolated
        held = []
        for level in wanted:
            low, high = (v.cpu().reshape(truth.shape) for v in p.interval(float(level)))
            held.append(float(((low <= truth) & (truth <= high)).double().mean()))
        return np.array(held), truth.numel()
    flat, noise = p.draws.reshape(len(p.draws), -1), p.noise.expand_as(p.draws[0]).reshape(-1)
    true = truth.reshape(-1).to(flat)
    step = max(1, PART // len(flat))
    parts = [
        torch.special.ndtr(((true[i : i + step] - flat[:, i : i + step]) / noise[i : i + step]).double()).mean(0)
        for i in range(0, len(true), step)
    ]
    off = (torch.cat(parts) - 0.5).abs().cpu().numpy() * 2.0
    return (off[:, None] <= wanted).mean(0), len(off)


def class_rows(prediction: object, y: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, classes) and the labels, also of one probability for each row, and of several places in a row."""
    if not isinstance(prediction, ClassPrediction):
        raise TypeError(f"prediction must be of classes, by ns.predict, got {type(prediction).__name__}.")
    likelihood = Bernoulli() if prediction.binary else Categorical()
    labels = likelihood.targets(as_targets(y), prediction.mean).cpu().reshape(-1).long()
    p = prediction.mean.cpu()
    if prediction.binary:
        p = p.reshape(-1)
        p = torch.stack([1.0 - p, p], 1)
    else:
        p = p.movedim(1, -1).reshape(-1, p.shape[1])
    same_rows(p, labels, ("The prediction", "y"))
    return p, labels
