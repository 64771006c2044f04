"""The count of multiplications, by appendix B's formulas written out, and the authors' own numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import nodeslab as ns
from nodeslab.bench import lenet, mlp


def _opened(net: nn.Module, keep: dict[str, list[int]]) -> ns.Bayesian:
    model = ns.bayesian(net, ns.ssig(), n=100)
    masks = {}
    for r in model.nodes():
        mask = torch.zeros(r.total, dtype=torch.bool)
        mask[torch.tensor(keep[r.path]) if r.path in keep else slice(None)] = True
        masks[r.path] = mask
    model.set_nodes(masks)
    return model


def test_the_authors_mlp() -> None:
    """784-68-40: 73,430 nonzero weights (0.1535) and 56,550 multiplications (0.1182), as recorded at epoch 1200."""
    model = _opened(mlp(), {"0": list(range(68)), "2": list(range(40))})
    c = ns.cost(model, torch.zeros(1, 784))
    assert (c.weights, round(c.compression_ratio, 4)) == (73_430, 0.1535)
    assert (c.flops, round(c.flops_ratio, 4)) == (56_550, 0.1182)
    assert c.weights_small == 56_550


@pytest.mark.parametrize(
    ("kept", "flops", "ratio"), [((17, 6, 18, 16), 420_396, 0.1426), ((20, 50, 800, 500), 2_949_030, 1.0)]
)
def test_the_authors_lenet(kept: tuple[int, ...], flops: int, ratio: float) -> None:
    """The widths behind their last epoch on MNIST (0.85, 0.12, 0.0225, 0.032 of the nodes), and the dense network."""
    model = _opened(lenet(), dict(zip(("0", "3", "7", "9"), (list(range(k)) for k in kept), strict=True)))
    c = ns.cost(model, torch.zeros(1, 1, 28, 28))
    assert c.flops_dense == 2_949_030
    assert (c.flops, round(c.flops_ratio, 4)) == (flops, ratio)
    if ratio == 1.0:
        assert c.weights_dense == 1_071_880 - 0
    else:
        assert c.weights == 35_692


def test_padding_stride_and_dilation() -> None:
    """O = (I + 2 P - D (K - 1) - 1) / S + 1 in each direction, and (C_in K_w K_h + 1) O_w O_h C_out."""
    net = nn.Sequential(
        nn.Conv2d(3, 8, (5, 3), stride=(2, 1), padding=(2, 0), dilation=(1, 2)),
        nn.ReLU(),
        nn.Conv2d(8, 4, 3),
        nn.Flatten(),
        nn.Linear(4 * 5 * 10, 2),
    )
    model = _opened(net, {"0": [0, 3, 7], "2": [1, 2]})
    height, width = (14 + 4 - 4 - 1) // 2 + 1, (16 + 0 - 4 - 1) // 1 + 1
    c = ns.cost(model, torch.zeros(1, 3, 14, 16))
    expected = (3 * 15 + 1) * height * width * 3
    expected += (3 * 9 + 1) * (height - 2) * (width - 2) * 2
    expected += (2 * 5 * 10 + 1) * 2
    assert c.flops == expected


def test_groups_count_their_own_inputs() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Conv2d(4, 6, 3, groups=2, bias=False), nn.Flatten(), nn.Linear(24, 1))
    model = _opened(net, {"0": [0, 1, 2], "1": [0, 5]})  # 2 inputs of the first group are left, 1 of the second
    c = ns.cost(model, torch.zeros(1, 1, 4, 4))
    assert c.layers[1].flops == (2 + 1) * 9 * 4
    assert c.layers[1].weights_small == (2 + 1) * 9


def test_transposed_and_tokens() -> None:
    net = nn.Sequential(
        nn.ConvTranspose1d(2, 3, 4, stride=2), nn.Tanh(), nn.Linear(10, 5), nn.Flatten(), nn.Linear(15, 1)
    )
    c = ns.cost(ns.bayesian(net, ns.ssig(), n=10), torch.zeros(1, 2, 4))
    assert (
        c.layers[0].flops == 2 * 4 * 3 * 4 + 3 * 10
    )  # each of 4 inputs meets 2 x 4 x 3 weights; 10 outputs have biases
    assert c.layers[1].flops == 3 * (10 + 1) * 5


class Skip(nn.Module):
    """A residual, a concatenation and a layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(8, 5), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x))
        h = h + torch.relu(self.b(h)) + torch.relu(self.b(-h))
        return self.d(torch.tanh(self.c(torch.cat([h, torch.sigmoid(self.a(x))], 1))))


def test_skips_keep_unions() -> None:
    model = _opened(Skip(), {"a": [0], "b": [1], "c": [0, 1]})
    c = {layer.path: layer for layer in ns.cost(model, torch.zeros(1, 3)).layers}
    assert c["a"].flops == 2 * (3 + 1)  # runs twice
    assert c["b"].flops == 2 * (1 + 1)
    assert c["c"].flops == 2 * (3 + 1)  # of 8 inputs: channels 0 and 1 of the sum, channel 0 of the copy
    assert c["d"].flops == 3


def test_a_norm_over_channels_keeps_them_all() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2))
    c = ns.cost(_opened(net, {"0": [0]}), torch.zeros(1, 3))
    assert c.layers[1].flops == (4 + 1) * 2
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    assert ns.cost(_opened(net, {"0": [0]}), torch.zeros(1, 3)).layers[1].flops == (1 + 1) * 2


def test_edges_count_what_is_open() -> None:
    model = ns.bayesian(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)), ns.svbnn(), n=10)
    gates = next(model._posteriors()).switches()
    with torch.no_grad():
        gates["weight"].logit.fill_(-3)
        gates["weight"].logit[0, 1] = 3
        gates["bias"].logit[:] = torch.tensor([3.0, -3.0])
    c = ns.cost(model, torch.zeros(1, 3))
    assert c.layers[0].weights == 2
    assert c.layers[0].flops == 4  # one node left, its channel is computed whole
    assert c.compression_ratio == (2 + 3) / (8 + 3)


def test_a_plain_network_and_the_table() -> None:
    c = ns.cost(mlp(), torch.zeros(2, 784))
    assert c.flops == c.flops_dense == 478_410
    assert "478,410" not in str(c)
    assert "314,000 of 314,000" in str(c)
    assert "FLOPs ratio 1.0000" in str(c)
    net = mlp().train()
    ns.cost(net, torch.zeros(2, 784))
    assert net.training


class Codes(nn.Module):
    """The first column is a code, looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.o = nn.Linear(5, 6), nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes = torch.nn.functional.one_hot(x[:, 0].long(), 4).to(x.dtype)
        return self.o(torch.tanh(self.a(torch.cat([codes, x[:, 1:]], 1))))


class Compares(nn.Module):
    """A rectifier written by hand: comparisons with NaN are false."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.o = nn.Linear(2, 6), nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        return self.o(torch.where(h > 0, h, torch.zeros_like(h)))


@pytest.mark.parametrize("net", [Codes(), Compares()])
def test_a_forward_that_looks_at_its_numbers(net: nn.Module) -> None:
    """All inputs of a layer count there, with a warning; closed nodes' own rows are still taken off."""
    x = torch.rand(8, 2)
    model = ns.bayesian(net, ns.ssig(), n=8)
    with pytest.warns(UserWarning, match="depends on its numbers"):
        full = ns.cost(model, x)
    assert full.flops == full.flops_dense
    model.set_nodes({"a": [1, 0, 1, 0, 1, 0]})
    with pytest.warns(UserWarning, match="depends on its numbers"):
        half = ns.cost(model, x)
    into = net.a.in_features + 1
    assert half.flops == full.flops - 3 * into
    with pytest.warns(UserWarning, match="depends on its numbers"):
        ns.fit(model, (x, torch.rand(8)), likelihood=ns.Gaussian(1.0), epochs=1, seed=0)
