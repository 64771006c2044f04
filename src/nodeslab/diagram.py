"""A network as a picture: a dot for each node, filled where it is open, and lines between those that are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection, LineCollection
from matplotlib.patches import Polygon, Rectangle

from nodeslab.model import Bayesian
from nodeslab.svg import BLUE, GREY

__all__ = ["Column", "columns", "draw"]

TALL = 25  # nodes above one another, before a layer is wrapped into several lines
DOTS = 1000  # a wider layer is a block, filled as far as its nodes are open
LINES = 1500  # between two layers with more pairs of open nodes: a band
COLUMNS = 8  # a deeper network is a bar for each layer


@dataclass(frozen=True, eq=False)
class Column:
    """One layer: its name, which of its nodes are open, and whether nodes can close there."""

    name: str
    mask: np.ndarray[Any, np.dtype[np.bool_]]
    selects: bool
    follows: bool  # its weights come from the column before it

    @property
    def count(self) -> str:
        if not self.selects:
            return f"{len(self.mask):,}"
        return f"{int(self.mask.sum()):,} of {len(self.mask):,}"


def columns(model: Bayesian, before: bool = False) -> list[Column]:
    """The inputs and every Bayesian layer, in the network's order; before: with all nodes open."""
    records = {r.path: r for r in model.nodes()}
    found: list[Column] = []
    left = 0
    for posterior in model._posteriors():
        g = posterior.geometry
        if not found:
            inputs = g.fan_in if g.linear else model.net.get_submodule(posterior.path).in_channels
            left = int(inputs)  # type: ignore[arg-type]
            found.append(Column("inputs", np.ones(left, dtype=bool), False, False))
        record = records.get(posterior.path)
        mask = np.ones(g.nodes, dtype=bool) if record is None else record.mask.cpu().numpy()
        name = "output" if posterior.output else f"layer {posterior.path or '(net)'}"
        channels = g.fan_in if g.linear else g.fan_in * g.groups
        follows = channels % left == 0
        found.append(Column(name, np.ones_like(mask) if before else mask, record is not None, follows))
        left = g.nodes
    return found


def draw(model: Bayesian, ax: Axes, before: bool) -> None:
    """Columns of dots from left to right; for a deep network, a bar for each layer."""
    found = columns(model, before)
    ax.set_axis_off()
    if len(found) > COLUMNS + 1:
        _bars(ax, found[1:])
        return
    shapes = [_shape(len(c.mask)) for c in found]
    height = float(TALL)
    gap = max(5.0, (34.0 - sum(wide for _, _, wide in shapes)) / max(len(found) - 1, 1))
    at = 0.0
    last: tuple[Any, float] | None = None
    for column, (rows, cell, wide) in zip(found, shapes, strict=True):
        n, block = len(column.mask), len(column.mask) > DOTS
        places = np.stack([at + (np.arange(n) // rows + 0.5) * cell, _down(n, rows, cell, height)], 1)
        if block:
            places = np.array([[at + wide / 2, 0.0]])
        if last is not None and column.follows:
            _connect(ax, last, (places, column, at))
        _nodes(ax, column, places, cell, (at, wide, height) if block else None)
        label = f"{column.count}\n{'open' if column.selects else column.name}"
        ax.text(at + wide / 2, -height / 2 - 1.0, label, ha="center", va="top")
        last = (places, column, at + wide)  # type: ignore[assignment]
        at += wide + gap
    ax.set_xlim(-3.0, at - gap + 3.0)
    ax.set_ylim(-height / 2 - 5.5, height / 2 + 0.5)
    ax.set_aspect("equal")


def _shape(n: int) -> tuple[int, float, float]:
    """How many nodes stand above one another, the size of a node's cell, and the column's width."""
    if n > DOTS:
        return n, 1.0, 6.0
    rows = n if n <= TALL else TALL if n <= 4 * TALL else math.ceil(math.sqrt(2.0 * n))
    cell = TALL / max(rows, TALL)
    return rows, cell, math.ceil(n / rows) * cell


def _down(n: int, rows: int, cell: float, height: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """From the top; a layer of few nodes is spread out around the middle."""
    step = cell if n > rows or (rows > 1 and rows * 2.0 > height) else min(height / rows, 2.0)
    return (min(rows, n) - 1) / 2 * step - (np.arange(n) % rows).astype(np.float64) * step


def _nodes(ax: Axes, column: Column, places: Any, cell: float, block: tuple[float, float, float] | None) -> None:
    colour = BLUE if column.selects else GREY
    if block is not None:
        left, wide, height = block
        share = float(column.mask.mean())
        ax.add_patch(Rectangle((left, -height / 2), wide, height, facecolor="none", edgecolor=colour, linewidth=0.8))
        ax.add_patch(Rectangle((left, -height / 2), wide, height * share, facecolor=colour, linewidth=0))
        return
    size = 0.74 * cell
    for mask, fill, edge in ((column.mask, colour, colour), (~column.mask, "none", GREY)):
        if mask.any():
            many = np.full(int(mask.sum()), size)
            dots = EllipseCollection(
                many, many, np.zeros_like(many), units="xy", offsets=places[mask], offset_transform=ax.transData,
                facecolors=fill, edgecolors=edge, linewidths=0.6, zorder=3,
            )  # fmt: skip
            ax.add_collection(dots)


def _connect(ax: Axes, last: Any, here: Any) -> None:
    (before, source, right), (after, column, left) = last, here
    blocks = len(source.mask) > DOTS or len(column.mask) > DOTS
    pairs = int(source.mask.sum()) * int(column.mask.sum())
    if not blocks and pairs <= LINES:
        ends = [(a, b) for a in before[source.mask] for b in after[column.mask]]
        ax.add_collection(LineCollection(ends, colors=GREY, linewidths=0.5, alpha=0.45, zorder=1))
        return
    top, bottom = (TALL / 2, -TALL / 2)
    reach = [(top, bottom) if len(p) == 1 else (p[:, 1].max() + 0.4, p[:, 1].min() - 0.4) for p in (before, after)]
    share = pairs / (len(source.mask) * len(column.mask))
    corners = [(right, reach[0][0]), (left, reach[1][0]), (left, reach[1][1]), (right, reach[0][1])]
    ax.add_patch(Polygon(corners, facecolor=GREY, alpha=0.06 + 0.24 * share, linewidth=0, zorder=0))


def _bars(ax: Axes, found: list[Column]) -> None:
    """Each layer's nodes as a bar, the open ones filled; the widest layer sets the scale."""
    widest = max(len(c.mask) for c in found)
    for i, c in enumerate(found):
        total, left = len(c.mask) / widest, c.mask.sum() / widest
        colour = BLUE if c.selects else GREY
        ax.add_patch(Rectangle((0, -i - 0.4), total, 0.8, facecolor="none", edgecolor=colour, linewidth=0.7))
        ax.add_patch(Rectangle((0, -i - 0.4), left, 0.8, facecolor=colour, linewidth=0))
        if len(found) <= 2 * TALL:
            size = min(8.0, 220 / len(found))
            ax.text(-0.02, -i, c.name, ha="right", va="center", size=size)
            ax.text(total + 0.02, -i, c.count, ha="left", va="center", size=size)
    ax.set_xlim(-0.45, 1.3)
    ax.set_ylim(-len(found), 1)
