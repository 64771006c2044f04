"""SS-IG in the way of the authors' public code, to be measured against: a module for each layer, nothing fused.

Each layer holds mu and rho of its weights and its bias and one logit for each node. A forward draws its noise from
torch.distributions, relaxes the gate by the Gumbel-softmax, adds up the layer's KL term by term, and keeps it for the
loss. The formulas are the paper's; the code is our own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributions import Normal, Uniform
from torch.nn import functional as F

__all__ = ["AuthorsNetwork", "authors_step", "converted"]


class _Layer(nn.Module):
    """w = z (mu + log(1 + exp(rho)) eps), one gate z for a node's weights and bias; no gate where prior is None."""

    kl: Tensor

    def __init__(self, plain: nn.Linear | nn.Conv2d, prior: float | None, temperature: float = 0.5) -> None:
        super().__init__()
        assert plain.bias is not None
        self.w_mu = nn.Parameter(plain.weight.detach().clone())
        self.b_mu = nn.Parameter(plain.bias.detach().clone())
        self.w_rho = nn.Parameter(torch.full_like(self.w_mu, -6.0))
        self.b_rho = nn.Parameter(torch.full_like(self.b_mu, -6.0))
        self.theta = None if prior is None else nn.Parameter(torch.full_like(self.b_mu, math.log(99.0)))
        self.prior, self.temperature = prior, temperature

    def sample(self) -> tuple[Tensor, Tensor]:
        sigma_w, sigma_b = torch.log1p(torch.exp(self.w_rho)), torch.log1p(torch.exp(self.b_rho))
        normal = Normal(0.0, 1.0)
        w = self.w_mu + sigma_w * normal.sample(self.w_mu.shape)  # type: ignore[no-untyped-call]
        b = self.b_mu + sigma_b * normal.sample(self.b_mu.shape)  # type: ignore[no-untyped-call]
        of_w = 0.5 * (sigma_w**2 + self.w_mu**2 - 1.0) - torch.log(sigma_w)
        of_b = 0.5 * (sigma_b**2 + self.b_mu**2 - 1.0) - torch.log(sigma_b)
        if self.theta is None or self.prior is None:
            self.kl = of_w.sum() + of_b.sum()
            return w, b
        gamma = torch.sigmoid(self.theta)
        u = Uniform(0.0, 1.0).sample(gamma.shape)
        soft = torch.sigmoid((self.theta + torch.log(u + 1e-20) - torch.log(1.0 - u + 1e-20)) / self.temperature)
        z = (soft > 0.5).float() - soft.detach() + soft
        along = (-1, *([1] * (w.dim() - 1)))
        self.kl = (gamma.reshape(along) * of_w).sum() + (gamma * of_b).sum()
        odds = torch.log((gamma + 1e-20) / self.prior) * gamma
        self.kl = self.kl + (odds + (1.0 - gamma) * torch.log((1.0 - gamma + 1e-20) / (1.0 - self.prior))).sum()
        return z.reshape(along) * w, z * b


class _Linear(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        w, b = self.sample()
        return F.linear(x, w, b)


class _Conv(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        w, b = self.sample()
        return F.conv2d(x, w, b)


class AuthorsNetwork(nn.Module):
    """A chain of such layers."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out

    def kl(self) -> Tensor:
        """KL of the last forward's layers."""
        return torch.stack([m.kl for m in self.layers if isinstance(m, _Layer)]).sum()

    def open(self) -> int:
        """How many nodes have gamma > 0.5."""
        gates = [m.theta for m in self.layers if isinstance(m, _Layer) and m.theta is not None]
        return sum(int((theta > 0).sum()) for theta in gates)


def converted(net: nn.Sequential, priors: tuple[float, ...]) -> AuthorsNetwork:
    """The same network with such layers, from the same means; priors: lambda of each hidden layer."""
    chances: list[float | None] = [*priors, None]
    layers: list[nn.Module] = []
    for module in net:
        if isinstance(module, nn.Linear):
            layers.append(_Linear(module, chances.pop(0)))
        elif isinstance(module, nn.Conv2d):
            layers.append(_Conv(module, chances.pop(0)))
        else:
            layers.append(module)
    return AuthorsNetwork(nn.Sequential(*layers))


def authors_step(net: AuthorsNetwork, n: int, optimizer: torch.optim.Optimizer) -> Callable[[Tensor, Tensor], None]:
    """A training step: -log p(y) of the batch, as a mean, plus KL / n."""

    def run(X: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(X), y) + net.kl() / n
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return run
