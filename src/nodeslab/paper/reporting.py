"""Records -> tables, figures and one page that needs nothing else. Nothing is trained."""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nodeslab.paper import records as files
from nodeslab.paper.claims import Claim, Records, by_name, claims_of, counted
from nodeslab.paper.rows import NAMES, experiments
from nodeslab.paper.tables import html_table, latex, markdown

__all__ = ["report"]

TITLE = "The paper's experiments, reproduced"
RULE = (
    "The sd is over seeds or splits, n their number; where a bar is in units of sd, it is the paper's. Verdicts are "
    "computed from the records; 'met as printed' is met once ours is rounded to the decimals that the paper prints."
)


def report(folder: Path, out: Path) -> list[str]:
    """Write report.md, report.tex, index.html and a figure for each experiment; one line about each."""
    try:
        from nodeslab.paper import figures
    except ImportError as e:
        raise ValueError('nodeslab report needs matplotlib: pip install "nodeslab[plot]"') from e
    found = files.read_all(folder)
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; name a folder.")
    out.mkdir(parents=True, exist_ok=True)
    records = by_name(found)
    known = experiments()
    parts, claims, said = [], {}, []
    for name in NAMES:
        claims[name] = claims_of(name, records)
        svg = figures.save(name, records, out)
        parts.append(_section(name, known[name], claims[name], figures.inline(svg), records))
        runs = sum(len(v) for k, v in records.items() if k.split("/")[0] == name)
        said.append(f"{name}: {runs} records, {counted(claims[name])}")
    (out / "report.md").write_text(_markdown(known, claims, found), encoding="utf-8")
    (out / "report.tex").write_text(
        "\n\n".join(latex(claims[name], known[name]["what"]) for name in NAMES) + "\n", encoding="utf-8"
    )
    (out / "index.html").write_text(_page("\n".join(parts), found), encoding="utf-8")
    return said


def _quick(found: Iterable[dict[str, Any]]) -> str:
    """A warning where figures are of --quick runs."""
    return (
        "These are --quick runs: they show that everything works, not how well."
        if any(r["row"]["quick"] for r in found)
        else ""
    )


def _origin(found: list[dict[str, Any]]) -> str:
    """Where the records come from, in one sentence."""
    if not found:
        return "There are no records."
    environments = [r["environment"] for r in found]
    devices = sorted({e["cpu"] if e["device"] == "cpu" else e["device"] for e in environments})
    hours = sum(r["wall_seconds"] for r in found) / 3600
    versions = sorted({f"torch {e['torch']}" for e in environments})
    return f"{len(found)} records, {hours:.1f} hours in all, on {', '.join(devices)}, with {', '.join(versions)}."


def _markdown(known: dict[str, Any], claims: dict[str, list[Claim]], found: list[dict[str, Any]]) -> str:
    lines = [f"# {TITLE}", "", _origin(found), _quick(found), "", RULE, ""]
    for name, of in claims.items():
        lines += [f"## {name}", "", known[name]["what"] + ".", ""]
        lines += [f"- {note}" for note in known[name]["notes"]]
        lines += ["", f"![{known[name]['what']}]({name}.svg)", "", markdown(of), ""]
    return "\n".join(lines)


def _section(name: str, what: dict[str, Any], claims: list[Claim], svg: str, records: Records) -> str:
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in what["notes"])
    return (
        f'<section id="{name}"><h2>{name}</h2><p>{html.escape(what["what"])}. {html.escape(counted(claims))}.</p>'
        f"<ul>{notes}</ul><figure>{svg}</figure><div class=wide>{html_table(claims)}</div></section>"
    )


STYLE = """
:root { color-scheme: light dark; --ink: #1b1d21; --paper: #ffffff; --line: #d5d8de; --met: #1a7f4b; --missed: #b3361b }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e6ea; --paper: #16181c; --line: #3a3e46; --met: #58c48a; --missed: #ff8a6b }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 72rem; padding: 1rem 1.5rem 4rem }
nav a { color: inherit; margin-right: 1rem }
figure { margin: 1rem 0 } figure svg { width: 100%; height: auto; font-family: system-ui, sans-serif }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .25rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap }
.met { color: var(--met); font-weight: 600 } .missed { color: var(--missed); font-weight: 600 } .open { opacity: .7 }
"""


def _page(body: str, found: list[dict[str, Any]]) -> str:
    links = "".join(f'<a href="#{name}">{name}</a>' for name in NAMES)
    words = " ".join(filter(None, (_origin(found), _quick(found), RULE)))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{TITLE}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><h1>{TITLE}</h1><p>{html.escape(words)}</p><nav>{links}</nav>\n"
        f"{body}\n</body></html>\n"
    )
