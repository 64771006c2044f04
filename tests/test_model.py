"""The model: what becomes Bayesian, what is refused, and how a draw behaves."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import nodeslab as ns


class Own(nn.Module):
    """A forward of the user's own: nested, functional calls, a layer used twice, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.ModuleDict({"first": nn.Linear(6, 6), "norm": nn.LayerNorm(6)})
        self.shared = nn.Linear(6, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.inside["norm"](self.inside["first"](x)))
        h = torch.tanh(self.shared(h)) + torch.tanh(self.shared(h + 1))
        return nn.functional.linear(h, self.head.weight, self.head.bias)


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear chain": (lambda: nn.Sequential(nn.Linear(6, 5), nn.SiLU(), nn.Linear(5, 2)), (4, 6)),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)), (4, 2, 6)),
    "conv2d": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.1),
            nn.Flatten(),
            nn.Linear(36, 2),
        ),
        (4, 1, 6, 6),
    ),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 2)), (4, 1, 3, 3, 3)),
    "depthwise": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 3, groups=4), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 2)
        ),
        (4, 2, 4, 4),
    ),
    "transposed": (
        lambda: nn.Sequential(
            nn.ConvTranspose1d(2, 4, 3),
            nn.ReLU(),
            nn.ConvTranspose1d(4, 6, 2, groups=2),
            nn.Flatten(),
            nn.Linear(42, 2),
        ),
        (4, 2, 4),
    ),
    "own forward": (Own, (4, 6)),
}
PRIORS = {"ssig": ns.ssig(), "vbnn": ns.vbnn(), "svbnn": ns.svbnn(), "hsbnn": ns.hsbnn()}


@pytest.mark.parametrize("kind", PRIORS)
@pytest.mark.parametrize("name", NETS)
def test_every_network_under_every_prior(name: str, kind: str) -> None:
    """Draws differ, gradients reach every parameter, the printed plan names every layer, the original is untouched."""
    make, shape = NETS[name]
    net, x = make(), torch.randn(NETS[name][1])
    before = copy.deepcopy(net.state_dict())
    model = ns.bayesian(net, PRIORS[kind], n=100)
    model.eval()
    assert not torch.equal(model(x), model(x))
    model.train()
    with model.drawn() as drawn:
        loss = drawn(x).square().sum() + model.kl()
        loss.backward()
    for p_name, p in model.named_parameters():
        assert p.grad is not None, p_name
        assert torch.isfinite(p.grad).all(), p_name
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    for path, layer in net.named_modules():
        if isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d)):
            assert f"{path} " in repr(model)
    assert shape[0] == len(model(x))


def test_the_plan_reads_as_in_the_readme() -> None:
    net = nn.Sequential(nn.Linear(8, 50), nn.Sigmoid(), nn.Linear(50, 1))
    model = ns.bayesian(net, ns.Normal(1.0) * ns.Node(), n=927)
    assert repr(model).splitlines() == [
        "Bayesian network, n = 927, 50 of 50 nodes open",
        "  layer  module  prior                nodes  weights into each  lambda",
        "  0      Linear  Normal(1) * Node     50     9                  0.00118",
        "  2      Linear  Normal(1)  (output)  1      51                 1",
    ]


def test_factors_commute_and_the_presets_are_what_they_say() -> None:
    def roles(prior: ns.Prior) -> set[object]:
        return set(prior.factors)

    assert roles(ns.Normal(1.0) * ns.Node()) == roles(ns.Node() * ns.Normal(1.0)) == roles(ns.ssig())
    assert roles(ns.svbnn()) == {ns.Normal(1.0), ns.Edge()}
    assert roles(ns.vbnn()) == {ns.Normal(1.0)}
    assert roles(ns.hsbnn()) == {ns.Normal(1.0), ns.Horseshoe()}


# ---- gates ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETS)
def test_one_gate_covers_a_nodes_weights_and_bias(name: str) -> None:
    """With all else fixed, closing a node by its gate zeroes the channel before the activation, and nothing else."""
    make, shape = NETS[name]
    model = ns.bayesian(make(), ns.ssig(), n=100).eval()
    x = torch.randn(shape)
    record = model.nodes()[0]
    mask = torch.ones(record.total, dtype=torch.bool)
    mask[1] = False
    model.set_nodes({record.path: mask})
    seen: list[Tensor] = []
    with model.drawn() as net:
        layer = net.get_submodule(record.path)
        handle = layer.register_forward_hook(lambda m, i, o: seen.append(o))
        net(x)
        handle.remove()
    axis = -1 if isinstance(layer, nn.Linear) else 1
    outputs = seen[0].movedim(axis, 0).flatten(1)
    assert torch.equal(outputs.abs().amax(1) == 0, ~mask)


def test_output_layer_has_no_gate() -> None:
    model = ns.bayesian(Own(), ns.ssig(), n=100)
    assert [r.path for r in model.nodes()] == ["inside.first", "shared"]
    skip = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.Flatten())
    assert [r.path for r in ns.bayesian(skip, ns.ssig(), n=10).nodes()] == ["0"]


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean, self.body, self.spread = nn.Linear(4, 1), nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.body(x))
        return torch.cat([self.mean(h), self.spread(h)], 1)


class Branching(TwoHeads):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.body(x))
        return self.spread(h) if h.sum() > 0 else self.mean(h)


def test_output_layers_are_found_from_the_graph() -> None:
    """Both heads feed the output, although one is declared first."""
    model = ns.bayesian(TwoHeads(), ns.ssig(), n=10)
    assert [r.path for r in model.nodes()] == ["body"]
    # a forward that cannot be traced is taken to end in its last layer, with a warning, unless one says otherwise
    with pytest.warns(UserWarning, match="its last layer 'spread' is taken to feed"):
        untraced = ns.bayesian(Branching(), ns.ssig(), n=10)
    told = ns.bayesian(Branching(), ns.ssig(), n=10, outputs=["mean", "spread"])
    assert [r.path for r in told.nodes()] == ["body"]
    with pytest.raises(ValueError, match="no layer 'tail'"):
        ns.bayesian(Branching(), ns.ssig(), n=10, outputs=["tail"])
    assert [r.path for r in untraced.nodes()] == ["mean", "body"]


def test_set_nodes_and_mean() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 1))
    model = ns.bayesian(net, ns.ssig(), n=10)
    mask = [True, False, True, False]
    model.set_nodes({"0": mask})
    record = model.nodes()[0]
    assert record.open == 2
    assert record.total == 4
    assert record.inclusion.tolist() == [1.0, 0.0, 1.0, 0.0]
    plain = model.mean()
    assert type(plain) is nn.Sequential
    assert torch.equal(plain[0].weight[0], net[0].weight[0])
    assert plain[0].weight[1].abs().sum() == 0
    assert plain[0].bias[3] == 0
    assert torch.equal(plain[2].weight, net[2].weight)
    x = torch.randn(5, 3)
    h = torch.sigmoid(net[0](x) * torch.tensor([1.0, 0, 1, 0]))  # a closed node gives psi(0)
    assert torch.allclose(plain(x), net[2](h))
    assert torch.isfinite(model.kl())
    with model.drawn() as drawn:
        (drawn(x).sum() + model.kl()).backward()
        assert torch.equal(drawn[0].weight.abs().sum(1) > 0, torch.tensor(mask))
    gate = next(model._posteriors()).switches()["node"]
    assert not gate.logit.requires_grad  # fixed, for weight decay too


def test_fixed_nodes_stay_through_training() -> None:
    model = ns.bayesian(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), ns.ssig(), n=30)
    X = torch.randn(30, 3)
    ns.fit(model, (X, X[:, 0]), likelihood=ns.Gaussian(1.0), epochs=3, seed=0)
    model.set_nodes({"0": [0, 1, 1, 0]})
    ns.fit(model, (X, X[:, 0]), likelihood=ns.Gaussian(1.0), epochs=5, lr=0.1, seed=0)
    assert model.nodes()[0].inclusion.tolist() == [0, 1, 1, 0]


def test_edges_close_nodes() -> None:
    """SV-BNN: a node is open when at least one incoming edge, bias included, is."""
    model = ns.bayesian(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)), ns.svbnn(), n=10)
    gates = next(model._posteriors()).switches()
    with torch.no_grad():
        gates["weight"].logit.fill_(-3)
        gates["bias"].logit.fill_(-3)
        gates["weight"].logit[1, 2] = 3
    record = model.nodes()[0]
    assert record.mask.tolist() == [False, True]
    plain = model.mean()
    assert (plain[0].weight != 0).sum() == 1


def test_horseshoe_threshold() -> None:
    """A node is closed when q(tau upsilon < threshold) > certainty, found here by sampling."""
    prior = ns.Normal(1.0) * ns.Horseshoe(threshold=0.05, certainty=0.8)
    model = ns.bayesian(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)), prior, n=10)
    scale = next(model._posteriors()).scale
    assert scale is not None
    assert scale.node is not None
    with torch.no_grad():
        scale.node.mean.copy_(torch.tensor([-9.0, -6.2, 0.0]))
        scale.node.rho.fill_(0.0)
    draws = torch.stack([scale.node.draw() + scale.layer.draw() for _ in range(20_000)])
    share = (torch.exp(draws / 2) < 0.05).float().mean(0)
    record = model.nodes()[0]
    assert ((1 - record.inclusion) - share).abs().max() < 0.02
    assert record.mask.tolist() == (share <= 0.8).tolist()


# ---- draws ---------------------------------------------------------------------------------------------------------


def test_a_draw_is_held() -> None:
    """Inside the block every call is the same function; outside each is a fresh draw; then the means are back."""
    model = ns.bayesian(Own(), ns.ssig(), n=10)
    x = torch.randn(4, 6)
    means = {k: v.clone() for k, v in model.state_dict().items()}
    with model.drawn() as net:
        assert torch.equal(net(x), model(x))
        kl = model.kl()
        assert not isinstance(net.head.weight, nn.Parameter)
    assert kl.item() == pytest.approx(model.kl().item(), rel=1e-6)
    assert not torch.equal(model(x), model(x))
    assert all(torch.equal(v, means[k]) for k, v in model.state_dict().items())
    with pytest.raises(RuntimeError, match="does not nest"), model.drawn(), model.drawn():
        pass
    with pytest.raises(ZeroDivisionError), model.drawn():
        raise ZeroDivisionError
    assert isinstance(model.net.head.weight, nn.Parameter)


def test_nothing_is_copied_saved_or_converted_while_a_draw_is_held() -> None:
    model = ns.bayesian(Own(), ns.ssig(), n=10)
    state = model.state_dict()
    for act in (
        lambda: copy.deepcopy(model),
        lambda: pickle.dumps(model),
        model.state_dict,
        lambda: model.load_state_dict(state),
        model.double,
    ):
        with pytest.raises(RuntimeError, match="A draw is held"), torch.no_grad(), model.drawn():
            act()


def test_setting_nodes_is_all_or_nothing() -> None:
    model = ns.bayesian(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), ns.ssig(), n=10)
    with pytest.raises(ValueError, match="'2' has no gates"):
        model.set_nodes({"0": [False] * 4, "2": [True]})
    assert model.nodes()[0].open == 4


class Keeps(nn.Module):
    """A forward that stores what it computed."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.seen = nn.Linear(3, 4), nn.Linear(4, 1), torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        self.h = torch.tanh(self.a(x))
        self.seen = 0.9 * self.seen + self.h.mean()
        return self.b(self.h)


def test_a_forward_that_stores_tensors() -> None:
    model = ns.bayesian(Keeps(), ns.ssig(), n=10)
    assert isinstance(model.net.seen, Tensor)  # and not what tracing put there
    pickle.dumps(model)
    model(torch.randn(5, 3)).sum().backward()
    assert model.mean()(torch.randn(5, 3)).shape == (5, 1)
    ns.fit(model, (torch.randn(10, 3), torch.randn(10)), likelihood=ns.Gaussian(1.0), epochs=1, progress=False)


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 5), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(nn.functional.linear(x, self.a.weight, self.a.bias))
        return nn.functional.linear(h, self.b.weight, bias=self.b.bias)


def test_layers_used_by_function_calls() -> None:
    """Draws, costs, and the refusal to run with the means, without the layers' own forward."""
    model = ns.bayesian(Functional(), ns.ssig(), n=10)
    assert [r.path for r in model.nodes()] == ["a"]
    model.set_nodes({"a": [1, 0, 0, 0, 0]})
    x = torch.randn(10, 3)
    assert ns.cost(model, x).flops == 4 + 2
    with pytest.raises(RuntimeError, match="outside a draw"):
        model.net(x)
    history = ns.fit(model, (x, x[:, 0]), likelihood=ns.Gaussian(1.0), epochs=1, progress=False)
    assert history[0].flops == 6


def test_a_transformer_block_is_looked_into() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Linear(4, 1))
    with pytest.warns(UserWarning, match="cannot be traced"):
        model = ns.bayesian(net, {"0": ns.ssig(), "1.linear*": ns.ssig(), "2": ns.vbnn()}, n=10)
    assert [r.path for r in model.nodes()] == ["0", "1.linear1", "1.linear2"]


def test_never_silently_deterministic() -> None:
    model = ns.bayesian(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), ns.ssig(), n=10)
    with pytest.raises(RuntimeError, match="Layer '0' ran outside a draw"):
        model.net(torch.randn(2, 3))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(checkpoint(lambda v: torch.tanh(self.a(v)), x, use_reentrant=False))


def test_activation_checkpointing() -> None:
    """Layers that run again during backward see the held draw, and outside of it they refuse."""
    model = ns.bayesian(Checkpointed(), ns.ssig(), n=10)
    x = torch.randn(5, 3)
    with model.drawn() as net:
        loss = net(x).square().sum()
        (wanted,) = torch.autograd.grad(
            (net.b(torch.tanh(net.a(x)))).square().sum(), model._held.means[0]["weight"], retain_graph=True
        )
        loss.backward()
    got = model.net.a.weight.grad
    assert got is not None
    assert torch.allclose(got, wanted)
    loss = model(x).sum()
    with pytest.raises(RuntimeError, match="activation checkpointing"):
        loss.backward()


def test_gradient_accumulation_adds_up() -> None:
    """Two halves of a batch under one seed give the whole batch's gradient."""
    model = ns.bayesian(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), ns.vbnn(), n=8).double()
    X, y = torch.randn(8, 3).double(), torch.randn(8, 1).double()
    likelihood = ns.Gaussian(1.0)

    def gradient(parts: list[slice]) -> list[Tensor]:
        model.zero_grad()
        for part in parts:
            torch.manual_seed(4)
            with model.drawn() as net:
                loss = likelihood.nll(net(X[part]), y[part], None) + model.kl() * len(y[part]) / 8
                loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    whole, halves = gradient([slice(0, 8)]), gradient([slice(0, 4), slice(4, 8)])
    assert all(torch.allclose(a, b) for a, b in zip(whole, halves, strict=True))


# ---- torch's machinery ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PRIORS)
def test_copies_are_equal(kind: str) -> None:
    """deepcopy, pickle and state_dict give a model that draws the same."""
    model = ns.bayesian(Own(), PRIORS[kind], n=10)
    x = torch.randn(4, 6)
    model(x).sum().backward()
    blank = ns.bayesian(Own(), PRIORS[kind], n=10)
    blank.load_state_dict(model.state_dict())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), blank):
        torch.manual_seed(1)
        expected = model(x)
        torch.manual_seed(1)
        assert torch.equal(other(x), expected)
        assert other.net is not model.net
        with torch.no_grad():
            for p in other.parameters():
                p.zero_()
    assert model.net.head.weight.abs().sum() > 0


def test_a_plain_checkpoint_loads() -> None:
    net = Own()
    model = ns.bayesian(Own(), ns.ssig(), n=10)
    model.net.load_state_dict(net.state_dict())
    assert torch.equal(model.mean().head.weight, net.head.weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_to_dtype(dtype: torch.dtype) -> None:
    model = ns.bayesian(Own(), ns.ssig(prior=1e-50), n=10).to(dtype)
    x = torch.randn(4, 6, dtype=dtype)
    assert model(x).dtype == dtype
    assert torch.isfinite(model.kl())


@pytest.mark.parametrize("kind", PRIORS)
def test_compile_has_no_breaks_and_the_same_draw(kind: str) -> None:
    torch._dynamo.reset()
    model = ns.bayesian(Own(), PRIORS[kind], n=10)
    x = torch.randn(4, 6)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.manual_seed(2)
    expected = model(x)
    torch.manual_seed(2)
    got = compiled(x)
    assert torch.allclose(got, expected)
    got.sum().backward()
    assert model.net.head.weight.grad is not None


def test_vmap_over_models() -> None:
    """Several models' parameters, stacked, run as one: the road to replicas."""
    models = [
        ns.bayesian(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), ns.ssig(), n=10) for _ in range(3)
    ]
    params, buffers = torch.func.stack_module_state(models)
    template = copy.deepcopy(models[0])
    x = torch.randn(3, 5, 3)

    def call(p: dict[str, Tensor], b: dict[str, Tensor], v: Tensor) -> Tensor:
        return torch.func.functional_call(template, (p, b), (v,))

    out = torch.vmap(call, randomness="different")(params, buffers, x)
    assert out.shape == (3, 5, 1)


# ---- options -------------------------------------------------------------------------------------------------------


def test_patterns_choose_layers() -> None:
    spec = {"inside.*": ns.ssig(prior=0.25), "shared": None, "*": ns.vbnn()}
    model = ns.bayesian(Own(), spec, n=10)
    assert [r.path for r in model.nodes()] == ["inside.first"]
    assert "shared (Linear)" in repr(model)
    assert next(model._posteriors()).inclusion_prior == 0.25
    assert isinstance(model.net.shared.weight, nn.Parameter)


def test_one_prior_for_each_hidden_layer() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))
    model = ns.bayesian(net, ns.ssig(prior=(0.1, 0.2)), n=10)
    assert [p.inclusion_prior for p in model._posteriors()] == [0.1, 0.2, None]


def test_default_prior_is_the_corollarys() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))
    model = ns.bayesian(net, ns.ssig(), n=77)
    expected = ns.theory.inclusion_priors([3, 4, 5, 1], 77)
    assert [p.inclusion_prior for p in model._posteriors()] == [*expected, None]


@pytest.mark.parametrize(("init", "bound"), [("uniform", 0.6), (0.2, 0.2), ("kaiming", (6 / 50) ** 0.5)])
def test_initial_means(init: str | float, bound: float) -> None:
    net = nn.Sequential(nn.Linear(50, 400), nn.ReLU(), nn.Linear(400, 1))
    model = ns.bayesian(net, ns.ssig(), n=10, init=init)
    weight = model.net[0].weight
    assert bound * 0.98 < weight.abs().max().item() <= bound
    assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)
    assert next(model._posteriors()).spread("weight").max().item() == pytest.approx(0.0024757, rel=1e-3)


def test_default_means_are_the_networks_own() -> None:
    net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 1))
    model = ns.bayesian(net, ns.ssig(), n=10)
    assert torch.equal(model.net[0].weight, net[0].weight)
    x = torch.randn(7, 5)
    assert torch.allclose(model.mean()(x), net(x))


def test_a_single_layer() -> None:
    model = ns.bayesian(nn.Linear(3, 2), ns.vbnn(), n=10)
    x = torch.randn(4, 3)
    assert model(x).shape == (4, 2)
    assert model.nodes() == []
    assert torch.allclose(model.mean()(x), model.net.forward.__self__.weight.matmul(x.T).T + model.net.bias)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x)[0])


def test_attention_is_left_plain_only_when_told() -> None:
    with pytest.raises(ValueError, match=r"'attention' \(MultiheadAttention\)"):
        ns.bayesian(Attention(), ns.vbnn(), n=10)
    model = ns.bayesian(Attention(), {"head": ns.vbnn()}, n=10)
    assert "attention (MultiheadAttention)" in repr(model)
    assert model(torch.randn(2, 3, 4)).shape == (2, 3, 1)


def test_gates_that_are_restored_train_again() -> None:
    model = ns.bayesian(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), ns.ssig(), n=10)
    state = copy.deepcopy(model.state_dict())
    model.set_nodes({"0": [1, 0, 1, 0]})
    logit = model.posteriors[0].gates["node"].logit
    assert not logit.requires_grad
    model.load_state_dict(state)
    assert logit.requires_grad
    logit.requires_grad_(False)  # the caller's own choice stays
    model.load_state_dict(state)
    assert not logit.requires_grad


def test_the_prior_stays_exact_through_conversions() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    converted = ns.bayesian(net, ns.Normal(1.0) * ns.Node(prior=0.01), n=10).half().float().double()
    gate = converted.posteriors[0].gates["node"]
    exact = torch.distributions.kl_divergence(
        torch.distributions.Bernoulli(gate.inclusion()),
        torch.distributions.Bernoulli(torch.tensor(0.01, dtype=torch.float64)),
    )
    assert (gate.kl() - exact).abs().max() <= 1e-10


class WithParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.o = nn.Parameter(torch.ones(3, 4)), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(x @ self.w)


@pytest.mark.parametrize("spec", [ns.ssig(), {"*": ns.ssig()}])
def test_parameters_of_ones_own_are_refused_by_name(spec: object) -> None:
    with pytest.raises(ValueError, match=r"'' \(WithParameter\) has parameters of its own \(w\)"):
        ns.bayesian(WithParameter(), spec, n=10)


def test_the_edge_prior_counts_every_weight() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.t, self.a, self.b = nn.Linear(8, 100), nn.Linear(100, 50), nn.Linear(100, 50)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(self.t(x))
            return torch.cat([self.a(h), self.b(h)], 1)

    model = ns.bayesian(Heads(), ns.svbnn(), n=1000)
    total = 9 * 100 + 2 * 101 * 50
    assert model.posteriors[0].inclusion_prior == pytest.approx(
        ns.theory.edge_prior([8, 100, 50], 1000, weights=total), rel=1e-12
    )


def test_nodes_are_not_set_within_a_draw() -> None:
    model = ns.bayesian(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), ns.ssig(), n=10)
    with model.drawn(), pytest.raises(RuntimeError, match="set nodes after"):
        model.set_nodes({"0": [1, 0, 1, 0]})
