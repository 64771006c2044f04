"""Figures of merit: numbers from predictions and truths (arrays, frames or tensors, rows first)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nodeslab.checks import whole
from nodeslab.data import as_targets

__all__ = ["accuracy", "brier", "categorical_nll", "coverage", "ece", "gaussian_nll", "reliability", "rmse"]


def _values(x: Any, name: str) -> Tensor:
    """Float64 without NaN; (n, 1) becomes (n,)."""
    out = as_targets(x, name).double()
    return out.squeeze(1) if out.dim() == 2 and out.shape[1] == 1 else out


def _same(named: dict[str, Any]) -> list[Tensor]:
    out = [_values(x, name) for name, x in named.items()]
    for name, t in zip(named, out, strict=True):
        if t.shape != out[0].shape:
            first = next(iter(named))
            raise ValueError(
                f"{first} and {name} must have the same shape, got {tuple(out[0].shape)} and {tuple(t.shape)}."
            )
    return out


def _labelled(probabilities: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """(n, classes) and n labels; one column, or none, is the probability of class 1."""
    p, y = as_targets(probabilities, "probabilities").double(), as_targets(labels, "labels").reshape(-1)
    if y.is_floating_point():
        raise TypeError(f"labels must be integers 0 ... K-1, got type {y.dtype}; convert them with astype(int).")
    if p.dim() == 1 or (p.dim() == 2 and p.shape[1] == 1):
        p = torch.stack([1.0 - p.reshape(-1), p.reshape(-1)], 1)
    if p.dim() != 2 or len(p) != len(y):
        raise ValueError(
            f"probabilities must be (n, classes) with n labels, got {tuple(p.shape)} and {tuple(y.shape)}."
        )
    if bool((p < -1e-6).any()) or bool(((p.sum(1) - 1.0).abs() > 1e-3).any()):
        raise ValueError("probabilities must be between 0 and 1, and sum to 1 in each row; are these logits?")
    if int(y.min()) < 0 or int(y.max()) >= p.shape[1]:
        raise ValueError(f"labels must be 0 ... {p.shape[1] - 1}, got {int(y.min())} ... {int(y.max())}.")
    return p, y


def rmse(mean: Any, y: Any) -> float:
    """sqrt(mean (y - mean)^2)."""
    a, b = _same({"mean": mean, "y": y})
    return math.sqrt(float((a - b).square().mean()))


def gaussian_nll(mean: Any, std: Any, y: Any) -> float:
    """mean of (y - m)^2 / (2 s^2) + log s + log(2 pi) / 2, in nats for each value; std may be one number."""
    m, t = _same({"mean": mean, "y": y})
    s = torch.full_like(m, float(std)) if np.ndim(std) == 0 else _same({"std": std, "mean": mean})[0]
    if not bool((s > 0).all()):
        raise ValueError("std must be positive everywhere.")
    return float((((t - m) / s).square() / 2 + torch.log(s) + 0.5 * math.log(2 * math.pi)).mean())


def categorical_nll(probabilities: Any, labels: Any) -> float:
    """mean of -log p(label), in nats for each row."""
    p, y = _labelled(probabilities, labels)
    return float(-torch.log(p[torch.arange(len(y)), y].clamp_min(torch.finfo(p.dtype).tiny)).mean())


def accuracy(probabilities: Any, labels: Any) -> float:
    """The share of rows whose most probable class is the label."""
    p, y = _labelled(probabilities, labels)
    return float((p.argmax(1) == y).double().mean())


def brier(probabilities: Any, labels: Any) -> float:
    """mean over rows of sum_k (p_k - 1{y = k})^2."""
    p, y = _labelled(probabilities, labels)
    hot = torch.zeros_like(p).scatter_(1, y[:, None], 1.0)
    return float((p - hot).square().sum(1).mean())


def reliability(probabilities: Any, labels: Any, bins: int = 15) -> tuple[Tensor, Tensor, Tensor]:
    """Of each bin of confidence: the share of rows, their mean confidence, and how many of them are right.

    The last two are NaN where a bin is empty.
    """
    p, y = _labelled(probabilities, labels)
    count = whole("bins", bins)
    confidence, guess = p.max(1)
    which = (confidence * count).long().clamp_max(count - 1)
    rows, sure, right = (
        torch.zeros(count, dtype=torch.float64).index_add_(0, which, values)
        for values in (torch.ones_like(confidence), confidence, (guess == y).double())
    )
    return rows / len(y), sure / rows, right / rows


def ece(probabilities: Any, labels: Any, bins: int = 15) -> float:
    """Expected calibration error: sum over bins of (share of rows) |accuracy - mean confidence|."""
    share, confidence, accuracy = reliability(probabilities, labels, bins)
    return float((share * (accuracy - confidence).abs())[share > 0].sum())


def coverage(low: Any, high: Any, y: Any) -> float:
    """The share of values with low <= y <= high."""
    a, b, t = _same({"low": low, "high": high, "y": y})
    if bool((a > b).any()):
        raise ValueError("low must not exceed high; were they exchanged?")
    return float(((a <= t) & (t <= b)).double().mean())
