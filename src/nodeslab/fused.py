"""A model's draw by the compiled kernel: one call forward and one backward for all the layers that it can serve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nodeslab.gates import Gate
from nodeslab.kernel import Kernel, LayerStruct
from nodeslab.posterior import Posterior, Tensors

__all__ = ["Fused", "point_gate"]


class _FusedDraw(torch.autograd.Function):
    """What `Posterior.draw` does for each layer, for all of them at once.

    z ~ Ber(gamma), f = z s, w = f (mu + sigma eps) and K = KL(gates) + sum gamma KL(slab). dL/df is the sum of
    dw (mu + sigma eps) over a node's weights and bias, and
        dlogit = dL/df s dz/dlogit + dK (dKL(gate)/dlogit + gamma (1 - gamma) KL(slab)),   ds = dL/df z.
    Backward makes the noise of forward again from the seed.
    """

    @staticmethod
    def forward(ctx: Any, fused: Fused, seed: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        fused.point(inputs, seed)
        total = fused.kernel.draw(fused.layers, fused.count)
        ctx.fused, ctx.seed = fused, seed
        ctx.save_for_backward(*inputs)
        return inputs[0].new_full((), total), *(weight.detach() for weight in fused.weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        fused: Fused = ctx.fused
        inputs = ctx.saved_tensors
        fused.point(inputs, ctx.seed)
        made, read = fused.gradients(inputs, grads[1:])
        fused.kernel.back(fused.layers, float(grads[0]), fused.count)
        del read  # alive until here
        return None, None, *(t if wanted else None for t, wanted in zip(made, ctx.needs_input_grad[2:], strict=True))


def point_gate(layer: LayerStruct, gate: Gate) -> None:
    """What a layer's struct needs of its gate."""
    layer.log_odds, layer.temperature = gate.prior_log_odds, gate.temperature
    layer.reinmax = gate.gradient == "reinmax"


class Fused:
    """Some layers of a model and the memory for one draw of them.

    keep_gradients: the gradients have memory of their own, used again by the next backward.
    """

    def __init__(
        self, built: Kernel, posteriors: Sequence[Posterior], means: Sequence[Tensors], keep_gradients: bool
    ) -> None:
        self.kernel, self.posteriors = built, posteriors
        self.layers = (LayerStruct * len(posteriors))()
        self.weights: list[Tensor] = []
        self.parts: list[Any] = []  # the struct of each weight
        self.slots: list[tuple[Any, str]] = []  # where the pointer of each input goes
        self.room: list[Tensor | None] = []  # for the gradient of each input
        self.count = 0
        self._kept: list[Tensor] = []
        for posterior, mean, layer in zip(posteriors, means, self.layers, strict=True):
            nodes = posterior.geometry.nodes
            layer.nodes, layer.tensors, layer.sigma = nodes, len(mean), posterior.prior.slab.sigma
            layer.gates = self._keep(torch.empty(6, nodes))
            for part, tensor in zip(layer.part, mean.values(), strict=False):
                part.rows, part.cols, part.number = nodes, tensor.numel() // nodes, len(self.weights)
                part.divergence, part.along = self._keep(torch.empty(nodes)), self._keep(torch.empty(nodes))
                self.parts.append(part)
                self.weights.append(torch.empty_like(tensor, requires_grad=False))
                part.weight = self.weights[-1].data_ptr()
                self.count += tensor.numel()
                for name in ("mean", "rho"):
                    self.slots.append((part, name))
                    self.room.append(torch.empty_like(tensor, requires_grad=False) if keep_gradients else None)
            gate = posterior.switches().get("node")
            if gate is not None:
                point_gate(layer, gate)
            for name, there in (("logit", gate is not None), ("scale", posterior.scale is not None)):
                if there:
                    self.slots.append((layer, name))
                    self.room.append(torch.empty(nodes) if keep_gradients else None)

    def _keep(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()

    def point(self, inputs: Sequence[Tensor], seed: int) -> None:
        """Where the parameters are: they may have moved since the last time. And the seed of the draw."""
        for layer in self.layers:
            layer.seed = seed
        for (struct, name), tensor in zip(self.slots, inputs, strict=True):
            setattr(struct, name, tensor.data_ptr())

    def gradients(self, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Memory for the gradients of all inputs, and those of the weights as they are read; all pointed to."""
        made = [
            torch.empty_like(tensor) if room is None else room.detach()
            for room, tensor in zip(self.room, inputs, strict=True)
        ]
        for (struct, name), tensor in zip(self.slots, made, strict=True):
            setattr(struct, "d_" + name, tensor.data_ptr())
        read = [
            grad if grad.stride() == weight.stride() else torch.empty_like(weight).copy_(grad)
            for grad, weight in zip(grads, self.weights, strict=True)
        ]
        for part, tensor in zip(self.parts, read, strict=True):
            part.grad = tensor.data_ptr()
        return made, read

    def draw(self, means: Sequence[Tensors]) -> tuple[list[Tensors], Tensor]:
        """One draw of these layers' weights, and their KL; both carry gradients."""
        inputs: list[Tensor] = []
        scales = []
        for posterior, mean in zip(self.posteriors, means, strict=True):
            for name, tensor in mean.items():
                inputs += [tensor, posterior.rho(name)]
            inputs += [gate.logit for gate in posterior.switches().values()]
            if posterior.scale is not None:
                inputs.append(posterior.scale.draw().expand(posterior.geometry.nodes).contiguous())
                scales.append(posterior.scale.kl())
        seed = int(torch.randint(2**62, ()))
        total, *flat = _FusedDraw.apply(self, seed, *inputs)  # type: ignore[no-untyped-call]
        drawn = iter(flat)
        return [{name: next(drawn) for name in mean} for mean in means], sum(scales, start=total)
