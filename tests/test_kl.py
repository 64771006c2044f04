"""Every closed form against another implementation, quadrature, or Monte Carlo."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import invgamma, norm
from torch import Tensor, nn
from torch.distributions import Bernoulli, InverseGamma, Normal, kl_divergence

import nodeslab as ns
from nodeslab import kl
from nodeslab.gates import relaxed_bernoulli
from nodeslab.posterior import Posterior, SlabDraw

D = torch.float64


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.5])
def test_gaussian_equals_torch(sigma: float) -> None:
    mean, spread = torch.randn(50, dtype=D), torch.rand(50, dtype=D) + 1e-3
    expected = kl_divergence(Normal(mean, spread), Normal(torch.zeros((), dtype=D), torch.tensor(sigma, dtype=D)))
    assert (kl.gaussian(mean, spread, sigma) - expected).abs().max() < 1e-10


@pytest.mark.parametrize("prior", [0.5, 1e-3, 0.99, 1e-12])
def test_bernoulli_equals_torch(prior: float) -> None:
    logit = torch.linspace(-15, 15, 101, dtype=D)
    expected = kl_divergence(
        Bernoulli(logits=logit), Bernoulli(logits=torch.full_like(logit, kl.log_prior_odds(prior)))
    )
    assert (kl.bernoulli(logit, kl.log_prior_odds(prior)) - expected).abs().max() < 1e-10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("prior", [1e-50, 1e-20, 0.5, 1 - 1e-12])
@pytest.mark.parametrize("at", [-800.0, -100.0, -1.0, 0.0, 30.0, 800.0])
def test_bernoulli_at_the_ends(at: float, prior: float, dtype: torch.dtype) -> None:
    logit = torch.tensor([at], dtype=dtype, requires_grad=True)
    value = kl.bernoulli(logit, kl.log_prior_odds(prior))
    value.sum().backward()
    gamma = 1 / (1 + math.exp(-at)) if at > -700 else 0.0
    odds = kl.log_prior_odds(prior)
    if abs(at) >= 100:  # the certain gate's divergence is minus the log of what the prior gave to it
        exact = -math.log(prior) if at > 0 else -math.log1p(-prior)
        assert value.item() == pytest.approx(exact, rel=1e-5, abs=1e-6)
    assert torch.isfinite(value).all()
    assert logit.grad is not None
    slope = gamma * (1 - gamma) * (at - odds)  # d KL / d logit
    assert logit.grad.item() == pytest.approx(slope, rel=2e-4, abs=1e-4 if dtype == torch.float32 else 1e-9)


def _gauss_legendre(low: float, high: float, points: int) -> tuple[Any, Any]:
    x, w = np.polynomial.legendre.leggauss(points)
    return (high - low) / 2 * x + (high + low) / 2, (high - low) / 2 * w


@pytest.mark.parametrize(
    ("mean", "spread", "scale"), [(0.0, 0.5, 1.0), (-3.0, 0.2, 0.7), (1.5, 1.1, 2.0), (-9.0, 0.3, 1.0)]
)
def test_half_cauchy_equals_quadrature(mean: float, spread: float, scale: float) -> None:
    """KL(q(t) q(a) || p(t | a) p(a)) by integrating over t = log tau^2 and log a, densities from scipy."""
    d = math.exp(-mean + spread**2 / 2) + 1 / scale**2

    def integrand(s: Any, t: Any) -> Any:  # with scipy's densities, of log a and log tau^2
        a, tau2 = np.exp(s), np.exp(t)
        log_q = norm.logpdf(t, mean, spread) + invgamma.logpdf(a, 1, scale=d) + s
        log_p = invgamma.logpdf(tau2, 0.5, scale=1 / a) + t + invgamma.logpdf(a, 0.5, scale=1 / scale**2) + s
        return np.exp(log_q) * (log_q - log_p)

    center = math.log(d)
    # the density of log a falls as exp(-s) to the right and doubly exponentially to the left
    s, s_weights = _gauss_legendre(center - 5, center + 40, 400)
    t, t_weights = _gauss_legendre(mean - 10 * spread, mean + 10 * spread, 120)
    found = float(s_weights @ integrand(s[:, None], t[None, :]) @ t_weights)
    value = kl.half_cauchy(torch.tensor(mean, dtype=D), torch.tensor(spread, dtype=D), scale).item()
    assert value == pytest.approx(found, abs=1e-10)


def test_half_cauchy_equals_its_definition() -> None:
    """The same, term by term with the auxiliary factor written out, to 1e-10."""
    mean, spread, scale = torch.randn(40, dtype=D) * 3, torch.rand(40, dtype=D) + 0.05, 0.8
    d = torch.exp(-mean + spread**2 / 2) + 1 / scale**2
    e_log_a, e_inv_a = torch.log(d) + 0.57721566490153286, 1 / d
    e_inv_t = torch.exp(-mean + spread**2 / 2)
    lg = math.lgamma(0.5)
    log_p_t = -0.5 * e_log_a - lg - 1.5 * mean - e_inv_a * e_inv_t
    log_p_a = -math.log(scale) - lg - 1.5 * e_log_a - e_inv_a / scale**2
    entropy_t = mean + torch.log(spread) + 0.5 * math.log(2 * math.pi * math.e)
    entropy_a = InverseGamma(torch.ones((), dtype=D), d).entropy()
    expected = -(log_p_t + log_p_a + entropy_t + entropy_a)
    assert (kl.half_cauchy(mean, spread, scale) - expected).abs().max() < 1e-10


def test_the_auxiliary_update_is_the_optimum() -> None:
    """No other IG(1, d) gives a smaller divergence than d = E[1/tau^2] + 1/b^2."""
    mean, spread, scale = -1.3, 0.4, 0.9
    inverse = math.exp(-mean + spread**2 / 2)

    def divergence(d: float) -> float:
        e_log_a, e_inv_a = math.log(d) + 0.57721566490153286, 1 / d
        lg = math.lgamma(0.5)
        log_p = -0.5 * e_log_a - lg - 1.5 * mean - e_inv_a * inverse
        log_p += -math.log(scale) - lg - 1.5 * e_log_a - e_inv_a / scale**2
        entropy = mean + math.log(spread) + 0.5 * math.log(2 * math.pi * math.e)
        return -(log_p + entropy + float(InverseGamma(1.0, torch.tensor(d, dtype=D)).entropy()))

    best = kl.half_cauchy(torch.tensor(mean, dtype=D), torch.tensor(spread, dtype=D), scale).item()
    d = inverse + 1 / scale**2
    assert best == pytest.approx(divergence(d), abs=1e-12)
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        assert divergence(d * factor) > best


@pytest.mark.parametrize(
    ("mean", "spread", "a", "b"), [(0.4, 0.3, 2.0, 6.0), (-1.0, 0.8, 0.5, 1.0), (2.0, 0.1, 3.0, 2.0)]
)
def test_inverse_gamma_equals_quadrature(mean: float, spread: float, a: float, b: float) -> None:
    prior = InverseGamma(torch.tensor(a, dtype=D), torch.tensor(b, dtype=D))
    q = Normal(torch.tensor(mean, dtype=D), torch.tensor(spread, dtype=D))

    def integrand(t: float) -> float:
        t_ = torch.tensor(t, dtype=D)
        log_q, log_p = q.log_prob(t_), prior.log_prob(t_.exp()) + t_
        return float(log_q.exp() * (log_q - log_p))

    found, _ = quad(integrand, mean - 12 * spread, mean + 12 * spread, epsabs=1e-12, epsrel=1e-12, limit=200)
    value = kl.inverse_gamma(torch.tensor(mean, dtype=D), torch.tensor(spread, dtype=D), a, b).item()
    assert value == pytest.approx(found, abs=1e-10)


# ---- whole layers against Monte Carlo ------------------------------------------------------------------------------

LAYERS = {
    "linear": lambda: nn.Linear(4, 6),
    "linear without bias": lambda: nn.Linear(4, 6, bias=False),
    "conv1d": lambda: nn.Conv1d(2, 4, 3),
    "conv2d in groups": lambda: nn.Conv2d(4, 6, 3, groups=2),
    "conv3d": lambda: nn.Conv3d(1, 3, 2),
    "transposed": lambda: nn.ConvTranspose2d(3, 4, 2),
    "transposed in groups": lambda: nn.ConvTranspose1d(4, 6, 3, groups=2),
}
PRIORS = {
    "vbnn": ns.vbnn(0.7),
    "ssig": ns.ssig(0.7, 0.2),
    "svbnn": ns.svbnn(0.7, 0.2),
    "hsbnn": ns.hsbnn(),
    "gate and scale": ns.Normal(1.0) * ns.Node(0.3) * ns.Horseshoe(),
}


def _posterior(layer: nn.Module, prior: ns.Prior) -> tuple[Posterior, dict[str, Tensor]]:
    layer = layer.double()
    chance = None if prior.gate is None else float(prior.gate.prior)  # type: ignore[arg-type]
    posterior = Posterior("x", layer, prior, False, chance)
    with torch.no_grad():
        for name, p in posterior.named_parameters():
            if "logit" in name:
                p.copy_(torch.randn_like(p))
            elif "rho" in name:
                p.copy_(torch.randn_like(p) - 1)
            else:
                p.copy_(torch.randn_like(p) * 0.5)
    return posterior, {name: p.detach() for name, p in layer.named_parameters()}


def _node_of(posterior: Posterior, name: str, like: Tensor) -> Tensor:
    """The node that each weight goes into, found from torch's own convolution and not from the library."""
    g = posterior.geometry
    if name == "bias" or not g.transposed:
        return torch.arange(g.nodes).reshape(-1, *(1,) * (like.dim() - 1)).expand(like.shape)
    per_group, into = g.nodes // g.groups, like.shape[0] // g.groups
    out = torch.empty(like.shape, dtype=torch.long)
    for i in range(like.shape[0]):
        for j in range(per_group):
            out[i, j] = (i // into) * per_group + j
    return out


@pytest.mark.parametrize("kind", PRIORS)
@pytest.mark.parametrize("layer", LAYERS)
def test_layer_kl_equals_monte_carlo(layer: str, kind: str) -> None:
    """E_q[log q - log p] over gates, slabs, scales and auxiliaries, drawn here with torch.distributions."""
    prior = PRIORS[kind]
    posterior, means = _posterior(LAYERS[layer](), prior)
    draws = 4000
    total = torch.zeros(draws, dtype=D)
    sigma = prior.slab.sigma
    gates = {
        name: (Bernoulli(logits=g.logit.detach()), Bernoulli(torch.tensor(prior.gate.prior, dtype=D)))  # type: ignore[union-attr, arg-type]
        for name, g in posterior.switches().items()
    }
    z = {name: q.sample((draws,)) for name, (q, _) in gates.items()}
    for name, (q, p) in gates.items():
        total += (q.log_prob(z[name]) - p.log_prob(z[name])).flatten(1).sum(1)
    for name, mean in means.items():
        q = Normal(mean, posterior.spread(name).detach())
        w = q.sample((draws,))
        ratio = q.log_prob(w) - Normal(0.0, sigma).log_prob(w)
        if "node" in z:
            ratio = ratio * z["node"][:, _node_of(posterior, name, mean)]
        elif name in z:
            ratio = ratio * z[name]
        total += ratio.flatten(1).sum(1)
    if posterior.scale is not None:
        s = posterior.scale
        for part, b in ((s.layer, s.choice.layer), (s.node, s.choice.node)):
            assert part is not None
            m, v = part.mean.detach(), part.spread().detach()
            q = Normal(m, v)
            t = q.sample((draws,))
            one, half = torch.ones_like(m), torch.full_like(m, 0.5)
            q_a = InverseGamma(one, torch.exp(-m + v**2 / 2) + 1 / b**2)
            a = q_a.sample((draws,))
            log_p = InverseGamma(half, 1 / a).log_prob(t.exp()) + t + InverseGamma(half, one / b**2).log_prob(a)
            total += (q.log_prob(t) + q_a.log_prob(a) - log_p).sum(1)
        assert s.slab is not None
        q = Normal(s.slab.mean.detach(), s.slab.spread().detach())
        t = q.sample((draws,))
        prior_c = InverseGamma(torch.tensor(s.choice.slab_a, dtype=D), torch.tensor(s.choice.slab_b, dtype=D))
        total += (q.log_prob(t) - prior_c.log_prob(t.exp()) - t).sum(1)
    error = total.std() / math.sqrt(draws)
    assert abs(posterior.kl(means).item() - total.mean().item()) < 4 * error.item()


@pytest.mark.parametrize("kind", PRIORS)
def test_drawn_kl_equals_closed_form(kind: str) -> None:
    """Value and gradients of the KL that a draw brings along, against the closed form under autograd."""
    posterior, means = _posterior(nn.Conv2d(3, 5, 2), PRIORS[kind])
    means = {name: mean.requires_grad_() for name, mean in means.items()}
    _, with_draw = posterior.draw(means)
    closed = posterior.kl(means)
    assert with_draw.item() == pytest.approx(closed.item(), rel=1e-12)
    parameters = [*means.values(), *posterior.parameters()]
    for a, b in zip(*(torch.autograd.grad(v, parameters) for v in (with_draw, closed)), strict=True):
        assert (a - b).abs().max() < 1e-10 * max(1.0, b.abs().max().item())


# ---- gradients -----------------------------------------------------------------------------------------------------


def _reference(
    mean: Tensor, rho: Tensor, noise: Tensor, f: Tensor | None, g: Tensor | None, sigma: float, room: None
) -> tuple[Tensor, Tensor]:
    spread = torch.log1p(torch.exp(rho))
    divergence = kl_divergence(Normal(mean, spread), Normal(torch.zeros_like(mean), sigma))
    slab = mean + spread * noise
    return slab if f is None else f * slab, (divergence if g is None else g * divergence).sum()


@pytest.mark.parametrize("with_g", [True, False])
@pytest.mark.parametrize("with_f", [True, False])
@pytest.mark.parametrize("shape", [(5, 1), (5, 4), (1, 1)])
def test_hand_written_gradients_equal_autograd(shape: tuple[int, int], with_f: bool, with_g: bool) -> None:
    inputs = [torch.randn(5, 4, dtype=D, requires_grad=True) for _ in range(2)]
    f = torch.rand(shape, dtype=D, requires_grad=True) if with_f else None
    g = torch.rand(shape, dtype=D, requires_grad=True) if with_g else None
    wanted = [*inputs, *(v for v in (f, g) if v is not None)]
    noise, pull = torch.randn(5, 4, dtype=D), torch.randn(5, 4, dtype=D)
    results = []
    for function in (lambda *a: SlabDraw.apply(*a)[:2], _reference):
        weight, divergence = function(inputs[0], inputs[1], noise, f, g, 0.7, None)
        loss = (weight * pull).sum() + (weight**2).sum() + 3 * divergence
        results.append([loss, *torch.autograd.grad(loss, wanted)])
    for ours, theirs in zip(*results, strict=True):
        assert (ours - theirs).abs().max() < 1e-10 * max(1.0, theirs.abs().max().item())


def test_gradcheck_of_the_soft_path() -> None:
    """weight and KL as functions of mean, rho and logit, with the relaxed gate forward as well as backward."""
    u, noise = torch.rand(5, dtype=D), torch.randn(5, 4, dtype=D)

    def soft(mean: Tensor, rho: Tensor, logit: Tensor) -> tuple[Tensor, Tensor]:
        z = relaxed_bernoulli(logit, u, 0.5)[:, None]
        weight, divergence, *_ = SlabDraw.apply(mean, rho, noise, z, torch.sigmoid(logit)[:, None], 0.7, None)
        return weight, divergence + kl.bernoulli(logit, -3.0).sum()

    inputs = (torch.randn(5, 4, dtype=D), torch.randn(5, 4, dtype=D), torch.randn(5, dtype=D))
    assert torch.autograd.gradcheck(soft, tuple(x.requires_grad_() for x in inputs))


def test_hard_forward_soft_backward() -> None:
    """The weight holds exactly 0 or the slab; the gate's gradient is the relaxed gate's."""
    layer = nn.Linear(3, 200, bias=False)
    posterior = Posterior("x", layer, ns.ssig(prior=0.5), False, 0.5)
    gate = posterior.switches()["node"]
    with torch.no_grad():
        gate.logit.normal_()
    torch.manual_seed(3)
    z = gate.draw()
    assert set(z.unique().tolist()) == {0.0, 1.0}
    (slope,) = torch.autograd.grad(z.sum(), gate.logit)
    torch.manual_seed(3)
    u = torch.rand_like(gate.logit)
    soft = relaxed_bernoulli(gate.logit, u, 0.5)
    (expected,) = torch.autograd.grad(soft.sum(), gate.logit)
    assert torch.allclose(slope, expected)
    assert torch.equal(z.detach() == 1, soft > 0.5)


def test_gates_are_drawn_with_their_probability() -> None:
    layer = nn.Linear(1, 4, bias=False)
    posterior = Posterior("x", layer, ns.ssig(prior=0.5), False, 0.5)
    gate = posterior.switches()["node"]
    with torch.no_grad():
        gate.logit.copy_(torch.logit(torch.tensor([0.02, 0.3, 0.5, 0.9])))
    draws = 20_000
    share = torch.stack([gate.draw().detach() for _ in range(draws)]).mean(0)
    gamma = gate.inclusion().detach()
    assert ((share - gamma).abs() < 4 * torch.sqrt(gamma * (1 - gamma) / draws)).all()


@pytest.mark.parametrize("gradient", ["gumbel", "reinmax"])
@pytest.mark.parametrize("at", [-800.0, 800.0])
def test_finite_in_float32_at_extreme_logits(at: float, gradient: str) -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    model = ns.bayesian(net, ns.Normal(1.0) * ns.Node(prior=1e-50, gradient=gradient), n=10)
    gate = next(model._posteriors()).switches()["node"]
    with torch.no_grad():
        gate.logit.fill_(at)
    with model.drawn() as drawn:
        loss = drawn(torch.randn(4, 3)).square().sum() + model.kl()
        loss.backward()
    assert torch.isfinite(loss)
    for p in model.parameters():
        assert p.grad is not None
        assert torch.isfinite(p.grad).all()


@pytest.mark.parametrize("logit", [12.0, 16.0, 17.0, 20.0, 30.0])
def test_gradients_keep_their_digits_near_one(logit: float) -> None:
    """In float32 gamma is 1 from a logit of 17 on, and 1 - gamma still has its digits."""
    single = torch.tensor(logit, requires_grad=True)
    exact = torch.tensor(logit, dtype=torch.float64, requires_grad=True)
    for at in (single, exact):
        gate = torch.where(at > 0, 1.0 - torch.sigmoid(-at), torch.sigmoid(at))  # Gate.inclusion
        (kl.bernoulli(at, -6.0) + 50.0 * gate).backward()
    assert single.grad.item() == pytest.approx(exact.grad.item(), rel=1e-4)


@pytest.mark.parametrize("prior", [1 - 1e-9, 1 - 1e-12])
def test_bernoulli_with_a_prior_near_one(prior: float) -> None:
    odds = kl.log_prior_odds(prior)
    open_ = kl.bernoulli(torch.tensor(800.0, dtype=torch.float64), odds)
    assert open_.item() == pytest.approx(-math.log(prior), rel=1e-6)
