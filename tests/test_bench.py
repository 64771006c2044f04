"""The measurements in tiny forms: what they report is true of what they ran, and the guards fail when they should.

Speed itself is not tested: a figure of it is measured by hand, on a machine that does nothing else.
"""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nodeslab as ns
from nodeslab import bench, cli
from nodeslab.bench import authors, bars, command, digits, peers, precision, predict, replicas, scale, step, train
from nodeslab.bench.bars import Bar
from nodeslab.kl import bernoulli, gaussian

ROOT = Path(__file__).parent.parent


@pytest.fixture
def few() -> digits.Digits:
    """300 rows of ten classes that can be told apart, in MNIST's shape."""
    stream = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 10
    X = torch.rand(300, 784, generator=stream) + torch.nn.functional.one_hot(y, 784) * 5
    return digits.Digits(X[:200], y[:200], X[200:], y[200:])


# ---- ratios --------------------------------------------------------------------------------------------------------


def test_runs_take_turns_and_warm_up() -> None:
    order: list[str] = []
    times = bench.interleaved({n: lambda n=n: order.append(n) for n in "ab"}, rounds=2, repeat=2, warm=1)
    assert "".join(order) == "aabb" * 3
    assert {n: len(t) for n, t in times.items()} == {"a": 2, "b": 2}


def test_ratios_are_of_medians() -> None:
    out = bench.against({"x": [1.0, 2.0, 9.0], "y": [1.0, 1.0, 4.0]}, "y")
    assert out["x"] == {"ms": 2000.0, "ratio": 2.0, "ratio_quartiles": [1.0, 2.25]}
    assert out["y"]["ratio"] == 1.0
    assert bench.against({"x": [3.0], "y": [2.0]}, "y")["x"]["ratio_quartiles"] == [1.5, 1.5]
    whole = train.totals({"plain": [1.0, 3.0], "ss-ig": [1.0, 1.0], "authors' layers": [4.0, 4.0]})
    assert whole["ss-ig"]["ratio"] == 0.5
    assert whole["ss-ig"]["of_authors"] == 0.25


# ---- bars and guards -----------------------------------------------------------------------------------------------

RESULT = {
    "bench": "step",
    "torch": "2",
    "mlp 784-400-400-10, batch 1024": {"plain": {"ratio": 1.0}, "ss-ig": {"ratio": 1.14}},
    "exactness in float64": {"KL": {"difference": 1e-12}},
}


def test_a_guard_holds_and_fails() -> None:
    found = bars.verdicts(RESULT)
    assert [(v.row, v.value) for v in found] == [("ss-ig", 1.14), ("KL", 1e-12)]
    command.guard("step", found)
    for value, where in ((1.16, "ss-ig"), (math.nan, "ss-ig"), (1.0, "plain")):
        changed: dict[str, Any] = json.loads(json.dumps(RESULT))
        changed["mlp 784-400-400-10, batch 1024"][where]["ratio"] = value
        if where == "plain":  # only the figure under its bar counts
            command.guard("step", bars.verdicts(changed))
            continue
        with pytest.raises(ValueError, match=r"1 of 2 figures are worse than their bars: mlp 784.*\(bar <= 1.15\)"):
            command.guard("step", bars.verdicts(changed))
    worse = RESULT | {"exactness in float64": {"KL": {"difference": 1e-9}}}
    with pytest.raises(ValueError, match="exactness in float64, KL"):
        command.guard("step", bars.verdicts(worse))


def test_bars_of_grouped_rows_and_least() -> None:
    reached = {"batch 64": {"onnxruntime": {"reached": 0.69}, "eager": {"reached": 0.1}}}
    (verdict,) = bars.verdicts({"bench": "infer", "lenet-caffe to 17": reached})
    assert (verdict.row, verdict.holds) == ("batch 64/onnxruntime", False)
    assert Bar("x", "", "", "v", least=0.7).holds(0.7)
    (line, *rest) = command.lines({"bench": "infer", "lenet-caffe to 17": reached}, [verdict])
    assert line == "lenet-caffe to 17"
    assert "bar >= 0.7, MISSED" in rest[0]
    assert "MISSED" not in rest[1]


def test_every_bar_belongs_to_a_bench() -> None:
    names = {"step", "train", "replicas", "predict", "scale", "peers", "infer"}
    for bar in bars.BARS:
        assert bar.bench in names
        assert (bar.most is None) != (bar.least is None)
    assert cli.main(["bench", "step", "--rounds", "0"]) == 2


def test_the_command_guards(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "measure", lambda args: RESULT)
    assert cli.main(["bench", "step", "--guard"]) == 0
    assert "[ratio: bar <= 1.15, holds]" in capsys.readouterr().out
    assert cli.main(["bench", "step", "--guard", "--json"]) == 0
    assert [b["holds"] for b in json.loads(capsys.readouterr().out)["bars"]] == [True, True]
    monkeypatch.setattr(bars, "BARS", (Bar("step", "mlp 784", "ss-ig", "ratio", most=1.0),))
    assert cli.main(["bench", "step"]) == 0  # says so, without a guard
    assert "MISSED" in capsys.readouterr().out
    assert cli.main(["bench", "step", "--guard"]) == 1
    out, err = capsys.readouterr()
    assert "MISSED" in out
    assert "1 of 1 figures are worse" in err
    assert len(err.splitlines()) == 1


# ---- step ----------------------------------------------------------------------------------------------------------


def test_exactness_sees_what_is_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = step._exactness()
    assert set(rows) == {"KL", "gradients of the KL", "gradients of the draw"}
    assert max(r["difference"] for r in rows.values()) <= 1e-10
    right = step._reference_kl
    monkeypatch.setattr(step, "_reference_kl", lambda model: right(model) * (1 + 1e-8))
    wrong = step._exactness()
    assert min(wrong["KL"]["difference"], wrong["gradients of the KL"]["difference"]) > 1e-10


# ---- the authors' way ----------------------------------------------------------------------------------------------


def test_the_authors_layers_are_the_same_model() -> None:
    """Their KL is the closed form of the same prior; without noise and with open gates they are the plain network."""
    net = bench.lenet()
    priors = tuple(ns.theory.authors_image_priors("lenet"))
    other = authors.converted(net, priors)
    X = torch.rand(3, 1, 28, 28)
    other(X)
    expected = 0.0
    gamma = torch.full((), math.log(99.0))
    for layer, prior in zip((m for m in net if isinstance(m, (nn.Conv2d, nn.Linear))), [*priors, None], strict=True):
        spread = torch.nn.functional.softplus(torch.tensor(-6.0))
        slab = sum(float(gaussian(p.detach(), spread.expand_as(p), 1.0).sum()) for p in layer.parameters())
        if prior is not None:
            odds = torch.tensor(math.log(prior / (1 - prior)))
            slab = 0.99 * slab + len(layer.bias) * float(bernoulli(gamma, odds))
        expected += slab
    assert float(other.kl().detach()) == pytest.approx(expected, rel=1e-4)
    assert other.open() == 20 + 50 + 800 + 500
    with torch.no_grad():
        for name, p in other.named_parameters():
            if name.endswith("rho"):
                p.fill_(-30.0)
            elif name.endswith("theta"):
                p.fill_(60.0)
    assert torch.allclose(other(X), net(X), atol=1e-5)


def test_an_authors_step_trains() -> None:
    net = authors.converted(nn.Sequential(nn.Linear(4, 5), nn.SiLU(), nn.Linear(5, 3)), (0.1,))
    before = [p.detach().clone() for p in net.parameters()]
    run = authors.authors_step(net, 100, torch.optim.Adam(net.parameters()))
    run(torch.randn(8, 4), torch.arange(8) % 3)
    assert all(not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


# ---- train ---------------------------------------------------------------------------------------------------------


def test_train(few: digits.Digits) -> None:
    result = train.train(epochs=2, seeds=2, data=few, batch_size=50)
    timed = result["784-400-400-10, 2 epochs, compact"]
    assert set(timed) == {"ss-ig", "plain", "authors' layers"}
    assert timed["plain"]["ratio"] == 1.0
    assert len(timed["ss-ig"]["epoch_ms"]) == 2
    assert set(result["784-400-400-10, 2 epochs, not compact"]) == {"ss-ig", "plain"}
    both = result["accuracy and open nodes"]
    assert both["compact"]["open"] <= 800
    assert both["compact"]["accuracy_apart"] >= 0
    assert not bars.verdicts({**result, "accuracy and open nodes": {}})  # two epochs have no bar


def test_precision(few: digits.Digits) -> None:
    result = precision.precision(rounds=1, epochs=2, seeds=2, data=few, batch_size=50)
    fits = result["784-400-400-10, 2 epochs, compact"]
    assert set(fits) == {"float32", "bfloat16"}
    assert all(0 <= fit["accuracy"] <= 1 and fit["open_sd"] >= 0 for fit in fits.values())
    assert result["lenet-caffe, batch 256"]["float32"]["ratio"] == 1.0


def test_a_fit_beside_its_rivals_is_the_fit_alone(few: digits.Digits) -> None:
    """To the bit, so that the time that is measured is that of the fit whose accuracy is reported."""
    models = [train.fresh(3, 200), train.fresh(3, 200)]
    noisy = {"plain": lambda: torch.rand(1000), "other": lambda: torch.manual_seed(5)}
    case, left = train._beside(models[0], few, 3, 50, False, noisy)
    assert left == train.fit_mlp(models[1], few, 3, 50, False, 0, None)
    states = [m.state_dict() for m in models]
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])
    assert len(case["ss-ig"]["epoch_ms"]) == 3


def test_how_far_apart_two_ways_are() -> None:
    out = train._compared({True: [(0.9, 10), (0.8, 12)], False: [(0.7, 10), (0.9, 12)]})
    assert out["compact"]["accuracy"] == 0.85
    assert out["compact"]["accuracy_apart"] == pytest.approx(0.05 / (0.1 / 2**0.5 + 0.2 / 2**0.5), abs=1e-3)
    assert out["compact"]["open_apart"] == 0.0
    assert "accuracy_apart" not in train._compared({True: [(0.9, 1)], False: [(0.8, 1)]})["compact"]


# ---- replicas, predict, scale, peers -------------------------------------------------------------------------------


def test_replicas() -> None:
    result = replicas.replicas(epochs=3, splits=2, counts=())
    case = result["concrete, 2 splits, 3 epochs"]
    assert case["together"]["rmse"] == pytest.approx(case["lone"]["rmse"], abs=0.02)
    assert case["together"]["open"] == case["lone"]["open"]
    assert case["lone"]["ratio"] == 1.0


def test_predict(few: digits.Digits, tmp_path: Path) -> None:
    result = predict.predict(rounds=1, epochs=1, draws=3, more=(1,), data=few)
    assert {k for k in result if k.startswith("100 images")} == {"100 images, 3 draws", "100 images, 1 draws"}
    assert set(result["100 images, 3 draws"]) == {"plain", "predict", "predict, shrunk"}
    model = train.fresh(0, 200)
    model.set_nodes({"0": torch.arange(400) < 7, "2": torch.arange(400) < 3})
    again = predict.predict(rounds=1, model=ns.save(model, tmp_path / "m"), draws=2, more=(), data=few)
    assert again["open"] == "7-3"
    assert "100 images, 2 draws" in again
    plain = ns.save(model.mean(), tmp_path / "p")
    with pytest.raises(ValueError, match="holds a plain network"):
        predict.predict(rounds=1, model=plain, data=few)


def test_scale() -> None:
    result = scale.scale(rounds=1, rows=(4000, 2000), widths=(16,), batches=(8,), reference=2000, sample=4000)
    growth = result["one epoch, rows x 20 from a memmap"]
    assert growth["4000 rows"]["from_linear"] == 0.0
    assert growth["2000 rows"]["us_per_row"] > 0
    assert growth["2000 rows"]["data_gib"] == pytest.approx(2000 * 21 * 4 / 2**30, abs=1e-3)
    assert all(-0.1 < row["peak_gib"] < 1.2 for row in growth.values())
    assert result["step against plain, by width"]["784-16-16-10"]["ratio"] > 0
    assert list(result["step against plain, by batch"]) == ["batch 8"]


def test_what_is_written_for_scale(tmp_path: Path) -> None:
    import numpy as np

    scale._write(tmp_path, 1000, part=300)
    X = np.memmap(tmp_path / "X", np.float32, "r", shape=(1000, 20))
    y = np.memmap(tmp_path / "y", np.float32, "r", shape=(1000,))
    assert abs(float(np.corrcoef(X[:, 0], y)[0, 1]) - 0.5**0.5) < 0.1
    assert len(np.unique(X[:, 1])) > 990  # parts differ


def test_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    def ghost(net: nn.Sequential, X: torch.Tensor, y: torch.Tensor) -> peers.Step:
        import no_such_package  # type: ignore[import-not-found]

        return no_such_package

    def there(net: nn.Sequential, X: torch.Tensor, y: torch.Tensor) -> peers.Step:
        return lambda: net(X[:1])

    monkeypatch.setattr(peers, "PEERS", {"ghost": ghost, "there": there})
    result = peers.peers(rounds=1)
    for name in ("mlp 784-400-400-10, batch 1024", "lenet-caffe, batch 256"):
        rows = result[name]
        assert {"plain", "there", "nodeslab, SS-IG", "nodeslab, VBNN", "authors' layers, SS-IG", "ghost"} == set(rows)
        assert "no_such_package" in rows["ghost"]["not_installed"]
    assert any("not installed" in line for line in command.lines(result, []))


def test_another_packages_layers_take_the_places_of_plain_ones() -> None:
    net = bench.lenet()
    chain = peers._rebuilt(net, lambda m: nn.Identity(), lambda m: nn.Dropout())
    kinds = [type(m) for m in chain]
    assert kinds.count(nn.Identity) == 3
    assert kinds.count(nn.Dropout) == 2
    assert len(chain) == len(net)


def test_digits_are_pixels_by_126(data_folder: str) -> None:
    data = digits.digits()
    assert data.X.shape == (60_000, 784)
    assert float(data.X_test.max()) == pytest.approx(255 / 126)
    assert data.y.dtype == torch.int64


# ---- the page ------------------------------------------------------------------------------------------------------


def _timed(*names: str, **more: Any) -> dict[str, Any]:
    return {n: {"ms": 2.0, "ratio": 1.0 + i, "ratio_quartiles": [1.0, 1.5 + i], **more} for i, n in enumerate(names)}


def test_the_page_is_made_from_records(tmp_path: Path) -> None:
    """Every kind of record, as a table with its bars and as a picture; without records there is a page all the same."""
    spec = importlib.util.spec_from_file_location("performance", ROOT / "docs" / "performance.py")
    assert spec is not None
    assert spec.loader is not None
    performance = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(performance)
    (tmp_path / "records").mkdir()
    performance.main(tmp_path, tmp_path / "records")
    assert "##" not in (tmp_path / "performance.md").read_text()

    plain = _timed("plain", "ss-ig", seconds=3.0, epoch_ms=[5.0, 4.0])
    timed = plain | _timed("authors' layers", seconds=4.0, epoch_ms=[5.0, 5.0])
    ghost = {"ghost": {"not_installed": "No module named 'ghost'"}}
    growth = {f"{n} rows": {**_timed("x")["x"], "peak_gib": 0.2, "data_gib": 0.1} for n in (1000, 20_000)}
    results: dict[str, dict[str, Any]] = {
        "step": {"mlp 784": _timed("plain", "ss-ig")},
        "train": {"epochs": 2, "784, 2 epochs, compact": timed, "784, 2 epochs, not compact": plain},
        "replicas": {f"concrete, {n} splits, 5 epochs": _timed("lone", "together") for n in (20, 3)},
        "predict": {"open": "7-3"} | {f"9 images, {n} draws": _timed("predict", "predict, shrunk") for n in (30, 2)},
        "scale": {
            "one epoch, rows": growth,
            "step against plain, by width": _timed("784-100-100-10", "784-20-20-10"),
            "step against plain, by batch": _timed("batch 8", "batch 64"),
        },
        "peers": {"mlp": _timed("plain", "nodeslab, SS-IG") | ghost, "lenet": _timed("plain")},
        "infer": {"lenet-caffe": {"batch 64": {"onnxruntime": {"reached": 0.8}}}},
    }
    for name, result in results.items():
        record = {"bench": name, **bench.machine(), **result}
        said = command.as_record(record, bars.verdicts(record))
        (tmp_path / "records" / f"{name}.json").write_text(json.dumps(said))
    performance.main(tmp_path, tmp_path / "records")
    page = (tmp_path / "performance.md").read_text()
    for name in results:
        assert f"## `nodeslab bench {name}`" in page
    assert "| ss-ig | 2.000 | 2.000 | 1.000 to 2.500 | ratio <= 1.15 **missed** |" in page
    assert "| batch 64/onnxruntime | 0.800 | of the ideal >= 0.7 holds |" in page
    assert "| ghost | not installed |" in page
    pictures = sorted(tmp_path.glob("*.png"))
    assert [p.stem for p in pictures] == [f"performance-{n}" for n in ("growth", "many", "peers", "train")]
    assert all(p.read_bytes().startswith(b"\x89PNG") and f"({p.name})" in page for p in pictures)
