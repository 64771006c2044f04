"""Memory for one draw at a time: the training loop reuses it, because fresh pages cost as much as the arithmetic.

Only the holder may draw into it, and only once the last draw's backward is done.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from nodeslab.fused import Fused
from nodeslab.kernel import kernel
from nodeslab.posterior import Posterior, Room, Tensors

__all__ = ["Workspace"]


class Workspace:
    """Room for every layer of a model: `fused` draws those that the compiled kernel serves, torch the others."""

    def __init__(self, posteriors: Sequence[Posterior], means: Sequence[Tensors], keep_gradients: bool) -> None:
        pairs = list(zip(posteriors, means, strict=True))
        built = kernel() if any(p.fusible(m) for p, m in pairs) else None
        fusible = [built is not None and p.fusible(m) for p, m in pairs]
        chosen = [pair for pair, can in zip(pairs, fusible, strict=True) if can]
        self.fused: Fused | None = None
        if built is not None:
            self.fused = Fused(built, [p for p, _ in chosen], [m for _, m in chosen], keep_gradients)
        self.posteriors = posteriors
        self.rooms = [None if can else Room(m) for (_, m), can in zip(pairs, fusible, strict=True)]

    def draw(self, means: Sequence[Tensors]) -> tuple[list[Tensors], Tensor]:
        """One draw of all layers' weights, and their KL; the noise, or its seed, is of torch's own generator."""
        drawn: list[Tensors] = []
        total: Tensor | float = 0.0
        if self.fused is not None:
            together, total = self.fused.draw([m for m, room in zip(means, self.rooms, strict=True) if room is None])
            turn = iter(together)
        for posterior, mean, room in zip(self.posteriors, means, self.rooms, strict=True):
            if room is None:
                drawn.append(next(turn))
                continue
            weights, divergence = posterior.draw(mean, room)
            drawn.append(weights)
            total = total + divergence
        assert isinstance(total, Tensor)
        return drawn, total
