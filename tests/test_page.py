"""The page of a fit: one file, that holds what the model says, and that everybody can read."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nodeslab as ns
from nodeslab import sizes, svg
from nodeslab.page import write_page
from nodeslab.sheet import CSS

LARGEST = 2_000_000  # bytes
VOID = {"meta", "link", "br", "hr", "img", "input"}
NAMES = ["size <m>", 'the "age"', "x & y", "$p$"]
CENTER, SCALE = 35.0, 12.0


# ---- a few fits ------------------------------------------------------------------------------------------------------


@dataclass
class Fit:
    model: ns.Bayesian
    history: ns.History
    X: Any
    y: Any
    options: dict[str, Any] = field(default_factory=dict)

    def write(self, file: Path, **changes: Any) -> str:
        options = {
            "title": "Cubes & <spheres>",
            "settings": {"model": "ss-ig", "hidden": (12, 7), "lr": 0.003, "early": True, "weights": None},
            "target": "weight, kg",
            "features": NAMES,
            "X": self.X,
            "y": self.y,
        }
        write_page(file, self.model, self.history, **{**options, **self.options, **changes})
        return file.read_text(encoding="utf-8")


def fitted(kind: str = "numbers") -> Fit:
    """A short fit of the given kind."""
    stream = np.random.default_rng(0)
    X = stream.standard_normal((260, 4))
    torch.manual_seed(0)
    few: dict[str, Any] = {"epochs": 30, "batch_size": 50, "lr": 0.02, "seed": 3}
    if kind == "classes":
        y = (X[:, :3] + 0.3 * stream.standard_normal((260, 3))).argmax(1)
        net = nn.Sequential(nn.Linear(4, 12), nn.SiLU(), nn.Linear(12, 7), nn.SiLU(), nn.Linear(7, 3))
        model = ns.bayesian(net, ns.ssig(), n=200)
        history = ns.fit(model, (X[:200], y[:200]), likelihood=ns.Categorical(), **few)
        options = {"classes": ["red", "green", "blue & <white>"], "target": "colour"}
        return Fit(model, history, X[200:], y[200:], options)
    if kind == "images":
        pictures = stream.standard_normal((90, 1, 8, 8))
        y = (pictures.mean((1, 2, 3)) > 0).astype(float)[:, None]
        net = nn.Sequential(
            nn.Conv2d(1, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 36, 6), nn.ReLU(), nn.Linear(6, 1)
        )
        model = ns.bayesian(net, ns.ssig(), n=60)
        history = ns.fit(model, (pictures[:60], y[:60]), likelihood=ns.Bernoulli(), **{**few, "epochs": 2})
        return Fit(model, history, pictures[60:], y[60:], {"features": ["pixels"]})
    outputs = 2 if kind == "two targets" else 1
    y = np.stack([X[:, 0] * X[:, 1], X[:, 2]], 1)[:, :outputs] + 0.3 * stream.standard_normal((260, outputs))
    prior = {"vbnn": ns.vbnn, "sv-bnn": ns.svbnn, "hs-bnn": ns.hsbnn}.get(kind, ns.ssig)()
    layers = [nn.Linear(4, 12), nn.Sigmoid(), nn.Linear(12, 7), nn.Sigmoid()] if kind != "linear" else []
    net = nn.Sequential(*layers, nn.Linear(4 if kind == "linear" else 7, outputs))
    model = ns.bayesian(net, ns.vbnn() if kind == "linear" else prior, n=200)
    history = ns.fit(model, (X[:200], y[:200]), likelihood=ns.Gaussian("learn"), **few)
    if kind == "numbers":
        model.set_nodes({"0": [i < 5 for i in range(12)], "2": [i in (1, 4) for i in range(7)]})
    return Fit(model, history, X[200:], y[200:], {"unit_scale": (CENTER, SCALE), "notes": ["No value was <missing>."]})


@pytest.fixture(scope="module")
def numbers() -> Fit:
    return fitted("numbers")


@pytest.fixture(scope="module")
def page(numbers: Fit, tmp_path_factory: pytest.TempPathFactory) -> str:
    return numbers.write(tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def class_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return fitted("classes").write(tmp_path_factory.mktemp("page") / "report.html")


# ---- as HTML ---------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """A page's elements in order, its text, and that every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[tuple[tuple[str, ...], str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs)
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((tuple(self.open), data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.elements if name == tag]

    def words(self, tag: str | None = None) -> str:
        return " ".join(" ".join(t for inside, t in self.texts if tag is None or tag in inside).split())

    def rows(self) -> dict[str, list[str]]:
        """{first cell: the others} of all tables."""
        out: list[list[str]] = []
        for inside, text in self.texts:
            if "tbody" in inside and inside[-1] == "th":
                out.append([text])
            elif "tbody" in inside and inside[-1] == "td":
                out[-1].append(text)
        return {row[0]: row[1:] for row in out}


@pytest.mark.parametrize("which", ["page", "class_page"])
def test_it_is_one_small_file_that_asks_for_nothing(which: str, request: pytest.FixtureRequest) -> None:
    text = request.getfixturevalue(which)
    assert len(text.encode()) < LARGEST
    assert not re.search(r"https?:|//|@import|<script|<link|\ssrc\s*=|srcset|<iframe|<object", text)
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))
    read = Page(text)
    assert all(str(attrs["href"]).startswith("#") for _, attrs in read.elements if "href" in attrs)


@pytest.mark.parametrize("which", ["page", "class_page"])
def test_it_is_built_as_a_document(which: str, request: pytest.FixtureRequest) -> None:
    read = Page(request.getfixturevalue(which))
    assert read.all("html") == [{"lang": "en"}]
    assert "width=device-width" in str(read.all("meta")[1]["content"])
    assert next(t for inside, t in read.texts if inside[-1] == "title" and "svg" not in inside) == "Cubes & <spheres>"
    levels = [int(tag[1]) for tag, _ in read.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert len(read.all("main")) == 1
    assert len(read.all("figure")) == len(read.all("svg")) == len(read.all("figcaption"))
    assert all(attrs.get("scope") in ("row", "col") for attrs in read.all("th"))


@pytest.mark.parametrize("which", ["page", "class_page"])
def test_every_figure_says_what_it_shows(which: str, request: pytest.FixtureRequest) -> None:
    read = Page(request.getfixturevalue(which))
    labels = [attrs["aria-label"] for attrs in read.all("svg")]
    assert len(labels) == len(set(labels)) >= 8
    assert all(label and len(label) > 20 for label in labels)
    assert [attrs["role"] for attrs in read.all("svg")] == ["img"] * len(labels)
    at = [i for i, (tag, _) in enumerate(read.elements) if tag == "svg"]
    assert all(read.elements[i + 1][0] == "title" for i in at)
    titles = [t for inside, t in read.texts if inside[-1] == "title" and "svg" in inside]
    assert titles == labels


@pytest.mark.parametrize("which", ["page", "class_page"])
def test_no_two_figures_share_an_id(which: str, request: pytest.FixtureRequest) -> None:
    text = request.getfixturevalue(which)
    ids = [str(attrs["id"]) for _, attrs in Page(text).elements if "id" in attrs]
    assert len(ids) == len(set(ids)) > 0
    used = set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", text))
    assert used == set(ids)


def test_what_people_wrote_is_shown_and_never_run(page: str, class_page: str) -> None:
    read = Page(page)
    assert read.words("h1") == "Cubes & <spheres>"
    assert read.rows()["columns"] == [", ".join(NAMES)]
    assert "No value was <missing>." in read.words("li")
    assert "<white>" not in class_page
    assert "blue & <white>" in Page(class_page).words("svg")


# ---- what it says ----------------------------------------------------------------------------------------------------


def test_the_first_sentence_is_the_result(numbers: Fit, page: str) -> None:
    p = ns.predict(numbers.model, numbers.X, draws=100, seed=0)
    rmse = ns.metrics.rmse(p.mean, numbers.y) * SCALE
    covered = ns.metrics.coverage(*p.interval(0.9), numbers.y)
    small, whole = 5 * 5 + 2 * 6 + 3, 12 * 5 + 7 * 13 + 8
    words = Page(page).words("header")
    assert (
        f"7 of 19 nodes are needed: the network that is left does {small / whole:.0%} of the multiplications." in words
    )
    assert words.endswith(
        "On 60 rows that the fit has not seen its typical error (RMSE) is "
        f"{rmse:.3g}, and its 90% intervals hold {covered:.0%} of the truths."
    )


def test_sizes_are_those_of_the_networks(numbers: Fit, page: str, tmp_path: Path) -> None:
    rows = Page(page).rows()
    small, whole = 5 * 5 + 2 * 6 + 3, 12 * 5 + 7 * 13 + 8
    assert rows["parameters"] == [f"{whole}", f"{small}", f"{small / whole:.0%}"]
    assert rows["multiplications for a row"] == rows["parameters"]
    for i, net in enumerate((numbers.model.mean(), ns.shrink(numbers.model, numbers.X[:2]))):
        length = ns.save(net, tmp_path / "net.nodeslab", numbers.X[:2]).stat().st_size
        assert rows["file"][i] == f"{length / 1000:,.1f} kB"
    before, after = (float(v) for v in rows["milliseconds for 1,000 rows"][:2])
    assert before > 0
    assert after > 0
    x = torch.tensor(numbers.X, dtype=torch.float32)
    with torch.no_grad():
        alone = ns.metrics.rmse(ns.shrink(numbers.model, numbers.X[:2])(x), numbers.y) * SCALE
    assert f"its RMSE on the test rows is {alone:.3g}." in Page(page).words()


def test_classes_are_counted(class_page: str, tmp_path: Path) -> None:
    fit = fitted("classes")
    p = ns.predict(fit.model, fit.X, draws=100, seed=0)
    right = (p.labels.numpy() == fit.y).mean()
    words = Page(class_page).words()
    assert f"it names the right class {right:.0%} of the time." in words
    assert f"Accuracy {right:.1%}, log loss {float(-p.log_density(fit.y).mean()):.3f} nats" in words


def test_settings_and_seeds_are_listed(numbers: Fit, page: str) -> None:
    rows = Page(page).rows()
    assert rows["hidden"] == ["12, 7"]
    assert rows["early"] == ["yes"]
    assert rows["weights"] == ["-"]
    assert rows["seed of the training"] == ["3"]
    assert rows["training rows"] == ["200"]
    assert rows["nodeslab, torch"] == [f"{ns.__version__}, {torch.__version__}"]
    for path, total, left in (("0", 12, 5), ("2", 7, 2)):
        prior = next(q for q in numbers.model._posteriors() if q.path == path).inclusion_prior
        assert rows[path] == ["Normal(1) * Node", f"{left} of {total}", f"{prior:.3g}"]


def test_the_same_fit_gives_the_same_bytes(numbers: Fit, page: str, tmp_path: Path) -> None:
    again = numbers.write(tmp_path / "again.html")
    one, two = (re.sub(r'<(td|span) class="measured">[^<]*', "", text) for text in (page, again))
    assert one == two
    assert not re.search(r"\d{4}-\d\d-\d\dT|dc:date", page)


def test_a_layer_without_open_nodes_is_not_passed_over(numbers: Fit, tmp_path: Path) -> None:
    other = fitted("other")
    other.model.set_nodes({"2": [False] * 7})
    assert "But no node of layer 2 is open" in Page(other.write(tmp_path / "page.html")).words("header")


@pytest.mark.parametrize("kind", ["vbnn", "sv-bnn", "hs-bnn", "linear", "two targets", "images"])
def test_every_kind_of_fit_has_its_page(kind: str, tmp_path: Path) -> None:
    fit = fitted(kind)
    read = Page(fit.write(tmp_path / "page.html"))
    assert len(read.all("svg")) >= 7
    assert "parameters" in read.rows()
    if kind == "vbnn":
        assert "all 19 nodes stay, since this prior closes none" in read.words("header")
    if kind == "images":
        assert "it names the right class" in read.words("header")


def test_without_test_rows_it_says_so(numbers: Fit, tmp_path: Path) -> None:
    text = numbers.write(tmp_path / "page.html", X=None, y=None)
    assert "No test rows were given" in Page(text).words()
    assert "parameters" in Page(text).rows()
    assert not re.search(r"RMSE", Page(text).words())


def test_many_rows_are_thinned_and_that_is_said(numbers: Fit, tmp_path: Path) -> None:
    X, y = np.tile(numbers.X, (200, 1)), np.tile(numbers.y, (200, 1))
    text = numbers.write(tmp_path / "page.html", X=X, y=y)
    assert "5,000 of the 12,000 test rows" in Page(text).words()
    assert len(text.encode()) < LARGEST


def test_a_network_that_was_cut_while_training_is_whole_before(tmp_path: Path) -> None:
    fit = fitted("other")
    before = sizes.whole(fit.model)
    shapes = [tuple(p.shape) for p in before.parameters()]
    fit.model.set_nodes({"0": [i < 4 for i in range(12)], "2": [i < 3 for i in range(7)]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ns.fit(fit.model, (fit.X, fit.y), epochs=3, compact=ns.Compact(epochs=1), seed=0)
    assert fit.model.origin
    assert [tuple(p.shape) for p in sizes.whole(fit.model).parameters()] == shapes
    rows = Page(fit.write(tmp_path / "page.html")).rows()
    assert rows["parameters"][:2] == [str(12 * 5 + 7 * 13 + 8), str(4 * 5 + 3 * 5 + 4)]


def test_mistakes_are_sentences_and_nothing_is_written(numbers: Fit, tmp_path: Path) -> None:
    fresh = ns.bayesian(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1)), ns.ssig(), n=9)
    for changes, words in (
        ({"y": None}, "pass both, or neither"),
        ({"y": numbers.y[:-1]}, "X has 60 rows and y has 59"),
        ({"classes": ["a"], "y": numbers.y * np.nan}, "y holds nan at row 0"),
    ):
        with pytest.raises(ValueError, match=words):
            numbers.write(tmp_path / "page.html", **changes)
    with pytest.raises(ValueError, match="has no likelihood"):
        Fit(fresh, ns.History(), numbers.X, numbers.y).write(tmp_path / "page.html")
    with pytest.raises(ValueError, match=r"the folder .*nowhere does not exist; make it first"):
        numbers.write(tmp_path / "nowhere" / "page.html")
    with pytest.raises(ValueError, match="it is a folder"):
        numbers.write(tmp_path)
    assert list(tmp_path.iterdir()) == []


# ---- for everybody's eyes --------------------------------------------------------------------------------------------


def colours(scheme: str) -> dict[str, str]:
    """The page's colours by name: "light", "dark" or "print"."""
    light, *rest = re.findall(r":root \{([^}]*)\}", CSS)
    block = {"light": light, "dark": rest[0], "print": rest[1]}[scheme]
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block))


def rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])


def luminance(colour: np.ndarray) -> float:
    linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(a: np.ndarray, b: np.ndarray) -> float:
    """WCAG 2: (L1 + 0.05) / (L2 + 0.05), the lighter one above."""
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_contrast_formula_knows_black_and_white() -> None:
    assert contrast(rgb("#ffffff"), rgb("#000000")) == pytest.approx(21.0)
    assert contrast(rgb("#777777"), rgb("#ffffff")) == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_words_and_lines_stand_out(scheme: str) -> None:
    known = colours(scheme)
    paper = rgb(known["paper"])
    for name in ("ink", "faint", "met", "missed"):
        assert contrast(rgb(known[name]), paper) >= 4.5, name
    for colour in (svg.BLUE, svg.ORANGE, svg.GREEN, svg.PURPLE, svg.RED, svg.GREY):
        assert contrast(rgb(colour), paper) >= 3.0, colour
    for colour in (svg.BLUE, svg.RED):  # the confusion table's fullest cells
        cell = 0.45 * rgb(colour) + 0.55 * paper
        assert contrast(rgb(known["ink"]), cell) >= 4.5, colour


def test_figures_write_in_the_pages_colour_alone(page: str, class_page: str) -> None:
    for text in (page, class_page):
        assert svg.INK not in text
        letters = re.findall(r"<text[^>]*>", text)
        assert len(letters) > 50
        fills = {f for t in letters for f in re.findall(r"fill: ([^;\"]+)", t)}
        assert fills <= {"currentColor"}
        assert not [t for t in letters if "opacity" in t]


def test_nothing_is_wider_than_a_phone(page: str, class_page: str) -> None:
    rules = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert rules is not None
    for name, value, unit in re.findall(r"(?<![\w-])((?:min-)?width):\s*([\d.]+)(px|rem|em|in)", rules[1]):
        assert float(value) * {"px": 1, "rem": 16, "em": 16, "in": 96}[unit] <= 358, name
    for value in re.findall(r"minmax\(([^)]*\)?)", rules[1]):
        assert value.startswith("min(100%")
    for text in (page, class_page):
        for attrs in Page(text).all("svg"):
            assert "width" not in attrs
            assert "viewbox" in attrs
