"""Bad input of many kinds: each a ValueError or TypeError whose sentence says where, what came, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nodeslab as ns

rng = np.random.default_rng(0)
X = rng.normal(size=(30, 4))
Y = X[:, 0] + 0.1 * rng.normal(size=30)
LABELS = (X[:, 0] > 0).astype(int)


def _net(outputs: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs))


def _model(outputs: int = 1) -> ns.Bayesian:
    return ns.bayesian(_net(outputs), ns.ssig(), n=30)


def _fit(X: Any = X, y: Any = Y, likelihood: Any = None, outputs: int = 1, **options: Any) -> Any:
    options = {"epochs": 1, "progress": False, **options}
    return ns.fit(_model(outputs), (X, y), likelihood=likelihood or ns.Gaussian(1.0), **options)


def _with(array: Any, value: Any, *place: int) -> Any:
    changed = array.astype(np.result_type(array, type(value))) if not isinstance(value, str) else array.astype(object)
    changed[place] = value
    return changed


class Returns(nn.Module):
    """A network that returns something other than rows of numbers."""

    def __init__(self, what: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.a, self.b, self.what = nn.Linear(4, 5), nn.Linear(5, 1), what

    def forward(self, x: torch.Tensor) -> Any:
        return self.what(self.b(torch.tanh(self.a(x))))


class OwnParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.scale = nn.Linear(4, 5), nn.Linear(5, 1), nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.a(x))) * self.scale


def _tied() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    net[2].weight = net[0].weight
    return net


class Batches:
    """An iterable of batches that is neither a DataLoader nor a pair."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)


class Adapted(nn.Linear):
    """A layer with something of its own beside weight and bias."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(a, b)
        self.down = nn.Parameter(torch.zeros(2, a))


def _tied_embedding() -> nn.Module:
    net = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7, bias=False))
    net[2].weight = net[0].weight
    return net


def _nan_net() -> nn.Module:
    net = _net()
    net[0].weight.data[1, 1] = float("nan")
    return net


FRAME = pd.DataFrame(X, columns=list("abcd"))
TEXT_FRAME = FRAME.assign(c="red")

# name: (call, error, what the sentence must say)
CASES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    # ---- inputs
    "NaN in X": (lambda: _fit(_with(X, np.nan, 3, 2)), ValueError, "X holds nan at row 3, column 2; impute it"),
    "inf in X": (lambda: _fit(_with(X, np.inf, 0, 1)), ValueError, "X holds inf at row 0, column 1"),
    "1e300 in X": (
        lambda: _fit(_with(X, 1e300, 5, 0)),
        ValueError,
        "1e\\+300 at row 5, column 0.*float32; standardise",
    ),
    "NaN in a tensor": (lambda: _fit(torch.tensor(_with(X, np.nan, 1, 1))), ValueError, "row 1, column 1"),
    "empty X": (lambda: _fit(X[:0], Y[:0]), ValueError, "X has no rows"),
    "no columns": (lambda: _fit(X[:, :0]), ValueError, "there is nothing in it"),
    "one row": (lambda: _fit(X[:1], Y[:1]), ValueError, "one row; a fit needs at least two"),
    "a single number": (lambda: _fit(3.0), ValueError, "X is a single number"),
    "wrong width": (lambda: _fit(X[:, :3]), ValueError, r"layer '0' \(Linear.*shape \(2, 3\)"),
    "one-dimensional X": (lambda: _fit(X[:, 0]), ValueError, "layer '0'"),
    "text": (lambda: _fit(X.astype(str)), TypeError, "X holds text"),
    "objects": (lambda: _fit(_with(X, "red", 4, 1)), TypeError, "'red' \\(str\\) at row 4, column 1"),
    "a frame with text": (lambda: _fit(TEXT_FRAME), TypeError, "'red' \\(str\\) at row 0, column 'c'"),
    "None in X": (lambda: _fit([[1.0, None, 2.0, 3.0]] * 30), TypeError, "None .*row 0, column 1"),
    "complex": (lambda: _fit(X + 1j), TypeError, "X is complex"),
    "a complex tensor": (lambda: _fit(torch.tensor(X + 1j)), TypeError, "X is complex"),
    "dates": (lambda: _fit(np.full((30, 4), np.datetime64("2020-01-01"))), TypeError, "dates or durations"),
    "a masked array": (lambda: _fit(np.ma.masked_array(X, X > 2)), TypeError, "masked array; fill"),
    "a sparse matrix": (lambda: _fit(sparse.csr_matrix(X)), TypeError, r"pass X\.toarray\(\)"),
    "a sparse tensor": (lambda: _fit(torch.tensor(X).to_sparse()), TypeError, r"pass X\.to_dense\(\)"),
    "ragged rows": (lambda: _fit([[1.0, 2.0, 3.0, 4.0], [1.0]]), ValueError, "rows must all have the same length"),
    "a dict": (lambda: _fit({"a": X}), TypeError, "X must be an array of numbers"),
    "a string": (lambda: _fit("data.csv"), TypeError, "X must be an array of numbers"),
    "None": (lambda: _fit(None), TypeError, "X must be an array of numbers"),
    "a constant column": (lambda: _fit(_with(X, 2.0, slice(None), 1)), ValueError, "Column 1 of X is constant \\(2 "),
    "a zero column": (lambda: _fit(_with(X, 0.0, slice(None), 3)), ValueError, "Column 3 of X is constant.*Drop it"),
    "an empty tuple of inputs": (lambda: _fit(()), ValueError, "empty tuple"),
    "inputs of unequal length": (lambda: _fit((X, X[:5])), ValueError, r"X\[1\] has 5 rows and X\[0\] has 30"),
    # ---- targets
    "NaN in y": (lambda: _fit(y=_with(Y, np.nan, 7)), ValueError, "y holds nan at row 7"),
    "rows that differ": (lambda: _fit(y=Y[:20]), ValueError, "X has 30 rows and y has 20"),
    "y too wide": (lambda: _fit(y=np.stack([Y, Y], 1)), ValueError, r"y has shape \(30, 2\).*\(1,\)"),
    "y too narrow": (lambda: _fit(outputs=2), ValueError, r"y must be \(n, 2\)"),
    "a constant y": (lambda: _fit(y=np.ones(30)), ValueError, "y is constant \\(1 in every row\\)"),
    "complex y": (lambda: _fit(y=Y + 1j), TypeError, "y is complex"),
    "text in y": (lambda: _fit(y=Y.astype(str)), TypeError, "y holds text"),
    "one class": (
        lambda: _fit(y=np.zeros(30, int), likelihood=ns.Categorical(), outputs=3),
        ValueError,
        "one class only \\(0 in",
    ),
    "float labels": (
        lambda: _fit(y=LABELS * 1.0, likelihood=ns.Categorical(), outputs=3),
        TypeError,
        "Labels must be integers",
    ),
    "labels from 1": (
        lambda: _fit(y=LABELS + 1, likelihood=ns.Categorical(), outputs=2),
        ValueError,
        "label 2.*2 outputs.*numpy.unique",
    ),
    "negative labels": (
        lambda: _fit(y=-LABELS, likelihood=ns.Categorical(), outputs=2),
        ValueError,
        "label -1",
    ),
    "one output for classes": (
        lambda: _fit(y=LABELS, likelihood=ns.Categorical()),
        ValueError,
        "one output for each class.*Bernoulli",
    ),
    "Bernoulli with other values": (lambda: _fit(likelihood=ns.Bernoulli()), ValueError, "targets 0 and 1"),
    # ---- what goes in as data
    "a bare array": (lambda: ns.fit(_model(), torch.tensor(X), likelihood=ns.Gaussian(1.0)), TypeError, "a pair"),
    "three parts": (lambda: ns.fit(_model(), (X, Y, Y), likelihood=ns.Gaussian(1.0)), ValueError, "got 3 parts"),
    "a number as data": (lambda: ns.fit(_model(), 3, likelihood=ns.Gaussian(1.0)), TypeError, "a pair"),
    "a loader of rows": (
        lambda: ns.fit(_model(), DataLoader(torch.tensor(X)), likelihood=ns.Gaussian(1.0)),
        TypeError,
        "pairs \\(x, y\\)",
    ),
    "an empty loader": (
        lambda: ns.fit(
            _model(),
            DataLoader(TensorDataset(torch.zeros(0, 4), torch.zeros(0))),
            likelihood=ns.Gaussian(1.0),
        ),
        ValueError,
        "no batch",
    ),
    "NaN in validation": (
        lambda: _fit(validation=(_with(X, np.nan, 2, 2), Y)),
        ValueError,
        "X of validation holds nan at row 2",
    ),
    "validation of the wrong kind": (lambda: _fit(validation=X), TypeError, "validation must be a pair"),
    # ---- the model
    "n = 0": (lambda: ns.bayesian(_net(), ns.ssig(), n=0), ValueError, "n, the number of observations.*at least 1"),
    "n negative": (lambda: ns.bayesian(_net(), ns.ssig(), n=-5), ValueError, "at least 1, got -5"),
    "n not whole": (lambda: ns.bayesian(_net(), ns.ssig(), n=10.5), TypeError, "whole number"),
    "n as text": (lambda: ns.bayesian(_net(), ns.ssig(), n="30"), TypeError, "whole number"),
    "lambda 0": (lambda: ns.Node(prior=0.0), ValueError, "Node: prior must be between 0 and 1, got 0.0"),
    "lambda 1": (lambda: ns.Node(prior=1.0), ValueError, "between 0 and 1"),
    "lambda 2": (lambda: ns.Edge(prior=2), ValueError, "Edge: prior"),
    "lambda NaN": (lambda: ns.Node(prior=float("nan")), ValueError, "Node: prior"),
    "lambda as text": (lambda: ns.Node(prior="high"), TypeError, "Node: prior must be a number"),  # type: ignore[arg-type]
    "too many lambdas": (
        lambda: ns.bayesian(_net(), ns.ssig(prior=(0.1, 0.2)), n=30),
        ValueError,
        "2 values, but 1 hidden layers",
    ),
    "start 1": (lambda: ns.Node(start=1.0), ValueError, "start"),
    "temperature 0": (lambda: ns.Node(temperature=0.0), ValueError, "temperature"),
    "an unknown gate gradient": (lambda: ns.Node(gradient="score"), ValueError, '"gumbel" or "reinmax"'),
    "sigma 0": (lambda: ns.Normal(0.0), ValueError, "Normal: sigma must be greater than 0"),
    "sigma negative": (lambda: ns.Gaussian(-1.0), ValueError, "Gaussian: sigma .* must be between"),
    "sigma as a word": (lambda: ns.Gaussian("guess"), ValueError, '"learn"'),
    "a gate without a slab": (lambda: ns.bayesian(_net(), ns.Node(), n=30), ValueError, r"ns\.Normal\(1\.0\) \* Node"),
    "two gates": (lambda: ns.Normal(1.0) * ns.Node() * ns.Edge(), ValueError, "one gate"),
    "a factor times a number": (lambda: ns.Normal(1.0) * 3, TypeError, "multiplied by a factor"),
    "a spec that is none": (lambda: ns.bayesian(_net(), "ss-ig", n=30), TypeError, "spec must be a prior"),
    "an empty dict": (lambda: ns.bayesian(_net(), {}, n=30), ValueError, "empty dict"),
    "a pattern that matches nothing": (
        lambda: ns.bayesian(_net(), {"conv*": ns.ssig()}, n=30),
        ValueError,
        "'conv\\*' matches no layer; the layers are '0', '2'",
    ),
    "a pattern that is no string": (lambda: ns.bayesian(_net(), {0: ns.ssig()}, n=30), TypeError, "must be a string"),
    "no layer at all": (
        lambda: ns.bayesian(nn.Tanh(), ns.ssig(), n=30),
        ValueError,
        "no layer that can be made Bayesian",
    ),
    "nothing to select from": (
        lambda: ns.bayesian(nn.Linear(4, 1), ns.ssig(), n=30),
        ValueError,
        "No layer of this network can be selected from",
    ),
    "not a network": (lambda: ns.bayesian(np.mean, ns.ssig(), n=30), TypeError, "torch.nn.Module, got"),
    "a model twice": (lambda: ns.bayesian(_model(), ns.ssig(), n=30), TypeError, "Bayesian model already"),
    "a recurrent layer": (
        lambda: ns.bayesian(nn.Sequential(nn.LSTM(4, 5)), ns.ssig(), n=30),
        ValueError,
        r"'0' \(LSTM\) cannot be made",
    ),
    "a transformer": (
        lambda: ns.bayesian(nn.TransformerEncoderLayer(4, 2), ns.ssig(), n=30),
        ValueError,
        r"'self_attn' \(Multihead",
    ),
    "a parameter of one's own": (
        lambda: ns.bayesian(OwnParameter(), ns.ssig(), n=30),
        ValueError,
        r"of its own \(scale\)",
    ),
    "tied weights": (
        lambda: ns.bayesian(_tied(), ns.ssig(), n=30),
        ValueError,
        "'0' and '2' share the parameter weight",
    ),
    "a parametrised layer": (
        lambda: ns.bayesian(
            nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 5)), nn.Linear(5, 1)), ns.ssig(), n=30
        ),
        ValueError,
        "Layer '0'.*parametri[sz]",
    ),
    "a lazy layer": (
        lambda: ns.bayesian(nn.Sequential(nn.LazyLinear(5), nn.Linear(5, 1)), ns.ssig(), n=30),
        ValueError,
        "'0'.*is lazy",
    ),
    "weights that are NaN": (
        lambda: ns.bayesian(_nan_net(), ns.ssig(), n=30),
        ValueError,
        "Layer '0'.*NaN or inf in its weight",
    ),
    "complex weights": (
        lambda: ns.bayesian(nn.Sequential(nn.Linear(4, 1, dtype=torch.complex64)), ns.vbnn(), n=30),
        TypeError,
        "complex64",
    ),
    "init unknown": (lambda: ns.bayesian(_net(), ns.ssig(), n=30, init="xavier"), ValueError, "'kaiming', 'uniform'"),
    "init negative": (lambda: ns.bayesian(_net(), ns.ssig(), n=30, init=-1.0), ValueError, "init .* must be between 0"),
    "a network with two outputs": (
        lambda: ns.fit(
            ns.bayesian(Returns(lambda v: (v, v)), ns.ssig(), n=30), (X, Y), likelihood=ns.Gaussian(1.0), progress=False
        ),
        TypeError,
        "must return one tensor, got tuple",
    ),
    "a network that loses the rows": (
        lambda: ns.fit(
            ns.bayesian(Returns(torch.sum), ns.ssig(), n=30), (X, Y), likelihood=ns.Gaussian(1.0), progress=False
        ),
        ValueError,
        "one row for each",
    ),
    "a pattern that comes too late": (
        lambda: ns.bayesian(_net(), {"*": ns.vbnn(), "0": ns.ssig()}, n=30),
        ValueError,
        r"'0' comes too late, '\*' has its layers already",
    ),
    "a prior of words": (lambda: ns.Prior(("x",)), TypeError, "made of factors"),  # type: ignore[arg-type]
    "a prior of nothing": (lambda: ns.bayesian(_net(), ns.Prior(), n=30), ValueError, "no factors"),
    "sigma too large": (lambda: ns.Normal(1e300), ValueError, "Normal: sigma must be between"),
    "a gradient that is no word": (lambda: ns.Node(gradient=np.zeros(2)), ValueError, "gradient must be"),  # type: ignore
    "a network on the meta device": (
        lambda: ns.bayesian(_net().to("meta"), ns.ssig(), n=30),
        ValueError,
        "Layer '0'.*meta device",
    ),
    "a lazy norm": (
        lambda: ns.bayesian(nn.Sequential(nn.Linear(4, 5), nn.LazyBatchNorm1d(), nn.Linear(5, 1)), ns.ssig(), n=30),
        ValueError,
        "'1' is lazy",
    ),
    "a layer with a parameter of its own": (
        lambda: ns.bayesian(nn.Sequential(Adapted(4, 5), nn.Linear(5, 1)), ns.ssig(), n=30),
        ValueError,
        "Layer '0' .Adapted. has a parameter of its own, down",
    ),
    "weights tied to an embedding": (
        lambda: ns.bayesian(_tied_embedding(), {"0": None, "*": ns.ssig()}, n=30),
        ValueError,
        "'2' and '0' share the parameter weight",
    ),
    "outputs as a string": (
        lambda: ns.bayesian(_net(), ns.ssig(), n=30, outputs="2"),
        TypeError,
        "a list of module paths",
    ),
    # ---- nodes by hand
    "no mask": (lambda: _model().set_nodes({"0": None}), TypeError, "must be an array of bools, got NoneType"),
    "a ragged mask": (lambda: _model().set_nodes({"0": [[1], [1, 0]]}), TypeError, "must be an array of bools"),
    "a mask of words": (lambda: _model().set_nodes({"0": ["a"] * 5}), TypeError, "must be an array of bools"),
    "an unknown path": (
        lambda: _model().set_nodes({"7": [True] * 5}),
        ValueError,
        "No Bayesian layer is called '7'.*'0'",
    ),
    "a mask too short": (lambda: _model().set_nodes({"0": [True] * 4}), ValueError, r"shape \(5,\)"),
    "a mask of numbers": (lambda: _model().set_nodes({"0": [0.5] * 5}), ValueError, "must hold bools"),
    "a mask for the output": (
        lambda: _model().set_nodes({"2": [True]}),
        ValueError,
        "'2' has no gates.*feeds the output",
    ),
    "a mask that is no dict": (lambda: _model().set_nodes([True] * 5), TypeError, "{path: mask}"),
    # ---- options
    "epochs 0": (lambda: _fit(epochs=0), ValueError, "epochs must be at least 1"),
    "epochs 1.5": (lambda: _fit(epochs=1.5), TypeError, "epochs must be a whole number"),
    "batch size 0": (lambda: _fit(batch_size=0), ValueError, "batch_size"),
    "samples 0": (lambda: _fit(samples=0), ValueError, "samples"),
    "lr 0": (lambda: _fit(lr=0.0), ValueError, "lr must be greater than 0"),
    "lr NaN": (lambda: _fit(lr=float("nan")), ValueError, "lr must be greater than 0"),
    "lr as text": (lambda: _fit(lr="1e-3"), TypeError, "lr must be a number"),
    "seed 1.5": (lambda: _fit(seed=1.5), TypeError, "seed must be a whole number"),
    "seed negative": (lambda: _fit(seed=-1), ValueError, "seed must be at least 0"),
    "epsilon negative": (lambda: _fit(epsilon=-1.0), ValueError, "epsilon"),
    "a schedule that is a number": (lambda: _fit(lr_schedule=0.5), TypeError, "lr_schedule must be a function"),
    "a backward ramp": (lambda: ns.Ramp(1.0, 0.1, 0.8, 0.2), ValueError, "begin < until"),
    "no likelihood": (lambda: ns.fit(_model(), (X, Y)), ValueError, "fit needs a likelihood"),
    "an lr too large for a float": (lambda: _fit(lr=10**400), ValueError, "lr must be"),
    "checkpoint_seconds as text": (
        lambda: _fit(checkpoint_seconds="x"),
        TypeError,
        "checkpoint_seconds must be a number",
    ),
    "a checkpoint without a name": (lambda: _fit(checkpoint=""), ValueError, "checkpoint must name a file"),
    "a checkpoint that is a number": (lambda: _fit(checkpoint=5), TypeError, "checkpoint must be a path"),
    "amp as text": (lambda: _fit(amp="yes"), TypeError, "amp must be True or False"),
    "no optimizer": (lambda: _fit(optimizer=lambda ps: None), TypeError, "optimizer must make a torch optimizer"),
    "an optimizer with a closure": (lambda: _fit(optimizer=lambda ps: torch.optim.LBFGS(ps)), TypeError, "closure"),
    "a schedule below zero": (
        lambda: _fit(lr_schedule=lambda t: -1.0),
        ValueError,
        r"lr_schedule\(0\) must be greater",
    ),
    "a schedule of nothing": (lambda: _fit(likelihood_schedule=lambda t: None), TypeError, "likelihood_schedule"),
    "an endless ramp": (lambda: ns.Ramp(float("inf"), 1.0), ValueError, "Ramp: start"),
    "a lonely row for a batch norm": (
        lambda: ns.fit(
            ns.bayesian(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 1)), ns.ssig(), n=30),
            (X, Y),
            likelihood=ns.Gaussian(1.0),
            batch_size=29,
        ),
        ValueError,
        "one row, on which layer '1' .BatchNorm1d. cannot train",
    ),
    "an iterator": (
        lambda: ns.fit(_model(), iter([(torch.tensor(X), torch.tensor(Y))]), likelihood=ns.Gaussian(1.0)),
        TypeError,
        "gone through once",
    ),
    "a batch of another width": (
        lambda: ns.fit(
            _model(),
            Batches([(torch.randn(15, 4), torch.randn(15)), (torch.randn(15, 3), torch.randn(15))]),
            likelihood=ns.Gaussian(1.0),
            progress=False,
        ),
        ValueError,
        "epoch 1, step 2, the network cannot take a batch of shape .15, 3.",
    ),
    "1e300 in y": (lambda: _fit(y=_with(Y, 1e300, 3)), ValueError, "do not fit into torch.float32"),
    "Bernoulli with one class": (lambda: _fit(y=np.ones(30), likelihood=ns.Bernoulli()), ValueError, "one class only"),
    "X on the meta device": (lambda: _fit(torch.zeros(30, 4, device="meta")), ValueError, "X is on the meta device"),
    "a likelihood that is none": (lambda: _fit(likelihood="gaussian"), TypeError, "likelihood must be such as"),
    "a plain network to fit": (
        lambda: ns.fit(_net(), (X, Y), likelihood=ns.Gaussian(1.0)),
        TypeError,
        "from ns.bayesian",
    ),
    "a checkpoint nowhere": (lambda: _fit(checkpoint="/nowhere/at/all"), ValueError, "does not exist; make it first"),
    # ---- prediction
    "predict NaN": (lambda: ns.predict(_model(), _with(X, np.nan, 3, 2)), ValueError, "X holds nan at row 3, column 2"),
    "predict the wrong width": (lambda: ns.predict(_model(), X[:, :2]), ValueError, "layer '0'"),
    "predict nothing": (lambda: ns.predict(_model(), X[:0]), ValueError, "no rows"),
    "draws 0": (lambda: ns.predict(_model(), X, draws=0), ValueError, "draws must be at least 1"),
    "a plain network to predict": (lambda: ns.predict(_net(), X), TypeError, "from ns.bayesian"),
    "classes from one output": (
        lambda: ns.predict(_model(), X, likelihood=ns.Categorical()),
        ValueError,
        "one output for each class",
    ),
    "a density of too few": (
        lambda: ns.predict(_model(), X, likelihood=ns.Gaussian(1.0)).log_density(Y[:5]),
        ValueError,
        "has 30 rows and y has 5",
    ),
    "a density of NaN": (
        lambda: ns.predict(_model(), X, likelihood=ns.Gaussian(1.0)).log_density(Y * np.nan),
        ValueError,
        "y holds nan",
    ),
    "a density of odd labels": (
        lambda: ns.predict(_model(3), X, likelihood=ns.Categorical()).log_density(LABELS + 0.5),
        TypeError,
        "Labels must be integers",
    ),
    # ---- costs and metrics
    "the cost of the wrong width": (lambda: ns.cost(_model(), X[:, :3]), ValueError, r"example of shape \(1, 3\)"),
    "the cost of nothing": (lambda: ns.cost(_model(), X[:0]), ValueError, "the example has no rows"),
    "the cost of no network": (lambda: ns.cost(None, X), TypeError, "cost takes a network"),  # type: ignore[arg-type]
    "the cost of no layer": (lambda: ns.cost(nn.Tanh(), X), ValueError, "no Linear or convolution layer"),
    "rmse of nothing": (lambda: ns.metrics.rmse([], []), ValueError, "no rows"),
    "coverage of NaN": (lambda: ns.metrics.coverage(Y, Y, Y * np.nan), ValueError, "y holds nan"),
    "an interval the wrong way round": (lambda: ns.metrics.coverage(Y + 1, Y, Y), ValueError, "exchanged"),
    "a negative std": (lambda: ns.metrics.gaussian_nll(Y, -1.0, Y), ValueError, "std must be positive"),
    "logits for probabilities": (lambda: ns.metrics.ece(X[:, :2], LABELS), ValueError, "are these logits"),
    "half labels": (
        lambda: ns.metrics.accuracy(np.full((30, 2), 0.5), LABELS + 0.5),
        TypeError,
        "labels must be integers",
    ),
    "no bins": (lambda: ns.metrics.ece(np.full((30, 2), 0.5), LABELS, bins=0), ValueError, "bins must be at least 1"),
    "level 1": (lambda: ns.predict(_model(), X).interval(1.0), ValueError, "level must be between 0 and 1"),
    "quantile 90": (lambda: ns.predict(_model(), X).quantile(90), ValueError, "q must be between 0 and 1"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_sentence(name: str) -> None:
    call, error, sentence = CASES[name]
    with pytest.raises(error, match=sentence) as caught:
        call()
    assert type(caught.value) in (ValueError, TypeError)
    assert str(caught.value).rstrip().endswith((".", "?", ")", "]"))


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 100


def test_constants_can_be_allowed_and_pixels_may_be_constant() -> None:
    _fit(_with(X, 2.0, slice(None), 1), allow_constant=True)
    net = nn.Sequential(nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 1))
    pixels = np.concatenate([X, np.zeros((30, 60))], 1)
    ns.fit(ns.bayesian(net, ns.ssig(), n=30), (pixels, Y), likelihood=ns.Gaussian(1.0), epochs=1, progress=False)


def test_data_that_are_fine() -> None:
    """Frames, lists, integers, Fortran order, strange byte order, read-only, float16: taken as they are."""
    fixed = X.copy()
    fixed.setflags(write=False)
    for good in (
        FRAME,
        X.tolist(),
        (10 * X).astype(int),
        np.asfortranarray(X),
        X.astype(">f8"),
        fixed,
        X.astype(np.float16),
    ):
        _fit(good)
    _fit(y=pd.Series(Y, index=range(7, 37)))
    _fit(FRAME.assign(c=FRAME.c > 0))
    _fit(X.astype(object))
    one = np.int64(1)
    _fit(epochs=one, batch_size=np.int32(7), lr=np.float32(1e-3), seed=one, samples=one, clip=np.float32(1.0))
    prior = ns.Normal(np.float32(1.0)) * ns.Node(prior=np.array([0.1], dtype=np.float32))
    model = ns.bayesian(_net(), prior, n=np.int64(30), init=np.float32(0.3))
    p = ns.predict(model, FRAME, draws=np.int64(3), seed=one, likelihood=ns.Gaussian(np.float32(0.5)))
    p.interval(np.float32(0.9))
    assert ns.metrics.rmse(pd.Series(Y, index=range(5, 35)), Y[::-1][::-1]) == 0
    for mask in (
        pd.Series([True] * 5, index=range(3, 8)),
        np.array([1, 0, 1, 1, 0], dtype=object),
        np.ones(5, bool)[::-1],
    ):
        model.set_nodes({"0": mask})
    for example in (X.astype(np.uint8), [[1, 2, 3, 4]], FRAME, torch.ones(2, 4, dtype=torch.long)):
        assert ns.cost(model, example).flops_dense == 31
    _fit(y=Y.astype(">f4"))
