"""A replica's result is that of its lone fit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import nodeslab as ns
from nodeslab.kernel import kernel

G = torch.Generator().manual_seed(7)
QUIET: dict[str, Any] = {"progress": False}


def _data(rows: int, outputs: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    X = torch.randn(rows, 4, generator=G)
    return X, torch.sin(X[:, :outputs]) + 0.1 * torch.randn(rows, outputs, generator=G)


def _model(seed: int, prior: ns.Prior, outputs: int = 1, n: int = 50) -> ns.Bayesian:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 6), nn.SiLU(), nn.Linear(6, outputs))
    return ns.bayesian(net, prior, n=n)


CASES: dict[str, tuple[ns.Prior, Any, dict[str, Any]]] = {
    "ss-ig": (ns.Normal(1.0) * ns.Node(prior=0.1), ns.Gaussian(0.5), {}),
    "reinmax, own rates": (
        ns.Normal(0.7) * ns.Node(prior=0.1, gradient="reinmax"),
        ns.Gaussian(0.5),
        {"gate_rate": 4.0, "spread_rate": 2.0},
    ),
    "vbnn, schedules": (
        ns.vbnn(),
        ns.Gaussian(0.5),
        {"lr_schedule": ns.Ramp(1.0, 0.1), "likelihood_schedule": ns.Ramp(0.1, 1.0, log=True)},
    ),
    "learnt noise": (ns.Normal(1.0) * ns.Node(), ns.Gaussian("learn"), {}),
    "stops by itself": (ns.vbnn(), ns.Gaussian(0.5), {"epsilon": 10.0, "window": 2}),
    "edges, one after the other": (ns.svbnn(), ns.Gaussian(0.5), {}),
    "horseshoe, one after the other": (ns.hsbnn(), ns.Gaussian(0.5), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_as_alone(case: str) -> None:
    prior, likelihood, more = CASES[case]
    models = [_model(s, prior) for s in range(4)]
    alone = copy.deepcopy(models)
    data = [_data(50) for _ in range(3)] + [_data(40)]
    models[3], alone[3] = (_model(3, prior, n=40) for _ in range(2))
    seeds = [11, 12, 13, 14]
    settings: dict[str, Any] = {"likelihood": likelihood, "epochs": 25, "batch_size": 16, "lr": 5e-3, **more, **QUIET}
    histories = ns.fit_replicas(models, data, seeds=seeds, **settings)
    for model, lone, pair, seed, history in zip(models, alone, data, seeds, histories, strict=True):
        expected = ns.fit(lone, pair, seed=seed, **settings)
        for (name, a), (_, b) in zip(model.named_parameters(), lone.named_parameters(), strict=True):
            assert torch.allclose(a, b, rtol=0, atol=2e-4), name
        assert len(history) == len(expected)
        assert history.stopped == expected.stopped
        assert history.seed == expected.seed
        for name in ("epoch", "open", "flops", "lr"):
            assert history.column(name) == expected.column(name)
        for name in ("elbo", "nll", "kl"):
            assert history.column(name) == pytest.approx(expected.column(name), rel=2e-3)
        assert torch.allclose(ns.predict(model, pair[0]).mean, ns.predict(lone, pair[0]).mean, rtol=0, atol=1e-3)
    if case == "stops by itself":
        assert len({len(h) for h in histories}) > 1


def test_classes() -> None:
    models = [_model(s, ns.ssig(), outputs=3) for s in range(2)]
    alone = copy.deepcopy(models)
    data = [(X, (X[:, 0] > 0).long() + (X[:, 1] > 0.5).long()) for X, _ in (_data(50), _data(50))]
    settings: dict[str, Any] = {"likelihood": ns.Categorical(), "epochs": 5, "batch_size": 20, "lr": 1e-2, **QUIET}
    ns.fit_replicas(models, data, seeds=[1, 2], **settings)
    for model, lone, pair, seed in zip(models, alone, data, (1, 2), strict=True):
        ns.fit(lone, pair, seed=seed, **settings)
        for a, b in zip(model.parameters(), lone.parameters(), strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-4)


@pytest.mark.skipif(kernel() is None, reason="no C compiler on this machine")
def test_parameters_are_their_own_again() -> None:
    models = [_model(s, ns.ssig()) for s in range(3)]
    ns.fit_replicas(
        models, [_data(50) for _ in range(3)], likelihood=ns.Gaussian(0.5), epochs=2, seeds=[1, 2, 3], **QUIET
    )
    for model in models:
        assert all(p.untyped_storage().nbytes() == 4 * p.numel() for p in model.parameters())
        assert all(p.grad is None for p in model.parameters())
        ns.fit(model, _data(50), epochs=1, seed=0, **QUIET)


def test_refusals() -> None:
    model = _model(0, ns.ssig())
    with pytest.raises(ValueError, match="models is empty"):
        ns.fit_replicas([], [], likelihood=ns.Gaussian(1.0))
    with pytest.raises(ValueError, match="data has 1 entries for 2 models"):
        ns.fit_replicas([model, _model(1, ns.ssig())], [_data(50)], likelihood=ns.Gaussian(1.0))
    with pytest.raises(ValueError, match="seeds has 1 entries for 2 models"):
        ns.fit_replicas([model, _model(1, ns.ssig())], [_data(50)] * 2, likelihood=ns.Gaussian(1.0), seeds=[1])
    with pytest.raises(ValueError, match="The same model is given twice"):
        ns.fit_replicas([model, model], [_data(50)] * 2, likelihood=ns.Gaussian(1.0))
    with pytest.raises(TypeError, match=r"models\[0\] must come from ns\.bayesian"):
        ns.fit_replicas([model.net], [_data(50)], likelihood=ns.Gaussian(1.0))  # type: ignore[list-item]
    X, y = _data(50)
    bad = _model(1, ns.ssig())
    with torch.no_grad():
        next(bad.net.parameters()).fill_(float("inf"))
    with pytest.raises(FloatingPointError, match=r"epoch 1: the \w+ of a replica \(seed 5\) is not finite. Layer '0'"):
        ns.fit_replicas([_model(2, ns.ssig()), bad], [(X, y)] * 2, likelihood=ns.Gaussian(1.0), seeds=[4, 5], epochs=2)


class Random(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 9), nn.Linear(9, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(nn.functional.dropout(torch.tanh(self.a(x)), 0.2, self.training))


def _shared() -> nn.Module:
    act = nn.Tanh()
    return nn.Sequential(nn.Linear(4, 9), act, nn.Linear(9, 6), act, nn.Linear(6, 1))


def _hooked() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 1))
    net[1].register_forward_pre_hook(lambda m, args: (2.0 * args[0],))
    return net


def _last() -> nn.Module:
    net = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(3, 1))
    return net.to(memory_format=torch.channels_last)


class Image(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x.reshape(-1, 1, 2, 2))


@pytest.mark.parametrize("make", [Random, _shared, _hooked, lambda: Image(_last())])
def test_networks_of_all_kinds(make: Any) -> None:
    models = []
    for seed in range(2):
        torch.manual_seed(seed)
        models.append(ns.bayesian(make(), ns.ssig(), n=50).eval())
    alone = copy.deepcopy(models)
    data = [_data(50), _data(50)]
    settings: dict[str, Any] = {"likelihood": ns.Gaussian(0.5), "epochs": 4, "batch_size": 20, "lr": 5e-3, **QUIET}
    with torch.no_grad():
        ns.fit_replicas(models, data, seeds=[1, 2], **settings)
    for model, lone, pair, seed in zip(models, alone, data, (1, 2), strict=True):
        ns.fit(lone, pair, seed=seed, **settings)
        assert not model.training
        for a, b in zip(model.parameters(), lone.parameters(), strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-4)


def test_parameters_that_break_in_the_last_step_are_noticed() -> None:
    with pytest.raises(FloatingPointError, match="not finite"):
        ns.fit_replicas(
            [_model(0, ns.ssig()), _model(1, ns.ssig())], [_data(50)] * 2,
            likelihood=ns.Gaussian(1.0), epochs=1, batch_size=50, lr=3e38, seeds=[1, 2], **QUIET,
        )  # fmt: skip
