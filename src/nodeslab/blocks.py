"""Convolutions arranged in whole blocks of channels, for the ONNX file of a shrunk network.

onnxruntime computes output channels 16 at a time (8 without AVX-512): 17 cost as much as 32, and 5 as much as 16. What
is left after shrinking may be any number. Two rewritings give the same function, up to rounding:

- split: 17 channels = 16 + 1, as two convolutions whose outputs stay apart up to the convolution that reads them, which
  becomes a sum of two. A number that is no multiple of 4 would not be read in blocks at all.
- tile: in max_pool(conv(x), 2) the few channels of a tile of positions, 2 x 2 or more, become the channels of one
  convolution with that stride and a larger kernel; the maximum is then taken over channels.

The file does not grow: the new weights are made from the old ones by slices and pads, which a runtime works out once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn import functional as F

from nodeslab.channels import ELEMENTWISE
from nodeslab.graph import trace

__all__ = ["in_blocks"]

BLOCK = 16
ALIGNED = 4  # channels in multiples of it are read in blocks, and left as they are
TILES = ((2, 2), (4, 2))  # rows x columns
LAYOUT = 100  # what moving a number costs, in multiplications
PAYS = 0.65  # a tile must cost at most this share
Range = tuple[int, int]


@dataclass
class _Plan:
    """rows: the output channels of a convolution, in parts. pooled: the pooling that it takes in, and its tile."""

    rows: dict[torch.fx.Node, list[Range]] = field(default_factory=dict)
    pooled: dict[torch.fx.Node, torch.fx.Node] = field(default_factory=dict)


class _Conv(nn.Module):
    """Some output channels of a convolution whose input may come in parts; with a tile, its 2 x 2 maximum too."""

    def __init__(self, conv: nn.Conv2d, rows: Range, columns: list[Range], tile: tuple[int, int] | None) -> None:
        super().__init__()
        self.weight, self.bias = conv.weight, conv.bias
        self.stride, self.padding, self.dilation = conv.stride, conv.padding, conv.dilation
        self.rows, self.columns, self.tile = rows, columns, tile

    def forward(self, *parts: Tensor) -> Tensor:
        (first, last), tile = self.rows, self.tile
        weight, bias = self.weight, self.bias
        if last - first < len(weight):
            weight, bias = weight[first:last], None if bias is None else bias[first:last]
        if tile is not None:
            weight, bias = _tiled(weight, tile), None if bias is None else torch.cat([bias] * math.prod(tile))
        total = None
        for x, (a, b) in zip(parts, self.columns, strict=True):
            some = weight if len(parts) == 1 else weight[:, a:b]
            y = F.conv2d(x, some, bias, self.stride if tile is None else tile, self.padding, self.dilation)
            total, bias = y if total is None else total + y, None
        assert total is not None
        return total if tile is None else _pooled(total, tile, last - first)


def _tiled(weight: Tensor, tile: tuple[int, int]) -> Tensor:
    """The kernel at every position of a tile: those of one 2 x 2 maximum lie a quarter of the channels apart.

    A transposed convolution puts the kernel where an image has its one: a single node of the graph.
    """
    (rows, columns), (channels, into) = tile, weight.shape[:2]
    ones = torch.eye(rows * columns, dtype=weight.dtype).reshape(rows // 2, 2, columns // 2, 2, rows, columns)
    ones = ones.permute(1, 3, 0, 2, 4, 5).reshape(-1, 1, rows, columns).expand(-1, channels, -1, -1)
    put = F.conv_transpose2d(ones.to(weight.device), weight, groups=channels)
    return put.reshape(-1, into, *put.shape[2:])


def _pooled(y: Tensor, tile: tuple[int, int], channels: int) -> Tensor:
    """The maximum over each 2 x 2 of a tile, and the tiles laid out as an image again."""
    rows, columns, (height, width) = tile[0] // 2, tile[1] // 2, y.shape[2:]
    y = y.reshape(-1, 4, rows * columns * channels, height, width).amax(1)
    if rows * columns == 1:
        return y
    y = y.reshape(-1, rows, columns, channels, height, width).permute(0, 3, 4, 1, 5, 2)
    return y.reshape(-1, channels, height * rows, width * columns)


def in_blocks(net: nn.Module, inputs: tuple[Tensor, ...]) -> nn.Module:
    """The same function in blocks, or the network itself where there is nothing to arrange; its weights are shared."""
    try:
        graph = trace(net)
    except ValueError:
        return net
    module = torch.fx.GraphModule(net, graph)
    ShapeProp(module).propagate(*inputs)
    plan = _planned(module)
    return _arranged(module, plan) if plan.rows else net


def _planned(module: torch.fx.GraphModule) -> _Plan:
    plan = _Plan()
    for node in module.graph.nodes:
        conv = _convolution(module, node)
        if conv is None:
            continue
        pool = _pool(module, node)
        parts = [(0, conv.out_channels)]
        if conv.out_channels > BLOCK and conv.out_channels % ALIGNED and _reader(module, pool or node) is not None:
            whole = conv.out_channels // BLOCK * BLOCK
            parts = [(0, whole), (whole, conv.out_channels)]
        tiles = pool is not None and any(_tile(conv, node, p) for p in parts)
        if tiles and pool is not None:
            plan.pooled[node] = pool
        if tiles or len(parts) > 1:
            plan.rows[node] = parts
            if (reader := _reader(module, pool or node)) is not None and len(parts) > 1:
                last: Any = module.get_submodule(str(reader.target))
                plan.rows.setdefault(reader, [(0, last.out_channels)])
    return plan


def _convolution(module: torch.fx.GraphModule, node: torch.fx.Node) -> nn.Conv2d | None:
    """The node's convolution over images, if it is an ordinary one that is used once."""
    if node.op != "call_module" or len(node.args) != 1 or len(node.meta["tensor_meta"].shape) != 4:
        return None
    layer = module.get_submodule(str(node.target))
    if type(layer) is not nn.Conv2d or layer.groups > 1 or layer.padding_mode != "zeros":
        return None
    once = sum(n.op == "call_module" and n.target == node.target for n in module.graph.nodes) == 1
    return layer if once and not isinstance(layer.padding, str) else None


def _single(node: torch.fx.Node) -> torch.fx.Node | None:
    """The only reader of a value."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def _pool(module: torch.fx.GraphModule, node: torch.fx.Node) -> torch.fx.Node | None:
    """The 2 x 2 maximum that alone reads a convolution."""
    user = _single(node)
    if user is None or user.op != "call_module":
        return None
    m = module.get_submodule(str(user.target))
    if not isinstance(m, nn.MaxPool2d):
        return None
    plain = m.kernel_size in (2, (2, 2)) and m.stride in (2, (2, 2)) and m.padding in (0, (0, 0))
    return user if plain and m.dilation in (1, (1, 1)) and not m.ceil_mode and not m.return_indices else None


def _reader(module: torch.fx.GraphModule, node: torch.fx.Node) -> torch.fx.Node | None:
    """The convolution that reads a value past operations on each channel alone, if nothing else does."""
    user = _single(node)
    while user is not None and user.op == "call_module":
        if _convolution(module, user) is not None:
            return user
        m = module.get_submodule(str(user.target))
        if not isinstance(m, (*ELEMENTWISE, nn.MaxPool2d, nn.AvgPool2d)) or list(m.parameters()):
            return None
        user = _single(user)
    return None


def _tile(conv: nn.Conv2d, node: torch.fx.Node, part: Range) -> tuple[int, int] | None:
    """The tile with which the convolution of a part of the channels costs least, or None where none pays."""
    if conv.stride != (1, 1) or conv.dilation != (1, 1):
        return None
    height, width = node.meta["tensor_meta"].shape[2:]

    def price(rows: int, columns: int) -> float:
        """Multiplications in whole blocks, with what a position costs by itself (more in short rows), and laying out
        again what a tile of more than one maximum gives."""
        channels = part[1] - part[0]
        lanes = -(-channels * rows * columns // BLOCK) * BLOCK
        taps = (conv.kernel_size[0] + rows - 1) * (conv.kernel_size[1] + columns - 1)
        each = taps / (rows * columns) * (lanes + BLOCK * 6 / min(6, max(1, width // columns)))
        return float(conv.in_channels * each) + (LAYOUT * channels if rows * columns > 4 else 0)

    fitting = [t for t in TILES if height % t[0] == 0 and width % t[1] == 0]
    best = min(fitting, key=lambda t: price(*t), default=None)
    return best if best is not None and price(*best) <= PAYS * price(1, 1) else None


def _arranged(module: torch.fx.GraphModule, plan: _Plan) -> nn.Module:
    """The graph written again, with values that are in parts."""
    graph = torch.fx.Graph()
    parts: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    ranges: dict[torch.fx.Node, list[Range]] = {}
    for node in module.graph.nodes:
        source: torch.fx.Node = node.all_input_nodes[0] if node.all_input_nodes else node
        conv = _convolution(module, source) if plan.pooled.get(source) is node else None
        if conv is not None:  # a pooling, which a convolution with a tile has taken in
            pairs = zip(parts[source], ranges[source], strict=True)
            parts[node] = [v if _tile(conv, source, rows) else _copied(graph, node, v) for v, rows in pairs]
            ranges[node] = ranges[source]
        elif node in plan.rows:
            layer: Any = module.get_submodule(str(node.target))
            columns = ranges.get(source) or [(0, layer.in_channels)]
            parts[node], ranges[node] = [], plan.rows[node]
            for rows in plan.rows[node]:
                tile = _tile(layer, node, rows) if node in plan.pooled else None
                name = f"{str(node.target).replace('.', '_')}_{rows[0]}"
                while name in module._modules:
                    name += "_"
                module.add_module(name, _Conv(layer, rows, columns, tile))
                parts[node].append(graph.call_module(name, tuple(parts[source])))
        elif len(parts.get(source, [])) > 1:
            parts[node], ranges[node] = [_copied(graph, node, v) for v in parts[source]], ranges[source]
        else:
            parts[node] = [graph.node_copy(node, lambda n: parts[n][0])]
    return torch.fx.GraphModule(module, graph).eval()


def _copied(graph: torch.fx.Graph, node: torch.fx.Node, value: torch.fx.Node) -> torch.fx.Node:
    """A node of one input, on another value."""
    return graph.node_copy(node, lambda _: value)
