"""What is drawn are the model's numbers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
from matplotlib import colors
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection, LineCollection, PathCollection
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle
from torch import nn

import nodeslab as ns
from nodeslab import plot
from nodeslab.prediction import ClassPrediction, RegressionPrediction
from nodeslab.svg import BLUE, GREY

OPEN = {"0": [0, 2, 5], "2": [1, 3]}


@pytest.fixture
def ax() -> Axes:
    return Figure(layout="constrained").subplots()


def chain(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@pytest.fixture(scope="module")
def model() -> ns.Bayesian:
    """4-6-5-2 with the nodes of OPEN open."""
    torch.manual_seed(1)
    made = ns.bayesian(chain(4, 6, 5, 2), ns.ssig(), n=50)
    made.set_nodes({path: [i in nodes for i in range(6 if path == "0" else 5)] for path, nodes in OPEN.items()})
    return made


@pytest.fixture(scope="module")
def history() -> ns.History:
    torch.manual_seed(1)
    made = ns.bayesian(chain(3, 6, 5, 1), ns.ssig(), n=60)
    X = np.random.default_rng(0).standard_normal((60, 3))
    return ns.fit(made, (X, X[:, 0]), likelihood=ns.Gaussian(0.5), epochs=40, batch_size=20, lr=0.05, seed=0)


# ---- the network -----------------------------------------------------------------------------------------------------


def dots(ax: Axes) -> dict[str, int]:
    """How many dots are filled with a colour, or hollow."""
    found: dict[str, int] = {}
    for c in ax.collections:
        if isinstance(c, EllipseCollection):
            fill = c.get_facecolors()
            name = colors.to_hex(fill[0]) if len(fill) and fill[0][3] else "hollow"
            found[name] = found.get(name, 0) + len(c.get_offsets())
    return found


def test_the_network_shows_open_and_closed_nodes_and_the_lines_between(model: ns.Bayesian, ax: Axes) -> None:
    assert plot.network(model, ax) is ax
    assert dots(ax) == {BLUE: 3 + 2, "hollow": 3 + 3, GREY: 4 + 2}
    lines = [len(c.get_segments()) for c in ax.collections if isinstance(c, LineCollection)]
    assert lines == [4 * 3, 3 * 2, 2 * 2]
    assert [t.get_text() for t in ax.texts] == ["4\ninputs", "3 of 6\nopen", "2 of 5\nopen", "2\noutput"]


def test_before_training_all_nodes_are_open(model: ns.Bayesian, ax: Axes) -> None:
    plot.network(model, ax, before=True)
    assert dots(ax) == {BLUE: 11, GREY: 6}
    assert [len(c.get_segments()) for c in ax.collections if isinstance(c, LineCollection)] == [24, 30, 10]


def test_no_two_dots_lie_on_one_another(ax: Axes) -> None:
    plot.network(ns.bayesian(chain(3, 50, 400, 2), ns.ssig(), n=50), ax)
    places = np.concatenate([c.get_offsets() for c in ax.collections if isinstance(c, EllipseCollection)])
    assert len(places) == 455
    apart = np.linalg.norm(places[:, None] - places[None], axis=2) + 9 * np.eye(len(places))
    size = min(c.get_widths().min() for c in ax.collections if isinstance(c, EllipseCollection))
    assert apart.min() > size
    assert sum(isinstance(p, Polygon) and not isinstance(p, Rectangle) for p in ax.patches) == 1  # 50 x 400: a band


def test_a_layer_of_thousands_is_a_block_filled_as_far_as_it_is_open(ax: Axes) -> None:
    wide = ns.bayesian(chain(2, 2000, 1), ns.ssig(), n=50)
    wide.set_nodes({"0": [i < 500 for i in range(2000)]})
    plot.network(wide, ax)
    frame, filled = (p for p in ax.patches if isinstance(p, Rectangle))
    assert filled.get_height() / frame.get_height() == pytest.approx(0.25)


def test_a_deep_network_is_a_bar_for_each_layer(ax: Axes) -> None:
    deep = ns.bayesian(chain(3, *[8] * 11, 1), ns.ssig(), n=50)
    deep.set_nodes({"4": [True] * 2 + [False] * 6})
    plot.network(deep, ax)
    bars = [p.get_width() for p in ax.patches if isinstance(p, Rectangle)]
    assert bars[::2] == [1.0] * 11 + [1 / 8]
    assert bars[1::2] == [1, 1, 2 / 8, *[1] * 8, 1 / 8]


def test_convolutions_are_drawn_by_their_channels(ax: Axes) -> None:
    net = nn.Sequential(nn.Conv2d(3, 7, 3), nn.ReLU(), nn.Flatten(), nn.Linear(7 * 4, 5), nn.ReLU(), nn.Linear(5, 2))
    plot.network(ns.bayesian(net, ns.ssig(), n=50), ax)
    assert [t.get_text() for t in ax.texts] == ["3\ninputs", "7 of 7\nopen", "5 of 5\nopen", "2\noutput"]


def test_inclusion_is_sorted_and_each_layer_is_named(model: ns.Bayesian, history: ns.History, ax: Axes) -> None:
    torch.manual_seed(0)
    free = ns.bayesian(chain(4, 6, 5, 2), ns.ssig(), n=50)
    with torch.no_grad():
        for posterior in free._posteriors():
            for gate in posterior.switches().values():
                gate.logit.copy_(torch.randn_like(gate.logit))
    plot.inclusion(free, ax)
    threshold, *lines = ax.get_lines()
    assert set(threshold.get_ydata()) == {0.5}
    for line, record in zip(lines, free.nodes(), strict=True):
        np.testing.assert_allclose(line.get_ydata(), np.sort(record.inclusion.detach().numpy())[::-1])
        assert line.get_label() == f"layer {record.path}: {record.open} of {record.total} open"


@pytest.mark.parametrize("layers", [1, 6, 7])
def test_inclusion_of_many_layers_is_a_box_for_each(layers: int, ax: Axes) -> None:
    plot.inclusion(ns.bayesian(chain(2, *[4] * layers, 1), ns.ssig(), n=50), ax)
    assert len(ax.patches) == (layers if layers > 6 else 0)
    assert len(ax.get_xticks()) > 1


def test_without_gates_it_says_so(ax: Axes) -> None:
    plot.inclusion(ns.bayesian(chain(2, 4, 1), ns.vbnn(), n=50), ax)
    assert [t.get_text() for t in ax.texts] == ["no node can close under this prior"]


@pytest.mark.parametrize("path", [None, "2"])
def test_boxes_hold_the_drawn_weights(path: str | None, model: ns.Bayesian, ax: Axes) -> None:
    plot.weights(model, ax, path=path, largest=4, draws=7, seed=3)
    torch.manual_seed(3)
    drawn = []
    for _ in range(7):
        with model.drawn() as net, torch.no_grad():
            layer = net.get_submodule(path or "0")
            drawn.append(np.abs(np.c_[layer.weight.detach().numpy(), layer.bias.detach().numpy()]))
    values = np.concatenate(drawn, 1).astype(np.float64)
    order = np.argsort(-values.max(1), kind="stable")[:4]
    boxes = [p.get_path().vertices[:, 1] for p in ax.patches]
    np.testing.assert_allclose([b.min() for b in boxes], np.quantile(values, 0.25, axis=1)[order], rtol=1e-6)
    np.testing.assert_allclose([b.max() for b in boxes], np.quantile(values, 0.75, axis=1)[order], rtol=1e-6)
    shown = [colors.to_hex(p.get_edgecolor()) for p in ax.patches]
    assert shown == [BLUE if i in OPEN[path or "0"] else GREY for i in order]
    assert set(OPEN[path or "0"]) <= set(order.tolist())  # closed nodes are exactly zero


# ---- training --------------------------------------------------------------------------------------------------------


def test_training_is_drawn_as_recorded(history: ns.History) -> None:
    first, second, third = Figure().subplots(1, 3)
    plot.elbo(history, first)
    plot.open_nodes(history, second)
    plot.flops(history, third)
    epochs = [r.epoch for r in history]
    assert [line.get_ydata().tolist() for line in first.get_lines()] == [[r.elbo for r in history]]
    assert [line.get_ydata().tolist() for line in third.get_lines()] == [[r.flops_ratio for r in history]]
    for line, path in zip(second.get_lines(), ("0", "2"), strict=True):
        assert line.get_xdata().tolist() == epochs
        assert line.get_ydata().tolist() == [r.open[path] for r in history]
    low, high = first.get_ylim()
    late = [r.elbo for r in history][2:]
    assert low < min(late)
    assert high > max(late)


# ---- predictions -----------------------------------------------------------------------------------------------------


def regression(rows: int = 120, outputs: int = 1, noise: float = 0.7) -> tuple[RegressionPrediction, np.ndarray]:
    torch.manual_seed(5)
    centre = torch.randn(1, rows, outputs, dtype=torch.float64)
    draws = centre + 0.3 * torch.randn(40, rows, outputs, dtype=torch.float64)
    y = centre[0] + 0.8 * torch.randn(rows, outputs, dtype=torch.float64)
    return RegressionPrediction(draws, torch.tensor(noise, dtype=torch.float64)), y.numpy()


def test_predictions_are_in_the_targets_units(ax: Axes) -> None:
    p, y = regression(outputs=2)
    plot.predictions(p, y, ax, level=0.8, center=10.0, scale=4.0, output=1)
    low, high = (10 + 4 * v[:, 1].numpy() for v in p.interval(0.8))
    truth, mean = 10 + 4 * y[:, 1], 10 + 4 * p.mean[:, 1].numpy()
    inside = (low <= truth) & (truth <= high)
    assert 0 < inside.sum() < len(y)
    diagonal, held, missed = ax.get_lines()
    assert np.array_equal(diagonal.get_xdata(), diagonal.get_ydata())
    for line, bars, mask in zip((held, missed), ax.collections, (inside, ~inside), strict=True):
        np.testing.assert_allclose(line.get_xdata(), truth[mask])
        np.testing.assert_allclose(line.get_ydata(), mean[mask])
        ends = np.array([s[:, 1] for s in bars.get_segments()])
        np.testing.assert_allclose(ends, np.stack([low, high], 1)[mask])
    covered = ns.metrics.coverage(low, high, truth)
    assert [t.get_text() for t in ax.get_legend().get_texts()] == [
        f"the interval holds the truth: {covered:.0%}",
        f"it does not: {1 - covered:.0%}",
    ]


def test_many_rows_are_thinned_but_all_are_counted(ax: Axes) -> None:
    p, y = regression(rows=1000)
    plot.predictions(p, y, ax, most=50)
    assert sum(len(line.get_xdata()) for line in ax.get_lines()[1:]) == 50
    covered = ns.metrics.coverage(*p.interval(0.9), y)
    assert ax.get_legend().get_texts()[0].get_text().endswith(f": {covered:.0%}")


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("noise", [0.7, 0.0])
def test_coverage_is_that_of_the_intervals(outputs: int, noise: float, ax: Axes) -> None:
    p, y = regression(outputs=outputs, noise=noise)
    plot.calibration(p, y, ax)
    line = ax.get_lines()[1]
    expected = [ns.metrics.coverage(*p.interval(level), y) for level in line.get_xdata()]
    assert line.get_xdata().tolist() == pytest.approx([0.05 * i for i in range(1, 20)])
    np.testing.assert_allclose(line.get_ydata(), expected)


def test_the_band_is_the_binomials(ax: Axes) -> None:
    p, y = regression()
    plot.calibration(p, y, ax)
    corners = ax.collections[0].get_paths()[0].vertices
    at_half = corners[np.isclose(corners[:, 0], 0.5), 1]
    assert at_half.min() == pytest.approx(0.5 - 1.645 * np.sqrt(0.25 / 120))
    assert at_half.max() == pytest.approx(0.5 + 1.645 * np.sqrt(0.25 / 120))


def classes(rows: int = 300, k: int = 3) -> tuple[ClassPrediction, np.ndarray]:
    torch.manual_seed(2)
    p = torch.softmax(2 * torch.randn(rows, k, dtype=torch.float64), 1)
    y = torch.multinomial(p**0.7, 1)[:, 0]
    return ClassPrediction(p, torch.zeros_like(p), torch.zeros(rows), binary=False), y.numpy()


def test_reliability_by_hand() -> None:
    p = np.array([[0.95, 0.05], [0.92, 0.08], [0.3, 0.7], [0.45, 0.55]])
    share, confidence, accuracy = ns.metrics.reliability(p, np.array([0, 1, 1, 0]), bins=10)
    full = [5, 7, 9]
    assert share[full].tolist() == [0.25, 0.25, 0.5]
    assert confidence[full].tolist() == pytest.approx([0.55, 0.7, 0.935])
    assert accuracy[full].tolist() == [0.0, 1.0, 0.5]
    assert float(share.sum()) == 1.0
    assert bool(torch.isnan(confidence[[0, 1, 2, 3, 4, 6, 8]]).all())
    assert ns.metrics.ece(p, np.array([0, 1, 1, 0]), bins=10) == pytest.approx((0.55 + 0.3 + 2 * 0.435) / 4)


def test_the_reliability_diagram_is_of_the_bins(ax: Axes) -> None:
    p, y = classes()
    plot.calibration(p, y, ax, bins=8)
    sure, guess = p.mean.numpy().max(1), p.mean.numpy().argmax(1)
    which = np.minimum((sure * 8).astype(int), 7)
    expected = [(sure[which == b].mean(), (guess == y)[which == b].mean()) for b in np.unique(which)]
    points = next(c for c in ax.collections if isinstance(c, PathCollection))
    np.testing.assert_allclose(points.get_offsets(), expected)
    assert f"{ns.metrics.ece(p.mean, y, 8):.3f}" in points.get_label()


def test_the_confusion_table_counts(ax: Axes) -> None:
    p, y = classes()
    plot.confusion(p, y, ax, classes=["$a$", "b", "c"])
    guess = p.mean.numpy().argmax(1)
    expected = [f"{((y == i) & (guess == j)).sum() / (y == i).sum():.0%}" for i in range(3) for j in range(3)]
    assert [t.get_text() for t in ax.texts] == expected
    assert [t.get_text() for t in ax.get_yticklabels()] == ["$a$", "b", "c"]
    assert not ax.get_yticklabels()[0].get_parse_math()


def test_a_yes_or_no_target_has_two_classes(ax: Axes) -> None:
    yes = torch.tensor([[0.9], [0.2], [0.6], [0.1]])
    p = ClassPrediction(yes, torch.zeros_like(yes), torch.zeros(4), binary=True)
    plot.confusion(p, np.array([1, 0, 0, 0]), ax)
    assert [t.get_text() for t in ax.texts] == ["67%", "33%", "0%", "100%"]


# ---- as functions ----------------------------------------------------------------------------------------------------


@pytest.fixture
def figures() -> Iterator[None]:
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("agg")
    yield
    plt.close("all")


@pytest.mark.usefixtures("figures")
def test_without_axes_each_makes_a_figure_of_its_own(model: ns.Bayesian, history: ns.History) -> None:
    p, y = regression()
    labels, truth = classes()
    made = [
        plot.network(model),
        plot.inclusion(model),
        plot.weights(model),
        plot.elbo(history),
        plot.open_nodes(history),
        plot.flops(history),
        plot.predictions(p, y),
        plot.calibration(p, y),
        plot.calibration(labels, truth),
        plot.confusion(labels, truth),
    ]
    assert len({id(a.figure) for a in made}) == len(made)


def test_mistakes_are_sentences(model: ns.Bayesian, history: ns.History, ax: Axes) -> None:
    p, y = regression()
    labels, truth = classes()
    for wrong, error, words in (
        (lambda: plot.network(model.net, ax), TypeError, r"model must come from ns\.bayesian, got Sequential"),
        (lambda: plot.elbo([], ax), TypeError, r"history must be what ns\.fit returned, got list"),
        (lambda: plot.elbo(ns.History(), ax), ValueError, "no epochs"),
        (lambda: plot.network(model, "left"), TypeError, "ax must be matplotlib axes, got str"),
        (lambda: plot.weights(model, ax, path="1"), ValueError, "No Bayesian layer is called '1'; there are '0', '2'"),
        (lambda: plot.weights(model, ax, largest=0), ValueError, "largest must be at least 1, got 0"),
        (lambda: plot.predictions(labels, truth, ax), TypeError, "classes, which have no intervals"),
        (lambda: plot.predictions(p, y[:-1], ax), ValueError, "120 rows"),
        (lambda: plot.predictions(p, y, ax, level=1.5), ValueError, "level must be between 0 and 1"),
        (lambda: plot.predictions(p, y, ax, output=1), ValueError, "output must be below 1"),
        (lambda: plot.confusion(p, y, ax), TypeError, "prediction must be of classes"),
        (lambda: plot.confusion(labels, truth, ax, classes=["a"]), ValueError, "name the network's 3 classes, got 1"),
    ):
        with pytest.raises(error, match=words):
            wrong()
