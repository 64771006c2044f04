"""The weights into each node, as the posterior draws them."""

from __future__ import annotations

import torch
from torch import Tensor

from nodeslab.model import Bayesian
from nodeslab.posterior import Posterior
from nodeslab.prediction import isolated_seed

__all__ = ["incoming_weights", "posterior_of"]


def posterior_of(model: Bayesian, path: str | None) -> Posterior:
    """The posterior of a layer; of the first one where none is named."""
    by_path = {p.path: p for p in model._posteriors()}
    if path is None:
        return next(iter(by_path.values()))
    if path not in by_path:
        raise ValueError(f"No Bayesian layer is called {path!r}; there are {', '.join(map(repr, by_path))}.")
    return by_path[path]


@torch.no_grad()
def incoming_weights(model: Bayesian, path: str | None = None, draws: int = 10, seed: int = 0) -> Tensor:
    """|w| of the weights into each node of a layer, its bias too, over some draws: (nodes, draws x weights)."""
    posterior = posterior_of(model, path)
    values = []
    with isolated_seed(seed):
        for _ in range(draws):
            with model.drawn() as net:
                layer = net.get_submodule(posterior.path)
                weight, bias = layer._parameters["weight"], layer._parameters["bias"]
                assert weight is not None
                parts = [posterior.geometry.rows(weight.detach())]
                parts += [] if bias is None else [bias.detach()[:, None]]
                values.append(torch.cat(parts, 1).abs().cpu())
    return torch.cat(values, 1)
