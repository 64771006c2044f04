"""Records: one JSON file for each run, sealed by a sha256 and written in one step."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

__all__ = ["path_of", "read", "read_all", "write"]


def path_of(folder: Path, name: str, seed: int, quick: bool) -> Path:
    """Where the record of a run is: FOLDER/uci/concrete/ss-ig-00.json; those of quick runs in FOLDER/quick."""
    return (folder / "quick" if quick else folder) / f"{name}-{seed:02d}.json"


def write(path: Path, record: dict[str, Any]) -> None:
    """After a crash at any moment `path` is not there, or whole. The first line holds the sha256 of the second."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, allow_nan=True, separators=(",", ":"))
    seal = hashlib.sha256(text.encode()).hexdigest()
    aside = path.with_name(f".{path.name}.partial")
    with aside.open("w", encoding="utf-8", newline="\n") as f:
        f.write(f'{{"sha256": "{seal}", "record":\n{text}\n}}\n')
        f.flush()
        os.fsync(f.fileno())
    os.replace(aside, path)


def read(path: Path) -> dict[str, Any]:
    """The record in a file; ValueError, with the file's name, for one that is not as it was written."""
    content = path.read_bytes()
    first, _, rest = content.partition(b"\n")
    text = rest.removesuffix(b"\n}\n")
    seal = hashlib.sha256(text).hexdigest()
    if first != f'{{"sha256": "{seal}", "record":'.encode() or len(text) == len(rest):
        raise ValueError(
            f"{path} is damaged: its checksum does not match; restore it from a copy, or delete it and run "
            "nodeslab reproduce again."
        )
    return dict(json.loads(text))


def read_all(folder: Path) -> list[dict[str, Any]]:
    """Every record in a folder, by experiment, row and seed; quick ones only where the folder is that of quick runs."""
    if not folder.is_dir():
        raise ValueError(f"There is no folder {folder}; nodeslab reproduce makes one, and --records names another.")
    paths = sorted(p for p in folder.rglob("*.json") if not p.name.startswith("."))
    return [read(p) for p in paths if p.relative_to(folder).parts[0] != "quick"]
