"""Predictions that compute nothing for closed nodes are those of the whole network."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import nodeslab as ns
from nodeslab import prediction
from nodeslab.passes import passes


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 9, 3, padding=1), nn.Conv2d(9, 6, 1)
        self.norm, self.head = nn.BatchNorm2d(9), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.sigmoid(self.stem(x))
        return self.head((h + self.b(torch.relu(self.norm(self.a(h))))).mean((2, 3)))


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 9), nn.Linear(9, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        return self.b(h) if float(h.sum()) > -1e9 else h


def _mlp(activation: nn.Module, bias: bool = True) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(
        nn.Linear(5, 20, bias=bias), copy.deepcopy(activation), nn.Linear(20, 12, bias=bias), copy.deepcopy(activation),
        nn.Dropout(0.5), nn.Linear(12, 2, bias=bias), nn.Tanh(),
    )  # fmt: skip


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "sigmoid": (_mlp(nn.Sigmoid()), (5,)),
    "swish": (_mlp(nn.SiLU()), (5,)),
    "no biases": (_mlp(nn.Softplus(), bias=False), (5,)),
    "rows of tokens": (_mlp(nn.Sigmoid()), (3, 5)),
    "residual": (Residual, (1, 8, 8)),
    "no graph": (Untraceable, (5,)),
}


@pytest.mark.parametrize("chance", [0.1, 0.6, -0.5])
@pytest.mark.parametrize("name", NETS)
@pytest.mark.filterwarnings("ignore:The forward of Untraceable")
def test_the_same_numbers(name: str, chance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """chance: of every gate; below 0, gates that are fixed by hand."""
    make, shape = NETS[name]
    torch.manual_seed(0)
    model = ns.bayesian(make(), ns.Normal(1.0, rho=-1.0) * ns.Node(start=abs(chance)), n=10).double().eval()
    if chance < 0:
        model.set_nodes({r.path: torch.arange(r.total) % 3 == 0 for r in model.nodes()})
    x = torch.randn(17, *shape, dtype=torch.float64)
    fast = ns.predict(model, x, draws=6, seed=4, batch_size=5)
    monkeypatch.setattr(prediction, "passes", lambda model, inputs, draws: lambda net: net)
    whole = ns.predict(model, x, draws=6, seed=4, batch_size=5)
    assert torch.allclose(fast.draws, whole.draws, rtol=0, atol=1e-12)
    assert float(whole.draws.std()) > 0.01


def test_nothing_is_computed_for_closed_nodes() -> None:
    """Widths that arrive at the layers of a draw."""
    torch.manual_seed(0)
    for make, shape in (NETS["swish"], NETS["residual"]):
        model = ns.bayesian(make(), ns.ssig(), n=10).eval()
        masks = {r.path: torch.arange(r.total) < 2 for r in model.nodes()}
        model.set_nodes(masks)
        x = torch.randn(4, *shape)
        run = passes(model, (x,), 3)
        with torch.no_grad(), model.drawn() as net:
            small = run(net)
            sizes: list[int] = []
            if isinstance(small, nn.Module):
                sizes = [small.a.out_channels, small.b.in_channels]
            else:
                cells = [c.cell_contents for c in small.__closure__]
                steps = next(c for c in cells if isinstance(c, list))
                sizes = [len(s[0]) for s in steps if isinstance(s, tuple)][:-1]
            assert max(sizes) == 2
            assert torch.allclose(small(x), net(x), rtol=0, atol=1e-5)


def test_an_activation_twice_and_a_layer_twice() -> None:
    act, shared = nn.Tanh(), nn.Linear(6, 6)
    for net in (
        nn.Sequential(nn.Linear(5, 6), act, nn.Linear(6, 6), act, nn.Linear(6, 2)),
        nn.Sequential(nn.Linear(5, 6), nn.Tanh(), shared, nn.Tanh(), shared, nn.Linear(6, 2)),
    ):
        _as_by_hand(ns.bayesian(net, ns.Normal(1.0) * ns.Node(start=0.6), n=10).double(), torch.randn(7, 5).double())


def _as_by_hand(model: ns.Bayesian, x: Tensor) -> None:
    """predict against a loop over draws, which take the same numbers from the generator."""
    fast = ns.predict(model, x, draws=4, seed=3)
    torch.manual_seed(3)
    model.eval()
    with torch.no_grad():
        by_hand = torch.stack([model(x) for _ in range(4)])
    assert torch.allclose(fast.draws, by_hand, rtol=0, atol=1e-12)


class Noisy(nn.Module):
    """Takes random numbers of its own, so that the draws are not those that were looked at before."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 20), nn.Linear(20, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x + 0.0 * torch.randn_like(x))))


class Wide(nn.Module):
    """A width in the formula: a cut would change it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 20), nn.Linear(20, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        return self.b(h / h.shape[1] ** 0.5)


class Numbered(Wide):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)).view(-1, 20))


@pytest.mark.parametrize("net", [Noisy(), Wide(), Numbered()])
def test_a_cut_that_would_be_wrong_is_not_made(net: nn.Module) -> None:
    _as_by_hand(ns.bayesian(net, ns.Normal(1.0) * ns.Node(start=0.1), n=10).double(), torch.randn(7, 5).double())


def test_hooks_of_the_callers_own_run() -> None:
    net = nn.Sequential(nn.Linear(5, 20), nn.Tanh(), nn.Linear(20, 2))
    net[1].register_forward_hook(lambda m, args, out: out * 2.0)
    _as_by_hand(ns.bayesian(net, ns.Normal(1.0) * ns.Node(start=0.3), n=10).double(), torch.randn(7, 5).double())
