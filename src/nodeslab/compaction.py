"""Shrinking while training: nodes that have closed for good are cut out of the model at the end of an epoch.

The rule: gamma_j < `below` at the end of each of the last `epochs` epochs. Such a node is drawn open in fewer than one
step in 1 / `below`, and what its gate still learns takes it further down: the prior's log-odds and the slab's KL pull a
node that the data do not hold. What the cut changes is that it is drawn open never instead of almost never. The rest is
exact: the cut is that of `ns.shrink(bayesian=True)`, with the optimizer's state; the KL keeps what a gate at 0 costs,
and what the next layer's nodes pay for the weights which came from the node (`remains.py`). Where a closed node gives a
constant other than 0, that constant joins the biases that it fed, whose prior stays N(0, sigma^2).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nodeslab.channels import flat
from nodeslab.checks import probability, whole
from nodeslab.model import Bayesian, cuda_devices
from nodeslab.posterior import Posterior
from nodeslab.remains import Remains
from nodeslab.shrinking import ShrinkPlan, carry_optimizer, check_cut, cut_bayesian, planned, sizes_of, take_sizes

__all__ = ["Compact", "Compaction"]

WORTH = 0.03  # a cut is made when it takes at least this share of a layer's nodes,
PATIENCE = 10  # or one that has been as good as closed for so many epochs more than the rule asks


@dataclass(frozen=True)
class Compact:
    """When a node has closed for good: gamma < `below` at the end of `epochs` epochs in a row."""

    below: float = 0.02
    epochs: int = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "below", probability("Compact: below", self.below))
        object.__setattr__(self, "epochs", whole("Compact: epochs", self.epochs))


def as_compact(value: object) -> Compact | None:
    """True, False or a `Compact`."""
    if isinstance(value, Compact):
        return value
    if not isinstance(value, bool):
        raise TypeError(
            f"compact must be True, False or ns.Compact(...), got {value!r} of type {type(value).__name__}."
        )
    return Compact() if value else None


class Compaction:
    """What a fit that compacts keeps count of."""

    def __init__(self, choice: Compact, model: Bayesian, example: tuple[Tensor, ...]) -> None:
        self.choice, self.example = choice, tuple(x[:2].detach().cpu().clone() for x in example)
        gated = list(self._gated(model))
        if not gated:
            raise ValueError(
                "compact=True cuts out closed nodes, but no layer of this model has a gate for each node; give it "
                "ns.Node(), or leave compact off."
            )
        #: how many epochs in a row each node has been as good as closed
        self.quiet: dict[str, Tensor] = {p.path: torch.zeros(p.geometry.nodes, dtype=torch.long) for p in gated}
        self.able = True  # until a cut would change what the network computes
        self.kl = 0.0  # -log(1 - lambda) of each gate that was cut out: KL(Ber(0) || Ber(lambda))
        self.remains = Remains()
        with torch.random.fork_rng(devices=cuda_devices()):  # a forward without a graph is refused now
            self._plan(model, {p.path: torch.ones(p.geometry.nodes, dtype=torch.bool) for p in gated})

    @staticmethod
    def _gated(model: Bayesian) -> Any:
        return (p for p in model._posteriors() if p.selects and "node" in p.gates)

    def _plan(self, model: Bayesian, stay: dict[str, Tensor]) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a layer in which no node stays: one is kept
            return planned(model, self.example, stay, bayesian=True, training=True)

    def step(self, model: Bayesian, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer | None:
        """At the end of an epoch: count, cut `model` in place where it is worth it; then the optimizer to go on with.

        The model takes over the parts of the cut one: `model.net` and `model.posteriors` are other objects then.
        """
        if not self.able:
            return None
        stay: dict[str, Tensor] = {}
        worth = False
        for posterior in self._gated(model):
            below = posterior.gamma()["node"].detach().cpu() < self.choice.below
            quiet = self.quiet[posterior.path]
            quiet = torch.where(below, quiet + 1, 0)
            self.quiet[posterior.path] = quiet
            stay[posterior.path] = quiet < self.choice.epochs
            gone = int((~stay[posterior.path]).sum())
            worth |= gone > max(1, WORTH * len(quiet))  # one may be kept because a layer cannot have none
            worth |= gone < len(quiet) and bool(
                ((quiet > self.choice.epochs) & ((quiet - self.choice.epochs) % PATIENCE == 0)).any()
            )
        settled = optimizer if self.remains.settle(model, optimizer) else None
        if not worth:
            return settled
        with torch.random.fork_rng(devices=cuda_devices()):  # a forward's own randomness goes on as it would
            return self._cut(model, optimizer, stay) or settled

    def _cut(
        self, model: Bayesian, optimizer: torch.optim.Optimizer, stay: dict[str, Tensor]
    ) -> torch.optim.Optimizer | None:
        plan = self._plan(model, stay)
        if all(len(plan.keep[path]) == len(mask) for path, mask in stay.items() if path in plan.keep):
            return None
        slim = cut_bayesian(model, plan)
        try:
            check_cut(model, plan, self.example, stay)
            _check_training(model, slim, plan, self.example)
        except ValueError as e:
            self.able = False
            warnings.warn(
                f"compact: no node is cut out, since the smaller network would not be the same: {e}", stacklevel=4
            )
            return None
        carried = carry_optimizer(optimizer, model, slim, plan)
        for posterior in self._gated(model):
            path = posterior.path
            if path not in plan.keep:
                continue
            keep = plan.keep[path]
            self.kl -= (len(self.quiet[path]) - len(keep)) * math.log1p(-float(posterior.inclusion_prior or 0.0))
            self.quiet[path] = self.quiet[path][keep]
        self.remains.take(model, plan, optimizer, carried)
        model._become(slim, plan.keep)
        return carried

    # ---- checkpoints ---------------------------------------------------------------------------------------

    def state(self, model: Bayesian) -> dict[str, Any]:
        """What a checkpoint needs to cut a fresh model to the same nodes."""
        return {
            "quiet": {path: quiet.tolist() for path, quiet in self.quiet.items()},
            "kl": self.kl,
            "remains": list(self.remains.slabs),
            "origin": origin_of(model),
            "sizes": sizes_of(model.net),
        }

    def restore(
        self, model: Bayesian, state: dict[str, Any], tensors: dict[str, Tensor], remains: dict[str, Tensor]
    ) -> None:
        """Cut a fresh model, in place, to what a checkpoint's tensors are of."""
        self.quiet = {path: torch.tensor(quiet, dtype=torch.long) for path, quiet in state["quiet"].items()}
        self.kl = float(state["kl"])
        take_origin(model, state["origin"])
        names = {name.removeprefix("net.") for name in tensors if name.startswith("net.")}
        take_sizes(model.net, state["sizes"], names)
        resize(list(model._posteriors()), model, tensors)
        self.remains.restore(model, state["remains"], remains)


def _check_training(model: Bayesian, slim: Bayesian, plan: ShrinkPlan, example: tuple[Tensor, ...]) -> None:
    """Both at their means in training mode, dropout aside: a forward may do other things there than the graph says."""
    kept = {path: shut[plan.keep[path]] for path, shut in plan.closed.items() if path in plan.keep}
    whole, small = model.open_mean(plan.closed).train(), slim.open_mean(kept).train()
    inputs = typed(model, example)

    def answers(net: nn.Module, seed: int) -> list[Tensor]:
        for m in net.modules():
            if isinstance(m, nn.modules.dropout._DropoutNd):
                m.eval()
        torch.manual_seed(seed)
        try:
            with torch.no_grad():
                return [t for t in flat(net(*(x.clone() for x in inputs))) if isinstance(t, Tensor)]
        except Exception as e:  # the user's own forward: anything may come out
            raise ValueError(f"in training mode its forward cannot run with fewer nodes ({e}).") from e

    for a, b, other in zip(answers(whole, 0), answers(small, 0), answers(whole, 1), strict=True):
        if not torch.equal(a, other):
            continue  # random by itself
        scale = max(1.0, float(a.abs().max())) * 1e3 * torch.finfo(a.dtype).eps
        if a.shape != b.shape or not torch.allclose(a, b, rtol=0, atol=scale):
            raise ValueError("in training mode its forward does not answer as the whole network's.")


def typed(model: Bayesian, example: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The example in the model's type, where the model is."""
    like = next(model.posteriors.parameters())
    return tuple(x.to(like if x.is_floating_point() else like.device) for x in example)


def origin_of(model: Bayesian) -> dict[str, list[Any]]:
    """Which of the original nodes a cut model has, as JSON."""
    return {path: [total, kept.tolist()] for path, (total, kept) in model.origin.items()}


def take_origin(model: Bayesian, origin: dict[str, Any]) -> None:
    """The same, from JSON."""
    model.origin = {path: (int(total), torch.tensor(kept, dtype=torch.long)) for path, (total, kept) in origin.items()}


def resize(posteriors: list[Posterior], model: Bayesian, tensors: dict[str, Tensor]) -> None:
    """Room in the posteriors for tensors of a model that was cut."""
    for i, posterior in enumerate(posteriors):
        for name, parameter in list(posterior.named_parameters()):
            wanted = tensors.get(f"posteriors.{i}.{name}")
            if wanted is not None and wanted.shape != parameter.shape:
                owner, _, leaf = name.rpartition(".")
                room = torch.nn.Parameter(parameter.detach().new_empty(wanted.shape), parameter.requires_grad)
                posterior.get_submodule(owner)._parameters[leaf] = room
        posterior.take_geometry(model.net.get_submodule(posterior.path))
