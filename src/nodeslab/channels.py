"""Which channels of a network belong together, from its own graph, and which are constant.

Every tensor has a channel axis, and every position along it a tag. An operation that passes channels on ties the tags
of its inputs and outputs together; one that mixes them, or is not known, blocks them. The graph is run on NaN, and a
closed node gives its zero: what depends on the input is NaN, so a channel is constant exactly where it holds no NaN.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn import functional as F

from nodeslab.layers import SELECTABLE, geometry

__all__ = ["Probe", "Tags"]


def _from(module: Any, names: str) -> tuple[Any, ...]:
    """The attributes of a module that this torch has, by name."""
    return tuple(getattr(module, name) for name in names.split() if name in dir(module))


NORMS = _from(nn, "BatchNorm1d BatchNorm2d BatchNorm3d InstanceNorm1d InstanceNorm2d InstanceNorm3d")
ELEMENTWISE = _from(
    nn,
    "Identity ReLU ReLU6 LeakyReLU PReLU RReLU ELU CELU SELU GELU SiLU Mish Sigmoid LogSigmoid Tanh Softplus Softsign "
    "Softshrink Hardshrink Hardtanh Hardsigmoid Hardswish Tanhshrink Threshold Dropout Dropout1d Dropout2d Dropout3d "
    "AlphaDropout FeatureAlphaDropout",
)
SPATIAL = _from(
    nn,
    "MaxPool1d MaxPool2d MaxPool3d AvgPool1d AvgPool2d AvgPool3d LPPool1d LPPool2d AdaptiveAvgPool1d AdaptiveAvgPool2d "
    "AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d Upsample UpsamplingNearest2d "
    "UpsamplingBilinear2d ZeroPad1d ZeroPad2d ZeroPad3d ConstantPad1d ConstantPad2d ConstantPad3d ReflectionPad1d "
    "ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d CircularPad1d CircularPad2d",
)
ELEMENTWISE_CALLS = frozenset(
    _from(torch, "relu sigmoid tanh abs neg exp square sqrt clamp sin cos clone")
    + _from(operator, "neg pos abs")
    + _from(
        F,
        "relu relu6 leaky_relu elu celu selu gelu silu mish sigmoid logsigmoid tanh softplus softsign softshrink "
        "hardshrink hardtanh hardsigmoid hardswish tanhshrink threshold dropout dropout1d dropout2d dropout3d "
        "alpha_dropout",
    )
)
SPATIAL_CALLS = frozenset(
    _from(
        F,
        "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
        "adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d interpolate pad",
    )
)
PAIRS = frozenset(
    _from(operator, "add sub mul truediv iadd isub imul pow") + _from(torch, "add sub mul div maximum minimum")
)
ELEMENTWISE_METHODS = frozenset(
    [
        "relu",
        "relu_",
        "sigmoid",
        "sigmoid_",
        "tanh",
        "tanh_",
        "abs",
        "neg",
        "exp",
        "square",
        "sqrt",
        "clamp",
        "clone",
        "contiguous",
        "detach",
        "float",
        "double",
        "to",
    ]
)
PAIR_METHODS = frozenset(["add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_"])


class Tags:
    """Union-find over channels; a blocked tag keeps its whole group, and says why."""

    def __init__(self) -> None:
        self.parent: list[int] = []
        self.why: dict[int, str] = {}

    def fresh(self, count: int) -> list[int]:
        start = len(self.parent)
        self.parent.extend(range(start, start + count))
        return list(range(start, start + count))

    def find(self, tag: int) -> int:
        while self.parent[tag] != tag:
            self.parent[tag] = self.parent[self.parent[tag]]
            tag = self.parent[tag]
        return tag

    def tie(self, a: int, b: int) -> None:
        x, y = self.find(a), self.find(b)
        if x != y:
            self.parent[y] = x
            if y in self.why:
                self.why.setdefault(x, self.why.pop(y))

    def block(self, tag: int, why: str) -> bool:
        """Keep a tag's whole group; True if it was free until now."""
        root = self.find(tag)
        free = root not in self.why
        self.why.setdefault(root, why)
        return free


@dataclass
class _Value:
    """A tensor of the probe with its channel axis; `tags` has one tag for each position along it."""

    data: Tensor
    axis: int
    tags: list[int]


def _call_name(node: torch.fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


class Probe(torch.fx.Interpreter):
    """Runs the graph on NaN and ties tags as it goes."""

    def __init__(
        self, module: torch.fx.GraphModule, closed: Mapping[str, Tensor], random: bool, training: bool = False
    ) -> None:
        """closed: which nodes are, for each layer. random: weights have a posterior, so that no open node is constant;
        without one, a node whose inputs are all constant is so too. training: the network trains on."""
        super().__init__(module)
        self.closed, self.random, self.training = closed, random, training
        self.tags = Tags()
        self.rows: dict[str, list[int]] = {}
        self.columns: dict[str, list[int]] = {}
        self.seen: dict[str, list[Tensor]] = {}  # the inputs of each layer, channels first
        self.alive: dict[str, Tensor] = {}  # nodes whose output is not constant
        self.taken: set[str] = set()  # layers whose weight the forward uses by itself
        self.sliced: dict[str, list[int]] = {}  # norms and parametric activations: tags of their parameters
        self.aliases: dict[int, str] = {}
        for name, m in module.named_modules():
            self.aliases.setdefault(id(m), name)

    # every value in the interpreter is a _Value or something that is no tensor

    def run_node(self, n: torch.fx.Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        values = [v for v in flat((args, kwargs)) if isinstance(v, _Value)]
        if n.op == "output":
            for v in values:
                self._block(v, "the network's output")
            return args[0]
        out = self._plain(n, args, kwargs)
        if n.op == "get_attr":
            owner = self.module.get_submodule(str(n.target).rpartition(".")[0])
            self.taken.add(self.aliases.get(id(owner), ""))
        if isinstance(out, Tensor) and any(not v.data.is_floating_point() for v in values):
            out = _unknown(out)  # integers and masks hold the example's own values, which NaN cannot mark
        if n.op in ("placeholder", "get_attr") or not isinstance(out, Tensor):
            return self._source(n, out, values)
        if n.op == "call_module":
            return self._module(str(n.target), n, values, out)
        return self._function(n, args, values, out)

    def _plain(self, n: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        """The node's own result on the probe's numbers."""
        bare, named = torch.fx.node.map_aggregate((args, kwargs), lambda v: v.data if isinstance(v, _Value) else v)
        return getattr(self, n.op)(n.target, tuple(bare), dict(named))

    def _source(self, n: torch.fx.Node, out: Any, values: list[_Value]) -> Any:
        if isinstance(out, Tensor):
            value = self._new(_unknown(out), out.dim() - 1 if out.dim() < 3 else 1)
            self._block(value, "an input of the network" if n.op == "placeholder" else f"the parameter {n.target}")
            return value
        if isinstance(out, (tuple, list)) and any(isinstance(v, Tensor) for v in out):
            for v in values:
                self._block(v, f"{_call_name(n)}, which gives several tensors")
            made = [self._new(_unknown(v), min(1, v.dim() - 1)) if isinstance(v, Tensor) else v for v in out]
            for v in made:
                if isinstance(v, _Value):
                    self._block(v, f"{_call_name(n)}, which gives several tensors")
            return type(out)(made) if type(out) in (tuple, list) else tuple(made)
        return out

    def _new(self, data: Tensor, axis: int) -> _Value:
        count = data.shape[axis] if data.dim() else 0
        return _Value(data, axis, self.tags.fresh(count))

    def _block(self, value: _Value, why: str) -> None:
        for tag in value.tags:
            self.tags.block(tag, why)

    def _refuse(self, values: list[_Value], out: Tensor, why: str) -> _Value:
        for v in values:
            self._block(v, why)
        made = self._new(_unknown(out), min(1, max(out.dim() - 1, 0)))
        self._block(made, why)
        return made

    # ---- modules

    def _module(self, name: str, n: torch.fx.Node, values: list[_Value], out: Tensor) -> _Value:
        module = self.fetch_attr(name)
        path = self.aliases[id(module)]
        kind = type(module).__name__
        if len(values) != 1:
            return self._refuse(values, out, f"'{path}' ({kind}), which takes several tensors")
        x = values[0]
        if isinstance(module, SELECTABLE):
            if module._parameters.get("weight") is None:
                return self._refuse(values, out, f"'{path}' ({kind}), whose weight is parametrised")
            return self._layer(path, module, x, out)
        if self.training and isinstance(module, NORMS) and module.running_mean is not None:
            return self._refuse(values, out, f"'{path}' ({kind}), which normalises by the batch in training")
        if isinstance(module, NORMS) and x.axis == 1:
            tags = self.sliced.setdefault(path, x.tags)
            self._tie(tags, x.tags)
            return _Value(out, 1, x.tags)
        if isinstance(module, nn.PReLU) and module.num_parameters > 1:
            if x.axis != 1:
                return self._refuse(values, out, f"'{path}' (PReLU)")
            tags = self.sliced.setdefault(path, x.tags)
            self._tie(tags, x.tags)
            return _Value(out, 1, x.tags)
        if isinstance(module, ELEMENTWISE):
            return _Value(out, x.axis, x.tags)
        if isinstance(module, SPATIAL) and x.axis == 1 and _keeps_channels(kind, x.data):
            return _Value(out, 1, x.tags)
        if isinstance(module, nn.Flatten):
            return self._reshaped(n, x, out, f"'{path}' (Flatten)")
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            return self._refuse(values, out, f"'{path}' ({kind})")
        return self._refuse(values, out, f"'{path}' ({kind}), which mixes or is not known")

    def _layer(self, path: str, layer: nn.Module, x: _Value, out: Tensor) -> _Value:
        g = geometry(layer)
        axis_in = x.data.dim() - 1 if g.linear else x.data.dim() - _spatial(layer) - 1
        axis_out = out.dim() - 1 if g.linear else 1
        closed = self.closed.get(path, torch.zeros(g.nodes, dtype=torch.bool))
        shape = [1] * out.dim()
        shape[axis_out] = -1
        data = torch.where(closed.reshape(shape), 0.0, _unknown(out) if self.random else out)
        first = path not in self.rows
        if first:
            self.rows[path] = self.tags.fresh(g.nodes)
        value = _Value(data, axis_out, self.rows[path])
        count = x.data.shape[axis_in]
        if x.axis != axis_in:
            self._block(x, f"'{path}', which reads another axis")
            columns = self.tags.fresh(count)
            for tag in columns:
                self.tags.block(tag, f"'{path}', which reads another axis")
        else:
            columns = x.tags
        if first:
            self.columns[path] = columns
            self.seen[path] = []
            self.alive[path] = torch.zeros(g.nodes, dtype=torch.bool)
        self._tie(self.columns[path], columns)
        self.seen[path].append(x.data.movedim(axis_in, 0).reshape(count, -1).clone())  # what follows may work in place
        self.alive[path] |= torch.isnan(data).movedim(axis_out, 0).reshape(g.nodes, -1).any(1)
        if g.groups > 1 and g.groups == count == g.nodes:  # depthwise: a channel in is a channel out
            self._tie(self.columns[path], self.rows[path])
        return value

    def _tie(self, a: list[int], b: list[int]) -> None:
        for x, y in zip(a, b, strict=True):
            self.tags.tie(x, y)

    # ---- functions and methods

    def _function(self, n: torch.fx.Node, args: Any, values: list[_Value], out: Tensor) -> _Value:
        name, target = _call_name(n), n.target
        method = n.op == "call_method"
        if not values:
            return self._source(n, out, values)  # type: ignore[no-any-return]
        x = values[0]
        if "dropout" in name and bool(n.kwargs.get("training", n.args[2] if len(n.args) > 2 else True)):
            return self._refuse(values, out, f"{name}, which stays random")
        if len(values) == 1 and out.shape == x.data.shape:
            scalar_pair = target in PAIRS or (method and target in PAIR_METHODS)
            if scalar_pair or target in ELEMENTWISE_CALLS or (method and target in ELEMENTWISE_METHODS):
                return _Value(out, x.axis, x.tags)
        if target in PAIRS or (method and target in PAIR_METHODS):
            return self._pair(values, out, name)
        if target in SPATIAL_CALLS and x.axis == 1 and out.shape[:2] == x.data.shape[:2]:
            pads = n.args[1] if target is F.pad and len(n.args) > 1 else ()
            inside = isinstance(pads, (tuple, list)) and len(pads) <= 2 * (x.data.dim() - 2) and out.dim() > 2
            if inside and (target is not F.pad or pads) and _keeps_channels(name, x.data):
                return _Value(out, 1, x.tags)
        if target in (torch.cat, torch.concat):
            return self._cat(n, args, values, out)
        if name in ("flatten", "view", "reshape"):
            return self._reshaped(n, x, out, name)
        if name in ("mean", "amax", "sum") and x.axis == 1 and x.data.dim() > 2 and out.shape[:2] == x.data.shape[:2]:
            return _Value(out, 1, x.tags)
        if name in ("permute", "transpose", "squeeze", "unsqueeze"):
            return self._moved(n, x, out, name)
        return self._refuse(values, out, f"{name}, which mixes or is not known")

    def _pair(self, values: list[_Value], out: Tensor, name: str) -> _Value:
        """Two tensors, element by element: their channels go together."""
        from_end = {v.data.dim() - v.axis for v in values}
        sizes = {len(v.tags) for v in values}
        whole = next((v for v in values if v.data.dim() == out.dim()), None)
        if len(values) != 2 or len(from_end) != 1 or len(sizes) != 1 or whole is None:
            return self._refuse(values, out, f"{name} of tensors that lie differently")
        self._tie(values[0].tags, values[1].tags)
        return _Value(out, whole.axis, whole.tags)

    def _cat(self, n: torch.fx.Node, args: Any, values: list[_Value], out: Tensor) -> _Value:
        dim = n.kwargs.get("dim", n.kwargs.get("axis", n.args[1] if len(n.args) > 1 else 0))
        if not isinstance(dim, int) or len({v.axis for v in values}) != 1:
            return self._refuse(values, out, "cat of tensors that lie differently")
        axis = values[0].axis
        if dim % out.dim() == axis:
            return _Value(out, axis, [t for v in values for t in v.tags])
        for v in values[1:]:
            self._tie(values[0].tags, v.tags)
        return _Value(out, axis, values[0].tags)

    def _reshaped(self, n: torch.fx.Node, x: _Value, out: Tensor, name: str) -> _Value:
        """(N, C, ...) to (N, C ...): each channel becomes a run of columns. Sizes must not be written as numbers."""
        rest = math.prod(x.data.shape[2:])
        flat = out.dim() == 2 and x.axis == 1 and out.shape[0] == x.data.shape[0] and out.shape[1] == len(x.tags) * rest
        sizes: list[Any] = [a for a in n.args[1:] if not isinstance(a, torch.fx.Node)] if n.op == "call_method" else []
        if n.op == "call_function" and _call_name(n) == "reshape":
            sizes = [a for s in n.args[1:] for a in (s if isinstance(s, (tuple, list)) else [s])]
        sizes = [a for s in sizes for a in (s if isinstance(s, (tuple, list)) else [s])]
        numbers = {a for a in sizes if isinstance(a, int)} if name in ("view", "reshape") else set()
        if out.shape == x.data.shape and len(x.tags) not in numbers:
            return _Value(out, x.axis, x.tags)
        if numbers & {len(x.tags), out.shape[-1] if flat else len(x.tags)}:
            return self._refuse([x], out, f"{name} to a size written as a number")
        if not flat:
            return self._refuse([x], out, f"{name} that moves channels")
        return _Value(out, 1, [t for t in x.tags for _ in range(rest)])

    def _moved(self, n: torch.fx.Node, x: _Value, out: Tensor, name: str) -> _Value:
        """Where the channel axis went, found by carrying it through the operation itself."""
        marker = torch.arange(len(x.tags), dtype=torch.float64)
        shape = [1] * x.data.dim()
        shape[x.axis] = -1
        carried = marker.reshape(shape).expand(x.data.shape)
        bare = torch.fx.node.map_aggregate(
            self.fetch_args_kwargs_from_env(n)[0][1:], lambda v: v.data if isinstance(v, _Value) else v
        )
        if n.op == "call_method":
            moved = getattr(carried, name)(*bare, **n.kwargs)
        else:
            moved = n.target(carried, *bare, **n.kwargs)  # type: ignore[operator]
        for axis in range(moved.dim()):
            shape = [1] * moved.dim()
            shape[axis] = -1
            if moved.shape[axis] == len(x.tags) and torch.equal(moved, marker.reshape(shape).expand(moved.shape)):
                return _Value(out, axis, x.tags)
        return self._refuse([x], out, name)


def _unknown(out: Tensor) -> Tensor:
    """The same tensor, as something that depends on the input."""
    return torch.full_like(out, torch.nan) if out.is_floating_point() else out


def _keeps_channels(name: str, x: Tensor) -> bool:
    """False where a pooling or padding of d axes, as its name says, would reach into the channels of `x`."""
    d = next((int(end[0]) for end in ("1d", "2d", "3d") if name.endswith(end)), 1)
    return x.dim() >= d + 2


def _spatial(layer: nn.Module) -> int:
    """How many spatial axes a convolution has."""
    return 0 if isinstance(layer, nn.Linear) else len(layer.kernel_size)  # type: ignore[arg-type]


def flat(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [v for part in value for v in flat(part)]
    if isinstance(value, dict):
        return [v for part in value.values() for v in flat(part)]
    return [value]
