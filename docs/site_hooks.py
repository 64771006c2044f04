"""mkdocs calls this: pages that live elsewhere in the repository, the commands' help, formulas as MathML."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from nodeslab.commands.parser import make_parser

ROOT = Path(__file__).parent.parent


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fences called `math` hold a formula in LaTeX."""
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {}).setdefault("custom_fences", [])
    fences.append({"name": "math", "class": "math", "format": formula})
    return config


def formula(source: str, language: str, css_class: str, options: Any, md: Any, **kwargs: Any) -> str:
    return f'<div class="math" style="overflow-x: auto; margin: 1em 0">{convert(source, display="block")}</div>'


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The design, the performance and the changes are pages without being copied."""
    for page in ("docs/design.md", "docs/performance.md", "CHANGELOG.md"):
        name = Path(page).name.lower()
        files.append(File.generated(config, name, content=(ROOT / page).read_text(encoding="utf-8")))
    for picture in sorted((ROOT / "docs").glob("*.png")):
        files.append(File.generated(config, picture.name, abs_src_path=str(picture)))
    files.append(File.generated(config, "api/commands.md", content=commands()))
    return files


def commands() -> str:
    """What `nodeslab COMMAND --help` prints, of every command."""
    found = next(a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction))
    parts = ["# The command line", "", "What `nodeslab COMMAND --help` prints."]
    for name, parser in found.choices.items():
        parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=100)
        parts += ["", f"## nodeslab {name}", "", "```text", parser.format_help().rstrip(), "```"]
    return "\n".join(parts) + "\n"
