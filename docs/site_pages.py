"""What runs on the pages of docs/site, and writing below each block what it prints.

    python docs/site_pages.py                 # all pages
    python docs/site_pages.py howto/loop.md   # some of them

Of a page, in order and in one namespace: each ```python block, and each ```sh block that stands right below the line
`<!-- run -->`, whose commands must be `nodeslab ...`. A ```text block right below such a block is what it prints.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from nodeslab import cli

SITE = Path(__file__).parent / "site"
PAGES = sorted(SITE.rglob("*.md"))
BLOCK = re.compile(
    r"^(?P<mark><!-- run -->\n)?```(?P<kind>python|sh)\n(?P<code>.*?)^```\n(?P<out>\n```text\n.*?^```\n)?",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """One piece of a page that runs. out: where in the page its output stands, if it does."""

    name: str
    kind: str
    code: str
    out: tuple[int, int] | None

    def run(self, names: dict[str, object]) -> None:
        if self.kind == "python":
            exec(compile(self.code, self.name, "exec"), names)
            return
        for line in self.code.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and (words[0] != "nodeslab" or cli.main(words[1:]) != 0):
                raise RuntimeError(f"{self.name}: {line!r} is no nodeslab command that works.")


def blocks(page: Path) -> list[Block]:
    found = [m for m in BLOCK.finditer(page.read_text(encoding="utf-8")) if m["kind"] == "python" or m["mark"]]
    name = page.relative_to(SITE)
    return [
        Block(f"{name}, block {i}", m["kind"], m["code"], None if m["out"] is None else m.span("out"))
        for i, m in enumerate(found, 1)
    ]


def refresh(page: Path) -> None:
    """Run a page in an empty folder, and put what its blocks print in the place of what they printed before."""
    text, names, before = page.read_text(encoding="utf-8"), {"__name__": "page"}, Path.cwd()
    parts: list[str] = []
    end = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for block in blocks(page):
                with contextlib.redirect_stdout(io.StringIO()) as printed:
                    block.run(names)
                if block.out is not None:
                    lines = "\n".join(line.rstrip() for line in printed.getvalue().rstrip().splitlines())
                    parts += [text[end : block.out[0]], f"\n```text\n{lines}\n```\n"]
                    end = block.out[1]
        finally:
            os.chdir(before)
    page.write_text("".join([*parts, text[end:]]), encoding="utf-8")


if __name__ == "__main__":
    for chosen in [SITE / name for name in sys.argv[1:]] or PAGES:
        print(chosen.relative_to(SITE), flush=True)
        refresh(chosen)
