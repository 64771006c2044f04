"""Learnt switches: q(z) = Ber(gamma), with gamma = sigmoid(logit)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nodeslab import kl

__all__ = ["Gate", "relaxed_bernoulli"]

FIXED = 1000.0  # a logit at which gamma is exactly 0 or 1, and every gradient exactly 0, in any precision


def relaxed_bernoulli(logit: Tensor, u: Tensor, temperature: float) -> Tensor:
    """z~ = 1 / (1 + exp(-eta / tau)), eta = log(gamma / (1 - gamma)) + log(u / (1 - u)), u ~ U(0, 1)."""
    return torch.sigmoid((logit + torch.log(u) - torch.log1p(-u)) / temperature)


class Gate(nn.Module):
    """z ~ Ber(gamma): a hard draw forward; backward the Gumbel-softmax draw from the same u, or ReinMax.

    ReinMax (Liu et al., 2023) gives the logit the gradient (1 - q(z)) / 2 dL/dz. Its expectation is
    gamma (1 - gamma) (L'(0) + L'(1)) / 2, the trapezoid rule for the exact gamma (1 - gamma) (L(1) - L(0)):
    unbiased where the loss is quadratic in z; there the relaxation leads gates towards 1/2.
    """

    logit: nn.Parameter
    log_odds: Tensor

    def __init__(
        self, shape: torch.Size, prior: float, start: float, temperature: float, gradient: str, like: Tensor
    ) -> None:
        super().__init__()
        start_logit = kl.log_prior_odds(start)
        self.logit = nn.Parameter(torch.full(shape, start_logit, dtype=like.dtype, device=like.device))
        # log(lambda / (1 - lambda)): lambda itself would be 0 in float32 below 1e-45
        self.prior_log_odds = kl.log_prior_odds(prior)
        self.register_buffer("log_odds", self._odds(), persistent=False)
        self.temperature, self.gradient = temperature, gradient
        self.fixed = False  # by `fix`, not by the caller's own requires_grad

    def _odds(self) -> Tensor:
        exact = torch.promote_types(self.logit.dtype, torch.float32)
        return torch.tensor(self.prior_log_odds, dtype=exact, device=self.logit.device)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        out = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if not self.logit.is_meta:
            self.log_odds = self._odds()  # from the exact number, not from a rounded one
        return out

    def inclusion(self) -> Tensor:
        """gamma = q(z = 1); its gradient gamma (1 - gamma) keeps its digits where gamma is near 1."""
        return torch.where(self.logit > 0, 1.0 - torch.sigmoid(-self.logit), torch.sigmoid(self.logit))

    def draw(self) -> Tensor:
        """z in {0, 1} with P(z = 1) = gamma exactly, with a gradient for the logit."""
        exact = torch.promote_types(self.logit.dtype, torch.float32)  # u has too few values in half precision
        u = torch.rand_like(self.logit, dtype=exact).clamp(min=torch.finfo(exact).tiny)
        soft = relaxed_bernoulli(self.logit.to(exact), u, self.temperature).to(self.logit.dtype)
        hard = (soft.detach() > 0.5).to(soft.dtype)
        if not soft.requires_grad:
            return hard
        if self.gradient == "reinmax":
            unlikely = torch.sigmoid(torch.where(hard > 0, -self.logit, self.logit)).detach()  # 1 - q(z)
            soft = 0.5 * unlikely * self.logit
        return hard + (soft - soft.detach())

    def kl(self) -> Tensor:
        """KL(Ber(gamma) || Ber(lambda)), elementwise."""
        return kl.bernoulli(self.logit, self.log_odds)

    @torch.no_grad()
    def fix(self, open_: Tensor) -> None:
        """Open (True) or close (False) each gate for good: gamma is 1 or 0 to the last bit, and is not trained."""
        self.logit.copy_(torch.where(open_, FIXED, -FIXED))
        self.hold()

    def hold(self) -> None:
        """Take gates that are fixed out of training (an optimizer's weight decay would move them), and put gates that
        are no longer fixed back."""
        all_fixed = bool((self.logit.detach().abs() == FIXED).all())
        if all_fixed and self.logit.requires_grad:
            self.fixed = True
            self.logit.requires_grad_(False)
        elif self.fixed and not all_fixed:
            self.fixed = False
            self.logit.requires_grad_(True)
