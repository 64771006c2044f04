"""The compiled kernel against the torch operations that stand behind it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, kstest
from torch import Tensor, nn

import nodeslab as ns
from nodeslab import kernel as kernels
from nodeslab import kl
from nodeslab.gates import relaxed_bernoulli
from nodeslab.kernel import Kernel, kernel
from nodeslab.scales import HorseshoeScale


@pytest.fixture
def built() -> Kernel:
    found = kernel()
    if found is None:
        pytest.skip("no C compiler on this machine")
    return found


NETS = {
    "mlp": lambda: nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 1100), nn.Tanh(), nn.Linear(1100, 2)),
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False), nn.Conv1d(4, 6, 2, groups=2), nn.Linear(5, 3)
    ),
    "channels last": lambda: nn.Sequential(nn.Conv2d(3, 20, 3), nn.Conv2d(20, 2, 1)).to(
        memory_format=torch.channels_last
    ),
}
SPECS = {
    "ssig": ns.Normal(0.7) * ns.Node(start=0.6, temperature=0.8),
    "reinmax": ns.Normal(1.0) * ns.Node(start=0.6, gradient="reinmax"),
    "vbnn": ns.vbnn(),
    "hsbnn": ns.hsbnn(),
    "gate and scale": ns.Normal(1.0) * ns.Node(start=0.6) * ns.Horseshoe(),
}


def _xoshiro(seed: int, number: int, row: int, turns: int) -> np.ndarray:
    """Numbers of (0, 1) as kernel.c has them, from the definitions of splitmix64 and xoshiro128++: (turns, 16)."""
    full = 2**64 - 1

    def splitmix(state: int) -> tuple[int, int]:
        state = (state + 0x9E3779B97F4A7C15) & full
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & full
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & full
        return state, z ^ (z >> 31)

    def rotate(x: np.ndarray, k: int) -> np.ndarray:
        return (x << np.uint32(k)) | (x >> np.uint32(32 - k))

    state = splitmix(seed)[1] ^ (number * 0xAEF17502108EF2D9 & full)
    state = splitmix(state)[1] ^ (row * 0xD1342543DE82EF95 & full)
    words: list[int] = []
    for i in range(32):
        state, z = splitmix(state)
        words += [(z & 0xFFFFFFFF) | (i < 8), (z >> 32) | (i < 8)]
    s = np.array(words, dtype=np.uint32).reshape(4, 16)
    out = []
    for _ in range(turns):
        out.append((rotate(s[0] + s[3], 7) + s[0]) >> np.uint32(1))
        t = s[1] << np.uint32(9)
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = rotate(s[3], 11)
    return (np.array(out).astype(np.float64) + 0.5) / 2**31


def test_noise_is_what_its_description_says(built: Kernel) -> None:
    """Box-Muller on xoshiro128++, by numpy in float64, for each row of a tensor and for a bias."""
    for shape, lines in (((3, 70), 3), ((70, 1), 1)):
        noise = torch.empty(shape)
        built.normal(noise, 11, 4)
        for row, found in enumerate(noise.reshape(lines, 70)):
            u = _xoshiro(11, 4, row, 6)
            radius, angle = np.sqrt(-2 * np.log(u[::2])), 2 * np.pi * (u[1::2] - 0.5)
            exact = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(-1)[:70]
            assert np.allclose(found, exact, atol=2e-5)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("spec", SPECS)
def test_kernel_equals_autograd(built: Kernel, spec: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, KL and all gradients against autograd through the formulas, in float64 and with the same noise."""
    model = ns.bayesian(NETS[name](), SPECS[spec], n=10)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.5 * torch.randn_like(p))
    room = model.workspace()
    assert room.rooms == [None] * 3 if name != "channels last" else [None] * 2
    scales: list[Tensor] = []

    def drawn_scale(self: HorseshoeScale) -> Tensor:
        scales.append((0.5 + torch.rand(len((self.node or self.layer).mean))).requires_grad_())
        return scales[-1]

    monkeypatch.setattr(HorseshoeScale, "draw", drawn_scale)
    torch.manual_seed(6)
    weights, total = room.draw(model._means())
    pulls = [{k: torch.randn(w.shape) for k, w in layer.items()} for layer in weights]
    (sum((c[k] * w[k]).sum() for c, w in zip(pulls, weights, strict=True) for k in w) + 0.3 * total).backward()
    torch.manual_seed(6)
    for posterior in model._posteriors():
        if posterior.scale is not None:
            torch.rand(len((posterior.scale.node or posterior.scale.layer).mean))
    seed = int(torch.randint(2**62, ()))

    exact = copy.deepcopy(model).double()
    exact.zero_grad()
    loss = 0.3 * exact.kl()
    assert total.item() == pytest.approx(exact.kl().item(), rel=1e-5)
    number, exact_scales = 0, [s.detach().double().requires_grad_() for s in scales]
    turn = iter(exact_scales)
    for posterior, means, drawn, pull in zip(exact._posteriors(), exact._means(), weights, pulls, strict=True):
        g, f = posterior.geometry, torch.ones(posterior.geometry.nodes, dtype=torch.float64)
        gate = posterior.switches().get("node")
        if gate is not None:
            u = torch.from_numpy(_xoshiro(seed, 2**32 + number, 0, -(-g.nodes // 16)).reshape(-1)[: g.nodes])
            soft = relaxed_bernoulli(gate.logit, u, gate.temperature)
            hard = (soft.detach() > 0.5).double()
            if gate.gradient == "reinmax":
                soft = 0.5 * torch.sigmoid(torch.where(hard > 0, -gate.logit, gate.logit)).detach() * gate.logit
            f = hard + soft - soft.detach()
        if posterior.scale is not None:
            f = f * next(turn)
        for part, mean in means.items():
            rows = torch.empty(g.nodes, mean.numel() // g.nodes)
            built.normal(rows, seed, number)
            eps = torch.empty_like(mean)
            eps.as_strided((eps.numel(),), (1,)).copy_(rows.flatten())  # in the order of memory
            weight = g.along(f, mean) * (mean + posterior.spread(part) * eps)
            assert torch.allclose(drawn[part].double(), weight, rtol=1e-4, atol=1e-5)
            loss = loss + (pull[part].double() * weight).sum()
            number += 1
    loss.backward()
    pairs = list(zip(model.named_parameters(), exact.parameters(), strict=True))
    compared = [(n, a.grad, b.grad) for (n, a), b in pairs if a.grad is not None]
    assert len(compared) >= 2 * number
    compared += [("scale", a.grad, b.grad) for a, b in zip(scales, exact_scales, strict=True)]
    for label, a, b in compared:
        assert torch.allclose(a.double(), b, rtol=2e-4, atol=2e-5 * b.abs().max().item()), label


def test_noise_is_normal(built: Kernel) -> None:
    noise = torch.empty(1009, 991)
    built.normal(noise, 7)
    x = noise.flatten().numpy().astype(np.float64)
    assert kstest(x, "norm").pvalue > 0.01
    for lag in (1, 2, 16, 32, 991, 4096):
        for power in (1, 2):
            a, b = x[:-lag] ** power, x[lag:] ** power
            correlation = np.corrcoef(a, b)[0, 1]
            assert abs(correlation) < 4.5 / np.sqrt(len(a)), (lag, power)
    for seed, number in ((8, 0), (7, 1)):
        again = torch.empty(1009, 991)
        built.normal(again, seed, number)
        assert abs(np.corrcoef(x, again.flatten().numpy())[0, 1]) < 4.5e-3


def test_gates_open_as_often_as_they_should(built: Kernel) -> None:
    model = ns.bayesian(nn.Sequential(nn.Linear(1, 4000), nn.ReLU(), nn.Linear(4000, 1)), ns.ssig(), n=10)
    for gamma in (0.01, 0.5, 0.97):
        with torch.no_grad():
            model.posteriors[0].gates["node"].logit.fill_(np.log(gamma / (1 - gamma)))
        room = model.workspace()
        opens = torch.stack([room.draw(model._means())[0][0]["bias"] != 0 for _ in range(50)])
        assert binomtest(int(opens.sum()), opens.numel(), gamma).pvalue > 1e-3


def test_a_draw_does_not_depend_on_threads(built: Kernel) -> None:
    model = ns.bayesian(nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 40)), ns.ssig(), n=10)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            torch.manual_seed(1)
            weights, total = model.workspace().draw(model._means())
            loss = sum(w.square().sum() for layer in weights for w in layer.values()) + total
            results.append([*torch.autograd.grad(loss, list(model.parameters())), total.detach()])
        finally:
            torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_spread_and_kl_are_exact_over_their_range(built: Kernel) -> None:
    net = nn.Sequential(nn.Linear(1, 1001), nn.ReLU(), nn.Linear(1001, 1))
    model = ns.bayesian(net, ns.vbnn(), n=10)
    rho = torch.linspace(-80, 80, 1001)
    with torch.no_grad():
        for p in model.net.parameters():
            p.zero_()
        model.posteriors[0].rho("weight").copy_(rho[:, None])
        model.posteriors[1].rho("weight").copy_(rho[None])
    room = model.workspace()
    assert room.fused is not None
    torch.manual_seed(3)
    weights, _ = room.draw(model._means())
    torch.manual_seed(3)
    seed = int(torch.randint(2**62, ()))
    column, row = torch.empty(1001, 1), torch.empty(1, 1001)
    built.normal(column, seed, 0)
    built.normal(row, seed, 2)
    exact = torch.nn.functional.softplus(rho.double())
    for found in (weights[0]["weight"][:, 0].double() / column[:, 0], weights[1]["weight"][0].double() / row[0]):
        assert ((found - exact) / exact).abs().max() < 1e-6
    divergence = room.fused._kept[1]  # of the first weight, a number for each row
    exact_kl = kl.gaussian(torch.zeros(()), exact, 1.0)
    assert torch.allclose(divergence.double(), exact_kl, rtol=2e-6, atol=1e-6)


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
