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
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from nodeslab.channels import NORMS, Probe, Tags, flat
from nodeslab.gates import FIXED
from nodeslab.graph import run, trace
from nodeslab.layers import CONVOLUTIONS, SELECTABLE, TRANSPOSED, Geometry, geometry
from nodeslab.model import Bayesian
from nodeslab.posterior import Posterior, Tensors

__all__ = ["LayerPlan", "ShrinkPlan", "carry_optimizer", "cut_bayesian", "shrink", "shrink_plan"]


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
    plain = model.mean() if isinstance(model, Bayesian) else copy.deepcopy(model)
    plain = plain.cpu().double().eval()
    closed = _closed(model, plain, open_nodes)
    for path, mask in closed.items():  # closed by the caller's choice: gated to zero here as well
        layer = plain.get_submodule(path)
        with torch.no_grad():
            for p in layer.parameters(recurse=False):
                p.masked_fill_(geometry(layer).along(mask, p), 0.0)
    probe = _probe(plain, example, closed, random=bayesian)
    for path, mask in closed.items():
        if path in probe.rows and bool(mask.all()):
            warnings.warn(
                f"Layer '{path}' has no open node: one is kept, since a layer cannot have none. The network no longer "
                "depends on this layer's inputs; train longer, or with a weaker prior.",
                stacklevel=3,
            )
    constants, carriers = _settle(plain, probe, model if bayesian and isinstance(model, Bayesian) else None)
    return _written(plain, probe, closed, constants, carriers)


def _closed(model: nn.Module, plain: nn.Module, open_nodes: Mapping[str, Any] | None) -> dict[str, Tensor]:
    layers = {path: m for path, m in plain.named_modules() if isinstance(m, SELECTABLE)}
    if open_nodes is not None:
        out = {}
        for path, mask in open_nodes.items():
            if path not in layers:
                raise ValueError(f"open_nodes: there is no layer {path!r}; layers are {', '.join(map(repr, layers))}.")
            values = torch.as_tensor(mask).to(torch.bool).cpu()
            if values.shape != (geometry(layers[path]).nodes,):
                raise ValueError(
                    f"open_nodes: the mask of '{path}' must have shape ({geometry(layers[path]).nodes},), got "
                    f"{tuple(values.shape)}."
                )
            out[path] = ~values
        return out
    if isinstance(model, Bayesian):
        return {r.path: ~r.mask.cpu() for r in model.nodes()}
    found = {}
    for path, layer in layers.items():
        g = geometry(layer)
        zero = (g.rows(layer._parameters["weight"]) == 0).all(1)  # type: ignore[arg-type]
        bias = layer._parameters["bias"]
        found[path] = zero if bias is None else zero & (bias == 0)
    return found


def _probe(plain: nn.Module, example: Any, closed: Mapping[str, Tensor], random: bool) -> Probe:
    inputs = example if isinstance(example, tuple) else (example,)
    tensors = tuple(torch.as_tensor(x).detach().cpu()[:1] for x in inputs)
    tensors = tuple(x.double() if x.is_floating_point() else x for x in tensors)
    with torch.no_grad():
        run(plain, tensors, "an example")
        layers = [m for m in plain.modules() if isinstance(m, SELECTABLE)]
        probe = Probe(torch.fx.GraphModule(plain, trace(plain, layers)), closed, random)
        probe.run(*(torch.full_like(x, torch.nan) if x.is_floating_point() else x for x in tensors))
    return probe


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
    value = torch.where(same, value, 0.0)
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


def _cut_plain(net: nn.Module, plan: ShrinkPlan, gated: bool) -> None:
    """Cut every layer of a network in place; `gated` sets the closed nodes that are kept to zero first."""
    for part in plan.layers:
        layer = net.get_submodule(part.path)
        weight, bias = layer._parameters["weight"], layer._parameters["bias"]
        assert weight is not None
        rows, columns = plan.keep[part.path], plan.keep_inputs[part.path]
        where = weight.device
        with torch.no_grad():
            w = weight.detach().clone()
            b = None if bias is None else bias.detach().clone()
            if gated and part.path in plan.closed:
                shut = plan.closed[part.path].to(where)
                w.masked_fill_(geometry(layer).along(shut, w), 0.0)
                if b is not None:
                    b.masked_fill_(shut, 0.0)
            added = _fold(w, geometry(layer), plan, part.path, 1)
            if b is not None or bool((added != 0).any()):
                exact = added if b is None else b.double().cpu() + added
                if gated and part.path in plan.closed:
                    exact = exact.masked_fill(plan.closed[part.path], 0.0)
                small = exact[rows].to(w.dtype).to(where)
                layer._parameters["bias"] = nn.Parameter(small, requires_grad=weight.requires_grad)
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
    if bayesian:
        if not isinstance(model, Bayesian):
            raise TypeError(f"bayesian=True needs a model from ns.bayesian, got {type(model).__name__}.")
        return cut_bayesian(model, plan)
    plain = model.mean() if isinstance(model, Bayesian) else copy.deepcopy(model)
    gated = copy.deepcopy(plain)
    _cut_plain(plain, plan, gated=True)
    _check(gated, plain, plan, example)
    return plain


def cut_bayesian(model: Bayesian, plan: ShrinkPlan) -> Bayesian:
    """A smaller Bayesian model after a plan: means, spreads, gates and scales of what is kept.

    The constant of a node that is taken out goes into the bias that it fed: a sum of independent normals, so
    mean b + sum c mu and variance s_b^2 + sum c^2 s^2. A node that stays to carry such constants is closed for good.
    """
    slim = copy.deepcopy(model)
    cutters = _cutters(model, plan)
    spreads = {p.path: _folded_spreads(p, plan) for p in model._posteriors() if p.path in plan.constants}
    _cut_plain(slim.net, plan, gated=False)
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
        posterior.geometry = geometry(slim.net.get_submodule(posterior.path))
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
        kept = [found[names[id(p)]] for p in group["params"] if names[id(p)] in found]
        groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": kept})
    carried = type(optimizer)(groups, **{k: v for k, v in optimizer.defaults.items() if k in ("lr",)})
    for old, state in optimizer.state.items():
        name = names[id(old)]
        cut = cutters.get(name)
        carried.state[found[name]] = {
            key: _carried(v, cut if isinstance(v, Tensor) and v.shape == old.shape and v.dim() else None)
            for key, v in state.items()
        }
    return carried


def take_shapes(net: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Make room in a network, in place, for the smaller tensors of one that was cut from it."""
    for path, found in net.named_modules():
        module: Any = found
        base = f"{path}." if path else ""
        own = {name: p for name, p in [*module._parameters.items(), *module._buffers.items()] if base + name in shapes}
        if not isinstance(found, (*SELECTABLE, *NORMS, nn.PReLU)) or "weight" not in own:
            continue
        if own["weight"] is None or tuple(own["weight"].shape) == shapes[base + "weight"]:
            continue
        like, wanted = own["weight"], shapes[base + "weight"]
        if len(wanted) != like.dim() or any(a > b for a, b in zip(wanted, like.shape, strict=True)):
            continue  # not one that was cut from this: the caller's comparison says so
        for name in own:
            room = torch.empty(shapes[base + name], dtype=like.dtype)
            if name in module._parameters:
                module._parameters[name] = nn.Parameter(room)
            else:
                module._buffers[name] = room
        if isinstance(found, SELECTABLE):
            g = geometry(found)
            depthwise = g.groups > 1 and g.groups == len_inputs(module) == g.nodes
            rows, columns = (wanted[1] * g.groups, wanted[0]) if g.transposed else (wanted[0], wanted[1] * g.groups)
            _resize(module, rows, rows if depthwise else columns)
        elif isinstance(found, nn.PReLU):
            module.num_parameters = wanted[0]
        else:
            module.num_features = wanted[0]


def _check(dense: nn.Module, small: nn.Module, plan: ShrinkPlan, example: Any) -> None:
    """Both networks on the example, in float64."""
    dense, small = (copy.deepcopy(net).cpu().double().eval() for net in (dense, small))
    for path, shut in plan.closed.items():
        layer = dense.get_submodule(path)
        with torch.no_grad():
            for p in layer.parameters(recurse=False):
                p.masked_fill_(geometry(layer).along(shut, p), 0.0)
    inputs = example if isinstance(example, tuple) else (example,)
    tensors = [torch.as_tensor(x).detach().cpu()[:2] for x in inputs]
    tensors = [x.double() if x.is_floating_point() else x for x in tensors]
    with torch.no_grad():
        try:
            a, b = flat(dense(*tensors)), flat(small(*tensors))
        except Exception as e:
            raise ValueError(
                f"The forward of {type(dense).__name__} holds sizes written as numbers, so it cannot run with fewer "
                f"nodes ({e}). Write them with -1 or x.shape."
            ) from e
    for x, y in zip(a, b, strict=True):
        scale = max(1.0, float(x.abs().max())) if x.numel() else 1.0
        if x.shape != y.shape or not torch.allclose(x, y, rtol=0, atol=1e-6 * scale):
            raise ValueError("The shrunk network does not answer as the dense one does; please report this network.")
