"""Claims as tables: Markdown, LaTeX and HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence

from nodeslab.paper.claims import Claim

__all__ = ["HEAD", "cells", "html_table", "latex", "markdown"]

HEAD = ("row", "quantity", "paper", "ours: mean ± sd (n)", "difference", "bar", "verdict")


def cells(claim: Claim) -> tuple[str, ...]:
    """The words of one line."""
    digits = max(claim.decimals, 3) if claim.quantity != "open nodes" else 1
    return (
        claim.row,
        claim.quantity,
        claim.paper or "-",
        _ours(claim, digits),
        "-" if claim.difference is None else f"{claim.difference:+.{digits}f}",
        _bar(claim),
        claim.verdict,
    )


def _ours(claim: Claim, digits: int) -> str:
    if claim.value is None:
        return "not run"
    middle = f"{claim.value:.{digits}f}" + (" (median)" if claim.summary == "median" else "")
    return middle + ("" if claim.sd is None else f" ± {claim.sd:.{digits}f}") + f" ({len(claim.ours)})"


def _bar(claim: Claim) -> str:
    if claim.bar is None:
        return "-"
    sign = {"<=": "≤", ">=": "≥"}[claim.sense]
    return f"{sign} {claim.bar:.5g}" + (f" ({claim.note})" if claim.note else "")


def markdown(claims: Sequence[Claim]) -> str:
    """A pipe table."""
    lines = [HEAD, tuple("---" for _ in HEAD), *(cells(c) for c in claims)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


LATEX = {"±": r"$\pm$", "≤": r"$\le$", "≥": r"$\ge$", "%": r"\%", "_": r"\_", "&": r"\&", ">": "$>$", "^": r"\^{}"}


def latex(claims: Sequence[Claim], caption: str) -> str:
    """A table for booktabs."""
    rows = [r" & ".join(map(_escaped, line)) + r" \\" for line in (HEAD, *(cells(c) for c in claims))]
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{_escaped(caption)}}}",
            rf"\begin{{tabular}}{{{'l' * 3}{'r' * 2}{'l' * 2}}}",
            r"\toprule",
            rows[0],
            r"\midrule",
            *rows[1:],
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _escaped(text: str) -> str:
    return "".join(LATEX.get(c, c) for c in text)


def html_table(claims: Sequence[Claim]) -> str:
    """A table whose verdicts carry their word as a class."""
    head = "".join(f"<th>{html.escape(word)}</th>" for word in HEAD)
    lines = []
    for claim in claims:
        words = [f"<td>{html.escape(word)}</td>" for word in cells(claim)[:-1]]
        kind = {"met": "met", "met as printed": "met", "missed": "missed"}.get(claim.verdict, "open")
        lines.append(f"<tr>{''.join(words)}<td class={kind}>{html.escape(claim.verdict)}</td></tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
