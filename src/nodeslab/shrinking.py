"""From closed nodes to a network that is physically small, and answers the same.

The plan comes from the network's own graph (`channels.py`): channels that belong together go together. A group goes
when all of its channels are constant and everything that reads them can do without: a linear layer or a convolution
adds their contribution to its bias. Where zero padding makes that contribution differ at the border, one constant
channel stays and carries for all: its weights become sum_i w_i c_i / c. What cannot be taken out exactly stays, with
the reason.
"""

from __future__ import annotations

import copy
import math
import operator
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from nodeslab.channels import NORMS, Probe, Tags, flat
from nodeslab.data import as_inputs
from nodeslab.gates import FIXED
from nodeslab.graph import run, trace
from nodeslab.layers import CONVOLUTIONS, SELECTABLE, TRANSPOSED, Geometry, geometry, takes_integers
from nodeslab.model import Bayesian, as_mask, copy_network
from nodeslab.posterior import Posterior, Tensors

__all__ = [
    "LayerPlan",
    "ShrinkPlan",
    "carry_optimizer",
    "check_cut",
    "cut_bayesian",
    "cut_plain",
    "planned",
    "shrink",
    "shrink_plan",
    "sizes_of",
    "take_sizes",
]


@dataclass(frozen=True)
class LayerPlan:
    """What happens to one layer: its widths before and after, and how many constants were folded into its bias, or into
    the weights of the input channel `carrier`."""

    path: str
    kind: str
    outputs: tuple[int, int]
    inputs: tuple[int, int]
    folded: int
    carrier: int | None
    kept_for: tuple[str, ...]


@dataclass(frozen=True)
class ShrinkPlan:
    """Which channels go, as data; prints as a table.

    keep, keep_inputs: indices of what stays, by module path. constants: of each input channel. carriers: the input
    channel that carries for those taken out; carrying: the closed nodes, in the layers before, that make it constant.
    """

    layers: tuple[LayerPlan, ...]
    keep: dict[str, Tensor] = field(repr=False)
    keep_inputs: dict[str, Tensor] = field(repr=False)
    constants: dict[str, Tensor] = field(repr=False)
    carriers: dict[str, int] = field(repr=False)
    carrying: dict[str, Tensor] = field(repr=False)
    closed: dict[str, Tensor] = field(repr=False)

    def gone(self, path: str) -> Tensor:
        """Which input channels of a layer go."""
        gone = torch.ones(len(self.constants[path]), dtype=torch.bool)
        gone[self.keep_inputs[path]] = False
        return gone

    def __str__(self) -> str:
        rows = [("layer", "module", "nodes", "inputs", "folded", "")]
        for p in self.layers:
            into = "the bias" if p.carrier is None else f"input {p.carrier}"
            rows.append(
                (
                    p.path or "(net)",
                    p.kind,
                    f"{p.outputs[0]} -> {p.outputs[1]}",
                    f"{p.inputs[0]} -> {p.inputs[1]}",
                    f"{p.folded} constant{'s' if p.folded != 1 else ''} into {into}" if p.folded else "-",
                    "; ".join(p.kept_for),
                )
            )
        widths = [max(len(r[i]) for r in rows) for i in range(5)]
        return "\n".join(
            "  ".join([*(c.ljust(w) for c, w in zip(r[:5], widths, strict=True)), r[5]]).rstrip() for r in rows
        )


# ---- the plan ------------------------------------------------------------------------------------------------------


def shrink_plan(
    model: nn.Module, example: Any, open_nodes: Mapping[str, Any] | None = None, bayesian: bool = False
) -> ShrinkPlan:
    """What `shrink` would do, as data that prints itself.

    example: one batch of inputs (a tuple for several). open_nodes: {path: mask} decides which nodes are open instead
    of inclusion > 0.5, for instance by a draw. A plain network's closed nodes are those whose weights and bias are
    all zero.
    """
    return planned(model, example, open_nodes, bayesian, training=False)


def planned(
    model: nn.Module, example: Any, open_nodes: Mapping[str, Any] | None, bayesian: bool, training: bool
) -> ShrinkPlan:
    """`shrink_plan`; training: for a network that trains on, whose norms are not those of its running averages."""
    _shrinkable(model)
    inputs = _example(model, example)
    closed = _closed(model, open_nodes)
    plain = _gated(_plain(model, open_nodes), closed).cpu().eval()
    for path, mask in closed.items():
        if bool(mask.all()):
            warnings.warn(
                f"Layer '{path}' has no open node: one is kept, since a layer cannot have none. The network no longer "
                "depends on this layer's inputs; train longer, or with a weaker prior.",
                stacklevel=4,
            )
    plain, probe = _probe(plain, inputs, closed, random=bayesian, training=training)
    constants, carriers = _settle(plain, probe, model if bayesian and isinstance(model, Bayesian) else None)
    return _written(plain, probe, closed, constants, carriers)


def _shrinkable(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"shrink takes a model from ns.bayesian or a network, got {type(model).__name__}.")
    if any(p.is_meta for p in model.parameters()):
        raise ValueError("The model is on the meta device, which holds no numbers; load its weights first.")


def _example(model: nn.Module, example: Any) -> tuple[Tensor, ...]:
    """Two rows of each input, on the CPU: with one, a sum over rows would go unseen."""
    net = model.net if isinstance(model, Bayesian) else model
    keep = takes_integers(net)
    several = example if isinstance(example, tuple) else (example,)
    if not several:
        raise ValueError("The example is an empty tuple; give one batch of inputs, or a tuple of one for each input.")
    checked = []
    for x in several:
        integers = keep or (isinstance(x, Tensor) and not x.is_floating_point())
        rows = (
            x.detach().cpu() if isinstance(x, Tensor) and integers else as_inputs(x, torch.float64, "The example", keep)
        )
        if rows.dim() == 0 or len(rows) == 0:
            raise ValueError(f"The example has shape {tuple(rows.shape)}; it must hold at least one row.")
        checked.append(torch.cat([rows[:2]] * 2)[:2].cpu())
    return tuple(checked)


def _plain(model: nn.Module, open_nodes: Mapping[str, Any] | None) -> nn.Module:
    """The network at its posterior mean; nodes that the caller opens have their slab's means."""
    if not isinstance(model, Bayesian):
        return copy_network(model)
    if open_nodes is None:
        return model.mean()
    gated = copy.deepcopy(model)
    for posterior in gated._posteriors():
        if posterior.path in open_nodes and "node" in posterior.gates:
            mask = model.left_of(posterior.path, as_mask(posterior.path, open_nodes[posterior.path]))
            posterior.fix(mask.to(posterior.rho("weight").device))
    return gated.mean()


def _gated(net: nn.Module, closed: Mapping[str, Tensor]) -> nn.Module:
    """The network, in place, with its closed nodes set to zero."""
    for path, shut in closed.items():
        layer = net.get_submodule(path)
        with torch.no_grad():
            for p in layer.parameters(recurse=False):
                p.masked_fill_(geometry(layer).along(shut.to(p.device), p), 0.0)
    return net


def _closed(model: nn.Module, open_nodes: Mapping[str, Any] | None) -> dict[str, Tensor]:
    """{path: which nodes are closed}."""
    net = model.net if isinstance(model, Bayesian) else model
    layers = {
        path: m
        for path, m in net.named_modules()
        if isinstance(m, SELECTABLE) and m._parameters.get("weight") is not None
    }
    if open_nodes is not None:
        out = {}
        for path, mask in open_nodes.items():
            if path not in layers:
                raise ValueError(f"open_nodes: there is no layer {path!r}; layers are {', '.join(map(repr, layers))}.")
            values = as_mask(path, mask)
            if isinstance(model, Bayesian):
                values = model.left_of(path, values)
            if values.shape != (geometry(layers[path]).nodes,):
                raise ValueError(
                    f"open_nodes: the mask of '{path}' must have shape ({geometry(layers[path]).nodes},), got "
                    f"{tuple(values.shape)}."
                )
            out[path] = ~values
        return out
    if isinstance(model, Bayesian):
        return {path: ~mask.cpu() for path, mask in model.masks().items()}
    found = {}
    for path, layer in layers.items():
        g = geometry(layer)
        zero = (g.rows(layer._parameters["weight"]) == 0).all(1)  # type: ignore[arg-type]
        bias = layer._parameters["bias"]
        found[path] = (zero if bias is None else zero & (bias == 0)).cpu()
    return found


def _double(net: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Both in float64 where the forward allows it; one that names a type of its own runs in the network's."""
    own = next((p.dtype for p in net.parameters() if p.is_floating_point()), torch.float64)
    precise = copy_network(net).double()
    given = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    try:
        with torch.no_grad():
            precise(*(x.clone() for x in given))
    except Exception:
        return net, tuple(x.to(own) if x.is_floating_point() else x for x in inputs)
    return precise, given


def _sizes(inputs: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
    """The inputs with more rows, and with longer spatial axes: what is constant must not depend on sizes."""

    def longer(x: Tensor) -> Tensor:
        for axis in range(1 if x.dim() == 3 else 2, x.dim()):
            x = torch.cat([x, x], axis)
        return x

    def longer_last(x: Tensor) -> Tensor:
        return torch.cat([x, x], 2) if x.dim() == 3 else x

    more = [tuple(torch.cat([x, x[:1]]) for x in inputs)]
    if any(x.dim() > 3 for x in inputs):
        more.append(tuple(longer(x) if x.dim() > 3 else x for x in inputs))
    if any(x.dim() == 3 for x in inputs):
        more.append(tuple(torch.cat([x, x], 1) if x.dim() == 3 else x for x in inputs))
        more.append(tuple(longer_last(x) for x in inputs))
    return more


def _probe(
    plain: nn.Module, example: tuple[Tensor, ...], closed: Mapping[str, Tensor], random: bool, training: bool
) -> tuple[nn.Module, Probe]:
    """The network's channels at the example's size; what other sizes show of its constants is added."""
    plain, inputs = _double(plain, example)
    with torch.no_grad():
        run(plain, tuple(x.clone() for x in inputs), "an example")
        layers = [m for m in plain.modules() if isinstance(m, SELECTABLE)]
        module = torch.fx.GraphModule(plain, trace(plain, layers))

        def look(at: tuple[Tensor, ...]) -> Probe:
            probe = Probe(module, closed, random, training)
            probe.run(*(torch.full_like(x, torch.nan) if x.is_floating_point() else x for x in at))
            return probe

        first = look(inputs)
        for other in _sizes(inputs):
            try:
                plain(*(x.clone() for x in other))
                again = look(other)
            except Exception:  # this network has the example's size only
                continue
            for path, seen in again.seen.items():
                first.seen[path] += [calls for calls in seen if len(calls) == len(first.columns[path])]
                first.alive[path] |= again.alive[path]
    return plain, first


def _settle(plain: nn.Module, probe: Probe, model: Bayesian | None) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Block every channel that cannot go; returns each layer's constants by input channel, and who carries them."""
    tags = probe.tags
    constants: dict[str, Tensor] = {}
    needs: set[str] = set()  # layers whose constants cannot go into a bias
    carriers: dict[str, int] = {}
    for path, rows in probe.rows.items():
        for tag, alive in zip(rows, probe.alive[path].tolist(), strict=True):
            if alive:
                tags.block(tag, "open")
        constants[path], carried = _constants(path, plain.get_submodule(path), probe, model)
        if carried:
            needs.add(path)
        if path in probe.taken:
            for tag in (*rows, *probe.columns[path]):
                tags.block(tag, f"the forward uses the weight of '{path}' by itself")
    for path in probe.taken & probe.sliced.keys():
        for tag in probe.sliced[path]:
            tags.block(tag, f"the forward uses the weight of '{path}' by itself")
    changed = True
    while changed:
        changed = False
        for path, rows in probe.rows.items():
            if all(tags.find(t) not in tags.why for t in rows):
                tags.block(rows[0], "the last node of its layer")
                changed = True
            columns = probe.columns[path]
            if all(tags.find(t) not in tags.why for t in columns):
                tags.block(columns[0], f"the last input of '{path}'")
                changed = True
            g = geometry(plain.get_submodule(path))
            if g.groups > 1 and not g.groups == len(columns) == len(rows):
                changed |= _balance(tags, rows, g.groups, f"the groups of '{path}'")
                changed |= _balance(tags, columns, g.groups, f"the groups of '{path}'")
            if path in needs:
                tag, carriers[path] = _carrier(tags, columns, constants[path])
                changed |= tags.block(tag, f"it carries constants past the border of '{path}'")
    return constants, carriers


def _carrier(tags: Tags, columns: list[int], constants: Tensor) -> tuple[int, int]:
    """The input channel that stays and takes the others' constants on: one that is kept anyway, if its own constant is
    not small beside the largest, else the one with the largest."""
    size = constants.abs()
    kept = torch.tensor([tags.find(t) in tags.why for t in columns])
    good = kept & (size >= 0.1 * size.max())
    index = int(torch.where(good, size, 0.0).argmax() if bool(good.any()) else size.argmax())
    return columns[index], index


def _constants(path: str, layer: nn.Module, probe: Probe, model: Bayesian | None) -> tuple[Tensor, bool]:
    """The constant of each input channel (0 where there is none), and True if they must be carried by one channel.

    A channel that has no constant, or whose constant cannot be folded at all, is blocked.
    """
    calls = torch.cat(probe.seen[path], 1)
    value = calls[:, 0].clone()
    same = (calls == value[:, None]).all(1)
    refused = _unfoldable(path, layer, model)
    for tag, c, uniform in zip(probe.columns[path], value.tolist(), same.tolist(), strict=True):
        if not uniform:
            probe.tags.block(tag, "open" if math.isnan(c) else "its constant is not the same everywhere")
        elif c != 0.0 and refused is not None:
            probe.tags.block(tag, f"its constant {c:.4g} {refused}")
    value = torch.where(same, value, 0.0).double()
    return value, refused is None and bool((value != 0).any()) and _carries(path, layer, model)


def _carries(path: str, layer: nn.Module, model: Bayesian | None) -> bool:
    """True where a constant's contribution is not constant (it meets a border), or is random with no bias to join."""
    random = model is not None and any(p.path == path for p in model._posteriors())
    return _border(layer) is not None or (random and layer._parameters["bias"] is None)


def _border(layer: nn.Module) -> str | None:
    """Where a constant channel does not add a constant to each node."""
    if isinstance(layer, TRANSPOSED):
        return "border"
    if not isinstance(layer, CONVOLUTIONS) or layer.padding_mode != "zeros":
        return None
    padding = layer.padding
    pads = padding == "same" or (not isinstance(padding, str) and any(p > 0 for p in padding))
    return "zero padding" if pads else None


def _unfoldable(path: str, layer: nn.Module, model: Bayesian | None) -> str | None:
    """Why a weight times a constant can join neither a bias nor another channel's weight."""
    if geometry(layer).groups > 1 and (border := _border(layer)) is not None:
        return f"meets the {border} of '{path}', which has groups"
    posterior = None if model is None else next((p for p in model._posteriors() if p.path == path), None)
    if model is None or posterior is None:
        return None
    if "weight" in posterior.gates:
        return f"cannot be folded: '{path}' has a gate on every edge"
    if _carries(path, layer, model) and (
        geometry(layer).groups > 1 or any(p.selects and not p.gates for p in model._posteriors())
    ):
        return f"cannot be folded: '{path}' has no bias or a border, and no node can be closed for good to carry it"
    return None


def _balance(tags: Tags, channels: list[int], groups: int, why: str) -> bool:
    """Every group must lose as many channels as the one that can lose fewest."""
    size = len(channels) // groups
    parts = [channels[i * size : (i + 1) * size] for i in range(groups)]
    free = [[t for t in part if tags.find(t) not in tags.why] for part in parts]
    fewest = min(min(map(len, free)), size - 1)
    surplus = [t for part in free for t in part[fewest:]]
    for tag in surplus:
        tags.block(tag, why)
    return bool(surplus)


def _written(
    plain: nn.Module,
    probe: Probe,
    closed: Mapping[str, Tensor],
    constants: dict[str, Tensor],
    carriers: dict[str, int],
) -> ShrinkPlan:
    tags = probe.tags

    def kept(channels: list[int]) -> Tensor:
        return torch.tensor([i for i, t in enumerate(channels) if tags.find(t) in tags.why], dtype=torch.long)

    keep = {path: kept(rows) for path, rows in probe.rows.items()}
    keep |= {path: kept(channels) for path, channels in probe.sliced.items()}
    keep_inputs = {path: kept(columns) for path, columns in probe.columns.items()}
    layers = []
    for path, rows in probe.rows.items():
        layer = plain.get_submodule(path)
        gone = torch.ones(len(constants[path]), dtype=torch.bool)
        gone[keep_inputs[path]] = False
        mask = closed.get(path, torch.zeros(len(rows), dtype=torch.bool)).tolist()
        reasons: dict[str, int] = {}
        for tag, shut in zip(rows, mask, strict=True):
            why = tags.why.get(tags.find(tag))
            if shut and why is not None:
                label = "tied to an open node" if why == "open" else why
                reasons[label] = reasons.get(label, 0) + 1
        layers.append(
            LayerPlan(
                path,
                type(layer).__name__,
                (len(rows), len(keep[path])),
                (len(probe.columns[path]), len(keep_inputs[path])),
                int((constants[path][gone] != 0).sum()),
                carriers.get(path),
                tuple(f"{count} closed kept: {why}" for why, count in reasons.items()),
            )
        )
    roots = {tags.find(probe.columns[path][index]) for path, index in carriers.items()}
    carrying = {
        p: closed[p] & torch.tensor([tags.find(t) in roots for t in probe.rows[p]])
        for p in probe.rows.keys() & closed.keys()
    }
    return ShrinkPlan(tuple(layers), keep, keep_inputs, constants, carriers, carrying, dict(closed))


# ---- the cut -------------------------------------------------------------------------------------------------------


def _cut_weight(weight: Tensor, layer: nn.Module, rows: Tensor, columns: Tensor) -> Tensor:
    """The weights of the kept nodes from the kept inputs, in the layer's own layout."""
    g = geometry(layer)
    if g.groups == 1:
        return weight[columns][:, rows] if g.transposed else weight[rows][:, columns]
    if g.groups == g.nodes == len_inputs(layer):
        return weight[rows]
    per_out, per_in = g.nodes // g.groups, len_inputs(layer) // g.groups
    parts = []
    for i in range(g.groups):
        r = rows[(rows >= i * per_out) & (rows < (i + 1) * per_out)]
        c = columns[(columns >= i * per_in) & (columns < (i + 1) * per_in)]
        parts.append(weight[c][:, r - i * per_out] if g.transposed else weight[r][:, c - i * per_in])
    return torch.cat(parts)


def len_inputs(layer: nn.Module) -> int:
    """Input channels, or features."""
    return layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels  # type: ignore[return-value]


def _by_input(weight: Tensor, g: Geometry, inputs: int) -> Tensor:
    """The weight from each input channel to each node, summed over the kernel: (nodes, inputs)."""
    summed = weight.reshape(*weight.shape[:2], -1).sum(2)
    if g.groups == 1:
        return summed.T if g.transposed else summed
    out = torch.zeros(g.nodes, inputs, dtype=weight.dtype)
    per_out, per_in = g.nodes // g.groups, inputs // g.groups
    for i in range(g.groups):
        r, c = slice(i * per_out, (i + 1) * per_out), slice(i * per_in, (i + 1) * per_in)
        out[r, c] = summed[c].T if g.transposed else summed[r]
    return out


def _resize(layer: nn.Module, rows: int, columns: int) -> None:
    """The layer's own record of its sizes."""
    if isinstance(layer, nn.Linear):
        layer.in_features, layer.out_features = columns, rows
        return
    assert isinstance(layer, (*CONVOLUTIONS, *TRANSPOSED))
    if layer.groups == layer.in_channels == layer.out_channels and layer.groups > 1:
        layer.groups = rows
    layer.in_channels, layer.out_channels = columns, rows


def cut_plain(net: nn.Module, plan: ShrinkPlan, gated: bool) -> None:
    """Cut every layer of a network in place; `gated` sets the closed nodes that are kept to zero first."""
    if gated:
        _gated(net, plan.closed)
    for part in plan.layers:
        layer = net.get_submodule(part.path)
        weight, bias = layer._parameters["weight"], layer._parameters["bias"]
        assert weight is not None
        rows, columns = plan.keep[part.path], plan.keep_inputs[part.path]
        where = weight.device
        with torch.no_grad():
            w = weight.detach().clone()
            b = None if bias is None else bias.detach().clone()
            added = _fold(w, geometry(layer), plan, part.path, 1)
            if b is not None or bool((added != 0).any()):
                exact = added if b is None else b.double().cpu() + added
                if gated and part.path in plan.closed:
                    exact = exact.masked_fill(plan.closed[part.path], 0.0)
                small = exact[rows].to(w.dtype).to(where)
                trains = weight.requires_grad if bias is None else bias.requires_grad
                layer._parameters["bias"] = nn.Parameter(small, requires_grad=trains)
            cut = _cut_weight(w, layer, rows.to(where), columns.to(where)).contiguous()
            layer._parameters["weight"] = nn.Parameter(cut, requires_grad=weight.requires_grad)
        _resize(layer, len(rows), len(columns))
    listed = {part.path for part in plan.layers}
    for path in plan.keep.keys() - listed:
        _cut_by_channel(net.get_submodule(path), plan.keep[path])


def _fold(weight: Tensor, g: Geometry, plan: ShrinkPlan, path: str, power: int) -> Tensor:
    """sum over the channels taken out of w psi(0), for each node: what its bias gains.

    Where one channel carries for them, its weights gain it instead, in place. power=2 does the same to variances.
    """
    gone, c = plan.gone(path), plan.constants[path].pow(power)
    carrier = plan.carriers.get(path)
    if carrier is None:
        return _by_input(weight.double().cpu(), g, len(c))[:, gone] @ c[gone]
    axis = 0 if g.transposed else 1
    lost = weight.double().cpu().movedim(axis, 0)[gone]
    weight.select(axis, carrier).add_(torch.tensordot(c[gone] / c[carrier], lost, dims=1).to(weight))
    return torch.zeros(g.nodes, dtype=torch.float64)


def _cut_by_channel(module: nn.Module, keep: Tensor) -> None:
    """A norm, or a parametric activation: one number for each channel."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        chosen = parameter.detach()[keep.to(parameter.device)].clone()
        module._parameters[name] = nn.Parameter(chosen, requires_grad=parameter.requires_grad)
    for name, buffer in list(module.named_buffers(recurse=False)):
        if buffer.dim():
            module._buffers[name] = buffer[keep.to(buffer.device)].clone()
    if isinstance(module, nn.PReLU):
        module.num_parameters = len(keep)
    else:
        module.num_features = len(keep)  # type: ignore[assignment]


def shrink(
    model: nn.Module,
    example: Any,
    open_nodes: Mapping[str, Any] | None = None,
    *,
    bayesian: bool = False,
) -> nn.Module:
    """The network without its closed nodes.

    Plain, by default: at the posterior mean, it answers as the gated dense network does; this is checked once more on
    the example before it is returned. bayesian=True: still a Bayesian model, with the spreads of what is left, that
    predicts with uncertainty and trains on. The model itself is untouched. See `shrink_plan` for the arguments.
    """
    plan = shrink_plan(model, example, open_nodes, bayesian)
    if bayesian and not isinstance(model, Bayesian):
        raise TypeError(f"bayesian=True needs a model from ns.bayesian, got {type(model).__name__}.")
    check_cut(model, plan, example, open_nodes)
    if bayesian:
        assert isinstance(model, Bayesian)
        small: nn.Module = cut_bayesian(model, plan)
    else:
        small = _plain(model, open_nodes)
        cut_plain(small, plan, gated=True)
    if not any("groups" in why for p in plan.layers for why in p.kept_for):
        return small
    left = None  # what kept groups even may go now that they are smaller
    if open_nodes is not None:
        left = {path: ~plan.closed[path][plan.keep[path]] for path in open_nodes}
    if [p.shape for p in small.parameters()] == [p.shape for p in model.parameters()]:
        return small
    return shrink(small, example, left, bayesian=bayesian)


def cut_bayesian(model: Bayesian, plan: ShrinkPlan) -> Bayesian:
    """A smaller Bayesian model after a plan: means, spreads, gates and scales of what is kept.

    The constant of a node that is taken out goes into the bias that it fed: a sum of independent normals, so
    mean b + sum c mu and variance s_b^2 + sum c^2 s^2. A node that stays to carry such constants is closed for good.
    """
    slim = copy.deepcopy(model)
    slim.origin = {}
    cutters = _cutters(model, plan)
    spreads = {p.path: _folded_spreads(p, plan) for p in model._posteriors() if p.path in plan.constants}
    cut_plain(slim.net, plan, gated=False)
    for i, posterior in enumerate(slim._posteriors()):
        with torch.no_grad():
            for name, parameter in list(posterior.named_parameters()):
                value = parameter.detach()
                wider = spreads.get(posterior.path, {}).get(name)
                if wider is not None:
                    value = torch.log(torch.expm1(wider)).to(value)
                if name.startswith("gates.") and posterior.path in plan.carrying:
                    shut = posterior.geometry.along(plan.carrying[posterior.path].to(value.device), value)
                    value = torch.where(shut, -FIXED, value)
                cut = cutters.get(f"posteriors.{i}.{name}")
                if cut is not None:
                    owner, _, leaf = name.rpartition(".")
                    kept = nn.Parameter(cut(value).clone(), requires_grad=parameter.requires_grad)
                    posterior.get_submodule(owner)._parameters[leaf] = kept
        posterior.take_geometry(slim.net.get_submodule(posterior.path))
    return slim


def _folded_spreads(posterior: Posterior, plan: ShrinkPlan) -> Tensors:
    """{parameter name: spread} of what takes the constants on; empty where nothing is folded."""
    path = posterior.path
    if not bool((plan.constants[path][plan.gone(path)] != 0).any()):
        return {}
    variance = posterior.spread("weight").detach().double().cpu().square()
    added = _fold(variance, posterior.geometry, plan, path, 2)
    if path in plan.carriers:
        return {"rho_weight": variance.sqrt()}
    return {"rho_bias": torch.sqrt(posterior.spread("bias").detach().double().cpu().square() + added)}


def _cutters(model: Bayesian, plan: ShrinkPlan) -> dict[str, Callable[[Tensor], Tensor]]:
    """{parameter name: how a tensor of its shape is cut} for all that a plan changes; optimizer state is cut so too."""
    cutters: dict[str, Callable[[Tensor], Tensor]] = {}

    def by_row(rows: Tensor, t: Tensor) -> Tensor:
        return t[rows.to(t.device)]

    def by_weight(layer: nn.Module, rows: Tensor, columns: Tensor, t: Tensor) -> Tensor:
        return _cut_weight(t, layer, rows.to(t.device), columns.to(t.device)).contiguous()

    numbers = {p.path: i for i, p in enumerate(model._posteriors())}
    for path, rows in plan.keep.items():
        module = model.net.get_submodule(path)
        base = f"net.{path}." if path else "net."
        row = partial(by_row, rows)
        if path not in plan.keep_inputs:
            cutters |= {base + name: row for name, _ in module.named_parameters(recurse=False)}
            continue
        whole = partial(by_weight, copy.deepcopy(module), rows, plan.keep_inputs[path])
        cutters |= {base + "weight": whole, base + "bias": row}
        if path in numbers:
            base = f"posteriors.{numbers[path]}."
            cutters |= {base + "rho_weight": whole, base + "rho_bias": row, base + "gates.node.logit": row}
            cutters |= {base + "gates.weight.logit": whole, base + "gates.bias.logit": row}
            cutters |= {base + "scale.node.mean": row, base + "scale.node.rho": row}
    return cutters


def _carried(value: Any, cut: Callable[[Tensor], Tensor] | None) -> Any:
    """A piece of an optimizer's state, cut like its parameter; nothing is shared with the old one."""
    if not isinstance(value, Tensor):
        return copy.copy(value)
    return (value if cut is None else cut(value)).detach().clone()


def carry_optimizer(
    optimizer: torch.optim.Optimizer, model: Bayesian, slim: Bayesian, plan: ShrinkPlan
) -> torch.optim.Optimizer:
    """An optimizer of the same kind for the smaller model, with the state of what was kept."""
    cutters = _cutters(model, plan)
    names = {id(p): name for name, p in model.named_parameters()}
    found = dict(slim.named_parameters())
    groups = []
    for group in optimizer.param_groups:
        kept = [found[names[id(p)]] for p in group["params"] if names.get(id(p)) in found]
        groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": kept})
    carried = type(optimizer)(groups, **{k: v for k, v in optimizer.defaults.items() if k in ("lr",)})
    for old, state in optimizer.state.items():
        name = names.get(id(old))
        if name is None:  # not of the model: its owner carries it
            continue
        cut = cutters.get(name)
        odd = [k for k, v in state.items() if isinstance(v, Tensor) and v.dim() and v.shape != old.shape]
        if cut is not None and odd:
            raise TypeError(
                f"{type(optimizer).__name__} keeps a state ({odd[0]}) that is not of its parameter's shape, so it "
                "cannot be cut. Use Adam, AdamW, SGD or RMSprop where a network shrinks while it trains."
            )
        carried.state[found[name]] = {
            key: _carried(v, cut if isinstance(v, Tensor) and v.shape == old.shape and v.dim() else None)
            for key, v in state.items()
        }
    return carried


def sizes_of(net: nn.Module) -> dict[str, list[int]]:
    """{path: [inputs, outputs, groups]} of the layers that shrinking cuts, {path: [channels]} of norms and the like."""
    sizes: dict[str, list[int]] = {}
    for path, m in net.named_modules():
        if isinstance(m, SELECTABLE) and m._parameters.get("weight") is not None:
            sizes[path] = [len_inputs(m), geometry(m).nodes, geometry(m).groups]
        elif isinstance(m, NORMS):
            sizes[path] = [m.num_features]
        elif isinstance(m, nn.PReLU):
            sizes[path] = [m.num_parameters]
    return sizes


def take_sizes(net: nn.Module, sizes: Mapping[str, Sequence[int]], names: Collection[str]) -> None:
    """Make room in a network, in place, for the tensors (`names`) of one that was cut from it."""
    now = sizes_of(net)
    for path, wanted in sizes.items():
        size = now.get(path)
        if size is None or list(wanted) == size or len(wanted) != len(size) or any(map(operator.gt, wanted, size)):
            continue  # not one that was cut from this: the caller's comparison says so
        module: Any = net.get_submodule(path)
        if len(wanted) == 1:
            _cut_by_channel(module, torch.arange(wanted[0]))
            continue
        (inputs, nodes, groups), weight = wanted, module.weight
        pair = [inputs, nodes // groups] if geometry(module).transposed else [nodes, inputs // groups]
        module.weight = nn.Parameter(weight.new_empty(*pair, *weight.shape[2:]))
        _resize(module, nodes, inputs)
        if not isinstance(module, nn.Linear):
            module.groups = groups
    now = sizes_of(net)
    for name in names:  # a layer without a bias may have gained one, and any bias has its layer's size now
        path, _, leaf = name.rpartition(".")
        if leaf == "bias" and len(now.get(path, [])) == 3 and list(sizes.get(path, [])) == now[path]:
            module = net.get_submodule(path)
            if module.bias is None or len(module.bias) != now[path][1]:
                module.bias = nn.Parameter(module.weight.new_empty(now[path][1]))


def check_cut(model: nn.Module, plan: ShrinkPlan, example: Any, open_nodes: Mapping[str, Any] | None) -> None:
    """The posterior mean networks before and after the cut answer alike on the example, or a ValueError."""
    _check(_gated(_plain(model, open_nodes), plan.closed), plan, _example(model, example))


def _check(dense: nn.Module, plan: ShrinkPlan, example: tuple[Tensor, ...]) -> None:
    """The network before and after the cut on the example, in float64 where its forward allows it."""
    before, inputs = _double(dense.cpu().eval(), example)
    after = copy_network(before)
    cut_plain(after, plan, gated=True)
    with torch.no_grad():
        try:
            a, b = (flat(net(*(x.clone() for x in inputs))) for net in (before, after))
        except Exception as e:
            raise ValueError(
                f"The forward of {type(dense).__name__} holds sizes written as numbers, so it cannot run with fewer "
                f"nodes ({e}). Write them with -1 or x.shape."
            ) from e
    for x, y in zip(a, b, strict=True):
        if not isinstance(x, Tensor) or not x.is_floating_point() or not x.numel():
            continue
        scale = max(1.0, float(x.abs().max()))
        allowed = 1e-6 if x.dtype == torch.float64 else 1e3 * torch.finfo(x.dtype).eps
        if x.shape != y.shape or not torch.allclose(x, y, rtol=0, atol=allowed * scale):
            raise ValueError("The shrunk network does not answer as the dense one does; please report this network.")
