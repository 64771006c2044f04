"""The compiled kernel against the torch operations that stand behind it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import nn

import nodeslab as ns
from nodeslab import kernel as kernels
from nodeslab.kernel import Kernel, kernel


@pytest.fixture
def built() -> Kernel:
    found = kernel()
    if found is None:
        pytest.skip("no C compiler on this machine")
    return found


NETS = {
    "mlp": lambda: nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 2)),
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.ReLU(), nn.ConvTranspose2d(4, 6, 2, groups=2), nn.Flatten(), nn.Linear(54, 2)
    ),
}


@pytest.mark.parametrize("prior", ["ssig", "vbnn", "svbnn", "hsbnn"])
@pytest.mark.parametrize("name", NETS)
def test_kernel_equals_torch(built: Kernel, name: str, prior: str) -> None:
    """The same noise through the kernel and through torch: the same weights, KL and gradients."""
    net = NETS[name]()
    x = torch.randn(3, 7) if name == "mlp" else torch.randn(3, 1, 4, 4)
    model = ns.bayesian(net, getattr(ns, prior)(), n=10)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.5 * torch.randn_like(p))
    results = []
    for fused in (True, False):
        room = model.workspace()
        torch.manual_seed(5)
        room.fill()
        if not fused:
            noise = room.noise.clone()
            room.kernel = None
            room.layers = [
                {k: type(b)(b.noise, b.slab, b.weight, b.rows, None, None, None) for k, b in layer.items()}
                for layer in room.layers
            ]
        room.fill = lambda: None  # type: ignore[method-assign]
        model.zero_grad()
        torch.manual_seed(6)
        with model.drawn(room) as drawn:
            loss = drawn(x).square().sum() + 0.3 * model.kl()
            loss.backward()
        results.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    assert noise.std() > 0
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, rtol=2e-4, atol=2e-4 * b.abs().max().item())


def test_noise_is_normal(built: Kernel) -> None:
    noise = torch.empty(1_000_003)
    built.normal(noise, 7)
    x = noise.numpy().astype(np.float64)
    assert kstest(x, "norm").pvalue > 0.01
    for lag in (1, 2, 16, 32, 4096):
        for power in (1, 2):
            a, b = x[:-lag] ** power, x[lag:] ** power
            correlation = np.corrcoef(a, b)[0, 1]
            assert abs(correlation) < 4.5 / np.sqrt(len(a)), (lag, power)
    again = torch.empty(1_000_003)
    built.normal(again, 8)
    assert abs(np.corrcoef(x, again.numpy())[0, 1]) < 4.5e-3


def test_noise_does_not_depend_on_threads(built: Kernel) -> None:
    one, two = torch.empty(100_001), torch.empty(100_001)
    built.normal(one, 3)
    torch.set_num_threads(2)
    try:
        built.normal(two, 3)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(one, two)


def test_spread_is_exact_over_its_range(built: Kernel) -> None:
    rho = torch.linspace(-80, 80, 1001).reshape(1, -1)
    zero = torch.zeros_like(rho)
    spread, weight, rows = torch.empty_like(rho), torch.empty_like(rho), torch.empty(1)
    built.draw(zero, rho, zero, None, 1.0, spread, weight, rows)
    exact = torch.nn.functional.softplus(rho.double())
    assert ((spread.double() - exact) / exact).abs().max() < 1e-6


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """No compiler, a broken one, or the switch: None, and a fit that works all the same."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, value in (("CC", "/nowhere/cc"), ("CC", "false"), ("NODESLAB_KERNEL", "0")):
        kernels.kernel.cache_clear()
        monkeypatch.setenv(name, value)
        assert kernels.kernel() is None
        monkeypatch.delenv(name)
    kernels.kernel.cache_clear()
    monkeypatch.setenv("NODESLAB_KERNEL", "0")
    X = torch.randn(40, 3)
    model = ns.bayesian(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), ns.ssig(), n=40)
    history = ns.fit(model, (X, X[:, 0]), likelihood=ns.Gaussian(1.0), epochs=2, seed=0)
    kernels.kernel.cache_clear()
    assert len(history) == 2
