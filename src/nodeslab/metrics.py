"""Figures of merit: numbers from predictions and truths (tensors or arrays, rows first)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["accuracy", "brier", "categorical_nll", "coverage", "ece", "gaussian_nll", "rmse"]


def _pair(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Both as float64 of one shape; (n,) and (n, 1) are the same thing, (n,) and (n, k) are a mistake."""
    x, y = torch.as_tensor(a).double(), torch.as_tensor(b).double()
    flat = tuple(t.squeeze(1) if t.dim() == 2 and t.shape[1] == 1 else t for t in (x, y))
    if flat[0].shape != flat[1].shape:
        raise ValueError(f"The two arguments must have the same shape, got {tuple(x.shape)} and {tuple(y.shape)}.")
    return flat[0], flat[1]


def _labelled(probabilities: Any, labels: Any) -> tuple[Tensor, Tensor]:
    p, y = torch.as_tensor(probabilities).double(), torch.as_tensor(labels).reshape(-1).long()
    if p.dim() != 2 or len(p) != len(y):
        raise ValueError(
            f"Probabilities must be (n, classes) with n labels, got {tuple(p.shape)} and {tuple(y.shape)}."
        )
    if len(y) == 0:
        raise ValueError("There are no rows to score.")
    if int(y.min()) < 0 or int(y.max()) >= p.shape[1]:
        raise ValueError(f"Labels must be 0 ... {p.shape[1] - 1}, got {int(y.min())} ... {int(y.max())}.")
    return p, y


def rmse(mean: Any, y: Any) -> float:
    """sqrt(mean (y - mean)^2)."""
    a, b = _pair(mean, y)
    return math.sqrt(float((a - b).square().mean()))


def gaussian_nll(mean: Any, std: Any, y: Any) -> float:
    """mean of (y - m)^2 / (2 s^2) + log s + log(2 pi) / 2, in nats for each value."""
    m, t = _pair(mean, y)
    s = torch.as_tensor(std).double()
    s = s.reshape(m.shape) if s.numel() == m.numel() else s.expand_as(m)
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


def ece(probabilities: Any, labels: Any, bins: int = 15) -> float:
    """Expected calibration error: sum over bins of (share of rows) |accuracy - mean confidence|."""
    p, y = _labelled(probabilities, labels)
    confidence, guess = p.max(1)
    which = (confidence * bins).long().clamp_max(bins - 1)
    right = (guess == y).double()
    total = torch.zeros(bins, dtype=torch.float64)
    gap = total.clone().index_add_(0, which, right - confidence)
    return float(gap.abs().sum() / len(y))


def coverage(low: Any, high: Any, y: Any) -> float:
    """The share of values with low <= y <= high."""
    a, t = _pair(low, y)
    b, _ = _pair(high, y)
    return float(((a <= t) & (t <= b)).double().mean())
