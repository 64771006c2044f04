"""All code in README.md and docs/*.md runs, block after block, as a reader would type it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def _blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_code_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for i, block in enumerate(_blocks(page)):
        exec(compile(block, f"{page.name}, block {i + 1}", "exec"), names)


def test_the_readme_lists_every_file() -> None:
    text = (ROOT / "README.md").read_text()
    for path in (ROOT / "src" / "nodeslab").glob("*.[pc]*"):
        if path.suffix in (".py", ".c") and not path.name.startswith("__"):
            assert f"`{path.name}`" in text, path.name


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} -> {target}"


def test_the_picture_can_be_drawn_again(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("figure", ROOT / "docs" / "figure.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(tmp_path / "f.png", epochs=3)
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
