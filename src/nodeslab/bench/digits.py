"""MNIST as the paper's networks see it: pixels divided by 126 (section 5.3), rows of 784."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nodeslab import datasets

__all__ = ["Digits", "digits"]


@dataclass(frozen=True, eq=False)
class Digits:
    """Training and test images as float32 rows, with their labels."""

    X: Tensor
    y: Tensor
    X_test: Tensor
    y_test: Tensor


def digits() -> Digits:
    """All of MNIST."""
    data = datasets.mnist()
    X, X_test = (torch.from_numpy(a).reshape(len(a), -1).float() / 126 for a in (data.X, data.X_test))
    return Digits(X, torch.from_numpy(data.y), X_test, torch.from_numpy(data.y_test))
