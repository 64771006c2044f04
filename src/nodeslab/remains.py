"""What cut nodes leave behind in the layers that they fed: slabs that reach no output, and still have their KL.

A node k of such a layer pays gamma_k KL(N(mu, sigma^2) || N(0, s^2)) for each weight, also for those that came from
nodes that have closed, until their slabs are back at the prior. A fit that forgot them at the cut would find nodes
cheaper than they are, and keep more of them. So they are trained on, elementwise, without a part in any product; what
has come home to the prior is let go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from nodeslab import kl
from nodeslab.model import Bayesian
from nodeslab.posterior import Posterior, SlabDraw
from nodeslab.shrinking import ShrinkPlan

__all__ = ["Remains"]

HOME = 1e-4  # nats: a weight with less than this is at its prior
LEAVES = ("mean", "rho")


@dataclass(frozen=True)
class Slab:
    """N(mean, softplus(rho)^2) of the weights into each node of a layer whose sources are gone, (nodes, weights)."""

    mean: nn.Parameter
    rho: nn.Parameter

    def leaf(self, name: str) -> nn.Parameter:
        return self.mean if name == "mean" else self.rho


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
        total: Tensor | float = 0.0
        for posterior in model._posteriors():
            slab = self.slabs.get(posterior.path)
            if slab is not None:
                gate = posterior.gamma().get("node")
                g = None if gate is None else gate[:, None]
                noise = slab.mean.detach()  # any will do: only the KL is wanted
                drawn = SlabDraw.apply(slab.mean, slab.rho, noise, None, g, posterior.prior.slab.sigma, None)  # type: ignore[no-untyped-call]
                total = total + drawn[1]
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
