"""The posterior of one layer: weight = gate x scale x (mean + spread x noise). The only assembly of a KL.

The slab's mean is the layer's own weight and bias; a `Posterior` holds what stands beside it: the spreads,
the gates, the scales. Means are therefore passed in, and sampled weights come out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import softplus

from nodeslab import kl
from nodeslab.gates import Gate
from nodeslab.kernel import lies_in_rows
from nodeslab.layers import Geometry, geometry
from nodeslab.scales import HorseshoeScale
from nodeslab.spec import Edge, Node, Prior

__all__ = ["Posterior", "Room", "SlabDraw"]

Tensors = dict[str, Tensor]


class SlabDraw(torch.autograd.Function):
    """w = f (mu + sigma eps) and K = sum g KL(N(mu, sigma^2) || N(0, s^2)), with sigma = softplus(rho).

    f multiplies the slab (gate x scale), g weighs its KL (the probability that it is open); both broadcast
    against mu, and None stands for 1. The gradients are written out, so that one pass serves both results:
        dmu    = dw f + dK g mu / s^2
        drho   = (dw f eps + dK g (sigma / s^2 - 1 / sigma)) sigmoid(rho),   since dsigma/drho = sigmoid(rho)
        df     = sum dw (mu + sigma eps)
        dg     = dK sum KL
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        mean: Tensor,
        rho: Tensor,
        noise: Tensor,
        f: Tensor | None,
        g: Tensor | None,
        sigma: float,
        room: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        spread = softplus(rho)
        slab = torch.addcmul(mean, spread, noise, out=None if room is None else room[0].detach())
        # no tensor goes out twice: what is marked as not differentiable would take its twin along
        if g is None:
            by_gate, total = slab.new_empty(0), kl.gaussian_sum(mean, spread, sigma)
        else:
            by_gate = kl.gaussian_sum(mean, spread, sigma, g.shape)
            total = torch.dot(by_gate.reshape(-1), g.reshape(-1))
        if f is None:
            return slab, total, spread, slab.new_empty(0), by_gate
        weight = torch.mul(slab, f, out=None if room is None else room[1].detach())
        return weight, total, spread, slab, by_gate

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        mean, rho, noise, f, g, ctx.sigma, _ = inputs
        _, _, spread, slab, by_gate = output
        ctx.mark_non_differentiable(spread, slab, by_gate)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(mean, rho, noise, f, g, spread, slab, by_gate)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        d_weight, d_kl = grads[:2]
        mean, rho, noise, f, g, spread, slab, by_gate = ctx.saved_tensors
        d_f = d_g = None
        if d_weight is None:
            d_mean, d_spread = torch.zeros_like(mean), torch.zeros_like(mean)
        else:
            d_mean = d_weight.clone() if f is None else d_weight * f
            d_spread = d_mean * noise
            if f is not None and ctx.needs_input_grad[3]:
                d_f = (d_weight * slab).sum_to_size(f.shape)
        if d_kl is not None:
            pull = d_kl.reshape((1,) * mean.dim()) if g is None else d_kl * g
            d_mean.addcmul_(mean, pull, value=ctx.sigma**-2)
            d_spread.addcmul_(spread, pull, value=ctx.sigma**-2).addcdiv_(pull, spread, value=-1.0)
            if g is not None and ctx.needs_input_grad[4]:
                d_g = d_kl * by_gate
        return d_mean, d_spread.mul_(torch.sigmoid(rho)), None, d_f, d_g, None, None


class Room:
    """Memory for one draw of a layer, by tensor: its noise, its slab, its weights."""

    def __init__(self, means: Tensors) -> None:
        self.noise, self.slab, self.weight = (
            {name: torch.empty_like(mean, requires_grad=False) for name, mean in means.items()} for _ in range(3)
        )


class Posterior(nn.Module):
    """q(w, z) of one layer, and its KL to the prior.

    path: where the layer is. prior: its factors. output: True in a layer that feeds the network's output,
    where no node is selected (gamma_L = lambda_L = 1). inclusion_prior: lambda, when the prior has a gate.
    """

    def __init__(self, path: str, layer: nn.Module, prior: Prior, output: bool, inclusion_prior: float | None) -> None:
        super().__init__()
        self.path, self.prior, self.output, self.inclusion_prior = path, prior, output, inclusion_prior
        self.geometry: Geometry = geometry(layer)
        means: Tensors = {name: p for name in ("weight", "bias") if (p := layer._parameters[name]) is not None}
        self.names = tuple(means)
        for name, mean in means.items():
            start = torch.full_like(mean, prior.slab.rho, requires_grad=False)
            self.register_parameter(f"rho_{name}", nn.Parameter(start))
        self.gates = nn.ModuleDict()
        weight, gate = means["weight"], prior.gate
        if gate is not None and inclusion_prior is not None:
            shapes = {"node": torch.Size([self.geometry.nodes])}
            if isinstance(gate, Edge):
                shapes = {name: mean.shape for name, mean in means.items()}
            for name, shape in shapes.items():
                self.gates[name] = Gate(shape, inclusion_prior, gate.start, gate.temperature, gate.gradient, weight)
        nodes = 0 if output else self.geometry.nodes
        self.scale = None if prior.scale is None else HorseshoeScale(prior.scale, nodes, weight)

    def take_geometry(self, layer: nn.Module) -> None:
        """The layer has been cut."""
        self.geometry = geometry(layer)

    def switches(self) -> dict[str, Gate]:
        """The gates by what they cover: {"node": ...}, or one for each tensor (edges), or none."""
        return {name: gate for name, gate in self.gates.items() if isinstance(gate, Gate)}

    def gamma(self) -> Tensors:
        """gamma = q(z = 1) of every gate, by what it covers."""
        return {name: gate.inclusion() for name, gate in self.switches().items()}

    @property
    def selects(self) -> bool:
        """True where nodes can close."""
        return not self.output and (len(self.gates) > 0 or self.scale is not None)

    def rho(self, name: str) -> Tensor:
        value = self._parameters[f"rho_{name}"]
        assert value is not None
        return value

    def spread(self, name: str) -> Tensor:
        """sigma = log(1 + exp(rho))."""
        return softplus(self.rho(name))

    def _per_weight(self, per_gate: Tensors, name: str, like: Tensor) -> Tensor | None:
        """The gate values that apply to one tensor: its own (edges), its nodes', or none."""
        if "node" in per_gate:
            return self.geometry.along(per_gate["node"], like)
        return per_gate.get(name)

    def draw(self, means: Tensors, room: Room | None = None) -> tuple[Tensors, Tensor]:
        """One draw of the layer's weights, and the layer's KL; both carry gradients.

        room: memory that the draw is written into; fresh memory by default.
        """
        z = {name: gate.draw() for name, gate in self.switches().items()}
        gamma = self.gamma()
        scale = None if self.scale is None else self.scale.draw()
        weights: Tensors = {}
        total = self._kl_of_gates_and_scales(means["weight"])
        for name, mean in means.items():
            f = self._per_weight(z, name, mean)
            if scale is not None:
                s = self.geometry.along(scale, mean)
                f = s if f is None else f * s
            g = self._per_weight(gamma, name, mean)
            noise = torch.randn_like(mean) if room is None else room.noise[name].normal_()
            memory = None if room is None else (room.slab[name], room.weight[name])
            weights[name], slab_kl, *_ = SlabDraw.apply(  # type: ignore[no-untyped-call]
                mean, self.rho(name), noise, f, g, self.prior.slab.sigma, memory
            )
            total = total + slab_kl
        return weights, total

    def fusible(self, means: Tensors) -> bool:
        """True where the compiled kernel can serve: gates and scales by node, the weights of a node side by side."""
        if self.geometry.transposed or not (self.gates.keys() <= {"node"}):
            return False
        return all(
            lies_in_rows(mean, self.geometry.nodes) and self.rho(name).stride() == mean.stride()
            for name, mean in means.items()
        )

    def kl(self, means: Tensors) -> Tensor:
        """KL(q || p) = KL(gates) + P(open) KL(slab) + KL(scales), a scalar with gradients."""
        gamma = self.gamma()
        total = self._kl_of_gates_and_scales(means["weight"])
        for name, mean in means.items():
            divergence = kl.gaussian(mean, self.spread(name), self.prior.slab.sigma)
            g = self._per_weight(gamma, name, mean)
            total = total + (divergence if g is None else divergence * g).sum()
        return total

    def _kl_of_gates_and_scales(self, like: Tensor) -> Tensor:
        total = torch.zeros((), dtype=like.dtype, device=like.device)
        for gate in self.switches().values():
            total = total + gate.kl().sum()
        return total if self.scale is None else total + self.scale.kl()

    @torch.no_grad()
    def inclusion(self) -> Tensor:
        """The probability that each node is open, (nodes,).

        Node: gamma_lj. Edge: the largest gamma among the node's edges, bias included, so that a node is open
        when at least one edge is. Horseshoe: q(tau upsilon >= threshold). Without a gate: 1.
        """
        gamma = self.gamma()
        if "node" in gamma:
            return gamma["node"]
        weight = self.rho("weight")
        included = torch.ones(self.geometry.nodes, dtype=weight.dtype, device=weight.device)
        if gamma:
            included = self.geometry.rows(gamma["weight"]).amax(1)
            if "bias" in gamma:
                included = torch.maximum(included, gamma["bias"])
        if self.scale is not None and not self.output:
            included = included * (1.0 - self.scale.below())
        return included

    @torch.no_grad()
    def open(self) -> Tensor:
        """Which nodes are open, (nodes,) of bool: inclusion > 0.5, or by the horseshoe's own rule."""
        if self.output:
            return torch.ones(self.geometry.nodes, dtype=torch.bool, device=self.rho("weight").device)
        if self.scale is not None and not self.gates:
            return self.scale.below() <= self.scale.choice.certainty
        return self.inclusion() > 0.5

    @torch.no_grad()
    def center(self, means: Tensors) -> Tensors:
        """The slab's means where the gate is more likely open than closed, exact zeros elsewhere."""
        likely = {name: value > 0.5 for name, value in self.gamma().items()}
        open_ = self.open()
        out: Tensors = {}
        for name, mean in means.items():
            value = mean
            if self.scale is not None:
                value = value * self.geometry.along(self.scale.center(), mean)
            kept = self._per_weight(likely, name, mean)
            if kept is not None:
                value = torch.where(kept, value, 0.0)
            out[name] = torch.where(self.geometry.along(open_, mean), value, 0.0)
        return out

    def moments(self, means: Tensors) -> dict[str, tuple[Tensor, Tensor]]:
        """E[w] = g mu and Var[w] = g (sigma^2 + mu^2) - g^2 mu^2 of each weight, in closed form."""
        if self.scale is not None:
            raise ValueError(f"Layer '{self.path}' has a horseshoe scale: its weights have no closed-form moments.")
        gamma = self.gamma()
        out = {}
        for name, mean in means.items():
            g = self._per_weight(gamma, name, mean)
            g = torch.ones_like(mean) if g is None else g
            first = g * mean
            out[name] = (first, g * (self.spread(name).square() + mean.square()) - first.square())
        return out

    def check_gates(self) -> None:
        """Refuse a layer whose nodes cannot be set by hand."""
        if not self.selects or not self.gates:
            raise ValueError(
                f"Layer '{self.path}' has no gates to set: its prior is {self.prior.describe()}"
                f"{' and it feeds the output' if self.output else ''}. Give it ns.Node() or ns.Edge()."
            )

    def fix(self, mask: Tensor) -> None:
        """Open and close this layer's nodes by hand; their gates stay there."""
        for name, gate in self.switches().items():
            like = gate.logit
            gate.fix(mask if name == "node" else self.geometry.along(mask, like).expand_as(like))

    def describe_prior(self) -> str:
        gate = self.prior.gate
        if self.output and isinstance(gate, Node):
            rest = [f.describe() for f in self.prior.factors if f is not gate]
            return " * ".join(rest)
        return self.prior.describe()
