"""Shrinking is exact: the small network answers as the dense one with its closed nodes gated to zero."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import nodeslab as ns
from nodeslab.shrinking import _cut_weight, carry_optimizer, cut_bayesian


class Forward(nn.Module):
    """Layers by name, and a forward given as a function of the module and its inputs."""

    def __init__(self, run: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


class Forward2(Forward):
    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.run(self, x, z)


def _mlp(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 9), activation, nn.Linear(9, 8), copy.deepcopy(activation), nn.Linear(8, 3))


def _cnn(*between: nn.Module, padding: int = 0) -> nn.Module:
    flat = 7 * (3 if padding == 0 else 5) ** 2
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=padding),
        *between,
        nn.MaxPool2d(2),
        nn.Conv2d(6, 7, 3, padding=padding),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(flat, 3),
    )


def _residual(m: Forward, x: Tensor) -> Tensor:
    h = torch.sigmoid(m.stem(x))
    for block in (m.a, m.b):
        h = F.silu(h + block(h))
    return m.head(h.mean((2, 3)))


def _block() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6)
    )


def _dense(m: Forward, x: Tensor) -> Tensor:
    a = torch.sigmoid(m.a(x))
    b = torch.relu(m.b(a))
    c = torch.relu(m.c(torch.cat([a, b], 1)))
    return m.head(torch.flatten(F.adaptive_avg_pool2d(torch.cat([a, b, c], 1), 1), 1))


def _unet(m: Forward, x: Tensor) -> Tensor:
    down = F.silu(m.down(x))
    low = F.silu(m.low(F.max_pool2d(down, 2)))
    up = F.silu(m.up(low))
    return m.head(torch.cat([down, up], 1))


def _mobile(m: Forward, x: Tensor) -> Tensor:
    h = F.relu6(m.norm1(m.expand(x)))
    h = F.relu6(m.norm2(m.depthwise(h)))
    return m.head(m.project(h).mean((2, 3)))


def _squeeze(m: Forward, x: Tensor) -> Tensor:
    h = torch.relu(m.conv(x))
    s = torch.sigmoid(m.up(torch.relu(m.down(h.mean((2, 3), keepdim=True)))))
    return m.head((h * s).flatten(1))


IMAGE, ROWS = (3, 2, 10, 10), (4, 5)
ARCHITECTURES: dict[str, tuple[Callable[[], nn.Module], list[tuple[int, ...]]]] = {
    **{
        f"mlp {type(a).__name__}": ((lambda a=a: _mlp(a)), [ROWS])
        for a in (nn.ReLU(), nn.Sigmoid(), nn.Tanh(), nn.SiLU(), nn.GELU(), nn.ELU(), nn.Softplus(), nn.Hardsigmoid())
    },
    "mlp PReLU by channel": (lambda: nn.Sequential(nn.Linear(5, 9), nn.PReLU(9), nn.Linear(9, 3)), [ROWS]),
    "mlp without biases": (
        lambda: nn.Sequential(nn.Linear(5, 9, bias=False), nn.Sigmoid(), nn.Linear(9, 3, bias=False)),
        [ROWS],
    ),
    "batch norm 1d": (lambda: nn.Sequential(nn.Linear(5, 9), nn.BatchNorm1d(9), nn.Sigmoid(), nn.Linear(9, 3)), [ROWS]),
    "layer norm": (lambda: nn.Sequential(nn.Linear(5, 9), nn.LayerNorm(9), nn.ReLU(), nn.Linear(9, 3)), [ROWS]),
    "tokens": (lambda: nn.Sequential(nn.Linear(5, 9), nn.Sigmoid(), nn.Linear(9, 3)), [(4, 6, 5)]),
    "conv1d": (
        lambda: nn.Sequential(nn.Conv1d(2, 6, 3), nn.Sigmoid(), nn.Conv1d(6, 4, 2), nn.Flatten(), nn.Linear(28, 3)),
        [(3, 2, 10)],
    ),
    "conv2d": (lambda: _cnn(nn.Sigmoid()), [(3, 2, 12, 12)]),
    "conv2d, batch norm": (lambda: _cnn(nn.BatchNorm2d(6), nn.ReLU()), [(3, 2, 12, 12)]),
    "conv2d, group norm": (lambda: _cnn(nn.GroupNorm(3, 6), nn.ReLU()), [(3, 2, 12, 12)]),
    "conv2d, instance norm": (lambda: _cnn(nn.InstanceNorm2d(6, affine=True), nn.Tanh()), [(3, 2, 12, 12)]),
    "zero padding, psi(0) = 0": (lambda: _cnn(nn.SiLU(), padding=1), [IMAGE]),
    "zero padding, psi(0) = 1/2": (lambda: _cnn(nn.Sigmoid(), padding=1), [IMAGE]),
    "reflected padding": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 6, 3),
            nn.Sigmoid(),
            nn.Conv2d(6, 4, 3, padding=1, padding_mode="reflect"),
            nn.Flatten(),
            nn.Linear(256, 3),
        ),
        [IMAGE],
    ),
    "conv3d": (
        lambda: nn.Sequential(nn.Conv3d(1, 5, 2), nn.Sigmoid(), nn.AvgPool3d(2), nn.Flatten(), nn.Linear(40, 3)),
        [(2, 1, 5, 5, 5)],
    ),
    "adaptive pooling": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 6, 3), nn.Sigmoid(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 3)
        ),
        [IMAGE],
    ),
    "strided and dilated": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 6, 3, stride=2), nn.Softplus(), nn.Conv2d(6, 5, 2, dilation=2), nn.Flatten(), nn.Linear(20, 3)
        ),
        [IMAGE],
    ),
    "grouped": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 8, 3), nn.Sigmoid(), nn.Conv2d(8, 12, 3, groups=4), nn.ReLU(), nn.Flatten(), nn.Linear(432, 3)
        ),
        [IMAGE],
    ),
    "depthwise": (
        lambda: Forward(
            _mobile,
            expand=nn.Conv2d(2, 8, 1),
            norm1=nn.BatchNorm2d(8),
            depthwise=nn.Conv2d(8, 8, 3, groups=8),
            norm2=nn.BatchNorm2d(8),
            project=nn.Conv2d(8, 4, 1),
            head=nn.Linear(4, 3),
        ),
        [IMAGE],
    ),
    "transposed": (
        lambda: nn.Sequential(
            nn.ConvTranspose2d(2, 6, 3, stride=2), nn.SiLU(), nn.ConvTranspose2d(6, 4, 2), nn.Tanh(), nn.Conv2d(4, 2, 1)
        ),
        [(3, 2, 4, 4)],
    ),
    "transposed, psi(0) = 1/2, groups": (
        lambda: nn.Sequential(
            nn.ConvTranspose1d(4, 6, 3, groups=2),
            nn.Sigmoid(),
            nn.ConvTranspose1d(6, 4, 2),
            nn.Flatten(),
            nn.Linear(28, 2),
        ),
        [(3, 4, 4)],
    ),
    "residual": (
        lambda: Forward(_residual, stem=nn.Conv2d(2, 6, 3), a=_block(), b=_block(), head=nn.Linear(6, 3)),
        [IMAGE],
    ),
    "densely connected": (
        lambda: Forward(
            _dense, a=nn.Conv2d(2, 5, 3), b=nn.Conv2d(5, 4, 3, padding=1), c=nn.Conv2d(9, 6, 1), head=nn.Linear(15, 3)
        ),
        [IMAGE],
    ),
    "u-net": (
        lambda: Forward(
            _unet,
            down=nn.Conv2d(2, 6, 3, padding=1),
            low=nn.Conv2d(6, 8, 3, padding=1),
            up=nn.ConvTranspose2d(8, 6, 2, stride=2),
            head=nn.Conv2d(12, 2, 1),
        ),
        [IMAGE],
    ),
    "squeeze and excite": (
        lambda: Forward(
            _squeeze, conv=nn.Conv2d(2, 6, 3), down=nn.Conv2d(6, 3, 1), up=nn.Conv2d(3, 6, 1), head=nn.Linear(384, 3)
        ),
        [IMAGE],
    ),
    "shared layer": (
        lambda: Forward(
            lambda m, x: m.head(torch.sigmoid(m.a(torch.sigmoid(m.a(torch.sigmoid(m.first(x))))))),
            first=nn.Linear(5, 7),
            a=nn.Linear(7, 7),
            head=nn.Linear(7, 2),
        ),
        [ROWS],
    ),
    "two inputs": (
        lambda: Forward2(
            lambda m, x, z: m.head(torch.cat([torch.sigmoid(m.a(x)), torch.relu(m.b(z))], 1)),
            a=nn.Linear(5, 6),
            b=nn.Linear(3, 6),
            head=nn.Linear(12, 2),
        ),
        [ROWS, (4, 3)],
    ),
    "functional calls": (
        lambda: Forward(
            lambda m, x: m.head(F.gelu(F.avg_pool2d(2 * m.a(x) + 1, 2)).view(x.size(0), -1)),
            a=nn.Conv2d(2, 6, 3),
            head=nn.Linear(96, 2),
        ),
        [IMAGE],
    ),
    "reshape to a number": (
        lambda: Forward(
            lambda m, x: m.head(torch.relu(m.a(x)).reshape(-1, 384)), a=nn.Conv2d(2, 6, 3), head=nn.Linear(384, 2)
        ),
        [IMAGE],
    ),
    "channels moved to the end": (
        lambda: Forward(
            lambda m, x: m.head(torch.sigmoid(m.a(x)).permute(0, 2, 3, 1)).mean((1, 2)),
            a=nn.Conv2d(2, 6, 3),
            head=nn.Linear(6, 2),
        ),
        [IMAGE],
    ),
    "split channels": (
        lambda: Forward(
            lambda m, x: m.head(torch.sigmoid(m.a(x)).chunk(2, 1)[0]), a=nn.Linear(5, 8), head=nn.Linear(4, 2)
        ),
        [ROWS],
    ),
}


def _lively(net: nn.Module) -> nn.Module:
    """Running averages and affine parameters that are not trivial."""
    for m in net.modules():
        if isinstance(m, nn.modules.batchnorm._NormBase):
            if m.running_mean is not None:
                m.running_mean.normal_()
                m.running_var.uniform_(0.5, 2.0)
            nn.init.normal_(m.weight)
            nn.init.normal_(m.bias)
    return net


def _case(name: str, seed: int, share: float = 0.5) -> tuple[ns.Bayesian, tuple[Tensor, ...]]:
    make, shapes = ARCHITECTURES[name]
    torch.manual_seed(seed)
    model = ns.bayesian(_lively(make()), ns.ssig(), n=10).double().eval()
    model.set_nodes({r.path: torch.rand(r.total) < share for r in model.nodes()})
    return model, tuple(torch.randn(s, dtype=torch.float64) for s in shapes)


def _quiet(call: Callable[[], nn.Module]) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a layer with no open node
        return call()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_exact(name: str, seed: int) -> None:
    model, x = _case(name, seed, share=(0.5, 0.2, 0.8, 0.0)[seed])
    dense = model.mean().eval()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    small = _quiet(lambda: ns.shrink(model, x)).eval()
    assert (small(*x) - dense(*x)).abs().max() <= 1e-12
    assert sum(p.numel() for p in small.parameters()) <= sum(p.numel() for p in dense.parameters()) + 200
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())


@settings(max_examples=150, deadline=None, derandomize=True)
@given(name=st.sampled_from(sorted(ARCHITECTURES)), seed=st.integers(0, 2**31), data=st.data())
def test_exact_for_any_pattern(name: str, seed: int, data: st.DataObject) -> None:
    model, x = _case(name, seed)
    masks = {
        r.path: data.draw(st.lists(st.booleans(), min_size=r.total, max_size=r.total), r.path) for r in model.nodes()
    }
    model.set_nodes(masks)
    small = _quiet(lambda: ns.shrink(model, x)).eval()
    assert (small(*x) - model.mean().eval()(*x)).abs().max() <= 1e-12


def test_there_are_enough_architectures() -> None:
    assert len(ARCHITECTURES) >= 25


@pytest.mark.parametrize(
    "name",
    [
        n
        for n in ARCHITECTURES
        if n not in ("layer norm", "conv2d, group norm", "split channels", "reshape to a number")
    ],
)
def test_something_goes(name: str) -> None:
    model, x = _case(name, 1, share=0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a layer with no open node
        plan = ns.shrink_plan(model, x)
    assert any(p.outputs[1] < p.outputs[0] for p in plan.layers)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_shrink_of_a_shrink_changes_nothing(name: str) -> None:
    model, x = _case(name, 2)
    small = _quiet(lambda: ns.shrink(model, x))
    again = _quiet(lambda: ns.shrink(small, x))
    assert [p.shape for p in again.parameters()] == [p.shape for p in small.parameters()]
    assert torch.allclose(again.eval()(*x), small.eval()(*x), rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_slim_predicts_the_same(name: str) -> None:
    """Mean and standard deviation of the smaller Bayesian model, over draws; where nothing is folded, with the same
    noise for what is left, every draw is the same to the last digits."""
    model, x = _case(name, 0, share=0.6)
    plan = ns.shrink_plan(model, x, bayesian=True)
    slim = cut_bayesian(model, plan).eval()
    with torch.no_grad():
        if sum(p.folded for p in plan.layers) == 0:
            for seed in range(3):
                torch.manual_seed(seed)
                with model.drawn() as dense, slim.drawn() as small:
                    _copy_draw(dense, small, plan)
                    assert torch.allclose(small(*x), dense(*x), rtol=0, atol=1e-10)
            return
        outs = [torch.stack([m(*x) for _ in range(1500)]) for m in (model, slim)]
    (a, sa), (b, sb) = ((o.mean(0), o.std(0)) for o in outs)
    assert ((a - b).abs() < 6 * (sa + sb) / 1500**0.5 + 1e-9).all()
    assert torch.allclose(sa, sb, rtol=0.15, atol=1e-9)


def _copy_draw(dense: nn.Module, small: nn.Module, plan: ns.ShrinkPlan) -> None:
    """Give the small network the dense draw's weights for all that is kept."""
    for p in plan.layers:
        layer, cut = dense.get_submodule(p.path), small.get_submodule(p.path)
        cut._parameters["weight"] = _cut_weight(layer.weight, layer, plan.keep[p.path], plan.keep_inputs[p.path])
        if layer.bias is not None:
            cut._parameters["bias"] = layer.bias[plan.keep[p.path]]


def test_the_next_adam_step_is_the_dense_models() -> None:
    """With Adam's state carried over, and the same noise for what is left, one more step changes the surviving
    parameters as the dense model's step does."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 9), nn.SiLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 2))
    model = ns.bayesian(net, ns.Normal(1.0) * ns.Node(prior=0.1), n=40).double()
    x, y = torch.randn(40, 5).double(), torch.randn(40, 2).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def loss(m: ns.Bayesian, drawn: nn.Module) -> Tensor:
        return (drawn(x) - y).square().sum() + m.kl()

    for _ in range(5):
        with model.drawn() as drawn:
            loss(model, drawn).backward()
        optimizer.step()
        optimizer.zero_grad()
    masks = {"0": torch.arange(9) % 2 == 0, "2": torch.arange(7) < 4}
    model.set_nodes(masks)
    plan = ns.shrink_plan(model, x, bayesian=True)
    slim = cut_bayesian(model, plan)
    carried = carry_optimizer(optimizer, model, slim, plan)
    # no noise: the spreads stay as they are, the draws are the means
    for m in (model, slim):
        torch.manual_seed(0)
        real = torch.randn_like
        torch.randn_like = lambda t, **k: torch.zeros_like(t)  # type: ignore[assignment]
        try:
            with m.drawn() as drawn:
                loss(m, drawn).backward()
        finally:
            torch.randn_like = real
    optimizer.step()
    carried.step()
    expected = cut_bayesian(model, plan)
    for (name, a), (_, b) in zip(slim.named_parameters(), expected.named_parameters(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12), name


def test_slim_trains_on_and_is_saved(tmp_path: object) -> None:
    model, x = _case("conv2d", 0)
    slim = ns.shrink(model, x, bayesian=True)
    assert isinstance(slim, ns.Bayesian)
    y = torch.randn(3, 3)
    with pytest.warns(UserWarning, match="3 rows"):
        ns.fit(slim, (x[0], y), likelihood=ns.Gaussian(1.0), epochs=2, seed=0)
    for net in (slim, ns.shrink(model, x)):
        loaded = ns.load(ns.save(net, f"{tmp_path}/m"))
        assert repr(loaded) == repr(net)


def test_a_shrunk_network_of_ones_own_class_is_loaded(tmp_path: object) -> None:
    model, x = _case("residual", 0)
    make, _ = ARCHITECTURES["residual"]
    for net in (ns.shrink(model, x), ns.shrink(model, x, bayesian=True)):
        file = ns.save(net, f"{tmp_path}/m")
        fresh = make()
        loaded = ns.load(file, fresh)
        assert fresh.stem.out_channels == 6
        a, b = (m.eval() for m in (net, loaded))
        torch.manual_seed(1)
        expected = a(*x)
        torch.manual_seed(1)
        assert torch.equal(b(*x), expected)


def test_the_plan_says_what_and_why() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Sigmoid(), nn.Conv2d(4, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(108, 2)
    )
    model = ns.bayesian(net, ns.ssig(), n=10)
    model.set_nodes({"0": [1, 0, 1, 0], "2": [1, 0, 1]})
    text = str(ns.shrink_plan(model, torch.zeros(1, 1, 8, 8)))
    assert "1 closed kept: it carries constants past the border of '2'" in text
    assert "1 constant into input 1" in text
    assert "3 -> 2" in text
    assert "108 -> 72" in text


def test_the_callers_choice_of_nodes() -> None:
    model, x = _case("mlp Sigmoid", 0)
    masks = {"0": torch.arange(9) < 3}
    small = ns.shrink(model, x, open_nodes=masks)
    assert small[0].out_features == 3
    with pytest.raises(ValueError, match="no layer '7'"):
        ns.shrink(model, x, open_nodes={"7": [True]})
    with pytest.raises(ValueError, match=r"must have shape \(9,\)"):
        ns.shrink(model, x, open_nodes={"0": [True]})


def test_no_open_node_is_a_warning() -> None:
    model, x = _case("mlp Sigmoid", 0)
    model.set_nodes({"0": [False] * 9})
    with pytest.warns(UserWarning, match="Layer '0' has no open node"):
        small = ns.shrink(model, x)
    assert small[0].out_features == 1


SIZES: dict[str, Callable[[Forward, Tensor], Tensor]] = {
    "sum": lambda m, x: m.h(torch.sigmoid(m.a(x)).sum((2, 3))),
    "padding": lambda m, x: m.h(F.pad(torch.sigmoid(m.a(x)), (1, 1, 1, 1), value=3.0).mean((2, 3))),
    "average at a border": lambda m, x: m.h(F.avg_pool2d(torch.sigmoid(m.a(x)), 3, 2, 1).mean((2, 3))),
    "a size in the formula": lambda m, x: m.h((torch.sigmoid(m.a(x)) * x.shape[2]).mean((2, 3))),
    "rows in the formula": lambda m, x: m.h((torch.sigmoid(m.a(x)) / x.shape[0]).mean((2, 3))),
    "sum over rows": lambda m, x: m.h(torch.sigmoid(m.a(x)).sum(0, keepdim=True).mean((2, 3))),
    "a dead layer at a border": lambda m, x: m.h(torch.sigmoid(m.b(torch.sigmoid(m.a(x)))).mean((2, 3))),
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("dead", [False, True])
def test_other_sizes_than_the_examples(name: str, dead: bool) -> None:
    """What is constant at the example's size only is not folded."""
    torch.manual_seed(0)
    net = Forward(SIZES[name], a=nn.Conv2d(2, 6, 3), h=nn.Linear(6, 2))
    if "dead" in name:
        net.b = nn.Conv2d(6, 6, 3, padding=1)
    model = ns.bayesian(net, ns.ssig(), n=10).double().eval()
    model.set_nodes({r.path: torch.rand(6) < (0.0 if dead else 0.5) for r in model.nodes()})
    example = torch.randn(1, 2, 10, 10, dtype=torch.float64)
    small, dense = _quiet(lambda: ns.shrink(model, example)).eval(), model.mean().eval()
    for shape in ((1, 2, 10, 10), (4, 2, 10, 10), (2, 2, 11, 9), (3, 2, 16, 16)):
        x = torch.randn(shape, dtype=torch.float64)
        assert (small(x) - dense(x)).abs().max() <= 1e-12, shape


def _in_place(m: Forward, x: Tensor) -> Tensor:
    h = m.n(m.a(x))
    k = m.sc(h)
    return m.h((k + m.b(F.relu_(h))).mean((2, 3)))


def test_a_forward_that_works_in_place() -> None:
    torch.manual_seed(0)
    net = Forward(
        _in_place,
        a=nn.Conv2d(2, 6, 3),
        n=nn.BatchNorm2d(6),
        sc=nn.Conv2d(6, 4, 1),
        b=nn.Conv2d(6, 4, 1),
        h=nn.Linear(4, 2),
    )
    model = ns.bayesian(_lively(net), ns.ssig(), n=10).double().eval()
    model.set_nodes({"a": [1, 0, 1, 0, 1, 0], "sc": [1] * 4, "b": [1] * 4})
    x = torch.randn(2, 2, 8, 8, dtype=torch.float64)
    expected = model.mean().eval()(x)
    slim = ns.shrink(model, x, bayesian=True)
    assert isinstance(slim, ns.Bayesian)
    assert (slim.mean().eval()(x) - expected).abs().max() <= 1e-12
    assert (ns.shrink(model, x).eval()(x) - expected).abs().max() <= 1e-12


def test_dropout_that_stays_random_is_no_constant() -> None:
    net = Forward(lambda m, x: m.h(F.dropout(torch.sigmoid(m.a(x)), 0.5)), a=nn.Linear(5, 6), h=nn.Linear(6, 2))
    model = ns.bayesian(net, ns.ssig(), n=10)
    model.set_nodes({"a": [1, 0, 1, 0, 1, 0]})
    assert "3 closed kept: dropout, which stays random" in str(ns.shrink_plan(model, torch.zeros(1, 5), bayesian=True))


def test_nodes_that_the_caller_opens_have_their_weights() -> None:
    model, x = _case("mlp Sigmoid", 0)
    for posterior in model.posteriors:
        for gate in posterior.switches().values():
            gate.logit.data.fill_(-0.5)
    masks = {"0": torch.arange(9) < 3, "2": torch.arange(8) < 4}
    small = ns.shrink(model, x, open_nodes=masks)
    model.set_nodes(masks)
    assert torch.equal(small(*x), ns.shrink(model, x)(*x))
    assert bool((small[0].weight != 0).all())


def test_grouped_convolutions_are_done_in_one_go() -> None:
    for seed in range(8):
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=4), nn.ReLU(), nn.Flatten(), nn.Linear(288, 2)
        )
        model = ns.bayesian(net, ns.ssig(), n=10).double().eval()
        model.set_nodes({r.path: torch.rand(8) < 0.3 for r in model.nodes()})
        x = torch.randn(2, 2, 10, 10, dtype=torch.float64)
        small = _quiet(lambda model=model, x=x: ns.shrink(model, x))
        again = _quiet(lambda small=small, x=x: ns.shrink(small, x))
        assert [p.shape for p in again.parameters()] == [p.shape for p in small.parameters()]
        assert (small(x) - model.mean()(x)).abs().max() <= 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_types(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 64), nn.Sigmoid(), nn.Linear(64, 64), nn.Sigmoid(), nn.Linear(64, 3)).to(dtype)
    model = ns.bayesian(net, ns.ssig(), n=10)
    model.set_nodes({r.path: torch.rand(64) < 0.5 for r in model.nodes()})
    x = torch.randn(4, 5, dtype=dtype)
    small, dense = ns.shrink(model, x), model.mean()
    assert small[0].weight.dtype == dtype
    assert torch.allclose(small(x), dense(x), rtol=0, atol=8 * torch.finfo(dtype).eps)


def test_a_forward_that_names_its_type() -> None:
    net = Forward(lambda m, x: m.h(torch.sigmoid(m.a(x.float() / 255))), a=nn.Linear(5, 6), h=nn.Linear(6, 2))
    model = ns.bayesian(net, ns.ssig(), n=10)
    model.set_nodes({"a": [1, 0, 1, 0, 1, 0]})
    x = torch.randint(0, 255, (3, 5), dtype=torch.uint8)
    assert torch.allclose(ns.shrink(model, x)(x), model.mean()(x), rtol=0, atol=1e-6)


def test_a_statistic_of_the_batch_and_cat_by_axis() -> None:
    net = Forward(
        lambda m, x: m.h(torch.cat([torch.sigmoid(m.n(m.a(x))), torch.tanh(m.b(x))], axis=1)),
        a=nn.Linear(5, 6),
        n=nn.BatchNorm1d(6, track_running_stats=False),
        b=nn.Linear(5, 4),
        h=nn.Linear(10, 2),
    )
    model = ns.bayesian(net, ns.ssig(), n=10).double().eval()
    model.set_nodes({"a": [1, 0, 1, 0, 1, 0], "b": [1, 0, 0, 1]})
    x = torch.randn(7, 5, dtype=torch.float64)
    small = ns.shrink(model, x).eval()
    assert small.h.in_features == 5
    assert (small(x) - model.mean().eval()(x)).abs().max() <= 1e-12


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(
            nn.Conv2d(2, 6, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(6, 6, 3, groups=6),
            nn.InstanceNorm2d(6),
            nn.BatchNorm2d(6, affine=False),
            nn.PReLU(6),
            nn.Conv2d(6, 2, 1, bias=False),
        ),
        lambda: nn.Sequential(nn.Conv2d(2, 6, 1), nn.Sigmoid(), nn.Conv2d(6, 4, 1, bias=False), nn.Conv2d(4, 2, 1)),
    ],
)
@pytest.mark.parametrize("bayesian", [False, True])
def test_sizes_are_taken_from_the_file(make: Callable[[], nn.Module], bayesian: bool, tmp_path: Path) -> None:
    model = ns.bayesian(make(), ns.ssig(), n=10).eval()
    model.set_nodes({r.path: [1, 0, 1, 0, 1, 0] for r in model.nodes() if r.total == 6})
    x = torch.randn(2, 2, 6, 6)
    small = ns.shrink(model, x, bayesian=bayesian).eval()
    assert small.state_dict()[("net." if bayesian else "") + "0.weight"].shape[0] < 6
    file = ns.save(small, tmp_path / "m", x)
    for net in (None, make()):
        loaded = ns.load(file, net).eval()
        torch.manual_seed(0)
        expected = small(x)
        torch.manual_seed(0)
        assert torch.equal(loaded(x), expected)


def test_what_trains_goes_on_to() -> None:
    net = nn.Sequential(nn.Linear(5, 6), nn.Sigmoid(), nn.Linear(6, 2))
    net[2].bias.requires_grad_(False)
    net[0].weight.requires_grad_(False)
    model = ns.bayesian(net, ns.ssig(), n=10)
    model.set_nodes({"0": [1, 0, 1, 0, 1, 0]})
    small = ns.shrink(model, torch.zeros(1, 5))
    assert [p.requires_grad for p in small.parameters()] == [False, True, True, False]


@pytest.mark.parametrize("example", [None, {"x": 1}, [[1.0, "a"]], "x", torch.zeros(()), torch.zeros(0, 5), ()])
def test_examples_that_are_none(example: object) -> None:
    model, _ = _case("mlp ReLU", 0)
    with pytest.raises((ValueError, TypeError), match="example"):
        ns.shrink(model, example)


def test_parametrised_layers_and_stored_activations() -> None:
    def forward(m: Forward, x: Tensor) -> Tensor:
        m.seen = torch.relu(m.a(x))
        return m.h(m.w(m.seen))

    net = Forward(
        forward, a=nn.Linear(5, 6), w=nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)), h=nn.Linear(6, 2)
    )
    model = ns.bayesian(net, {"w*": None, "*": ns.ssig()}, n=10).double()
    x = torch.randn(3, 5).double()
    model(x)
    model.set_nodes({"a": [1, 0, 1, 0, 1, 0]})
    assert (ns.shrink(model, x)(x) - model.mean()(x)).abs().max() <= 1e-12
    assert "parametrised" in str(ns.shrink_plan(model, x))


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)) if x.sum() > 0 else self.a(x))


def test_refusals() -> None:
    model = ns.bayesian(Branches(), ns.ssig(), n=10, outputs=["b"])
    with pytest.raises(ValueError, match="Branches cannot be traced"):
        ns.shrink(model, torch.zeros(2, 5))
    model, _ = _case("mlp ReLU", 0)
    with pytest.raises(ValueError, match=r"cannot take an example of shape \(2, 4\)"):
        ns.shrink(model, torch.zeros(2, 4))
    with pytest.raises(TypeError, match=r"from ns\.bayesian"):
        ns.shrink(model.mean(), torch.zeros(2, 5), bayesian=True)
