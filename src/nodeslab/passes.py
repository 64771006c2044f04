"""A draw's forward pass in which nothing is computed for closed nodes.

A chain of linear layers and activations is cut anew for every draw: rows of zeros go, and what they would have passed
on, psi(0), joins the next bias. Any other network is cut once, to the nodes that are open in at least one of the draws,
after a plan of `ns.shrink`. Both are exact up to rounding; where neither pays, or the forward has no graph, the network
runs as it is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nodeslab.channels import ELEMENTWISE
from nodeslab.model import Bayesian, copy_network, cuda_devices, is_guard
from nodeslab.shrinking import ShrinkPlan, check_cut, cut_plain, shrink_plan

__all__ = ["chain_of", "passes"]

PAYS = 0.9  # a cut is made when at most this share of the nodes is left

Pass = Callable[..., Any]


def chain_of(net: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """The layers of a network that is linear layers and activations one after the other, or None.

    An activation may stand in it twice, a layer not; a hook of the caller's own must run, so it ends the chain.
    """
    if type(net) is not nn.Sequential:
        return None
    parts = [(name, m) for name, m in net._modules.items() if m is not None]  # with those that stand in it twice
    linear = [m for _, m in parts if isinstance(m, nn.Linear)]
    known = all(type(m) is nn.Linear or (isinstance(m, ELEMENTWISE) and not list(m.parameters())) for _, m in parts)
    hooked = any(
        m._forward_hooks or m._backward_hooks or any(not is_guard(h) for h in m._forward_pre_hooks.values())
        for m in net.modules()
    )
    return parts if known and linear and len({id(m) for m in linear}) == len(linear) and not hooked else None


def passes(model: Bayesian, inputs: tuple[Tensor, ...], draws: int) -> Callable[[nn.Module], Pass]:
    """How to run each of the next `draws` draws on such inputs: from the network that holds it to a function."""
    if not any(p.selects and p.switches() for p in model._posteriors()):
        return lambda net: net
    if chain_of(model.net) is not None and inputs[0].dim() == 2:
        return _chain_pass
    plan = _plan(model, inputs, draws)
    if plan is None:
        return lambda net: net
    # a forward that draws numbers of its own makes other draws than those that the plan was made for
    return lambda net: _cut(net, plan) if _covers(plan, _open_nodes(model)) else net


def _chain_pass(net: nn.Module) -> Pass:
    """The drawn weights without their rows of zeros, and without the columns that read them."""
    steps: list[tuple[Tensor, Tensor | None] | nn.Module] = []
    left: Tensor | None = None  # which inputs of the next layer are not constant; None: all
    constant: Tensor | None = None  # the constants of the others, for all inputs
    chain = chain_of(net)
    assert chain is not None
    last = max(i for i, (_, m) in enumerate(chain) if isinstance(m, nn.Linear))
    for i, (_, layer) in enumerate(chain):
        if not isinstance(layer, nn.Linear):
            steps.append(layer)
            constant = None if constant is None else layer(constant)
            continue
        weight: Tensor | None = layer._parameters["weight"]
        bias: Tensor | None = layer._parameters["bias"]
        assert weight is not None
        if left is not None and constant is not None:
            fixed = torch.where(left, 0.0, constant)
            if bool((fixed != 0).any()):
                added = weight @ fixed
                bias = added if bias is None else bias + added
            weight = weight[:, left]
        open_ = torch.ones(len(weight), dtype=torch.bool, device=weight.device)
        if i < last:
            # a closed node's weights and bias are exact zeros; a constant that reaches it has joined a bias of its own
            drawn = layer._parameters["weight"]
            own = layer._parameters["bias"]
            assert drawn is not None
            open_ = (drawn != 0).any(1) if own is None else (drawn != 0).any(1) | (own != 0)
        if bool(open_.all()):
            left = constant = None
        else:
            left, constant = open_, torch.zeros(len(open_), dtype=weight.dtype, device=weight.device)
            weight, bias = weight[open_], None if bias is None else bias[open_]
        steps.append((weight, bias))

    def run(x: Tensor) -> Tensor:
        for step in steps:
            x = step(x) if isinstance(step, nn.Module) else F.linear(x, *step)
        return x

    return run


def _open_nodes(model: Bayesian) -> dict[str, Tensor]:
    """{path: which nodes are open} in the draw that is held."""
    open_ = {}
    for posterior, layer in zip(model._posteriors(), model._layers, strict=True):
        if posterior.selects:
            weight, bias = layer._parameters["weight"], layer._parameters["bias"]
            assert weight is not None
            some = (posterior.geometry.rows(weight) != 0).any(1)
            open_[posterior.path] = (some if bias is None else some | (bias != 0)).cpu()
    return open_


def _covers(plan: ShrinkPlan, open_: dict[str, Tensor]) -> bool:
    """True where the plan takes no node for closed that is open."""
    return not any(bool((plan.closed[path] & mask).any()) for path, mask in open_.items() if path in plan.closed)


def _plan(model: Bayesian, inputs: tuple[Tensor, ...], draws: int) -> ShrinkPlan | None:
    """The cut to the nodes that are open in any of the next draws, if it pays; the random state is put back."""
    open_ = {p.path: torch.zeros(p.geometry.nodes, dtype=torch.bool) for p in model._posteriors() if p.selects}
    with torch.random.fork_rng(devices=cuda_devices()):
        for _ in range(draws):
            with model.drawn():
                for path, mask in _open_nodes(model).items():
                    open_[path] |= mask
        if sum(int(m.sum()) for m in open_.values()) > PAYS * sum(len(m) for m in open_.values()):
            return None
        few = tuple(x[:2] for x in inputs)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # a layer with no open node
                plan = shrink_plan(model, few, open_, bayesian=True)
                check_cut(model, plan, few, open_)
                return plan
        except ValueError:  # no graph, or one that does not say all
            return None


def _cut(net: nn.Module, plan: ShrinkPlan) -> nn.Module:
    """A copy of the network that holds a draw, cut after a plan."""
    small = copy_network(net)
    for module in small.modules():
        for key in [k for k, hook in module._forward_pre_hooks.items() if is_guard(hook)]:
            del module._forward_pre_hooks[key]
    cut_plain(small, plan, gated=False)
    return small
