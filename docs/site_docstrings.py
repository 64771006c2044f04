"""mkdocstrings calls this: docstrings are plain text here, and a line `name: ...` is about an argument.

Such lines become a list; what markdown would read as its own (`*`, `_`) is escaped, outside of code.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ABOUT = re.compile(r"(\w+(?:, \w+)*): (.*)")


class Arguments(griffe.Extension):
    def on_function_instance(self, *, func: griffe.Function, **kwargs: Any) -> None:
        rewrite(func, {p.name for p in func.parameters})

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        made = cls.members.get("__init__")
        names = {p.name for p in made.parameters} if isinstance(made, griffe.Function) else set()
        rewrite(cls, {*cls.members, *names})


def rewrite(thing: griffe.Object, names: set[str]) -> None:
    if thing.docstring is not None:
        thing.docstring.value = listed(thing.docstring.value, names)


def listed(text: str, names: set[str]) -> str:
    """The docstring as markdown."""
    lines: list[str] = []
    item = code = False
    for line in text.splitlines():
        found = ABOUT.fullmatch(line)
        indented = line.startswith("    ")
        if found and set(found[1].split(", ")) <= names:
            if not item:
                lines.append("")
            about = ", ".join(f"`{name}`" for name in found[1].split(", "))
            lines.append(f"- {about}: {escaped(found[2])}")
            item, code = True, False
        elif not line.strip():
            lines.append("")
            item = False
        elif indented and (code or not item):
            lines.append(line)
            code = True
        else:
            if item and not indented:
                lines.append("")
                item = False
            lines.append(escaped(line))
            code = False
    return "\n".join(lines).strip()


def escaped(text: str) -> str:
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"([*_])", r"\\\1", p) for p in parts)
