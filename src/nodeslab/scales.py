"""Learnt scales of the horseshoe: q(tau^2), q(upsilon^2) and q(c^2) are log-normal."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from nodeslab import kl
from nodeslab.spec import Horseshoe

__all__ = ["HorseshoeScale"]

START = -6.0  # rho of every spread before training, as for the weights


class LogNormal(nn.Module):
    """t = log s^2 ~ N(mean, softplus(rho)^2), so that s = exp(t / 2)."""

    def __init__(self, size: int, start: float, like: Tensor) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.full((size,), start, dtype=like.dtype, device=like.device))
        self.rho = nn.Parameter(torch.full((size,), START, dtype=like.dtype, device=like.device))

    def spread(self) -> Tensor:
        return softplus(self.rho)

    def draw(self) -> Tensor:
        """One draw of log s^2."""
        return self.mean + self.spread() * torch.randn_like(self.mean)


class HorseshoeScale(nn.Module):
    """s_j = tau~_j upsilon, with tau~^2 = c^2 tau^2 / (c^2 + tau^2 upsilon^2), for the nodes of one layer.

    The output layer has no node scales (`nodes = 0`): there s = upsilon.
    """

    def __init__(self, choice: Horseshoe, nodes: int, like: Tensor) -> None:
        super().__init__()
        self.choice = choice
        self.layer = LogNormal(1, 0.0, like)
        self.node = LogNormal(nodes, 0.0, like) if nodes else None
        slab_mean = math.log(choice.slab_b / (choice.slab_a + 1.0))  # the mode of IG(a, b)
        self.slab = LogNormal(1, slab_mean, like) if nodes else None

    @staticmethod
    def regularised(node: Tensor, layer: Tensor, slab: Tensor) -> Tensor:
        """log(tau~ upsilon) from log tau^2, log upsilon^2 and log c^2: the product, bounded by c."""
        product = node + layer
        return 0.5 * (product + slab - torch.logaddexp(slab, product))

    def draw(self) -> Tensor:
        """One draw of the scales, of shape (nodes,), or (1,) in the output layer."""
        if self.node is None or self.slab is None:
            return torch.exp(0.5 * self.layer.draw())
        return torch.exp(self.regularised(self.node.draw(), self.layer.draw(), self.slab.draw()))

    def center(self) -> Tensor:
        """The scales at the means of log tau^2, log upsilon^2, log c^2 (their medians)."""
        if self.node is None or self.slab is None:
            return torch.exp(0.5 * self.layer.mean)
        return torch.exp(self.regularised(self.node.mean, self.layer.mean, self.slab.mean))

    def kl(self) -> Tensor:
        """KL of the scales, a scalar: half-Cauchy for tau and upsilon, inverse gamma for c^2."""
        total = kl.half_cauchy(self.layer.mean, self.layer.spread(), self.choice.layer).sum()
        if self.node is None or self.slab is None:
            return total
        total = total + kl.half_cauchy(self.node.mean, self.node.spread(), self.choice.node).sum()
        c = self.choice
        return total + kl.inverse_gamma(self.slab.mean, self.slab.spread(), c.slab_a, c.slab_b).sum()

    def below(self) -> Tensor:
        """q(tau upsilon < threshold) for each node, exact: tau upsilon is log-normal, and tau~ <= tau.

        (tau~ differs from tau only where tau upsilon is of the size of c, far above the threshold.)
        """
        if self.node is None:
            return torch.zeros_like(self.layer.mean)
        mean = self.node.mean + self.layer.mean
        spread = torch.sqrt(self.node.spread().square() + self.layer.spread().square())
        below: Tensor = torch.special.ndtr((2.0 * math.log(self.choice.threshold) - mean) / spread)
        return below
