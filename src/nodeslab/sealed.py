"""Files that are whole or refused: written aside, synced, renamed, and sealed by a sha256. No pickle.

A file is one line of text and then the payload, in the safetensors format:

    nodeslab <version> <kind> <sha256 of everything else>\\n
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as pack_tensors
from torch import Tensor

__all__ = ["previous_of", "read", "write"]

VERSION = 1
MAGIC = b"nodeslab "
LONGEST_HEADER = 160


def previous_of(path: Path) -> Path:
    """Where the generation before the current one is kept."""
    return path.with_name(path.name + ".previous")


def _digest(kind: str, version: int, payload: bytes) -> str:
    h = hashlib.sha256(f"nodeslab {version} {kind}\n".encode())
    h.update(payload)
    return h.hexdigest()


def write(
    path: str | os.PathLike[str],
    kind: str,
    meta: dict[str, Any],
    tensors: dict[str, Tensor],
    keep_previous: bool = False,
) -> Path:
    """Write a sealed file in one step: after a crash at any moment `path` is the old file or the new one."""
    target = Path(path)
    if not target.parent.is_dir():
        raise ValueError(f"Cannot write {target}: the folder {target.parent} does not exist; make it first.")
    if target.is_dir():
        raise ValueError(f"Cannot write {target}: it is a folder; give a file's name.")
    contiguous = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    payload = pack_tensors(contiguous, metadata={"nodeslab": json.dumps(meta)})
    header = f"nodeslab {VERSION} {kind} {_digest(kind, VERSION, payload)}\n".encode()
    aside = target.with_name(f".{target.name}.partial")
    with open(aside, "wb") as f:
        f.write(header)
        f.write(payload)
        f.flush()
        os.fsync(f.fileno())
    if keep_previous and target.exists():
        _keep(target)
    os.replace(aside, target)
    _sync_folder(target.parent)
    return target


def _keep(target: Path) -> None:
    """The current file becomes the previous generation too, without a moment in which `target` is missing."""
    link = target.with_name(f".{target.name}.link")
    link.unlink(missing_ok=True)
    try:
        os.link(target, link)
    except OSError:  # a file system without hard links: the previous file covers the moment between the renames
        os.replace(target, previous_of(target))
        return
    os.replace(link, previous_of(target))


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The contents of a sealed file; ValueError, with a sentence, for one that is damaged, foreign or newer."""
    source = Path(path)
    if not source.exists():
        raise FileNotFoundError(f"There is no file {source}.")
    if source.is_dir():
        raise ValueError(f"{source} is a folder; give the file in it.")
    content = source.read_bytes()
    if not content.startswith(MAGIC):
        raise ValueError(f"{source} is not a nodeslab file: it does not start as one.")
    line, newline, payload = content[:LONGEST_HEADER].partition(b"\n")
    words = line.split(b" ")
    if not newline or len(words) != 4 or not words[1].isdigit():
        raise ValueError(f"{source} is damaged: its first line cannot be read. Restore it from a copy.")
    version, found = int(words[1]), words[2].decode("ascii", "replace")
    if version > VERSION:
        raise ValueError(f"{source} has format {version}, newer than this nodeslab reads ({VERSION}); update nodeslab.")
    payload = content[len(line) + 1 :]
    if _digest(found, version, payload).encode() != words[3]:
        raise ValueError(f"{source} is damaged: its checksum does not match. Restore it from a copy.")
    if found != kind:
        raise ValueError(f"{source} holds a {found}, not a {kind}.")
    try:
        tensors = parse_tensors(payload)
        length = int.from_bytes(payload[:8], "little")
        meta = json.loads(json.loads(payload[8 : 8 + length])["__metadata__"]["nodeslab"])
    except (SafetensorError, ValueError, KeyError, TypeError) as e:
        raise ValueError(f"{source} is sealed but cannot be read ({e}); it was not written by nodeslab.") from e
    return meta, tensors
