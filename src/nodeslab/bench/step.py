"""One training step of SS-IG against the plain network's, in the same memory format; and that it is exact."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Normal, kl_divergence

from nodeslab.bench import against, interleaved, lenet, machine, mlp, plain_step
from nodeslab.likelihoods import Categorical
from nodeslab.model import Bayesian, bayesian
from nodeslab.spec import ssig
from nodeslab.training import single_steps

__all__ = ["step"]

MLP, LENET = "mlp 784-400-400-10, batch 1024", "lenet-caffe, batch 256"
LENET_LAST = "lenet-caffe, batch 256, channels_last"


def step(rounds: int = 60, compiled: bool = False) -> dict[str, Any]:
    """The step that `ns.fit` takes against the plain network with Adam. compiled: and the plain one compiled."""
    result: dict[str, Any] = {"bench": "step", "rounds": rounds, **machine()}
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    cases: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
        MLP: (mlp(), (1024, 784)),
        LENET: (lenet(), (256, 1, 28, 28)),
        LENET_LAST: (lenet().to(memory_format=torch.channels_last), (256, 1, 28, 28)),  # type: ignore[call-overload]
    }
    for name, (net, shape) in cases.items():
        X = torch.randn(shape, generator=generator)
        y = torch.randint(0, 10, (shape[0],), generator=generator)
        runs = {
            "plain": plain_step(copy.deepcopy(net), X, y),
            "ss-ig": single_steps(bayesian(net, ssig(), n=60_000), (X, y), Categorical()),
            "plain, Adam not fused": plain_step(copy.deepcopy(net), X, y, fused=False),
        }
        if compiled:
            runs["plain, compiled"] = plain_step(torch.compile(copy.deepcopy(net)), X, y)  # type: ignore[arg-type]
        result[name] = against(interleaved(runs, rounds), "plain")
    result["exactness in float64"] = _exactness()
    return result


def _exactness() -> dict[str, Any]:
    """KL and gradients against torch.distributions and autograd, in float64: the largest relative differences."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(9, 7), nn.SiLU(), nn.Linear(7, 3)).double()
    model = bayesian(net, ssig(prior=0.1), n=50)
    with torch.no_grad():
        for p in model.posteriors.parameters():
            p.add_(torch.randn_like(p))
    parameters = dict(model.named_parameters())
    with model.drawn(model.workspace()) as drawn:
        weights = dict(drawn.named_parameters()) | _drawn(model)
        drawn_kl = model.kl()
        of_kl = torch.autograd.grad(drawn_kl, list(parameters.values()), retain_graph=True, allow_unused=True)
        pull = {name: torch.randn_like(w) for name, w in weights.items()}
        loss = torch.stack([(w * pull[name]).sum() for name, w in weights.items()]).sum()
        of_loss = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        sampled = {name: w.detach().clone() for name, w in weights.items()}
    reference = _reference_kl(model)
    wanted = torch.autograd.grad(reference, list(parameters.values()), allow_unused=True)
    got = dict(zip(parameters, of_loss, strict=True))
    return {
        "KL": {"difference": _apart([drawn_kl], [reference])},
        "gradients of the KL": {"difference": _apart(list(of_kl), list(wanted))},
        "gradients of the draw": {"difference": _draw_apart(model, sampled, pull, got)},
    }


def _drawn(model: Bayesian) -> dict[str, Tensor]:
    """The sampled weights, by the names of the means that they stand in for."""
    out: dict[str, Tensor] = {}
    for posterior in model._posteriors():
        layer = model.net.get_submodule(posterior.path)
        for name in posterior.names:
            tensor = layer._parameters[name]
            assert tensor is not None
            out[f"{posterior.path}.{name}"] = tensor
    return out


def _reference_kl(model: Bayesian) -> Tensor:
    """KL(q || p) assembled from torch.distributions."""
    total = torch.zeros((), dtype=torch.float64)
    for posterior, means in zip(model._posteriors(), model._means(), strict=True):
        gamma = posterior.gamma().get("node")
        if gamma is not None:
            assert posterior.inclusion_prior is not None
            prior = Bernoulli(probs=torch.full_like(gamma, posterior.inclusion_prior))
            logits = posterior.switches()["node"].logit
            total = total + kl_divergence(Bernoulli(logits=logits), prior).sum()
        for name, mean in means.items():
            spread = torch.log1p(torch.exp(posterior.rho(name)))
            each = kl_divergence(Normal(mean, spread), Normal(0.0, posterior.prior.slab.sigma))
            total = total + (each if gamma is None else each * posterior.geometry.along(gamma, mean)).sum()
    return total


def _draw_apart(
    model: Bayesian, sampled: dict[str, Tensor], pull: dict[str, Tensor], got: Mapping[str, Tensor | None]
) -> float:
    """For the loss sum(c w): dmu = c z, so that z and then z eps follow from w = z (mu + sigma eps), and with them
    drho = c z eps sigmoid(rho)."""
    apart = 0.0
    for i, (posterior, means) in enumerate(zip(model._posteriors(), model._means(), strict=True)):
        for name, mean in means.items():
            full = f"{posterior.path}.{name}"
            d_mean, d_rho = got[f"net.{full}"], got[f"posteriors.{i}.rho_{name}"]
            assert d_mean is not None
            assert d_rho is not None
            rho, c = posterior.rho(name).detach(), pull[full]
            z = torch.round(d_mean / c)
            noise = (sampled[full] - z * mean.detach()) / torch.log1p(torch.exp(rho))
            apart = max(apart, _apart([d_mean, d_rho], [c * z, c * noise * torch.sigmoid(rho)]))
    return apart


def _apart(found: Sequence[Tensor | None], wanted: Sequence[Tensor | None]) -> float:
    """The largest difference, as a share of the largest value."""
    worst = 0.0
    for a, b in zip(found, wanted, strict=True):
        if a is None or b is None:
            both = [t for t in (a, b) if t is not None]
            worst = max([worst, *(float(t.detach().abs().max()) for t in both)])
            continue
        size = max(1.0, float(b.detach().abs().max()))
        worst = max(worst, float((a.detach() - b.detach()).abs().max()) / size)
    return worst
