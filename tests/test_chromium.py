"""The pages as a reader sees them: in headless Chromium, where there is one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import PHONE, WIDE, Browser, binary, browser
from PIL import Image
from test_page import fitted

from nodeslab.paper.reporting import report

WHY_NOT = (
    "no Chromium was found, so the pages were not looked at: install it (apt-get install chromium), "
    "or name one in the environment as CHROMIUM"
)
pytestmark = [
    pytest.mark.skipif(binary() is None, reason=WHY_NOT),
    pytest.mark.skipif(sys.platform == "win32", reason="the protocol's pipes are file descriptors 3 and 4"),
]


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of a fit of numbers, of one of classes, and the paper's, without records."""
    folder = tmp_path_factory.mktemp("pages")
    for kind in ("numbers", "classes"):
        fitted(kind).write(folder / f"{kind}.html")
    (folder / "records").mkdir()
    report(folder / "records", folder / "paper")
    return {
        "numbers": folder / "numbers.html",
        "classes": folder / "classes.html",
        "paper": folder / "paper/index.html",
    }


def kept(file: Path) -> Path:
    """Screenshots stay where the environment says, for somebody to look at."""
    folder = os.environ.get("NODESLAB_SCREENSHOTS")
    return file if folder is None else Path(folder) / file.name


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize("which", ["numbers", "classes", "paper"])
def test_a_page_is_quiet_whole_and_fits(
    which: str, size: tuple[int, int], scheme: str, tab: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    page = pages[which]
    seen = tab.open(page, size, scheme)
    assert seen.complaints == []
    assert seen.requests == [page.resolve().as_uri()]
    assert len(tab.value("document.title")) > 10
    assert tab.value("innerWidth") == size[0]
    assert tab.value("document.documentElement.scrollWidth") == size[0]
    # nothing that does not scroll in a frame of its own hangs over the edge
    assert tab.value(OVER) == []
    drawn = tab.value("[...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().height)")
    assert len(drawn) >= 6
    assert min(drawn) > 100
    background = tab.value("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(22, 24, 28)")
    shot = kept(tmp_path / f"{which}-{'phone' if size == PHONE else 'wide'}-{scheme}.png")
    tab.screenshot(shot)
    with Image.open(shot) as image:
        assert image.width == size[0] * (2 if size == PHONE else 1)
        assert image.getpixel((2, 2))[:3] == ((255, 255, 255) if scheme == "light" else (22, 24, 28))
        assert len(image.convert("RGB").getcolors(1 << 24)) > 100


OVER = """
[...document.querySelectorAll('body *')]
  .filter(e => !e.closest('.wide, figure'))
  .filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .map(e => e.tagName)
"""

LETTERS = """
[...document.querySelectorAll('svg text')].map(t => {
  const box = t.getBBox(), drawn = t.ownerSVGElement;
  return [parseFloat(getComputedStyle(t).fontSize) * drawn.getScreenCTM().a, t.textContent];
}).filter(([size]) => size < 9.5)
"""

CLASHES = """
[...document.querySelectorAll('svg')].flatMap(s => {
  const upright = t => Math.abs(t.getCTM().a * t.getCTM().b) < 0.01;  // a slanted label's box is more than the label
  const all = [...s.querySelectorAll('text')].filter(upright).map(t => [t.getBoundingClientRect(), t.textContent]);
  return all.flatMap(([a, x], i) => all.slice(i + 1).filter(([b]) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4).map(([_, y]) => x + ' / ' + y));
})
"""


@pytest.mark.parametrize("which", ["numbers", "classes"])
def test_letters_can_be_read_on_a_phone(which: str, tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages[which], PHONE)
    assert tab.value("document.querySelectorAll('svg text').length") > 50
    assert tab.value(LETTERS) == []


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize("which", ["numbers", "classes", "paper"])
def test_no_label_lies_on_another(which: str, size: tuple[int, int], tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages[which], size)
    assert tab.value(CLASHES) == []


def test_it_prints_dark_on_light_whatever_the_screen(tab: Browser, pages: dict[str, Path], tmp_path: Path) -> None:
    tab.open(pages["numbers"], WIDE, "dark")
    tab.printed(tmp_path / "page.pdf")
    assert tab.value("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert tab.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_what_a_page_does_wrong_is_seen(tab: Browser, tmp_path: Path) -> None:
    """The tests above can fail."""
    page = tmp_path / "page.html"
    page.write_text(
        "<!doctype html><title>x</title><meta name='viewport' content='width=device-width'>"
        "<img src='beside.png'><p style='width:900px'>wide</p>"
        "<script>console.error('said'); missing()</script><svg><text y=20>aaaa</text><text y=20>bbbb</text></svg>"
    )
    seen = tab.open(page, PHONE)
    assert any("said" in c for c in seen.complaints)
    assert len(seen.complaints) >= 2
    assert [url.rpartition("/")[2] for url in seen.requests] == ["page.html", "beside.png"]
    assert "P" in tab.value(OVER)
    assert tab.value(CLASHES) == ["aaaa / bbbb"]
