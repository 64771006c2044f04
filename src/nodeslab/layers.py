"""What a node is in each kind of layer: its weights, its bias, and the axis it lies on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor, nn

__all__ = ["REFUSED", "SELECTABLE", "Geometry", "Layer", "geometry", "takes_integers"]

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
SELECTABLE = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)

#: Layers whose weights have no nodes in this library's sense, each with what to do instead.
REFUSED: dict[type[nn.Module], str] = {
    nn.MultiheadAttention: "its fused projections hide the nodes; write the projections as nn.Linear",
    nn.RNNBase: "a recurrent layer packs several gates into one weight; write it with nn.Linear cells",
    nn.RNNCellBase: "a recurrent cell packs several gates into one weight; write it with nn.Linear",
    nn.Bilinear: "its weight has no single incoming axis; write it with nn.Linear",
    nn.Embedding: "an embedding row is an input, not a node",
    nn.EmbeddingBag: "an embedding row is an input, not a node",
}

Layer: TypeAlias = (
    "nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d"
)


@dataclass(frozen=True)
class Geometry:
    """The nodes of one layer. A node of a convolution is an output channel."""

    nodes: int
    fan_in: int  # weights into one node, its bias not counted
    groups: int
    transposed: bool
    linear: bool

    def along(self, values: Tensor, like: Tensor) -> Tensor:
        """Per-node values (nodes,) in a shape that broadcasts against the layer's weight or bias."""
        if like.dim() == 1 or values.numel() == 1:
            return values if like.dim() == 1 else values.reshape((1,) * like.dim())
        tail = (1,) * (like.dim() - 2)
        if not self.transposed:
            return values.reshape(-1, 1, *tail)
        per_group, into = self.nodes // self.groups, like.shape[0] // self.groups
        spread = values.reshape(self.groups, 1, per_group).expand(self.groups, into, per_group)
        return spread.reshape(like.shape[0], per_group, *tail)

    def rows(self, weight: Tensor) -> Tensor:
        """The weights into each node as one row, (nodes, fan_in)."""
        if not self.transposed:
            return weight.reshape(self.nodes, -1)
        per_group, into = self.nodes // self.groups, weight.shape[0] // self.groups
        split = weight.reshape(self.groups, into, per_group, -1)
        return split.transpose(1, 2).reshape(self.nodes, -1)


def geometry(layer: nn.Module) -> Geometry:
    """The nodes of a selectable layer."""
    if isinstance(layer, nn.Linear):
        return Geometry(layer.out_features, layer.in_features, 1, transposed=False, linear=True)
    if isinstance(layer, (*CONVOLUTIONS, *TRANSPOSED)):
        fan_in = layer.in_channels // layer.groups * math.prod(layer.kernel_size)
        return Geometry(layer.out_channels, fan_in, layer.groups, isinstance(layer, TRANSPOSED), linear=False)
    raise TypeError(f"{type(layer).__name__} is not a layer with nodes that nodeslab can select.")


def takes_integers(net: nn.Module) -> bool:
    """True for a network that looks numbers up, so that integers must stay integers."""
    return any(isinstance(m, (nn.Embedding, nn.EmbeddingBag)) for m in net.modules())
