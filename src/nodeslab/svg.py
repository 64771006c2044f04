"""Figures as SVG that stands in a page: in its text colour and font, with ids of their own and a name to read out."""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from matplotlib import style
from matplotlib.figure import Figure

__all__ = ["BLUE", "GREEN", "GREY", "INK", "ORANGE", "PURPLE", "RED", "STYLE", "inline", "styled", "text_of"]

#: A colour that nothing else has: on a page it becomes the text's.
INK = "#101112"
#: Seen on white and on near-black: a contrast of at least 3 with both pages of `nodeslab.sheet`.
BLUE, ORANGE, GREEN, PURPLE, RED, GREY = "#2f7fd6", "#d9772b", "#2f9e63", "#9467bd", "#d64545", "#7f7f7f"

STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "text.parse_math": False,  # a column may be called "price $"
}


@contextmanager
def styled(name: str) -> Iterator[None]:
    """The house style, whatever the reader's own settings are; the same figure drawn twice is the same bytes."""
    with style.context({**STYLE, "svg.hashsalt": name}, after_reset=True):
        yield


def text_of(figure: Figure) -> str:
    """The figure as an SVG document without a date; within `styled`."""
    drawn = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the reader's fonts draw the text, not ours
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    return drawn.getvalue()


def inline(svg: str, name: str, label: str) -> str:
    """An SVG to stand in an HTML page: it takes the page's text colour and font, and names no address.

    name: what its ids begin with, so that no two figures of a page share one. label: what it shows, for those who
    do not see it.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\sxmlns(:xlink)?="[^"]*"', "", body)
    for size in ("width", "height", "version"):
        body = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", body, count=1)
    body = body.replace(INK, "currentColor")
    body = body.replace("fill: #ffffff", "fill: none")  # the white sheets under the figure and its panels
    body = re.sub(r"(font: [^;\"]*?px) [^;\"]*", r"\1 system-ui, sans-serif", body)
    body = body.replace("xlink:href", "href")
    used = set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", body))
    body = re.sub(r' id="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", body)
    body = re.sub(r"(url\(|href=\")#", rf"\1#{name}-", body)
    named = html.escape(label)
    opening = f'<svg role="img" aria-label="{named}"'
    body = re.sub(r"<svg([^>]*)>", lambda m: f"{opening}{m[1]}><title>{named}</title>", body, count=1)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    return re.sub(r"\n\s*", "\n", body).strip()
