"""Where data lie: the folder of NODESLAB_DATA, then the user's cache, into which a missing file is fetched."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from nodeslab.datasets.published import File

__all__ = ["alone", "cache", "fetch_file", "folder", "locate"]

CHUNK, TRIES, PATIENCE = 1 << 18, 3, 30.0  # bytes at a time; attempts; seconds without a byte


def folder() -> Path | None:
    """The folder of the environment variable NODESLAB_DATA, if it is set."""
    value = os.environ.get("NODESLAB_DATA")
    if not value:
        return None
    path = Path(value)
    if not path.is_dir():
        raise ValueError(f"NODESLAB_DATA names {path}, which is not a folder; set it to one, or unset it.")
    return path


def cache() -> Path:
    """The user's cache folder, laid out as a data folder is."""
    import pooch

    return Path(pooch.os_cache("nodeslab")) / "data"


def locate(path: str) -> Path | None:
    """A file of this path in NODESLAB_DATA or the cache, or None."""
    named = folder()
    if named is not None and (named / path).is_file():
        return named / path
    kept = cache() / path
    return kept if kept.is_file() else None


def fetch_file(file: File, base: str | None = None, to: Path | None = None) -> Path:
    """The file, fetched into the folder `to` (the cache by default) and checked by its sha256.

    base: the address of a mirror that is laid out as a data folder, in the place of the public address. What a broken
    connection leaves behind (NAME.part) is gone on with by the next call.
    """
    import pooch
    import requests

    target = (cache() if to is None else to) / file.path
    url = file.address if base is None else f"{base.rstrip('/')}/{file.path}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ValueError(f"Cannot write into {target.parent} ({e}); name another folder.") from e
    quiet = pooch.get_logger()
    level = quiet.level
    try:
        quiet.setLevel(logging.WARNING)
        with alone(target):
            got = pooch.retrieve(
                url, file.sha256, fname=target.name, path=target.parent, downloader=_Resuming(_part(target))
            )
    except (requests.RequestException, ValueError) as e:
        why = " ".join(str(e).split())
        raise ValueError(
            f"{file.path} cannot be fetched from {url} ({type(e).__name__}: {why}); set NODESLAB_DATA to a folder that "
            "holds it, or name a mirror: nodeslab data NAME --from ADDRESS."
        ) from e
    finally:
        quiet.setLevel(level)
    return Path(got)


def _part(target: Path) -> Path:
    return target.with_name(target.name + ".part")


@contextmanager
def alone(target: Path) -> Iterator[None]:
    """Processes that want the same file wait for the first, and then find it."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    target.parent.mkdir(parents=True, exist_ok=True)
    lock = target.with_name(f".{target.name}.lock")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class _Resuming:
    """A downloader for pooch that keeps what has arrived in `part`, and asks for the rest only."""

    part: Path

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        import requests

        for attempt in range(TRIES):
            try:
                self._rest(url)
                break
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
                if attempt + 1 == TRIES:
                    raise
        os.replace(self.part, output_file)

    def _rest(self, url: str) -> None:
        import requests

        have = self.part.stat().st_size if self.part.exists() else 0
        wanted = {"Accept-Encoding": "identity"}  # the bytes of the file: a range of compressed text would not fit on
        if have:
            wanted["Range"] = f"bytes={have}-"
        with requests.get(url, headers=wanted, stream=True, timeout=PATIENCE) as answer:
            if answer.status_code == 416:  # nothing after these bytes: they are the file, or of another one
                if answer.headers.get("Content-Range") != f"bytes */{have}":
                    self.part.unlink()
                    self._rest(url)
                return
            answer.raise_for_status()
            if answer.status_code != 206:  # a server that sends all of it again
                have = 0
            length = answer.headers.get("Content-Length")
            total = None if length is None else have + int(length)
            bar = tqdm(total=total, initial=have, unit="B", unit_scale=True, disable=None, leave=False, file=sys.stderr)
            with self.part.open("ab" if have else "wb") as out, bar:
                for chunk in answer.iter_content(CHUNK):
                    out.write(chunk)
                    bar.update(len(chunk))
        size = self.part.stat().st_size
        if total is not None and size != total:
            raise requests.ConnectionError(f"{size} of {total} bytes arrived")
