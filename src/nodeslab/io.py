"""Save and load: one sealed file without pickle, for Bayesian models and for plain networks."""

from __future__ import annotations

import copy
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nodeslab import architecture, sealed
from nodeslab.compaction import origin_of, take_origin
from nodeslab.layers import SELECTABLE
from nodeslab.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Noise
from nodeslab.model import Bayesian, Row, row_of
from nodeslab.posterior import Posterior
from nodeslab.shrinking import sizes_of, take_sizes
from nodeslab.spec import Edge, Factor, Horseshoe, Node, Normal, Prior

__all__ = ["example_for", "example_of", "load", "save"]

FACTORS: dict[str, type[Factor]] = {c.__name__: c for c in (Normal, Node, Edge, Horseshoe)}
LIKELIHOODS: dict[str, type[Likelihood]] = {c.__name__: c for c in (Gaussian, Categorical, Bernoulli)}


def save(model: nn.Module, path: str | os.PathLike[str], example: Any = None) -> Path:
    """Write a model from `ns.bayesian`, or a plain network such as `model.mean()`, to one file.

    The file holds the tensors, the priors and the likelihood, under a sha256. A network of torch's own layers in
    nn.Sequential is described in it too; one of your own class is given again to `ns.load`.
    example: one batch of inputs, whose shape is noted for the commands that run the network; a model that was fitted
    knows it.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"save takes a model, got {type(model).__name__}.")
    if isinstance(model, Bayesian) and model._held is not None:
        raise RuntimeError("A draw is held: save after the `with model.drawn()` block, so that the means are written.")
    net = model.net if isinstance(model, Bayesian) else model
    row = model.row if isinstance(model, Bayesian) else None
    if example is not None:
        row = row_of([torch.as_tensor(x) for x in (example if isinstance(example, tuple) else (example,))])
    names, shared = _unshared(model.state_dict())
    meta: dict[str, Any] = {
        "bayesian": isinstance(model, Bayesian),
        "class": f"{type(net).__module__}.{type(net).__qualname__}",
        "architecture": architecture.describe(net),
        "shared": shared,
        "repr": repr(net),
        "sizes": sizes_of(net),
        "frozen": [name for name, p in model.named_parameters() if not p.requires_grad],
        "torch": torch.__version__,
        "row": row,
    }
    if isinstance(model, Bayesian):
        meta |= {
            "n": model.n,
            "plain": list(model.plain),
            "layers": [
                {
                    "path": p.path,
                    "output": p.output,
                    "inclusion_prior": p.inclusion_prior,
                    "prior": [{"factor": type(f).__name__, **asdict(f)} for f in p.prior.factors],
                }
                for p in model._posteriors()
            ],
            "likelihood": _likelihood_to_json(model.likelihood),
            "origin": origin_of(model),
        }
    return sealed.write(path, "model", meta, names)


def _likelihood_to_json(likelihood: Likelihood | None) -> dict[str, Any] | None:
    if likelihood is None:
        return None
    return {"likelihood": type(likelihood).__name__, **asdict(likelihood)}  # type: ignore[call-overload]


def _unshared(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor once, and which other names it has (a shared layer's)."""
    first: dict[tuple[int, tuple[int, ...]], str] = {}
    kept: dict[str, Tensor] = {}
    shared: dict[str, str] = {}
    for name, tensor in state.items():
        key = (tensor.data_ptr(), tuple(tensor.shape))
        if tensor.numel() and key in first:
            shared[name] = first[key]
        else:
            first[key] = name
            kept[name] = tensor
    return kept, shared


def load(path: str | os.PathLike[str], net: nn.Module | None = None) -> nn.Module:
    """Read what `ns.save` wrote: a Bayesian model, or a plain network.

    net: needed when the network is of a class of your own: a fresh instance, whose weights are overwritten in a
    copy; it may have the widths of the network before it was shrunk. Nothing in the file is run, and a file
    that is damaged, foreign or newer is refused.
    """
    if net is not None and not isinstance(net, nn.Module):
        raise TypeError(f"net must be an instance of the network, got {net!r} of type {type(net).__name__}.")
    meta, tensors = sealed.read(path, "model")
    try:
        for name, other in meta["shared"].items():
            tensors[name] = tensors[other]
        prefix = "net." if meta["bayesian"] else ""
        state = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        plain = _network(Path(path), meta, state, net)
        model: nn.Module = _bayesian(meta, plain, tensors) if meta["bayesian"] else plain
        model.load_state_dict(tensors)
        for name in meta["frozen"]:
            model.get_parameter(name).requires_grad_(False)
        if isinstance(model, Bayesian):
            model.row = _row(meta)
            take_origin(model, meta["origin"])
    except (KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"{path} is sealed but incomplete ({e!r}); it was not written by this nodeslab.") from e
    return model


def _row(meta: dict[str, Any]) -> tuple[Row, ...] | None:
    row = meta.get("row")
    return None if row is None else tuple((str(kind), tuple(shape)) for kind, shape in row)


def example_for(path: str | os.PathLike[str], net: nn.Module) -> tuple[Tensor, ...] | None:
    """Two rows of zeros that fit the network in a file, or None where neither the file nor its first layer says how."""
    return example_of(net, _row(sealed.read(path, "model")[0]))


def example_of(net: nn.Module, row: tuple[Row, ...] | None) -> tuple[Tensor, ...] | None:
    """Two rows of zeros that fit a network, from what one row looks like, or from the network's first layer."""
    first = next((m for m in net.modules() if isinstance(m, SELECTABLE)), None)
    if row is None and isinstance(first, nn.Linear):
        row = (("float", (first.in_features,)),)
    like = next((p.dtype for p in net.parameters() if p.is_floating_point()), torch.float32)
    types = {"float": like, "int": torch.int64}
    return None if row is None else tuple(torch.zeros(2, *shape, dtype=types[kind]) for kind, shape in row)


def _network(path: Path, meta: dict[str, Any], state: dict[str, Tensor], net: nn.Module | None) -> nn.Module:
    tree = meta["architecture"]
    if net is None and tree is None:
        raise ValueError(
            f"{path} holds a network of the class {meta['class']}, which a file cannot carry: "
            "pass a fresh instance, ns.load(path, net=YourNetwork())."
        )
    if net is not None and any(p.is_meta for p in net.parameters()):
        raise ValueError("net is on the meta device, which holds no numbers; give an instance with weights.")
    shape = copy.deepcopy(net) if net is not None else architecture.build(tree, meta=True)
    found = {name: tuple(t.shape) for name, t in state.items()}
    take_sizes(shape, meta["sizes"], found.keys())
    wanted = {name: tuple(t.shape) for name, t in shape.state_dict().items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise ValueError(
                f"{path} does not fit this network: {name} is {found.get(name, 'absent')} in the file and "
                f"{wanted.get(name, 'absent')} in the network."
            )
    if repr(shape) != meta["repr"]:
        ours, theirs = repr(shape).splitlines(), str(meta["repr"]).splitlines()
        a, b = next(((x, y) for x, y in zip(ours, theirs, strict=False) if x != y), (ours[-1], theirs[-1]))
        raise ValueError(f"{path} holds another network: where it has `{b.strip()}`, net has `{a.strip()}`.")
    if net is None:
        shape = architecture.build(tree)
    with torch.no_grad():
        for name, t in [*shape.named_parameters(), *shape.named_buffers()]:
            if name in state and t.dtype != state[name].dtype:
                t.data = t.data.to(state[name].dtype)
    return shape


def _bayesian(meta: dict[str, Any], net: nn.Module, tensors: dict[str, Tensor]) -> Bayesian:
    posteriors = []
    for layer in meta["layers"]:
        factors = []
        for choice in layer["prior"]:
            options = {k: v for k, v in choice.items() if k != "factor"}
            if isinstance(options.get("prior"), list):
                options["prior"] = tuple(options["prior"])
            factors.append(FACTORS[choice["factor"]](**options))
        posteriors.append(
            Posterior(
                layer["path"],
                net.get_submodule(layer["path"]),
                Prior(tuple(factors)),
                layer["output"],
                layer["inclusion_prior"],
            )
        )
    model = Bayesian(net, posteriors, meta["n"], tuple(meta["plain"]))
    choice = meta["likelihood"]
    if choice is not None:
        options = {k: v for k, v in choice.items() if k != "likelihood"}
        model.likelihood = LIKELIHOODS[choice["likelihood"]](**options)
    if "noise.log_sigma" in tensors:
        model.noise = Noise(torch.ones_like(tensors["noise.log_sigma"]))
    return model
