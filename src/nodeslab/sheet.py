"""The skeleton of an offline page: one file, light and dark, on a phone and on paper."""

from __future__ import annotations

import html

__all__ = ["CSS", "sheet"]

CSS = """
:root { color-scheme: light dark; --ink: #1b1d21; --faint: #565c66; --paper: #ffffff; --soft: #f3f4f7;
  --line: #d5d8de; --met: #1a7f4b; --missed: #b3361b }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e6ea; --faint: #a4abb8; --paper: #16181c; --soft: #1f2228; --line: #3a3e46; --met: #58c48a;
    --missed: #ff8a6b }
}
* { box-sizing: border-box }
body { font: 1rem/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 72rem; padding: 1rem clamp(1rem, 4vw, 2rem) 4rem; overflow-wrap: break-word }
h1 { line-height: 1.2 } h2 { margin: 2.5rem 0 .5rem }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1rem } nav a { color: inherit }
figure { margin: 1rem 0 } figcaption { color: var(--faint); font-size: .9rem }
figure svg { display: block; width: 100%; height: auto }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .3rem .7rem; border-bottom: 1px solid var(--line); vertical-align: top }
.met { color: var(--met); font-weight: 600 } .missed { color: var(--missed); font-weight: 600 }
.open { color: var(--faint) }
@media print {
  :root { color-scheme: light; --ink: #000000; --faint: #44484f; --paper: #ffffff; --soft: #ffffff; --line: #b8bcc4;
    --met: #12633a; --missed: #8f2a14 }
  body { font-size: 10pt } nav { display: none } h2 { break-after: avoid } figure, tr, .card { break-inside: avoid }
}
"""


def sheet(title: str, body: str, css: str = "") -> str:
    """A page that needs nothing else; `body` is HTML, `css` adds to the common rules."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{CSS}{css}</style></head><body>\n{body}\n</body></html>\n"
    )
