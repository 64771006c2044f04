"""The documentation site: its code and commands run, it builds without a warning, and it needs no other host."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
SITE = ROOT / "docs" / "site"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def _module(file: Path) -> ModuleType:
    """A script, imported."""
    spec = importlib.util.spec_from_file_location(f"script_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


pages = _module(ROOT / "docs" / "site_pages.py")
PAGES: list[Path] = pages.PAGES


@pytest.mark.parametrize("page", [p for p in PAGES if pages.blocks(p)], ids=lambda p: str(p.relative_to(SITE)))
def test_pages_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for block in pages.blocks(page):
        block.run(names)


def test_every_mark_has_its_block() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert text.count("<!-- run -->") == sum(block.kind == "sh" for block in pages.blocks(page)), page.name


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda p: p.name)
def test_examples_run(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _module(file).main()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `mkdocs build --strict` makes it: a warning is an error."""
    pytest.importorskip("mkdocs")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, **QUIET})
    assert done.returncode == 0, done.stdout + done.stderr
    return out


QUIET = {"NO_MKDOCS_2_WARNING": "1"}


class _Fetched(HTMLParser):
    """What a browser fetches by itself to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed") and "src" in named:
            self.found.append(named["src"])
        links = ("stylesheet", "preconnect", "preload", "icon", "dns-prefetch", "modulepreload")
        if tag == "link" and any(rel in links for rel in named.get("rel", "").split()):
            self.found.append(named.get("href", ""))
        self.found += re.findall(r"url\(([^)]*)\)", named.get("style", ""))


def test_the_site_needs_no_other_host(built: Path) -> None:
    pages = list(built.rglob("*.html"))
    assert len(pages) >= len(PAGES)
    for page in pages:
        text = page.read_text(encoding="utf-8")
        parser = _Fetched()
        parser.feed(text)
        styles = re.findall(r"<style[^>]*>(.*?)</style>", text, re.DOTALL)
        fetched = parser.found + [u for style in styles for u in re.findall(r"url\(([^)]*)\)", style)]
        assert parser.found, page.name
        for address in fetched:
            assert not re.match(r"[\"']?\s*(https?:)?//", address), f"{page.name}: {address}"
    for sheet in built.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", text), sheet.name


def test_every_public_name_is_on_a_page(built: Path) -> None:
    import nodeslab

    texts = "".join(page.read_text(encoding="utf-8") for page in (built / "api").glob("*.html"))
    for name in nodeslab.__all__:
        if name not in ("__version__", "metrics", "parallel", "plot", "theory"):
            assert re.search(rf'id="nodeslab\.([a-z.]+\.)?{name}"', texts), name


def test_pages_that_live_elsewhere(built: Path) -> None:
    for page, words in (("design", "Found by trying"), ("performance", "bench step"), ("changelog", "Unreleased")):
        assert words in (built / f"{page}.html").read_text(encoding="utf-8")
    assert "nodeslab predict" in (built / "api" / "commands.html").read_text(encoding="utf-8")


def test_formulas_are_mathml(built: Path) -> None:
    text = (built / "ideas" / "elbo.html").read_text(encoding="utf-8")
    assert text.count("<math") == (SITE / "ideas" / "elbo.md").read_text(encoding="utf-8").count("```math")
    assert "\\mathrm" not in text


def test_docstrings_become_lists() -> None:
    pytest.importorskip("griffe")
    listed = _module(ROOT / "docs" / "site_docstrings.py").listed
    text = "Fit s* of u_l.\n\ndata: all of it,\n    `X_y` and Y.\nlr, n: two.\nnote: no argument.\n\n    code_l = 1"
    wanted = (
        "Fit s\\* of u\\_l.\n\n\n- `data`: all of it,\n    `X_y` and Y.\n- `lr`, `n`: two.\n\nnote: no argument.\n\n"
        "    code_l = 1"
    )
    assert listed(text, {"data", "lr", "n"}) == wanted
