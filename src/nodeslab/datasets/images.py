"""Image sets in IDX files: MNIST and Fashion-MNIST."""

from __future__ import annotations

import gzip
import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nodeslab.datasets.fetching import fetch_file, locate
from nodeslab.datasets.published import IMAGES, File

__all__ = ["Images", "fashion_mnist", "fetch_images", "images", "mnist"]


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """Images as published: X (n, 28, 28) of bytes 0 to 255 and labels y (n,), to train on and to test."""

    name: str
    X: NDArray[np.uint8]
    y: NDArray[np.int64]
    X_test: NDArray[np.uint8]
    y_test: NDArray[np.int64]

    def __repr__(self) -> str:
        return f"Images({self.name}: {len(self.y)} to train on, {len(self.y_test)} to test, {self.X.shape[1:]})"


def mnist() -> Images:
    """MNIST (LeCun and Cortes): handwritten digits, 60,000 to train on and 10,000 to test."""
    return images("mnist")


def fashion_mnist() -> Images:
    """Fashion-MNIST (Zalando, MIT): ten kinds of clothing in MNIST's format."""
    return images("fashion-mnist")


def images(name: str) -> Images:
    """An image set by name, every file checked by its sha256 before it is read."""
    X, y, X_test, y_test = (_read_idx(locate(f.path) or fetch_file(f), f) for f in IMAGES[name])
    return Images(name, X, y.astype(np.int64), X_test, y_test.astype(np.int64))


def fetch_images(name: str, base: str | None = None, to: Path | None = None) -> None:
    """The four files of an image set into a folder."""
    for file in IMAGES[name]:
        fetch_file(file, base, to)


def _read_idx(path: Path, file: File) -> NDArray[np.uint8]:
    """IDX: two zero bytes, the type (8: bytes), the number of axes, each axis' length, big-endian; then the bytes."""
    packed = path.read_bytes()
    found = hashlib.sha256(packed).hexdigest()
    if found != file.sha256:
        raise ValueError(
            f"{path} is not the published file: its sha256 is {found} instead of {file.sha256}; delete it, and fetch "
            f"it again with: nodeslab data {path.parent.name}."
        )
    raw = gzip.decompress(packed)
    zeros, kind, axes = struct.unpack_from(">HBB", raw)
    if zeros != 0 or kind != 8:
        raise ValueError(f"{path} starts with type {kind}; an IDX file of bytes (type 8) is expected.")
    shape = struct.unpack_from(f">{axes}I", raw, 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape).copy()
