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
from nodeslab.sheet import sheet

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
        from nodeslab.svg import inline
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
        parts.append(_section(name, known[name], claims[name], inline(svg, name, known[name]["what"]), records))
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


#: A figure of many panels is not squeezed into a phone: it scrolls in its own frame. The bars wrap, so that the
#: verdicts stay in sight.
CSS = """
figure { overflow-x: auto } figure svg { min-width: 42rem }
#uci svg, #mlp svg, #lenet svg { min-width: 60rem }
th, td { white-space: nowrap } td:nth-child(2), td:nth-child(6) { white-space: normal; min-width: 9rem }
@media print {
  figure svg, #uci svg, #mlp svg, #lenet svg { min-width: 0 } table { font-size: 7pt }
  th, td { white-space: normal; padding: .15rem .4rem } td:nth-child(2), td:nth-child(6) { min-width: 0 }
}
"""


def _page(body: str, found: list[dict[str, Any]]) -> str:
    links = "".join(f'<a href="#{name}">{name}</a>' for name in NAMES)
    words = " ".join(filter(None, (_origin(found), _quick(found), RULE)))
    return sheet(TITLE, f"<h1>{TITLE}</h1><p>{html.escape(words)}</p><nav>{links}</nav>\n{body}", CSS)
