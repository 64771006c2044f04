"""Closed-form Kullback-Leibler divergences KL(q || p): tensors in, elementwise tensors out."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

__all__ = ["bernoulli", "gaussian", "gaussian_sum", "half_cauchy", "inverse_gamma", "log_prior_odds"]


def gaussian(mean: Tensor, spread: Tensor, sigma: float) -> Tensor:
    """KL(N(mu, s^2) || N(0, sigma^2)) = (s^2 + mu^2) / (2 sigma^2) - 1/2 - log(s / sigma)."""
    scaled = (spread.square() + mean.square()).mul_(0.5 / sigma**2)
    return scaled.sub_(torch.log(spread)).add_(math.log(sigma) - 0.5)


def gaussian_sum(mean: Tensor, spread: Tensor, sigma: float, shape: torch.Size | None = None) -> Tensor:
    """`gaussian`, summed to `shape` as broadcasting would expand it, or to a scalar.

    Over m numbers that is (|s|^2 + |mu|^2) / (2 sigma^2) - sum log(s / sigma) - m/2, without an elementwise result.
    """
    axes = tuple(range(mean.dim())) if shape is None else tuple([i for i, k in enumerate(shape) if k != mean.shape[i]])
    if not axes:
        return gaussian(mean, spread, sigma)
    count = math.prod([mean.shape[i] for i in axes])
    squares = torch.linalg.vector_norm(spread, dim=axes, keepdim=shape is not None).square()
    squares = squares + torch.linalg.vector_norm(mean, dim=axes, keepdim=shape is not None).square()
    logs = torch.log(spread).sum(axes, keepdim=shape is not None)
    total: Tensor = squares * (0.5 / sigma**2) - logs + count * (math.log(sigma) - 0.5)
    return total


def bernoulli(logit: Tensor, log_odds: Tensor | float) -> Tensor:
    """KL(Ber(g) || Ber(l)) = g log(g/l) + (1-g) log((1-g)/(1-l)), from the logits of g and l.

    In logits a and b it is g (a - b) - softplus(a) + softplus(b): finite, with finite gradients, for any logits in
    float32, and for l = 1e-50 (b = -115). Where a > 0 it is taken from the other side, with h = 1 - g, so that large
    terms do not cancel: h (b - a) - softplus(-a) + softplus(-b).
    """
    b = torch.as_tensor(log_odds, dtype=logit.dtype, device=logit.device)
    zero = torch.zeros_like(b)
    below = torch.sigmoid(logit) * (logit - b) - softplus(logit) + torch.logaddexp(b, zero)
    above = torch.sigmoid(-logit) * (b - logit) - softplus(-logit) + torch.logaddexp(-b, zero)
    return torch.where(logit > 0, above, below)


def log_prior_odds(probability: float) -> float:
    """log(l / (1 - l)), exact down to the smallest float64."""
    return math.log(probability) - math.log1p(-probability)


def half_cauchy(mean: Tensor, spread: Tensor, scale: float) -> Tensor:
    """KL(q(t) q(a) || p(t|a) p(a)) = m/2 - log s + log(b d) + log pi - log sqrt(2 pi e), tau ~ C+(0, b).

    Here t = log tau^2 ~ N(m, s^2), and the half-Cauchy is the mixture tau^2 | a ~ IG(1/2, 1/a),
    a ~ IG(1/2, 1/b^2). The auxiliary factor is always at its optimum, the closed-form update
    q(a) = IG(1, d), d = E[1/tau^2] + 1/b^2, E[1/tau^2] = exp(-m + s^2/2): it needs no parameter of its own.
    """
    log_bd = torch.logaddexp(math.log(scale) - mean + 0.5 * spread.square(), torch.full_like(mean, -math.log(scale)))
    return 0.5 * mean - torch.log(spread) + log_bd + (math.log(math.pi) - 0.5 * math.log(2 * math.pi * math.e))


def inverse_gamma(mean: Tensor, spread: Tensor, a: float, b: float) -> Tensor:
    """KL(LogNormal(m, s^2) || IG(a, b)) = a m + b exp(-m + s^2/2) - log s + constant.

    The constant is log Gamma(a) - a log b - log sqrt(2 pi e).
    """
    constant = math.lgamma(a) - a * math.log(b) - 0.5 * math.log(2 * math.pi * math.e)
    return a * mean + b * torch.exp(-mean + 0.5 * spread.square()) - torch.log(spread) + constant
