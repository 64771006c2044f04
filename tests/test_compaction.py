"""Shrinking while training: what is cut changes nothing but the time, and can be resumed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nodeslab as ns
from nodeslab.compaction import Compaction
from nodeslab.remains import SlabKL

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(2))
Y = torch.sin(2 * X[:, 0]) + 0.1 * X[:, 1]
MASK = torch.arange(12) % 3 == 0
QUIET: dict[str, Any] = {"progress": False, "likelihood": ns.Gaussian(0.5), "batch_size": 20}


def _model(activation: nn.Module | None = None, rho: float = -6.0, nodes: int = 12) -> ns.Bayesian:
    torch.manual_seed(0)
    act = activation or nn.SiLU()
    net = nn.Sequential(nn.Linear(4, nodes), act, nn.Linear(nodes, 8), act, nn.Linear(8, 1))
    return ns.bayesian(net, ns.Normal(1.0, rho=rho) * ns.Node(prior=0.2), n=60)


def _closing(**more: Any) -> dict[str, Any]:
    """Settings under which nodes close one after the other."""
    return {**QUIET, "lr": 5e-3, "gate_rate": 20.0, "likelihood_schedule": ns.Ramp(3.0, 3.0001), "seed": 0, **more}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_fit_is_the_same(dtype: torch.dtype) -> None:
    """Without noise, and with nodes that are closed from the start, a fit that cuts them out takes the same steps."""
    fitted = []
    for compact in (False, ns.Compact(epochs=2)):
        model = _model(rho=-60.0).to(dtype)
        model.set_nodes({"0": MASK, "2": torch.arange(8) < 5})
        # in float64 every number of noise is drawn one by one, and the rows would be dealt out in another order
        more = QUIET if dtype == torch.float32 else {**QUIET, "batch_size": 60}
        history = ns.fit(model, (X, Y), epochs=12, seed=3, lr=1e-2, compact=compact, **more)
        fitted.append((model, history))
    (dense, a), (small, b) = fitted
    assert [p.geometry.nodes for p in small.posteriors] == [4, 5, 1]
    assert [p.geometry.nodes for p in dense.posteriors] == [12, 8, 1]
    near = 1e-4 if dtype == torch.float32 else 1e-9
    x = X.to(dtype)
    assert torch.allclose(dense.mean()(x), small.mean()(x), rtol=0, atol=near)
    for name in ("open", "flops", "flops_ratio"):
        assert a.column(name) == b.column(name)
    assert a.column("nll") == pytest.approx(b.column("nll"), rel=near)
    assert a.column("kl") == pytest.approx(b.column("kl"), rel=near)  # with the weights that came from closed nodes
    assert [r.open for r in small.nodes()] == [4, 5]
    assert torch.equal(small.nodes()[0].mask, MASK)


def test_nodes_that_close_by_themselves() -> None:
    model = _model(nodes=30)
    sizes: list[list[int]] = []

    def callback(m: ns.Bayesian, record: ns.Record) -> None:
        sizes.append([p.geometry.nodes for p in m.posteriors])

    history = ns.fit(model, (X, Y), epochs=60, compact=True, callback=callback, **_closing())
    assert sizes[0] == [30, 8, 1]
    assert sizes[-1][0] <= 15
    assert sizes == sorted(sizes, reverse=True)
    record = model.nodes()[0]
    assert record.total == 30
    assert len(record.inclusion) == 30
    total, kept = model.origin["0"]
    assert total == 30
    assert float(record.inclusion[[i for i in range(30) if i not in kept.tolist()]].abs().max()) == 0.0
    assert record.open == history[-1].open["0"]
    dense = ns.cost(_model(nodes=30), X)
    assert history[-1].flops < dense.flops_dense
    assert history[-1].flops_ratio == pytest.approx(history[-1].flops / dense.flops_dense)
    gone = sum(total - len(kept) for total, kept in model.origin.values())
    assert history[-1].kl > 0
    assert gone > 10


@pytest.mark.parametrize("stops", [(7,), (3, 20, 33)])
def test_it_resumes_to_the_bit(stops: tuple[int, ...], tmp_path: Path) -> None:
    def run(file: Path | None, until: int) -> ns.Bayesian:
        model = _model(nodes=30)
        ns.fit(model, (X, Y), epochs=until, compact=True, checkpoint=file, **_closing(likelihood_schedule=None))
        return model

    whole = run(None, 40)
    assert whole.posteriors[0].geometry.nodes < 30
    for until in (*stops, 40):
        last = run(tmp_path / "c", until)
    assert [p.shape for p in last.parameters()] == [p.shape for p in whole.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(last.parameters(), whole.parameters(), strict=True))
    assert all(torch.equal(a[1], b[1]) for a, b in zip(last.origin.values(), whole.origin.values(), strict=True))


def test_the_records_kl_goes_on() -> None:
    """What a gate at 0 costs stays in the KL, and what is paid for the weights that came from the node."""
    model = _model().double()
    model.set_nodes({"0": MASK, "2": [True] * 8})
    compaction = Compaction(ns.Compact(epochs=1), model, (X,))
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    before = model.kl().item()
    columns = _columns(model, ~MASK)
    assert compaction.step(model, optimizer) is not None
    assert compaction.kl == pytest.approx(-8 * torch.log1p(torch.tensor(-0.2, dtype=torch.float64)).item(), rel=1e-12)
    assert model.kl().item() + compaction.kl == pytest.approx(before - columns, rel=1e-12)
    remains = compaction.remains.kl(model)
    assert isinstance(remains, Tensor)
    assert remains.item() == pytest.approx(columns, rel=1e-12)


@pytest.mark.parametrize("sigmas", [(0.7, 0.7), (0.7, 1.3)])
def test_the_remains_gradients_are_autograds(sigmas: tuple[float, float]) -> None:
    """Two slabs, one with gates and one without."""
    tensors = [torch.randn(rows, 7, dtype=torch.float64, requires_grad=True) for rows in (5, 3, 5, 3)]
    gate = torch.rand(5, dtype=torch.float64, requires_grad=True)
    wanted = torch.zeros((), dtype=torch.float64)
    for mean, rho, g, sigma in zip(tensors[:2], tensors[2:], (gate, torch.ones(3).double()), sigmas, strict=True):
        prior = torch.distributions.Normal(*(torch.full((), v, dtype=torch.float64) for v in (0.0, sigma)))
        q = torch.distributions.Normal(mean, torch.nn.functional.softplus(rho))
        wanted = wanted + (torch.distributions.kl_divergence(q, prior).sum(1) * g).sum()
    found = SlabKL.apply(sigmas, *tensors, gate, None)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-12)
    leaves = [*tensors, gate]
    for a, b in zip(torch.autograd.grad(3 * found, leaves), torch.autograd.grad(3 * wanted, leaves), strict=True):
        assert torch.allclose(a, b, rtol=1e-11, atol=1e-12)


def _columns(model: ns.Bayesian, gone: Tensor) -> float:
    """KL of the weights that come from these nodes of the first layer."""
    layer, posterior = model.net[2], model.posteriors[1]
    q = torch.distributions.Normal(layer.weight, posterior.spread("weight"))
    p = torch.distributions.Normal(torch.zeros_like(layer.weight), 1.0)
    divergence = torch.distributions.kl_divergence(q, p)
    return float((divergence * posterior.gamma()["node"][:, None])[:, gone].sum().detach())


def test_a_compacted_model_is_a_model(tmp_path: Path) -> None:
    model = _model(nn.Sigmoid())
    model.set_nodes({"0": MASK, "2": torch.arange(8) < 5})
    ns.fit(model, (X, Y), epochs=3, compact=ns.Compact(epochs=1), seed=0, **QUIET)
    for other in (ns.load(ns.save(model, tmp_path / "m")), copy.deepcopy(model)):
        assert isinstance(other, ns.Bayesian)
        assert torch.equal(other.nodes()[0].mask, MASK)
        assert torch.equal(ns.predict(other, X, seed=1).mean, ns.predict(model, X, seed=1).mean)
    assert [p.geometry.nodes for p in model.posteriors] == [4, 5, 1]
    model.set_nodes({"0": MASK & (torch.arange(12) > 2)})
    assert model.nodes()[0].open == 3
    with pytest.raises(ValueError, match=r"Node 1 of layer '0' was cut out in training"):
        model.set_nodes({"0": [True] * 12})
    assert ns.shrink(model, X)[0].out_features == 3
    assert ns.shrink(model, X, open_nodes={"0": MASK})[0].out_features == 4
    slim = ns.shrink(model, X, bayesian=True)
    assert isinstance(slim, ns.Bayesian)
    assert slim.nodes()[0].total == 3
    again = ns.fit(model, (X, Y), epochs=2, compact=True, seed=0, **QUIET)
    assert again[-1].open == {"0": 3, "2": 5}


def test_rates_of_their_own() -> None:
    """Adam's first step moves a parameter by its rate."""
    model = _model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    ns.fit(model, (X, Y), epochs=1, lr=1e-3, gate_rate=5.0, spread_rate=2.0, seed=0, **{**QUIET, "batch_size": 60})
    for name, p in model.named_parameters():
        rate = 5e-3 if name.endswith("logit") else 2e-3 if ".rho" in name else 1e-3
        assert float((p.detach() - before[name]).abs().max()) == pytest.approx(rate, rel=1e-2), name


def test_refusals() -> None:
    plain = ns.bayesian(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1)), ns.vbnn(), n=60)
    with pytest.raises(ValueError, match="no layer of this model has a gate for each node"):
        ns.fit(plain, (X, Y), epochs=1, compact=True, **QUIET)
    with pytest.raises(TypeError, match=r"compact must be True, False or ns\.Compact"):
        ns.fit(_model(), (X, Y), epochs=1, compact=1, **QUIET)
    with pytest.raises(ValueError, match="Compact: below must be between 0 and 1"):
        ns.Compact(below=2.0)
    with pytest.raises(ValueError, match="gate_rate and spread_rate are for the default Adam"):
        ns.fit(_model(), (X, Y), epochs=1, gate_rate=2.0, optimizer=torch.optim.SGD, **QUIET)


class Trains(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 12), nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.sigmoid(self.a(x))
        return self.b(2 * h if self.training else h)


class Wide(Trains):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        return self.b(h / h.shape[1])


class Numbered(Trains):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)).view(-1, 12))


@pytest.mark.parametrize("net", [Trains(), Wide(), Numbered()])
@pytest.mark.filterwarnings("ignore:compact. no node is cut out")
def test_a_cut_that_would_change_the_fit_is_not_made(net: nn.Module) -> None:
    records = []
    for compact in (False, ns.Compact(epochs=1)):
        model = ns.bayesian(net, ns.Normal(1.0, rho=-60.0) * ns.Node(), n=60)
        model.set_nodes({"a": MASK})
        records.append(ns.fit(model, (X, Y), epochs=4, seed=0, compact=compact, **QUIET).column("nll"))
        assert model.posteriors[0].geometry.nodes == 12
    assert records[0] == records[1]


def test_what_a_batch_norm_normalises_stays() -> None:
    """In training a closed node gives the norm's shift, with its running averages another number."""
    records = []
    for compact in (False, ns.Compact(epochs=1)):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(4, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 1)
        )
        nn.init.normal_(net[1].bias)
        model = ns.bayesian(net, ns.Normal(1.0, rho=-60.0) * ns.Node(), n=60)
        model.set_nodes({"0": MASK, "3": torch.arange(9) < 4})
        records.append(ns.fit(model, (X, Y), epochs=4, seed=0, compact=compact, **QUIET).column("nll"))
    assert [p.geometry.nodes for p in model.posteriors] == [12, 4, 1]
    assert records[0] == pytest.approx(records[1], rel=1e-4)


def test_the_same_object_again_is_told_to_be_built_anew(tmp_path: Path) -> None:
    model = _model()
    model.set_nodes({"0": MASK, "2": [True] * 8})
    settings = {**QUIET, "epochs": 2, "seed": 0, "compact": ns.Compact(epochs=1), "checkpoint": tmp_path / "c"}
    ns.fit(model, (X, Y), **settings)
    with pytest.raises(ValueError, match=r"cut out in training already.*build it anew"):
        ns.fit(model, (X, Y), **settings)
