"""A linear model with orthogonal design: the mean-field family contains the true posterior.

y_j = z_j X w_j + noise for each output j, X'X = c I, one gate for the weights w_j into an output node. Evidence and
inclusion probabilities are known exactly, output by output. The outputs are made hidden nodes by a fixed identity
behind them, so that they have gates.
"""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor, nn

import nodeslab as ns
from nodeslab.gates import Gate

N, P, SLAB, NOISE, CHANCE = 64, 3, 1.3, 4.0, 0.3


@pytest.fixture(autouse=True)
def _double() -> object:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def _design() -> Tensor:
    q, _ = torch.linalg.qr(torch.randn(N, P))
    return q * math.sqrt(N)


def _simulate(X: Tensor, outputs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Gates, weights and data from the prior and the likelihood."""
    z = (torch.rand(outputs) < CHANCE).double()
    w = SLAB * torch.randn(outputs, P)
    y = X @ (z[:, None] * w).T + NOISE * torch.randn(N, outputs)
    return z, w, y


def _model(outputs: int, **choices: object) -> ns.Bayesian:
    net = nn.Sequential(nn.Linear(P, outputs, bias=False), nn.Linear(outputs, outputs, bias=False))
    net[1].weight.data = torch.eye(outputs)
    net[1].weight.requires_grad_(False)
    return ns.bayesian(net, {"0": ns.Normal(SLAB) * ns.Node(prior=CHANCE, start=0.5, **choices)}, n=N)


def _exact(X: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, float]:
    """log evidence and inclusion probability of each output by the dense Gaussian formula, slab mean and variance."""
    cov0 = NOISE**2 * torch.eye(N)
    cov1 = cov0 + SLAB**2 * X @ X.T
    zero = torch.zeros(N)
    log0 = torch.distributions.MultivariateNormal(zero, cov0).log_prob(y.T)
    log1 = torch.distributions.MultivariateNormal(zero, cov1).log_prob(y.T)
    evidence = torch.logaddexp(math.log(1 - CHANCE) + log0, math.log(CHANCE) + log1)
    inclusion = torch.exp(math.log(CHANCE) + log1 - evidence)
    variance = 1 / (N / NOISE**2 + 1 / SLAB**2)
    return evidence, inclusion, variance * (y.T @ X) / NOISE**2, variance


def _elbo(model: ns.Bayesian, X: Tensor, y: Tensor) -> Tensor:
    """E_q[log p(y | w)] in closed form from the model's moments, minus its KL."""
    mean, variance = model.moments()["0"]["weight"]
    squares = y.square().sum() - 2 * ((X.T @ y).T * mean).sum() + N * (variance + mean.square()).sum()
    log_likelihood = -0.5 * y.numel() * math.log(2 * math.pi * NOISE**2) - squares / (2 * NOISE**2)
    return log_likelihood - model.kl()


def _gate(model: ns.Bayesian) -> Gate:
    return next(model._posteriors()).switches()["node"]


def _maximise(model: ns.Bayesian, X: Tensor, y: Tensor) -> None:
    """Adam to come near, whatever the gates weigh a node's gradient with; L-BFGS for the last digits."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    for rate in (0.1, 0.03, 0.01):
        adam = torch.optim.Adam(parameters, lr=rate)
        for _ in range(250):
            adam.zero_grad()
            (-_elbo(model, X, y)).backward()
            adam.step()
    optimizer = torch.optim.LBFGS(
        parameters,
        max_iter=3000,
        history_size=50,
        line_search_fn="strong_wolfe",
        tolerance_grad=1e-10,
        tolerance_change=0,
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = -_elbo(model, X, y)
        value.backward()
        return value

    optimizer.step(loss)


def test_closed_form_fit_reaches_the_evidence() -> None:
    X = _design()
    _, _, y = _simulate(X, 12)
    evidence, inclusion, _, _ = _exact(X, y)
    assert 0.01 < inclusion.min() < 0.5  # gates that are not certain, so that the test says something
    model = _model(12)
    _maximise(model, X, y)
    assert _elbo(model, X, y).item() == pytest.approx(evidence.sum().item(), abs=1e-6)
    assert (model.nodes()[0].inclusion - inclusion).abs().max() < 1e-6


def _set_exact(model: ns.Bayesian, X: Tensor, y: Tensor) -> Tensor:
    evidence, inclusion, mean, variance = _exact(X, y)
    posterior = next(model._posteriors())
    with torch.no_grad():
        model.net[0].weight.copy_(mean)
        posterior.rho("weight").fill_(math.log(math.expm1(math.sqrt(variance))))
        _gate(model).logit.copy_(torch.logit(inclusion))
    return evidence


def test_sampled_elbo_at_the_posterior_equals_the_evidence() -> None:
    """With the true posterior as q, log p(y | w) - KL has mean log evidence over draws, and the draws open each
    gate as often as it should."""
    X = _design()
    _, _, y = _simulate(X, 12)
    model = _model(12)
    evidence = _set_exact(model, X, y)
    draws, values, opened = 3000, [], torch.zeros(12)
    likelihood = ns.Gaussian(NOISE)
    with torch.no_grad():
        for _ in range(draws):
            with model.drawn() as net:
                values.append(-likelihood.nll(net(X), y, None).item() - model.kl().item())
                opened += (net[0].weight != 0).any(1)
    sample = torch.tensor(values)
    assert abs(sample.mean() - evidence.sum()) < 4 * sample.std() / math.sqrt(draws)
    inclusion = model.nodes()[0].inclusion
    assert ((opened / draws - inclusion).abs() < 4 * torch.sqrt(inclusion * (1 - inclusion) / draws)).all()


@pytest.mark.parametrize("gradient", ["gumbel", "reinmax"])
def test_mean_gradient_at_the_optimum(gradient: str) -> None:
    """At the exact posterior the expected gradient is zero. For mean and spread it is, whatever the gates' estimator;
    for the gates themselves ReinMax is exact, and the Gumbel-softmax relaxation is not: it leads towards 1/2."""
    X = _design()
    _, _, y = _simulate(X, 12)
    model = _model(12, gradient=gradient)
    _set_exact(model, X, y)
    likelihood, draws = ns.Gaussian(NOISE), 3000
    sums = {n: [torch.zeros_like(p), torch.zeros_like(p)] for n, p in model.named_parameters() if p.requires_grad}
    for _ in range(draws):
        model.zero_grad()
        with model.drawn() as net:
            (likelihood.nll(net(X), y, None) + model.kl()).backward()
        for n, p in model.named_parameters():
            if n in sums:
                sums[n][0] += p.grad
                sums[n][1] += p.grad**2
    for n, (first, second) in sums.items():
        mean = first / draws
        z = mean / torch.sqrt((second / draws - mean**2) / draws)
        if "logit" in n and gradient == "gumbel":
            gamma = model.nodes()[0].inclusion
            assert (z.abs() > 4).sum() > 6
            assert (torch.sign(z) == torch.sign(gamma - 0.5)).sum() > 10
        else:
            assert z.abs().max() < 4.5, n


def test_sampled_fit_stays_at_the_exact_answer() -> None:
    """The exact posterior is where `ns.fit` with sampled gates comes to rest: from there, plain SGD with the unbiased
    gate gradient stays, and its mean ELBO is the evidence, within Monte Carlo error; the relaxation drifts away."""
    X = _design()
    _, _, y = _simulate(X, 12)
    drift = {}
    for gradient in ("reinmax", "gumbel"):
        model = _model(12, gradient=gradient)
        evidence = _set_exact(model, X, y).sum()
        exact = _gate(model).logit.detach().clone()
        path: list[Tensor] = []
        history = ns.fit(
            model,
            (X, y),
            likelihood=ns.Gaussian(NOISE),
            epochs=3000,
            batch_size=N,
            samples=2,
            seed=0,
            optimizer=lambda ps: torch.optim.SGD(ps, lr=0.5),
            callback=lambda m, r, path=path: path.append(_gate(m).logit.detach().clone()),
            progress=False,
        )
        drift[gradient] = (torch.stack(path).mean(0) - exact).abs().mean().item()
        if gradient == "reinmax":
            elbo = torch.tensor(history.column("elbo"))
            assert abs(elbo.mean() - evidence) < 0.15
    assert drift["reinmax"] < 0.12
    assert drift["gumbel"] > 3 * drift["reinmax"]


# ---- simulation-based calibration ----------------------------------------------------------------------------------

SETS, RANKS, BINS = 1000, 99, 20


def _ranks(model: ns.Bayesian, truth: Tensor) -> list[Tensor]:
    """The rank of each set's truth among draws from its posterior, ties (at zero) broken at random: of the first
    weight, and of the squared length of all weights, which is zero when the gate is closed."""
    quantities = (lambda w: w[:, 0], lambda w: w.square().sum(1))
    below, equal = torch.zeros(2, SETS), torch.zeros(2, SETS)
    with torch.no_grad():
        for _ in range(RANKS):
            with model.drawn() as net:
                for i, quantity in enumerate(quantities):
                    drawn, true = quantity(net[0].weight), quantity(truth)
                    below[i] += drawn < true
                    equal[i] += drawn == true
    return list(below + torch.floor(torch.rand(2, SETS) * (equal + 1)))


def _p_value(ranks: list[Tensor]) -> float:
    """The smaller p-value of the chi-squared tests that ranks 0 ... 99 are uniform, for both quantities together."""
    counts = [torch.bincount((r * BINS / (RANKS + 1)).long(), minlength=BINS).numpy() for r in ranks]
    return min(1.0, len(ranks) * min(float(chisquare(c).pvalue) for c in counts))


@pytest.fixture(scope="module")
def calibrated() -> tuple[ns.Bayesian, Tensor]:
    """One model whose 1,000 outputs are 1,000 simulated data sets, fitted by the closed-form ELBO."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(1)
    X = _design()
    z, w, y = _simulate(X, SETS)
    model = _model(SETS)
    _maximise(model, X, y)
    evidence, *_ = _exact(X, y)
    assert _elbo(model, X, y).item() == pytest.approx(evidence.sum().item(), abs=1e-3)
    return model, z[:, None] * w


def test_simulation_based_calibration(calibrated: tuple[ns.Bayesian, Tensor]) -> None:
    model, truth = calibrated
    assert _p_value(_ranks(model, truth)) > 0.01


def test_calibration_notices_half_the_variance(calibrated: tuple[ns.Bayesian, Tensor]) -> None:
    model, truth = calibrated
    rho = next(model._posteriors()).rho("weight")
    before = rho.detach().clone()
    with torch.no_grad():
        rho.copy_(torch.log(torch.expm1(torch.nn.functional.softplus(before) * math.sqrt(0.5))))
    try:
        assert _p_value(_ranks(model, truth)) < 0.01
    finally:
        with torch.no_grad():
            rho.copy_(before)


@pytest.mark.parametrize("shift", [-1.5, 1.5])
def test_calibration_notices_shifted_gates(calibrated: tuple[ns.Bayesian, Tensor], shift: float) -> None:
    model, truth = calibrated
    gate = _gate(model)
    with torch.no_grad():
        gate.logit += shift
    try:
        assert _p_value(_ranks(model, truth)) < 0.01
    finally:
        with torch.no_grad():
            gate.logit -= shift
