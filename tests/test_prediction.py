"""Predictions against exact answers and against sampling."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import nodeslab as ns
from nodeslab import metrics
from nodeslab.prediction import ClassPrediction, RegressionPrediction


def _regressor(outputs: int = 1) -> ns.Bayesian:
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, outputs))
    return ns.bayesian(net, ns.Normal(1.0, rho=-1.0) * ns.Node(start=0.8), n=10)


X = torch.randn(17, 3, generator=torch.Generator().manual_seed(0))


def test_a_linear_gaussian_is_exact() -> None:
    """y = w x: mean mu x, variance sigma^2 x^2 + sigma_e^2, quantiles of that normal."""
    model = ns.bayesian(nn.Linear(1, 1, bias=False).double(), ns.Normal(1.0, rho=0.0), n=10)
    with torch.no_grad():
        model.net.weight.fill_(0.7)
    s = math.log(2.0)
    x = torch.tensor([[1.0], [-2.0]]).double()
    p = ns.predict(model, x, draws=20_000, seed=1, likelihood=ns.Gaussian(0.5))
    assert isinstance(p, RegressionPrediction)
    assert torch.allclose(p.mean, 0.7 * x, atol=0.03)
    assert torch.allclose(p.model_std, s * x.abs(), rtol=0.03)
    assert torch.allclose(p.std, torch.sqrt((s * x) ** 2 + 0.25), rtol=0.03)
    exact = torch.distributions.Normal(0.7 * x, torch.sqrt((s * x) ** 2 + 0.25))
    for q in (0.025, 0.3, 0.9):
        assert torch.allclose(p.quantile(q), exact.icdf(torch.tensor(q)), atol=0.06)
    assert torch.allclose(p.log_density(torch.ones(2, 1)), exact.log_prob(torch.ones(2, 1).double()), atol=0.05)


def test_parts_add_up() -> None:
    p = ns.predict(_regressor(2), X, likelihood=ns.Gaussian(0.3))
    assert p.mean.shape == p.std.shape == (17, 2)
    assert torch.allclose(p.std**2, p.model_std**2 + p.noise_std**2)
    assert torch.allclose(p.noise_std, torch.full((17, 2), 0.3))


def test_quantiles_are_of_the_mixture() -> None:
    """F(quantile(q)) = q for the equal mixture of normals over draws, to the type's precision."""
    p = ns.predict(_regressor(), X, likelihood=ns.Gaussian(0.3))
    for q in (0.001, 0.05, 0.5, 0.95, 0.999):
        at = p.quantile(q).double()
        below = torch.distributions.Normal(p.draws.double(), 0.3).cdf(at).mean(0)
        assert (below - q).abs().max() < 1e-5
    low, high = p.interval(0.9)
    assert torch.equal(low, p.quantile(0.05))
    assert (high > low).all()


def test_without_a_likelihood_the_outputs_themselves() -> None:
    p = ns.predict(_regressor(), X, draws=11)
    assert torch.allclose(p.std, p.model_std)
    assert torch.allclose(p.quantile(0.5), p.draws.median(0).values)
    with pytest.raises(ValueError, match="no noise"):
        p.log_density(torch.zeros(17, 1))


@pytest.mark.parametrize("binary", [False, True])
def test_classes_from_their_definition(binary: bool) -> None:
    """Against the same draws taken by hand: mean and std of probabilities, entropy, mutual information."""
    model = _regressor(1 if binary else 4).double()
    likelihood = ns.Bernoulli() if binary else ns.Categorical()
    x = X.double()
    p = ns.predict(model, x, draws=9, seed=3, likelihood=likelihood)
    assert isinstance(p, ClassPrediction)
    logits = ns.predict(model, x, draws=9, seed=3).draws
    each = torch.sigmoid(logits) if binary else torch.softmax(logits, 2)
    assert torch.allclose(p.mean, each.mean(0))
    assert torch.allclose(p.std, each.std(0))
    if binary:
        exact = [torch.distributions.Bernoulli(probs=v).entropy() for v in (each.mean(0), each)]
        assert torch.equal(p.labels, (p.mean > 0.5).long())
    else:
        exact = [torch.distributions.Categorical(probs=v).entropy() for v in (each.mean(0), each)]
        assert torch.equal(p.labels, p.mean.argmax(1))
        assert torch.allclose(p.probabilities.sum(1), torch.ones(17).double())
    assert torch.allclose(p.entropy, exact[0])
    assert torch.allclose(p.mutual_information, (exact[0] - exact[1].mean(0)).clamp_min(0), atol=1e-12)
    with pytest.raises(ValueError, match="no quantile"):
        p.quantile(0.5)


def test_seeds_and_batches() -> None:
    """The same seed gives the same numbers, for any batch size; torch's generator is left alone."""
    model = _regressor()
    state = torch.get_rng_state()
    a = ns.predict(model, X, seed=5).mean
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.allclose(ns.predict(model, X, seed=5, batch_size=4).mean, a, atol=1e-6)
    assert torch.equal(ns.predict(model, X, seed=5).mean, a)
    assert not torch.equal(ns.predict(model, X, seed=6).mean, a)
    assert torch.allclose(ns.predict(model, X[:3], seed=5).mean, a[:3], atol=1e-6)


def test_a_network_that_squeezes_and_dense_labels() -> None:
    """A last batch of one row, and labels for every position."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1), Squeeze())
    model = ns.bayesian(net, ns.ssig(), n=10)
    assert ns.predict(model, X, batch_size=16).mean.shape == (17,)
    dense = ns.bayesian(nn.Sequential(nn.Conv1d(3, 4, 1), nn.ReLU(), nn.Conv1d(4, 2, 1)), ns.ssig(), n=8)
    images, labels = torch.randn(8, 3, 5), torch.randint(0, 2, (8, 5))
    history = ns.fit(
        dense, (images, labels), likelihood=ns.Categorical(), epochs=1, validation=(images, labels), progress=False
    )
    assert 0 <= history[0].validation["accuracy"] <= 1
    assert ns.predict(dense, images).log_density(labels).shape == (8, 5)


class Squeeze(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.squeeze()


def test_short_representations() -> None:
    p = ns.predict(_regressor(), X)
    assert repr(p) == "RegressionPrediction(17 rows, outputs of shape (1,))"
    assert "tensor" not in repr(_regressor().nodes())
    assert p != ns.predict(_regressor(), X)


def test_prediction_leaves_the_model_as_it_was() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 1))
    model = ns.bayesian(net, ns.ssig(), n=10).train()
    model.net[3].eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    ns.predict(model, X)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert [m.training for m in model.net] == [True, True, True, False, True]


# ---- metrics -------------------------------------------------------------------------------------------------------


def test_metrics_on_small_cases() -> None:
    assert metrics.rmse([1.0, 2.0], [1.0, 4.0]) == pytest.approx(2**0.5)
    assert metrics.rmse(torch.tensor([[1.0], [2.0]]), [1.0, 4.0]) == pytest.approx(2**0.5)
    p, y = torch.tensor([[0.7, 0.3], [0.4, 0.6], [0.9, 0.1]]), torch.tensor([0, 0, 1])
    assert metrics.accuracy(p, y) == pytest.approx(1 / 3)
    assert metrics.categorical_nll(p, y) == pytest.approx(-(math.log(0.7) + math.log(0.4) + math.log(0.1)) / 3)
    assert metrics.brier(p, y) == pytest.approx((2 * 0.09 + 2 * 0.36 + 2 * 0.81) / 3)
    # confidences 0.7 (right), 0.6 (wrong), 0.9 (wrong), each alone in its bin
    assert metrics.ece(p, y, bins=20) == pytest.approx((0.3 + 0.6 + 0.9) / 3)
    assert metrics.coverage([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.5, 1.0, 2.0]) == pytest.approx(2 / 3)
    m, s, t = torch.randn(9), torch.rand(9) + 0.1, torch.randn(9)
    assert metrics.gaussian_nll(m, s, t) == pytest.approx(
        -torch.distributions.Normal(m, s).log_prob(t).mean().item(), rel=1e-5
    )


def test_a_calibrated_classifier_has_no_calibration_error() -> None:
    p = torch.rand(200_000, generator=torch.Generator().manual_seed(0)).double()
    y = (torch.rand(200_000, generator=torch.Generator().manual_seed(1)).double() < p).long()
    assert metrics.ece(torch.stack([1 - p, p], 1), y) < 0.01


@pytest.mark.parametrize(
    "call",
    [
        lambda: metrics.rmse([1.0, 2.0], [[1.0, 2.0]]),
        lambda: metrics.rmse([1.0, 2.0], [1.0]),
        lambda: metrics.rmse(torch.zeros(4, 1), torch.zeros(2, 2)),
        lambda: metrics.accuracy(torch.ones(3, 3) / 3, [0, 0]),
        lambda: metrics.accuracy(torch.full((3, 2), 0.5), [0, 0, 2]),
        lambda: metrics.ece(torch.ones(0, 2), []),
    ],
)
def test_mismatched_shapes_are_refused(call: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        call()  # type: ignore[operator]


def test_interval_coverage_of_samples() -> None:
    """Intervals of the mixture hold what is drawn from it."""
    p = ns.predict(_regressor(), X, likelihood=ns.Gaussian(0.5))
    low, high = p.interval(0.8)
    picks: list[Tensor] = []
    for _ in range(300):
        which = torch.randint(len(p.draws), (17, 1))
        picks.append(p.draws.gather(0, which[None]).squeeze(0) + 0.5 * torch.randn(17, 1))
    inside = sum(((low <= y) & (y <= high)).float().mean().item() for y in picks) / 300
    assert inside == pytest.approx(0.8, abs=0.025)
