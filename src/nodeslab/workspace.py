"""Memory for one draw at a time: the training loop reuses it, because fresh pages cost as much as the arithmetic.

Only the holder may draw into it, and only once the last draw's backward is done.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nodeslab.kernel import Kernel, kernel

__all__ = ["Buffers", "Workspace"]


@dataclass(frozen=True)
class Buffers:
    """Of one weight or bias: N(0, 1) noise, and room for the slab (or the spread), the weight, the rows' KL.

    kernel: the compiled step, where it can serve. d_mean, d_rho: room for the gradients, where they are used up
    before the next backward.
    """

    noise: Tensor
    slab: Tensor
    weight: Tensor
    rows: Tensor
    kernel: Kernel | None
    d_mean: Tensor | None
    d_rho: Tensor | None


class Workspace:
    """Buffers for every tensor of a model, layer by layer."""

    def __init__(self, means: list[dict[str, Tensor]], nodes: list[int], keep_gradients: bool) -> None:
        like = next(iter(means[0].values()))
        tensors = [mean for layer in means for mean in layer.values()]
        plain = all(t.dtype == torch.float32 and t.device.type == "cpu" and t.is_contiguous() for t in tensors)
        self.kernel = kernel() if plain else None
        self.noise = torch.empty(sum(t.numel() for t in tensors), dtype=like.dtype, device=like.device)
        self.layers: list[dict[str, Buffers]] = []
        start = 0
        for layer, count in zip(means, nodes, strict=True):
            row = {}
            for name, mean in layer.items():
                noise = self.noise[start : start + mean.numel()].view(mean.shape)
                start += mean.numel()
                room = [torch.empty_like(mean, requires_grad=False) for _ in range(4 if keep_gradients else 2)]
                rows = torch.empty(count, dtype=mean.dtype, device=mean.device)
                row[name] = Buffers(noise, room[0], room[1], rows, self.kernel, *(room[2:] or (None, None)))
            self.layers.append(row)

    def fill(self) -> None:
        """Fresh noise, seeded from torch's own generator."""
        if self.kernel is None:
            self.noise.normal_()
        else:
            self.kernel.normal(self.noise, int(torch.randint(2**62, ())))
