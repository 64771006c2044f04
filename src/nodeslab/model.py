"""`bayesian(net, spec, n)` and the model it returns. A draw is a network: one set of sampled weights, held
through forward and backward."""

from __future__ import annotations

import copy
import fnmatch
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from nodeslab import theory
from nodeslab.checks import number, whole
from nodeslab.layers import REFUSED, SELECTABLE, geometry
from nodeslab.likelihoods import Likelihood, Noise
from nodeslab.outputs import output_layers
from nodeslab.posterior import Posterior, Tensors
from nodeslab.spec import Edge, Factor, Node, Prior, as_prior
from nodeslab.workspace import Workspace

__all__ = ["Bayesian", "NodeRecord", "bayesian"]


@dataclass(frozen=True, eq=False)
class NodeRecord:
    """One layer whose nodes can close. inclusion: for each node; open: how many are open; mask: which.

    A node is open when its inclusion exceeds 0.5; under a horseshoe alone, when the rule of its threshold says so.
    """

    path: str
    total: int
    open: int
    inclusion: Tensor = field(repr=False)
    mask: Tensor = field(repr=False)

    @property
    def sparsity(self) -> float:
        """The share of nodes left, the paper's node sparsity."""
        return self.open / self.total


Row: TypeAlias = "tuple[str, tuple[int, ...]]"  # "float" or "int", and the shape


def row_of(inputs: Sequence[Tensor]) -> tuple[Row, ...]:
    """What one row of each input looks like."""
    return tuple(("float" if x.is_floating_point() else "int", tuple(x.shape[1:])) for x in inputs)


@dataclass(frozen=True)
class _Draw:
    """What a `drawn()` context holds: the means that the sampled weights stand in for, and the draw's KL."""

    means: tuple[Tensors, ...]
    kl: Tensor


def _must_be_drawn(path: str, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
    """A Bayesian layer runs with sampled weights (plain tensors), never silently with its means (Parameters)."""
    if isinstance(layer._parameters["weight"], nn.Parameter):
        raise RuntimeError(
            f"Layer '{path}' ran outside a draw. Call the model itself, or hold one draw through forward and "
            "backward with `with model.drawn() as net:` (activation checkpointing runs layers again during "
            "backward). For a deterministic network take model.mean()."
        )


def _network_must_be_drawn(path: str, net: nn.Module, inputs: tuple[Any, ...]) -> None:
    _must_be_drawn(path, net.get_submodule(path), inputs)


def cuda_devices() -> list[int]:
    """The devices whose generators `torch.manual_seed` would touch."""
    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]


def copy_network(net: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """A deep copy, also of a network whose forward has stored tensors that carry a graph."""
    stored = [v for m in net.modules() for v in m.__dict__.values() if isinstance(v, Tensor) and not v.is_leaf]
    return copy.deepcopy(net, {**{id(v): v.detach().clone() for v in stored}, **(memo or {})})


class Bayesian(nn.Module):
    """A network whose weights have a posterior. `model(x)` is the output of a fresh draw.

    net: the user's own layers; their weights and biases are the slab's means. posteriors: what stands beside
    each Bayesian layer. n: the number of observations, which weighs the KL against the data.
    """

    def __init__(self, net: nn.Module, posteriors: list[Posterior], n: int, plain: tuple[str, ...]) -> None:
        super().__init__()
        self.net = net
        self.posteriors = nn.ModuleList(posteriors)
        self.n = n
        self.plain = plain
        self.likelihood: Likelihood | None = None
        self.noise: Noise | None = None
        #: {path: (how many nodes the layer had, which of them are left)} where training has cut some out
        self.origin: dict[str, tuple[int, Tensor]] = {}
        self.row: tuple[Row, ...] | None = None  # what one row of each input looks like, once the model was fitted
        self._layers = tuple(net.get_submodule(p.path) for p in posteriors)
        self._held: _Draw | None = None
        for posterior, layer in zip(posteriors, self._layers, strict=True):
            layer.register_forward_pre_hook(partial(_must_be_drawn, posterior.path))
        first = posteriors[0].path
        if first:  # a forward that uses a layer's weight by a function call is stopped at the door
            net.register_forward_pre_hook(partial(_network_must_be_drawn, first))

    # ---- drawing -------------------------------------------------------------------------------------------

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """The network's output for one draw: the held one inside `drawn()`, else a fresh one."""
        if self._held is not None:
            return self.net(*inputs, **options)
        with self.drawn() as net:
            return net(*inputs, **options)

    @contextmanager
    def drawn(self, workspace: Workspace | None = None) -> Iterator[nn.Module]:
        """One draw of all weights, held for the length of the block; yields the network that carries it.

        Within the block `model(x)` and `model.kl()` belong to the same draw. workspace: memory to draw into, for a
        loop that is done with each draw before the next (see `nodeslab.workspace`).
        """
        if self._held is not None:
            raise RuntimeError("A draw is already held: drawn() does not nest. Leave the first block before the next.")
        means = self._means()
        if workspace is not None:
            weights, total = workspace.draw(means)
        else:
            weights, total = [], self._zero()
            for posterior, mean in zip(self._posteriors(), means, strict=True):
                sampled, divergence = posterior.draw(mean)
                weights.append(sampled)
                total = total + divergence
        try:
            self._held = _Draw(means, total)
            self._put(tuple(weights))
            yield self.net
        finally:
            self._put(means)
            self._held = None

    def workspace(self, keep_gradients: bool = False) -> Workspace:
        """Memory for one draw at a time, to be handed to `drawn`.

        keep_gradients: room for the gradients too; then each backward must be followed by an optimizer step and
        `zero_grad(set_to_none=True)` before the next.
        """
        return Workspace(list(self._posteriors()), self._means(), keep_gradients)

    def _posteriors(self) -> Iterator[Posterior]:
        for posterior in self.posteriors:
            assert isinstance(posterior, Posterior)
            yield posterior

    def _means(self) -> tuple[Tensors, ...]:
        """mu of each layer: its own weight and bias."""
        if self._held is not None:
            return self._held.means
        return tuple(
            {name: layer._parameters[name] for name in posterior.names}  # type: ignore[misc]
            for posterior, layer in zip(self._posteriors(), self._layers, strict=True)
        )

    def _put(self, weights: tuple[Tensors, ...]) -> None:
        for layer, tensors in zip(self._layers, weights, strict=True):
            for name, tensor in tensors.items():
                layer._parameters[name] = tensor  # type: ignore[assignment]

    def _zero(self) -> Tensor:
        first = next(self.posteriors.parameters())
        return torch.zeros((), dtype=first.dtype, device=first.device)

    def _not_held(self, what: str) -> None:
        if self._held is not None:
            raise RuntimeError(f"A draw is held: {what} after the `with model.drawn()` block, when the means are back.")

    def __getstate__(self) -> dict[str, Any]:
        self._not_held("copy or pickle the model")
        return dict(self.__dict__)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        self._not_held("take the state_dict")
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As torch's; a learnt noise in the state makes room for itself."""
        self._not_held("load a state_dict")
        if self.noise is None and "noise.log_sigma" in state_dict:
            self.noise = Noise(torch.ones_like(state_dict["noise.log_sigma"]))
        result = super().load_state_dict(state_dict, strict, assign)
        for posterior in self._posteriors():
            for gate in posterior.switches().values():
                gate.hold()
        return result

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self._not_held("convert or move the model")
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    # ---- what the posterior says ---------------------------------------------------------------------------

    def kl(self) -> Tensor:
        """KL(q || p) of all layers in nats, a scalar with gradients."""
        if self._held is not None:
            return self._held.kl
        total = self._zero()
        for posterior, means in zip(self._posteriors(), self._means(), strict=True):
            total = total + posterior.kl(means)
        return total

    def nodes(self) -> list[NodeRecord]:
        """A record for each layer whose nodes can close, in the network's order.

        Nodes that training has cut out (`ns.fit(..., compact=True)`) are there, closed: every node keeps its number.
        """
        records = []
        for posterior in self._posteriors():
            if posterior.selects:
                mask, inclusion = (self._numbered(posterior.path, t) for t in (posterior.open(), posterior.inclusion()))
                records.append(NodeRecord(posterior.path, mask.numel(), int(mask.sum()), inclusion, mask))
        return records

    def _numbered(self, path: str, values: Tensor) -> Tensor:
        """A layer's values by the original number of each node, 0 for those that training has cut out."""
        if path not in self.origin:
            return values
        total, kept = self.origin[path]
        return values.new_zeros(total).index_copy(0, kept.to(values.device), values)

    def masks(self) -> dict[str, Tensor]:
        """{path: which nodes are open} of the layers whose nodes can close, as they are now."""
        return {p.path: p.open() for p in self._posteriors() if p.selects}

    def original_masks(self) -> dict[str, Tensor]:
        """{path: which nodes are open} by the nodes' original numbers."""
        return {path: self._numbered(path, mask) for path, mask in self.masks().items()}

    def left_of(self, path: str, mask: Tensor) -> Tensor:
        """A mask of a layer's original nodes, for those that training has left."""
        if path not in self.origin or len(mask) != self.origin[path][0]:
            return mask
        total, kept = self.origin[path]
        gone = torch.ones(total, dtype=torch.bool)
        gone[kept] = False
        if bool((mask.cpu() & gone).any()):
            node = int(torch.nonzero(mask.cpu() & gone)[0])
            raise ValueError(f"Node {node} of layer '{path}' was cut out in training: it cannot be opened again.")
        return mask[kept.to(mask.device)]

    def _become(self, slim: Bayesian, keep: Mapping[str, Tensor]) -> None:
        """Take the place of a model that was cut from this one, in place."""
        for path, kept in keep.items():
            if any(p.path == path and p.selects for p in self._posteriors()):
                total = next(p.geometry.nodes for p in self._posteriors() if p.path == path)
                total, before = self.origin.get(path, (total, torch.arange(total)))
                self.origin[path] = (total, before[kept])
        self.net, self.posteriors, self.noise = slim.net, slim.posteriors, slim.noise
        self._layers = slim._layers

    def set_nodes(self, masks: Mapping[str, Any]) -> None:
        """Open (True) and close (False) nodes by hand: `{path: mask}`, a bool for each node. They stay so."""
        self._not_held("set nodes")
        if not isinstance(masks, Mapping):
            raise TypeError(f"set_nodes takes {{path: mask}}, got {type(masks).__name__}.")
        by_path = {p.path: p for p in self._posteriors()}
        checked = []
        for path, mask in masks.items():
            if path not in by_path:
                known = ", ".join(repr(r.path) for r in self.nodes())
                raise ValueError(f"No Bayesian layer is called {path!r}; layers with nodes to set are {known}.")
            posterior = by_path[path]
            values = self.left_of(path, as_mask(path, mask))
            if values.shape != (posterior.geometry.nodes,):
                raise ValueError(
                    f"The mask for layer '{path}' must have shape ({posterior.geometry.nodes},), one bool for each "
                    f"node, got {tuple(values.shape)}."
                )
            checked.append((posterior, values))
        for posterior, _ in checked:
            posterior.check_gates()
        for posterior, values in checked:
            posterior.fix(values.to(posterior.rho("weight").device))

    def mean(self) -> nn.Module:
        """A plain network at the posterior mean of the open nodes, closed nodes at zero; a copy.

        An open node (inclusion > 0.5) has its slab's mean mu: the posterior mean given that it is open.
        """
        means = self._means()
        memo: dict[int, Any] = {}
        if self._held is not None:  # the sampled weights carry a graph, and are not what is copied
            for layer, tensors in zip(self._layers, means, strict=True):
                for name, tensor in tensors.items():
                    drawn = layer._parameters[name]
                    memo[id(drawn)] = nn.Parameter(tensor.detach().clone())
        net = copy_network(self.net, memo)
        for module in net.modules():
            for key in [k for k, hook in module._forward_pre_hooks.items() if is_guard(hook)]:
                del module._forward_pre_hooks[key]
        for posterior, mean in zip(self._posteriors(), means, strict=True):
            layer = net.get_submodule(posterior.path)
            with torch.no_grad():
                for name, value in posterior.center(mean).items():
                    getattr(layer, name).copy_(value)
        return net

    def open_mean(self, closed: Mapping[str, Tensor]) -> nn.Module:
        """A plain network at the slabs' means, whatever the gates, but for these closed nodes, which are at zero."""
        net = self.mean()
        with torch.no_grad():
            for posterior, mean in zip(self._posteriors(), self._means(), strict=True):
                layer = net.get_submodule(posterior.path)
                for name, value in mean.items():
                    kept = (
                        value
                        if posterior.path not in closed
                        else torch.where(
                            posterior.geometry.along(closed[posterior.path].to(value.device), value), 0.0, value
                        )
                    )
                    getattr(layer, name).copy_(kept)
        return net

    def moments(self) -> dict[str, dict[str, tuple[Tensor, Tensor]]]:
        """{path: {"weight": (mean, variance), ...}} of the weights under q, gates included, with gradients."""
        return {p.path: p.moments(m) for p, m in zip(self._posteriors(), self._means(), strict=True)}

    # ---- the plan ------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        """The plan: layer, prior, nodes, lambda."""
        rows = [("layer", "module", "prior", "nodes", "weights into each", "lambda")]
        for posterior, layer in zip(self._posteriors(), self._layers, strict=True):
            g, chance = posterior.geometry, posterior.inclusion_prior
            into = g.fan_in + ("bias" in posterior.names)
            note = posterior.describe_prior() + ("  (output)" if posterior.output else "")
            shown = "1" if posterior.output and not posterior.gates else "-" if chance is None else f"{chance:.3g}"
            rows.append((posterior.path or "(net)", type(layer).__name__, note, str(g.nodes), str(into), shown))
        widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        head = f"Bayesian network, n = {self.n}, {self._gate_count()}"
        if self.plain:
            lines.append(f"left plain (no prior): {', '.join(self.plain)}")
        return "\n".join([head, *("  " + line for line in lines)])

    def _gate_count(self) -> str:
        records = self.nodes()
        if not records:
            return "no node can close"
        return f"{sum(r.open for r in records)} of {sum(r.total for r in records)} nodes open"


def as_mask(path: str, mask: Any) -> Tensor:
    """A mask of nodes as bools, from anything like an array of bools or of 0 and 1."""
    if isinstance(mask, Tensor):
        values = mask.detach().cpu()
    else:
        try:
            array = np.array(mask)
            values = torch.from_numpy(array.astype(bool) if array.dtype == object else array.copy())
            odd = array.dtype == object and not all(isinstance(v, (bool, int, np.bool_)) for v in array.flat)
        except (TypeError, ValueError):
            odd = True
        if odd:
            raise TypeError(f"The mask for layer '{path}' must be an array of bools, got {type(mask).__name__}.")
    if values.dtype != torch.bool and not bool(((values == 0) | (values == 1)).all()):
        raise ValueError(f"The mask for layer '{path}' must hold bools (or 0 and 1), got other values.")
    return values.to(torch.bool)


def is_guard(hook: object) -> bool:
    """True for the hooks that refuse to run a layer with its means."""
    return isinstance(hook, partial) and hook.func in (_must_be_drawn, _network_must_be_drawn)


# ---- building a model --------------------------------------------------------------------------------------------


def bayesian(
    net: nn.Module,
    spec: Factor | Prior | Mapping[str, Factor | Prior | None],
    n: int,
    *,
    init: str | float | None = None,
    outputs: Sequence[str] | None = None,
) -> Bayesian:
    """Put a prior on a network's weights: weight = gate x scale x (mean + spread x noise).

    net: any network of Linear and (transposed) convolution layers; it is copied, never changed.
    spec: one prior for all of them, such as `ns.Normal(1.0) * ns.Node()`, or {pattern: prior}, where the patterns
        are matched against module paths as a shell does ("conv*"), the first match counts, and None, or no match,
        leaves a layer plain.
    n: the number of observations that the model will be trained on.
    init: where the slab's means start. None keeps the network's own weights; "kaiming" draws Kaiming uniform
        (the paper's choice for classification); "uniform" or a number b draws U(-b, b), 0.6 by default (its
        choice for regression). The draws come from torch's global generator.
    outputs: the paths of the layers that feed the network's output, where no node is selected. They are found from the
        network's graph; a forward that cannot be traced is taken to end in its last layer, with a warning, unless
        they are named here.
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"net must be a torch.nn.Module, got {type(net).__name__}.")
    if isinstance(net, Bayesian):
        raise TypeError("net is a Bayesian model already; pass the plain network (model.mean(), or the one you built).")
    count = _count(n)
    _check_init(init)
    lazy = next((p for p, m in net.named_modules() if isinstance(m, nn.modules.lazy.LazyModuleMixin)), None)
    if lazy is not None and any(isinstance(p, nn.parameter.UninitializedParameter) for p in net.parameters()):
        raise ValueError(f"Layer '{lazy}' is lazy and has no shape yet; run one batch through the network first.")
    priors = _assign(net, spec)
    copied = copy_network(net)
    topology_paths = [p for p, m in _walk(copied) if isinstance(m, SELECTABLE)]
    ends = _ends(net, topology_paths, priors, outputs)
    _check_selectable(priors, ends)
    lambdas = _inclusion_priors(copied, topology_paths, ends, priors, count)
    posteriors = []
    for path, prior in priors.items():
        layer = copied.get_submodule(path)
        posteriors.append(Posterior(path, layer, prior, path in ends, lambdas.get(path)))
        if init is not None:
            _initialise(layer, init)
    return Bayesian(copied, posteriors, count, _plain(copied, priors))


def _ends(net: nn.Module, paths: list[str], priors: Mapping[str, Prior], given: Sequence[str] | None) -> set[str]:
    """The layers that feed the output: the caller's, the graph's, or with a warning the last one."""
    if given is not None:
        if isinstance(given, str) or not given:
            raise TypeError(f"outputs must be a list of module paths, such as ['head'], got {given!r}.")
        for path in given:
            if path not in paths:
                raise ValueError(f"outputs: there is no layer {path!r}; the layers are {', '.join(map(repr, paths))}.")
        return set(given)
    found, seen = output_layers(copy_network(net), paths)
    if not seen and any(isinstance(p.gate, Node) for p in priors.values()):
        warnings.warn(
            f"The forward of {type(net).__name__} cannot be traced, so its last layer {paths[-1]!r} is taken to feed "
            "the output, where no node is selected. If that is wrong, name the layers: "
            "ns.bayesian(..., outputs=[...]).",
            stacklevel=3,
        )
    return found


def _count(n: object) -> int:
    return whole("n, the number of observations (such as len(X)),", n)


def _walk(net: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules in order, each once; what is inside a refused layer is its own affair."""
    inside: list[str] = []
    for path, module in net.named_modules():
        if any(path.startswith(p) for p in inside):
            continue
        if _refusal(module) is not None:
            inside.append(path + "." if path else "")
        yield path, module


def _refusal(module: nn.Module) -> str | None:
    return next((why for kind, why in REFUSED.items() if isinstance(module, kind)), None)


def _assign(net: nn.Module, spec: object) -> dict[str, Prior]:
    """{path: prior} of every layer that becomes Bayesian, or a sentence about the one that cannot."""
    patterns: dict[str, Prior | None] | None = None
    if isinstance(spec, Mapping):
        if not spec:
            raise ValueError("spec is an empty dict; give {pattern: prior}, such as {'*': ns.ssig()}.")
        patterns = {}
        for pattern, prior in spec.items():
            if not isinstance(pattern, str):
                raise TypeError(f"spec: a pattern must be a string that matches module paths, got {pattern!r}.")
            patterns[pattern] = None if prior is None else as_prior(prior, f"spec[{pattern!r}]")
    single = None if patterns is not None else as_prior(spec, "spec")
    priors: dict[str, Prior] = {}
    used: set[str] = set()
    owners = _owners(net)
    names: list[str] = []
    for path, module in _walk(net):
        matched = single
        if patterns is not None:
            hit = next((p for p in patterns if fnmatch.fnmatchcase(path, p)), None)
            matched = None if hit is None else patterns[hit]
            if hit is not None and (isinstance(module, SELECTABLE) or _refusal(module) or _has_own(module)):
                used.add(hit)
        if isinstance(module, SELECTABLE):
            names.append(path)
            if matched is not None:
                _check_layer(path, module, owners)
                priors[path] = matched
        elif (why := _refusal(module)) is not None:
            if matched is not None:
                raise ValueError(
                    f"Layer '{path}' ({type(module).__name__}) cannot be made Bayesian: {why}. To leave it plain, "
                    f"give a dict, such as {{'{path}': None, '*': prior}}."
                )
        elif _has_own(module) and not _passes_through(module) and matched is not None:
            own = ", ".join(name for name, _ in module.named_parameters(recurse=False))
            raise ValueError(
                f"Module '{path}' ({type(module).__name__}) has parameters of its own ({own}) that no prior covers. "
                f"Move them into a Linear or convolution layer, or leave them plain with a dict, such as "
                f"{{'{path}': None, '*': prior}}."
            )
    for pattern in patterns or {}:
        if pattern not in used:
            earlier = next(
                (p for p in patterns or {} if p != pattern and any(_both(n, p, pattern) for n in names)), None
            )
            if earlier is not None:
                raise ValueError(
                    f"spec: the pattern {pattern!r} comes too late, {earlier!r} has its layers already: the first "
                    "match counts. Put it first."
                )
            known = ", ".join(repr(p) for p in names) or "none"
            raise ValueError(f"spec: the pattern {pattern!r} matches no layer; the layers are {known}.")
    if not priors:
        raise ValueError(
            f"{type(net).__name__} has no layer that can be made Bayesian: no Linear or convolution"
            f"{' matched' if patterns else ''}. Pass a network that has one."
        )
    return priors


def _both(name: str, a: str, b: str) -> bool:
    return fnmatch.fnmatchcase(name, a) and fnmatch.fnmatchcase(name, b)


def _has_own(module: nn.Module) -> bool:
    return any(p is not None for p in module._parameters.values())


def _passes_through(module: nn.Module) -> bool:
    """Norms and parametric activations stay as they are: their few parameters are trained as points."""
    return isinstance(module, _PASS)


_PASS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.PReLU,
)


def _check_layer(path: str, layer: nn.Module, owners: Mapping[int, list[str]]) -> None:
    kind = type(layer).__name__
    weight = layer._parameters.get("weight")
    if weight is None:
        raise ValueError(
            f"Layer '{path}' ({kind}) has no plain weight: it is parametrised (weight_norm, spectral_norm, ...). "
            "Remove the parametrisation first (torch.nn.utils.parametrize.remove_parametrizations)."
        )
    if isinstance(weight, nn.parameter.UninitializedParameter):
        raise ValueError(
            f"Layer '{path}' ({kind}) is lazy and has no shape yet; run one batch through the network first."
        )
    if not weight.is_floating_point():
        raise TypeError(
            f"Layer '{path}' ({kind}) has weights of type {weight.dtype}; convert the network to a real type."
        )
    if weight.is_meta:
        raise ValueError(
            f"Layer '{path}' ({kind}) is on the meta device, which holds no numbers; give it real weights."
        )
    if weight.numel() == 0:
        raise ValueError(f"Layer '{path}' ({kind}) has no weights: its shape is {tuple(weight.shape)}.")
    for name, parameter in layer.named_parameters(recurse=False):
        if name not in ("weight", "bias"):
            raise ValueError(
                f"Layer '{path}' ({kind}) has a parameter of its own, {name}, that no prior covers. Move it into a "
                f"module of its own, or leave the layer plain with a dict, such as {{'{path}': None, '*': prior}}."
            )
        if not torch.isfinite(parameter).all():
            raise ValueError(f"Layer '{path}' ({kind}) holds NaN or inf in its {name}; start from finite weights.")
        others = [p for p in owners[id(parameter)] if p != path]
        if others:
            raise ValueError(
                f"'{path}' and '{others[0]}' share the parameter {name}: one draw cannot serve two layers. Use the "
                "same layer twice instead of tying its weights."
            )


def _owners(net: nn.Module) -> dict[int, list[str]]:
    """Which modules hold each parameter."""
    owners: dict[int, list[str]] = {}
    for path, module in net.named_modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append(path)
    return owners


def _check_selectable(priors: Mapping[str, Prior], outputs: set[str]) -> None:
    wants = [path for path, prior in priors.items() if isinstance(prior.gate, Node)]
    if wants and all(path in outputs for path in wants):
        raise ValueError(
            f"No layer of this network can be selected from: {', '.join(map(repr, wants))} feeds the output, where "
            "every node stays. Add a hidden layer, or use a prior without ns.Node(), such as ns.Normal(1.0)."
        )


def _topology(net: nn.Module, paths: list[str], outputs: set[str]) -> tuple[theory.Topology, list[str]]:
    """The layers as section 4 counts them: hidden ones in order, then one output layer (the widest fan-in)."""
    hidden = [p for p in paths if p not in outputs]
    last = max(outputs, key=lambda p: geometry(net.get_submodule(p)).fan_in)
    shapes = [geometry(net.get_submodule(p)) for p in [*hidden, last]]
    return theory.Topology(tuple(g.fan_in for g in shapes), tuple(g.nodes for g in shapes)), hidden


def _inclusion_priors(
    net: nn.Module, paths: list[str], outputs: set[str], priors: Mapping[str, Prior], n: int
) -> dict[str, float]:
    """lambda of each layer with a gate: the caller's, or the theory's."""
    topology, hidden = _topology(net, paths, outputs)
    shapes = [geometry(net.get_submodule(p)) for p in paths]
    total = sum((g.fan_in + 1) * g.nodes for g in shapes)
    corollary: dict[str, float] = {}
    values: dict[str, float] = {}
    gated = [p for p in hidden if p in priors and isinstance(priors[p].gate, Node)]
    for path, prior in priors.items():
        gate = prior.gate
        if isinstance(gate, Edge):
            values[path] = theory.edge_prior(topology, n, weights=total) if gate.prior is None else float(gate.prior)
        elif isinstance(gate, Node) and path not in outputs:
            if gate.prior is None:
                corollary = corollary or dict(zip(hidden, theory.inclusion_priors(topology, n), strict=True))
                values[path] = corollary[path]
            elif isinstance(gate.prior, (int, float)):
                values[path] = float(gate.prior)
            else:
                if len(gate.prior) != len(gated):
                    raise ValueError(
                        f"Node: prior has {len(gate.prior)} values, but {len(gated)} hidden layers have a gate "
                        f"({', '.join(map(repr, gated))}); give one for each."
                    )
                values[path] = float(gate.prior[gated.index(path)])
    return values


def _check_init(init: object) -> None:
    if isinstance(init, str) and init not in ("kaiming", "uniform"):
        raise ValueError(f"init must be 'kaiming', 'uniform', a number or None, got {init!r}.")
    if init is not None and not isinstance(init, str):
        number("init ('kaiming', 'uniform', or a number)", init, 0.0, 1e6)


def _initialise(layer: nn.Module, init: str | float) -> None:
    """mu ~ U(-b, b), or Kaiming uniform weights with the usual U(-1/sqrt(fan_in), 1/sqrt(fan_in)) biases."""
    parameters = dict(layer.named_parameters(recurse=False))
    if init == "kaiming":
        # fan-in as geometry counts it: torch's own count is wrong for transposed convolutions
        fan_in = geometry(layer).fan_in
        nn.init.uniform_(parameters["weight"], -math.sqrt(6.0 / fan_in), math.sqrt(6.0 / fan_in))
        if "bias" in parameters:
            nn.init.uniform_(parameters["bias"], -1.0 / math.sqrt(fan_in), 1.0 / math.sqrt(fan_in))
        return
    bound = 0.6 if isinstance(init, str) else float(init)
    for parameter in parameters.values():
        nn.init.uniform_(parameter, -bound, bound)


def _plain(net: nn.Module, priors: Mapping[str, Prior]) -> tuple[str, ...]:
    """Modules with parameters that stay as they are, for the plan."""
    return tuple(
        f"{path} ({type(m).__name__})"
        for path, m in _walk(net)
        if path not in priors and (_has_own(m) or _refusal(m) is not None)
    )
