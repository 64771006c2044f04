"""What cut nodes leave behind in the layers that they fed: slabs that reach no output, and still have their KL.

A node k of such a layer pays gamma_k KL(N(mu, sigma^2) || N(0, s^2)) for each weight, also for those that came from
nodes that have closed, until their slabs are back at the prior. A fit that forgot them at the cut would find nodes
cheaper than they are, and keep more of them. So they are trained on, elementwise, without a part in any product; what
has come home to the prior is let go.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import softplus

from nodeslab import kl
from nodeslab.model import Bayesian
from nodeslab.posterior import Posterior
from nodeslab.shrinking import ShrinkPlan

__all__ = ["Remains", "SlabKL"]

HOME = 1e-4  # nats: a weight with less than this is at its prior
LEAVES = ("mean", "rho")


@dataclass(frozen=True)
class Slab:
    """N(mean, softplus(rho)^2) of the weights into each node of a layer whose sources are gone, (nodes, weights)."""

    mean: nn.Parameter
    rho: nn.Parameter

    def leaf(self, name: str) -> nn.Parameter:
        return self.mean if name == "mean" else self.rho


class SlabKL(torch.autograd.Function):
    """sum_k g_k sum KL(N(mu, sigma^2) || N(0, s^2)) over rows k, sigma = softplus(rho), of several slabs in one pass.

        dmu = g mu / s^2,    drho = g (sigma / s^2 - 1 / sigma) sigmoid(rho),    dg = sum KL

    sigmas: s of each slab. tensors: their means, (rows, weights), then their rhos, then their gates, (rows,) or None.
    """

    @staticmethod
    def forward(ctx: Any, sigmas: tuple[float, ...], *tensors: Tensor | None) -> Tensor:
        count = len(sigmas)
        shapes = [m.shape for m in tensors[:count] if m is not None]
        halves = tensors[:count], tensors[count : 2 * count]
        mean, rho = (torch.cat([t.reshape(-1) for t in half if t is not None]) for half in halves)
        gates = tensors[2 * count :]
        spread = softplus(rho)
        each = torch.mul(mean, mean).addcmul_(spread, spread).mul_(_along([0.5 * s**-2 for s in sigmas], shapes, mean))
        each.sub_(torch.log(spread)).add_(_along([math.log(s) - 0.5 for s in sigmas], shapes, mean))
        rows = [part.reshape(shape).sum(1) for part, shape in zip(_parts(each, shapes), shapes, strict=True)]
        sums = [r.sum() if g is None else torch.dot(r, g) for r, g in zip(rows, gates, strict=True)]
        ctx.save_for_backward(mean, rho, spread, *rows, *gates)
        ctx.sigmas, ctx.shapes = sigmas, shapes
        return sums[0] if count == 1 else torch.stack(sums).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (d,), count, shapes = grads, len(ctx.sigmas), ctx.shapes
        mean, rho, spread, *others = ctx.saved_tensors
        rows, gates = others[:count], others[count:]
        weights = [d.reshape(1, 1) if g is None else (g * d)[:, None] for g in gates]
        pull = torch.cat([w.expand(shape).reshape(-1) for w, shape in zip(weights, shapes, strict=True)])
        narrow = _along([s**-2 for s in ctx.sigmas], shapes, mean)
        away = torch.mul(spread, narrow).sub_(spread.reciprocal()).mul_(torch.sigmoid(rho)).mul_(pull)
        both = [
            part.reshape(shape)
            for flat in (pull.mul_(mean).mul_(narrow), away)
            for part, shape in zip(_parts(flat, shapes), shapes, strict=True)
        ]
        return None, *both, *(None if g is None else r * d for r, g in zip(rows, gates, strict=True))


def _parts(flat: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
    return torch.split(flat, [shape.numel() for shape in shapes])


def _along(numbers: Sequence[float], shapes: Sequence[torch.Size], like: Tensor) -> Any:
    """A number for each slab, along all of their weights; one number where all have the same."""
    if len(set(numbers)) == 1:
        return numbers[0]
    return torch.cat([like.new_full((shape.numel(),), number) for number, shape in zip(numbers, shapes, strict=True)])


class Remains:
    """The slabs that cuts have left behind, by the path of the layer that they lead into."""

    def __init__(self) -> None:
        self.slabs: dict[str, Slab] = {}

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Those to train, in the order in which every optimizer has them."""
        pairs = [(f"{path}.{name}", slab.leaf(name)) for path, slab in self.slabs.items() for name in LEAVES]
        return [(name, p) for name, p in pairs if p.requires_grad]

    def kl(self, model: Bayesian) -> Tensor | float:
        """sum_k gamma_k sum KL(slab) over all that is left, with gradients; 0.0 where nothing is."""
        there = [(p, self.slabs[p.path]) for p in model._posteriors() if p.path in self.slabs]
        if not there:
            return 0.0
        slabs, gates = [slab for _, slab in there], [p.gamma().get("node") for p, _ in there]
        sigmas = tuple(p.prior.slab.sigma for p, _ in there)
        total: Tensor = SlabKL.apply(sigmas, *(s.mean for s in slabs), *(s.rho for s in slabs), *gates)  # type: ignore[no-untyped-call]
        return total

    # ---- at the end of an epoch ----------------------------------------------------------------------------

    def take(
        self, model: Bayesian, plan: ShrinkPlan, before: torch.optim.Optimizer, after: torch.optim.Optimizer
    ) -> None:
        """What the cut of `plan` leaves, with what `before` knows of it, into this and into `after`."""
        kept: dict[str, Slab] = {}
        sources: dict[int, list[tuple[nn.Parameter, nn.Parameter]]] = {}
        for posterior in model._posteriors():
            path, old = posterior.path, self.slabs.get(posterior.path)
            if path not in plan.keep_inputs or not _has_remains(posterior):
                continue
            rows, gone = plan.keep[path], plan.gone(path)
            weight = {"mean": model.net.get_submodule(path)._parameters["weight"], "rho": posterior.rho("weight")}
            made: dict[str, nn.Parameter] = {}
            for name, whole in weight.items():
                assert isinstance(whole, nn.Parameter)
                parts = [] if old is None else [_rows(old.leaf(name), rows)]
                joined = torch.cat([*parts, _columns(whole, posterior, rows, gone)], 1).detach()
                made[name] = nn.Parameter(joined, whole.requires_grad)
                state = before.state.get(whole)
                if state:
                    last = None if old is None else before.state[old.leaf(name)]
                    carried = {}
                    for key, value in state.items():
                        carried[key] = value.clone() if isinstance(value, Tensor) else value
                        if isinstance(value, Tensor) and value.shape == whole.shape:
                            parts = [] if last is None else [_rows(last[key], rows)]
                            carried[key] = torch.cat([*parts, _columns(value, posterior, rows, gone)], 1)
                    after.state[made[name]] = carried
                sources.setdefault(id(whole), []).append((whole, made[name]))
            if made["mean"].numel():
                kept[path] = Slab(**made)
            else:
                for p in made.values():
                    after.state.pop(p, None)
        self.slabs = kept
        there = {id(p) for _, p in self.named_parameters()}
        for old_group, group in zip(before.param_groups, after.param_groups, strict=True):
            held = {id(p) for p in old_group["params"]}
            pairs = [pair for found in sources.values() for pair in found]
            group["params"] += [new for source, new in pairs if id(source) in held and id(new) in there]

    @torch.no_grad()
    def settle(self, model: Bayesian, optimizer: torch.optim.Optimizer) -> bool:
        """Let go of what is at its prior, where that is at least half of a layer's; True when something went."""
        went = False
        sigmas = {p.path: p.prior.slab.sigma for p in model._posteriors()}
        for path, slab in list(self.slabs.items()):
            away = (kl.gaussian(slab.mean, softplus(slab.rho), sigmas[path]) >= HOME).any(0)
            if 2 * int(away.sum()) > len(away):
                continue
            went = True
            cut = {name: _swapped(optimizer, slab.leaf(name), away) for name in LEAVES}
            if bool(away.any()):
                self.slabs[path] = Slab(**{name: p for name, p in cut.items() if p is not None})
            else:
                del self.slabs[path]
        return went

    # ---- checkpoints ---------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        return {f"{path}/{name}": slab.leaf(name).detach() for path, slab in self.slabs.items() for name in LEAVES}

    def restore(self, model: Bayesian, paths: Sequence[str], tensors: Mapping[str, Tensor]) -> None:
        """From `tensors` of a fit of the same model; `paths` in their order."""
        by_path = {p.path: p for p in model._posteriors()}
        self.slabs = {}
        for path in paths:
            like = {"mean": model.net.get_submodule(path)._parameters["weight"], "rho": by_path[path].rho("weight")}
            made = {}
            for name, p in like.items():
                assert p is not None
                made[name] = nn.Parameter(tensors[f"{path}/{name}"].clone().to(p.device), p.requires_grad)
            self.slabs[path] = Slab(**made)


def _has_remains(posterior: Posterior) -> bool:
    """A gate for each weight goes with its weight; so does a group's whole channel."""
    return posterior.gates.keys() <= {"node"} and posterior.geometry.groups == 1


def _rows(t: Tensor, rows: Tensor) -> Tensor:
    return t.detach()[rows.to(t.device)]


def _columns(t: Tensor, posterior: Posterior, rows: Tensor, gone: Tensor) -> Tensor:
    """What the kept nodes have from the inputs that are gone, of a tensor of the weight's shape."""
    inward = t.detach().transpose(0, 1) if posterior.geometry.transposed else t.detach()
    return inward[rows.to(t.device)][:, gone.to(t.device)].reshape(len(rows), -1)


def _swapped(optimizer: torch.optim.Optimizer, old: nn.Parameter, columns: Tensor) -> nn.Parameter | None:
    """The parameter with fewer columns in the old one's place, or, without any, nothing there."""
    new = nn.Parameter(old.detach()[:, columns].clone(), old.requires_grad)
    state = optimizer.state.pop(old, None)
    if bool(columns.any()) and state is not None:
        optimizer.state[new] = {
            k: v[:, columns].clone() if isinstance(v, Tensor) and v.shape == old.shape else v for k, v in state.items()
        }
    for group in optimizer.param_groups:
        found = [p if p is not old else new for p in group["params"]]
        group["params"] = [p for p in found if p is not new or bool(columns.any())]
    return new if bool(columns.any()) else None
