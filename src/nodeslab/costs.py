"""Weights and multiplications of a network: dense, and with its closed nodes taken out (appendix B).

Only multiplications count, the bias as one, activations as none:
    convolution  (C_in K_w K_h + 1) O_w O_h C_out        linear  (I + 1) O
where C_in, C_out, I and O are what is left. Which inputs of a layer are left is found by running the network once
on NaN: every open node gives NaN and every closed one a number, so a layer's input is NaN exactly where it depends
on an open node. That follows flattening, pooling, skips and concatenation; a norm over channels mixes them, and
then every channel counts. A forward that looks at its numbers (an index, a comparison) cannot run on NaN: there,
which a run on real numbers shows, every input of a layer counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from nodeslab.data import as_inputs
from nodeslab.graph import run
from nodeslab.layers import SELECTABLE, Geometry, geometry, takes_integers
from nodeslab.model import Bayesian, copy_network

__all__ = ["Cost", "LayerCost", "cost"]


@dataclass(frozen=True)
class LayerCost:
    """One layer: nodes, multiplications and weights, dense and as they are now."""

    path: str
    nodes: int
    open: int
    flops_dense: int
    flops: int
    weights_dense: int
    weights: int  # nonzero ones: the rows of open nodes (open edges, for edge selection)
    weights_small: int  # what the cut network holds: open rows x inputs that are left


@dataclass(frozen=True, repr=False)
class Cost:
    """The whole network; prints as a table."""

    layers: tuple[LayerCost, ...]

    @property
    def flops(self) -> int:
        return sum(layer.flops for layer in self.layers)

    @property
    def flops_dense(self) -> int:
        return sum(layer.flops_dense for layer in self.layers)

    @property
    def flops_ratio(self) -> float:
        """Multiplications left, as a share of the dense network's."""
        return self.flops / self.flops_dense

    @property
    def weights(self) -> int:
        return sum(layer.weights for layer in self.layers)

    @property
    def weights_dense(self) -> int:
        return sum(layer.weights_dense for layer in self.layers)

    @property
    def weights_small(self) -> int:
        return sum(layer.weights_small for layer in self.layers)

    @property
    def compression_ratio(self) -> float:
        """Nonzero weights, as a share of all: the paper's compression ratio."""
        return self.weights / self.weights_dense

    def __repr__(self) -> str:
        head = f"{'layer':<16}{'nodes':>14}{'multiplications':>26}{'weights':>22}"
        rows = [
            f"{c.path or '(net)':<16}{f'{c.open} of {c.nodes}':>14}{f'{c.flops:,} of {c.flops_dense:,}':>26}"
            f"{f'{c.weights:,} of {c.weights_dense:,}':>22}"
            for c in self.layers
        ]
        total = f"FLOPs ratio {self.flops_ratio:.4f}, compression ratio {self.compression_ratio:.4f}"
        return "\n".join([head, *rows, total])


def _live_inputs(x: Tensor, g: Geometry, layer: nn.Module) -> Tensor:
    """Which input channels depend on an open node, (channels,)."""
    axis = x.dim() - 1 if g.linear else x.dim() - _spatial(layer) - 1
    return torch.isnan(x).movedim(axis, 0).flatten(1).any(1)


def _spatial(layer: nn.Module) -> int:
    return len(layer.kernel_size) if not isinstance(layer, nn.Linear) else 0  # type: ignore[arg-type]


def _positions(layer: nn.Module, x: Tensor, out: Tensor) -> tuple[int, int]:
    """How often one row applies the layer's weights, and its biases."""
    if isinstance(layer, nn.Linear):
        per_row = out.numel() // (out.shape[0] * out.shape[-1]) if out.dim() > 1 else 1
        return per_row, per_row
    n = _spatial(layer)
    outside = out.shape[-n:].numel()
    inside = x.shape[-n:].numel()
    return (inside if geometry(layer).transposed else outside), outside


CALLS: tuple[Any, ...] = (
    F.linear,
    F.conv1d,
    F.conv2d,
    F.conv3d,
    F.conv_transpose1d,
    F.conv_transpose2d,
    F.conv_transpose3d,
)


class _Probe(TorchFunctionMode):
    """Puts NaN on open nodes and zeros on closed ones, wherever a layer's weight is used, and counts what arrives.

    It sees the functions that the layers call, so a forward may call them itself with a layer's own weight.
    real: leave the numbers as they are; every input counts.
    """

    def __init__(self, net: nn.Module, masks: Mapping[str, Tensor], real: bool) -> None:
        super().__init__()
        self.real = real
        self.layers = {path: m for path, m in net.named_modules() if isinstance(m, SELECTABLE)}
        self.of_weight = {id(m._parameters["weight"]): path for path, m in self.layers.items()}
        self.masks = masks
        self.flops: dict[str, tuple[int, int]] = {}
        self.live: dict[str, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in CALLS:
            weight = args[1] if len(args) > 1 else (kwargs or {}).get("weight")
            path = self.of_weight.get(id(weight))
            if path is not None:
                return self.see(path, self.layers[path], args[0], out)
        return out

    def open_nodes(self, path: str) -> Tensor:
        mask = self.masks.get(path)
        return torch.ones(geometry(self.layers[path]).nodes, dtype=torch.bool) if mask is None else mask.cpu()

    def left(self, path: str, live: Tensor) -> Tensor:
        """For each node, how many weights come from inputs that are left."""
        g = geometry(self.layers[path])
        taps = g.fan_in * g.groups // len(live)  # kernel positions
        return live.reshape(g.groups, -1).sum(1).repeat_interleave(g.nodes // g.groups) * taps

    def see(self, path: str, layer: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        g, open_ = geometry(layer), self.open_nodes(path)
        live = _live_inputs(x, g, layer)
        if self.real:
            live = torch.ones_like(live)
        bias = layer._parameters["bias"] is not None
        weight_runs, bias_runs = _positions(layer, x, out)
        now = int((self.left(path, live) * open_).sum()) * weight_runs + int(open_.sum()) * bias * bias_runs
        dense = g.nodes * (g.fan_in * weight_runs + bias * bias_runs)
        before = self.flops.get(path, (0, 0))
        self.flops[path] = (before[0] + dense, before[1] + now)
        self.live[path] = live | self.live.get(path, torch.zeros_like(live))
        if self.real:
            return out
        shape = (1,) * (out.dim() - 1) + (-1,) if g.linear else (-1,) + (1,) * _spatial(layer)
        values = torch.where(open_, torch.nan, 0.0).to(out.dtype).reshape(shape)
        return values.expand_as(out).clone()


@contextmanager
def _lookups_live(net: nn.Module, marked: bool) -> Iterator[None]:
    """What an embedding gives depends on the input."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    handles = [m.register_forward_hook(_all_live) for m in net.modules() if marked and isinstance(m, kinds)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _all_live(module: nn.Module, inputs: tuple[Any, ...], out: Tensor) -> Tensor:
    return torch.full_like(out, torch.nan)


class Probe:
    """Counts a network's cost again and again, for masks that change: the shape of one row is all it keeps."""

    def __init__(self, model: nn.Module, example: Any) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"cost takes a network or a model, got {type(model).__name__}.")
        if any(p.is_meta for p in model.parameters()):
            raise ValueError("The network is on the meta device, which holds no numbers; give it real weights.")
        plain = model.mean() if isinstance(model, Bayesian) else copy_network(model)
        self.net = plain.cpu().eval()
        dtype = next((p.dtype for p in self.net.parameters() if p.is_floating_point()), torch.float32)
        keep = takes_integers(self.net)
        several = example if isinstance(example, tuple) else (example,)
        rows = tuple(as_inputs(x, dtype, "the example", keep).cpu()[:1] for x in several)
        self.inputs = tuple(torch.full_like(x, torch.nan) if x.is_floating_point() else x for x in rows)
        self.real = False
        self._last: tuple[Any, Cost | None] = (None, None)
        try:
            dense: dict[str, tuple[int, int]] | None = self._run({}).flops
        except ValueError:
            dense = None
        self.inputs, marked = tuple(x.clone() for x in rows), self.inputs
        self.real = True
        if self._run({}).flops == dense:
            self.inputs, self.real = marked, False
        else:
            warnings.warn(
                f"The forward of {type(self.net).__name__} depends on its numbers (an index, a comparison), so which "
                "inputs of a layer are left cannot be followed: the costs count all inputs of each open node.",
                stacklevel=4,
            )

    @torch.no_grad()
    def _run(self, masks: Mapping[str, Tensor]) -> _Probe:
        probe = _Probe(self.net, masks, self.real)
        with _lookups_live(self.net, not self.real), probe:
            run(self.net, tuple(x.clone() for x in self.inputs), "an example")  # a forward may change them in place
        return probe

    def __call__(self, masks: Mapping[str, Tensor], weights: Mapping[str, int] | None = None) -> Cost:
        """The cost with these nodes open; `weights` overrides the count of nonzero weights (edge selection)."""
        key = (tuple((path, mask.cpu().numpy().tobytes()) for path, mask in masks.items()), repr(weights))
        if key != self._last[0]:  # from one epoch to the next little changes
            self._last = key, self._count(masks, weights)
        assert self._last[1] is not None
        return self._last[1]

    def _count(self, masks: Mapping[str, Tensor], weights: Mapping[str, int] | None) -> Cost:
        probe = self._run(masks)
        layers = []
        for path, layer in probe.layers.items():
            if path not in probe.flops:  # a layer that this forward does not use
                continue
            g, open_ = geometry(layer), probe.open_nodes(path)
            bias = layer._parameters["bias"] is not None
            count = int(open_.sum())
            dense, now = probe.flops[path]
            nonzero = count * (g.fan_in + bias) if weights is None or path not in weights else weights[path]
            small = int((probe.left(path, probe.live[path]) * open_).sum()) + count * bias
            layers.append(LayerCost(path, g.nodes, count, dense, now, g.nodes * (g.fan_in + bias), nonzero, small))
        if not layers:
            raise ValueError(
                f"{type(self.net).__name__} runs no Linear or convolution layer whose cost could be counted."
            )
        return Cost(tuple(layers))


def edges_of(model: Bayesian) -> dict[str, int] | None:
    """{path: open edges} of the layers with a gate on every edge."""
    counts = {
        p.path: sum(int((gamma > 0.5).sum()) for gamma in p.gamma().values())
        for p in model._posteriors()
        if "weight" in p.gates
    }
    return counts or None


def cost(model: nn.Module, example: Any) -> Cost:
    """Multiplications and weights of a model, dense and now. example: one batch of inputs (its first row is used).

    A plain network counts as it stands: every node is open.
    """
    probe = Probe(model, example)
    if isinstance(model, Bayesian):
        return probe(model.masks(), edges_of(model))
    return probe({})
