"""The paper's experiments: rows become records, once; records become a report, without training."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nodeslab.cli import main
from nodeslab.model import Bayesian
from nodeslab.paper import records, reporting, running
from nodeslab.paper.cases import Flipped, case_for
from nodeslab.paper.claims import by_name, claims_of, verdict
from nodeslab.paper.measures import Measure
from nodeslab.paper.networks import model_of
from nodeslab.paper.published import Printed, authors_last
from nodeslab.paper.rows import NAMES, Row, rows_of
from nodeslab.paper.running import reproduce
from nodeslab.paper.simulations import simulation_1, simulation_2
from nodeslab.spec import Edge, Node
from nodeslab.training import History, fit


def fast(name: str, **changes: object) -> Row:
    """The quick version of a row, smaller still."""
    return replace(rows_of([name], quick=True)[0], **changes)


def songs(folder: Path, rows: int = 300) -> None:
    """A file in the format of YearPredictionMSD."""
    stream = np.random.default_rng(0)
    X = stream.standard_normal((rows, 90))
    years = np.clip(np.round(1998 + 5 * X[:, 0]), 1922, 2011)
    (folder / "year").mkdir(parents=True)
    lines = (",".join([f"{y:.0f}", *(f"{v:.5f}" for v in x)]) for x, y in zip(X, years, strict=True))
    (folder / "year" / "YearPredictionMSD.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records of quick runs of what needs no data folder."""
    out = tmp_path_factory.mktemp("records")
    assert main(["reproduce", "sim1", "sim2", "uci/concrete", "--quick", "--out", str(out), "--workers", "1"]) == 0
    return out / "quick"


def test_every_row_is_a_run_that_the_paper_describes() -> None:
    rows = {r.name: r for r in rows_of(NAMES)}
    assert len(rows) == 4 + 6 + 24 + 8 + 9 + 6
    assert {r.seeds for r in rows.values() if r.data in ("concrete", "wine", "power", "kin8nm")} == {20}
    assert rows["uci/protein/ss-ig"].seeds == 5
    assert rows["uci/year/ss-ig"].seeds == 1
    for name, epochs, batch, widths in (("concrete", 500, 128, 50), ("kin8nm", 800, 128, 50), ("year", 100, 256, 100)):
        row = rows[f"uci/{name}/ss-ig"]
        assert (row.epochs, row.batch_size, row.network, row.lr) == (epochs, batch, (widths,), 1e-3)
    assert rows["lenet/mnist/sv-bnn"].lr == 1e-3
    assert rows["mlp/mnist/vbnn"].batch_size == 128
    assert [r.name for r in rows_of(["uci/wine/ss-ig"])] == ["uci/wine/ss-ig"]
    assert rows_of(["uci/year"], seeds=7)[0].seeds == 1
    with pytest.raises(ValueError, match="no experiment 'sim3'"):
        rows_of(["sim3"])
    with pytest.raises(ValueError, match="no row 'uci/iris'"):
        rows_of(["uci/iris"])


def test_the_simulations_are_the_papers_functions() -> None:
    one = simulation_1(20_000, 0)
    x = one.X[7]
    s = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
    truth = 4 - 3 * s(10 * x[0] + 15 * x[1] - 5) + 3 * s(-15 * x[0] + 10 * x[1] + 5)
    assert one.y[7] - one.noise[7] == pytest.approx(truth, abs=1e-12)
    assert one.noise.std() / (one.y - one.noise).std() == pytest.approx(0.05, rel=0.03)
    two = simulation_2(20_000, 0)
    x = two.X[3]
    truth = 7 * x[1] / (1 + x[0] ** 2) + np.sin(x[2] * x[3]) + 2 * x[4]
    assert two.y[3] - two.noise[3] == pytest.approx(truth, abs=1e-12)
    assert two.y.std() == pytest.approx(two.spread, rel=0.03)


def test_each_seed_has_its_record(made: Path) -> None:
    found = by_name(records.read_all(made))
    assert set(found) == {r.name for r in rows_of(["sim1", "sim2", "uci/concrete"])}
    record = found["uci/concrete/ss-ig"][1]
    assert record["seed"] == 1
    assert record["curve"]["epoch"] == [1, 2, 3]
    assert set(record["final"]) >= {"test_rmse", "test_log_likelihood", "coverage90", "nodes_mean_0", "nodes_draws_0"}
    assert len(record["data"]["sha256"]) == 64
    assert record["environment"]["threads"] == 1
    assert len(found["sim1/100/ss-ig"][0]["weights"]) == 100
    # as one batched run and alone: the same fit
    alone = made.parent / "alone"
    running.run_one(rows_of(["uci/concrete/ss-ig"], quick=True)[0], alone, "cpu", 1)
    (other,) = records.read_all(alone / "quick")
    assert other["together"] == 1
    assert record["together"] == 2
    assert other["final"]["test_rmse"] == pytest.approx(record["final"]["test_rmse"], rel=1e-3)


def test_a_second_call_does_nothing(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {p: p.stat().st_mtime_ns for p in made.rglob("*")}
    for name in ("fit", "fit_replicas", "repeat"):
        monkeypatch.setattr(running, name, lambda *a, **k: pytest.fail("it trained again"))
    outcomes = list(reproduce(["sim1", "sim2", "uci/concrete"], made.parent, quick=True))
    assert sum(o.made for o in outcomes) == 0
    assert sum(o.there for o in outcomes) == 4 + 6 + 4 * 2
    assert {p: p.stat().st_mtime_ns for p in made.rglob("*")} == before


def test_a_record_of_other_settings_is_not_taken_for_this_row(made: Path) -> None:
    row = replace(rows_of(["sim2/vbnn"], quick=True)[0], lr=0.1)
    with pytest.raises(ValueError, match=r"vbnn-00.json was made with another lr \(0.005 instead of 0.1\)"):
        running._is_done(made.parent, row, 0)


def test_damaged_records_are_refused_by_name(tmp_path: Path) -> None:
    path = records.path_of(tmp_path, "sim2/ss-ig", 3, False)
    records.write(path, {"name": "sim2/ss-ig", "seed": 3, "final": {"test_rmse": 1.25}})
    assert records.read(path)["final"] == {"test_rmse": 1.25}
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(ValueError, match=r"ss-ig-03\.json is damaged"):
            records.read(path)
    for short in (content[:-1], content[: len(content) // 2], b""):
        path.write_bytes(short)
        with pytest.raises(ValueError, match=r"ss-ig-03\.json is damaged"):
            reporting.report(tmp_path, tmp_path / "report")


KILLED = """
import sys
from pathlib import Path
import torch
from test_paper import saving_always, slow_row
from nodeslab.paper import running

torch.set_num_threads(1)
running.fit = saving_always
running.run_one(slow_row(), Path(sys.argv[1]), "cpu", 0)
"""


def slow_row() -> Row:
    """A run of some seconds."""
    return fast("sim2/sv-bnn", epochs=24, every=1, data_rows=(200, 50), batch_size=50, curve_draws=2)


def saving_always(model: Bayesian, data: object, **arguments: object) -> History:
    return fit(model, data, **arguments, checkpoint_seconds=0.0)


def test_a_killed_run_goes_on_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed without warning and called again, it ends with the figures of a run that was left alone."""
    folder = tmp_path / "killed" / "quick" / "sim2"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "killed")], cwd=Path(__file__).parent)
    while process.poll() is None and _lines(folder / ".sv-bnn-00.measured") < 5:
        time.sleep(0.01)
    assert process.poll() is None, "it ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (folder / ".sv-bnn-00.checkpoint").exists()
    assert not (folder / "sv-bnn-00.json").exists()
    trained: list[int] = []

    def watched(model: Bayesian, data: object, **arguments: object) -> History:
        look = arguments.pop("callback")
        return fit(model, data, callback=lambda m, r: (trained.append(r.epoch), look(m, r)), **arguments)

    monkeypatch.setattr(running, "fit", watched)
    for name in ("killed", "whole"):
        running.run_one(slow_row(), tmp_path / name, "cpu", 0)
    assert [p.name for p in folder.iterdir()] == ["sv-bnn-00.json"]
    assert trained[-24:] == list(range(1, 25))
    assert trained[0] > 1
    killed, whole = (records.read(records.path_of(tmp_path / n, "sim2/sv-bnn", 0, True)) for n in ("killed", "whole"))
    assert killed["curve"] == whole["curve"]
    assert killed["final"] | {"fit_seconds": 0} == whole["final"] | {"fit_seconds": 0}


def _lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def test_the_report_is_made_of_records_alone(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("fit", "fit_replicas", "case_for"):
        monkeypatch.setattr(running, name, lambda *a, **k: pytest.fail("it trained"))
    monkeypatch.delenv("NODESLAB_DATA", raising=False)
    assert main(["report", "--records", str(made), "--out", str(tmp_path)]) == 0
    assert "sim2: 6 records" in capsys.readouterr().out
    for name in NAMES:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / f"{name}.svg").read_text()
    text = (tmp_path / "report.md").read_text()
    lines = {tuple(c.strip() for c in line.split("|")[1:3]): line for line in text.splitlines() if line.startswith("|")}
    concrete = records.read(made / "uci/concrete/ss-ig-00.json"), records.read(made / "uci/concrete/ss-ig-01.json")
    mean = sum(r["final"]["test_rmse"] for r in concrete) / 2
    assert f"{mean:.3f} ± " in lines["uci/concrete/ss-ig", "test RMSE"]
    assert lines["uci/concrete/ss-ig", "test RMSE"].endswith("| missed |")
    assert lines["uci/year/ss-ig", "test RMSE"].endswith("| not run |")
    assert "--quick" in text
    page = (tmp_path / "index.html").read_text()
    assert page.count("<svg") == len(NAMES)
    assert not re.search(r"https?://|<script|<link|@import|src=", page)
    assert "prefers-color-scheme: dark" in page
    assert r"\begin{tabular}" in (tmp_path / "report.tex").read_text()


def test_the_page_of_no_records_says_so(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    said = reporting.report(tmp_path / "results", tmp_path / "report")
    assert len(said) == len(NAMES)
    assert all(" met" not in line and " missed" not in line for line in said)
    assert main(["report", "--records", str(tmp_path / "nowhere"), "--out", str(tmp_path / "r")]) == 1


@pytest.mark.parametrize(
    ("value", "bar", "sense", "decimals", "expected"),
    [
        (8.26, 8.26, "<=", 2, "met"),
        (8.264, 8.26, "<=", 2, "met as printed"),
        (8.266, 8.26, "<=", 2, "missed"),
        (0.966, 0.966, ">=", 4, "met"),
        (0.9659, 0.966, ">=", 4, "missed"),
        (0.96596, 0.966, ">=", 4, "met as printed"),
        (4.0, 4, "<=", 0, "met"),
        (4.2, 4, "<=", 1, "missed"),
        (None, 1.0, "<=", 2, "not run"),
        (1.0, None, "<=", 2, "-"),
    ],
)
def test_a_verdict_is_computed(
    value: float | None, bar: float | None, sense: str, decimals: int, expected: str
) -> None:
    assert verdict(value, bar, sense, decimals) == expected


@pytest.mark.parametrize(("rmse", "expected"), [(7.0, "met"), (9.0, "missed")])
def test_claims_follow_the_records(rmse: float, expected: str) -> None:
    name = "uci/concrete/ss-ig"
    final = {"test_rmse": rmse, "nodes_mean_0": 0.3}
    claims = claims_of("uci", {name: [{"name": name, "seed": s, "final": final} for s in range(2)]})
    claim = next(c for c in claims if c.row == name and c.quantity == "test RMSE")
    assert claim.bar == pytest.approx(7.92 + 0.5 * 0.68)
    assert claim.difference == pytest.approx(rmse - 7.92)
    assert claim.verdict == expected


def test_what_was_published() -> None:
    number = Printed("7.92 ± 0.68")
    assert (number.mean, number.sd, number.decimals) == (7.92, 0.68, 2)
    assert Printed("8.68").sd is None
    # the figures: MNIST 96.6 % at 0.125, 98.55 % at 0.134; Fashion 84.6 % at 0.093, 87.5 % at 0.093
    for network, data, accuracy, flops in (
        ("mlp", "mnist", 0.966, 0.125),
        ("lenet", "mnist", 0.9855, 0.134),
        ("mlp", "fashion-mnist", 0.846, 0.093),
        ("lenet", "fashion-mnist", 0.875, 0.093),
    ):
        assert authors_last(network, data, "SS-IG", "test_accuracy") == pytest.approx(accuracy, abs=0.002)
        assert authors_last(network, data, "SS-IG", "flops_ratio") == pytest.approx(flops, abs=0.01)
    assert authors_last("mlp", "mnist", "VBNN", "flops_ratio") is None


def test_sparsities_of_the_mean_network_and_of_draws() -> None:
    row = fast("uci/concrete/ss-ig", network=(4,))
    case = case_for(row, 0)
    model = model_of(row, case, 0)
    model.set_nodes({"0": [True, False, True, False]})
    with torch.no_grad():
        model.posteriors[0].gates["node"].logit[0] = torch.logit(torch.tensor(0.6))
    left = Measure(row, case, model).left(seed=0)
    assert left["nodes_mean_0"] == 0.5  # inclusions 0.6, 0, 1, 0
    assert 0.25 < left["nodes_draws_0"] < 0.5
    share = left["nodes_draws_0"]
    dense, per_node = 9 * 4 + 5, 9 + 1  # a node costs its own weights, bias included, and one of the output's
    assert left["flops_mean"] == pytest.approx((2 * per_node + 1) / dense)
    assert left["flops_draws"] == pytest.approx((4 * share * per_node + 1) / dense)


def test_image_rows_have_the_authors_priors() -> None:
    for name in ("mlp/mnist", "lenet/mnist"):
        row = replace(rows_of([f"{name}/ss-ig"])[0], exponents=None, prior="authors")
        X = torch.zeros(60_000, 784) if name.startswith("mlp") else torch.zeros(60_000, 1, 28, 28)
        case = replace(case_for(fast("sim2/vbnn"), 0), X=X, y=torch.zeros(60_000, dtype=torch.long))
        chances = [p.inclusion_prior for p in model_of(row, case, 0).posteriors if not p.output]
        wanted = (1.54e-3, 2.34e-3) if name.startswith("mlp") else (7.5e-4, 1.2e-3, 7.5e-4, 1.2e-3)
        assert chances == pytest.approx(wanted, rel=0.01)
        gate = model_of(replace(row, model="sv-bnn", edge_layers=3), case, 0).posteriors[0].prior.gate
        assert isinstance(gate, Edge)
        assert gate.prior is not None
    widths = rows_of(["widths/400/ss-ig"])[0]
    gate = model_of(widths, replace(case, X=torch.zeros(60_000, 784)), 0).posteriors[0].prior.gate
    assert isinstance(gate, Node)
    assert gate.prior is None


def test_flips_are_of_whole_images_and_of_about_half() -> None:
    X = torch.rand(400, 784)
    (batch, y), *_ = Flipped(X, torch.arange(400), 400, (784,))
    mirrored = X.reshape(-1, 28, 28).flip(2).reshape(-1, 784)
    same, turned = ((batch == of[y]).all(1) for of in (X, mirrored))
    assert bool((same ^ turned).all())
    assert 150 < int(turned.sum()) < 250


def test_year_runs_on_a_file_of_its_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nodeslab.datasets as datasets

    songs(tmp_path / "data")
    monkeypatch.setenv("NODESLAB_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(datasets, "year", lambda of=datasets.year: of(rows=300, train=250))
    rows = list(reproduce(["uci/year/ss-ig", "uci/year/sv-bnn"], tmp_path / "out", quick=True))
    assert [o.made for o in rows] == [1, 1]  # one fixed split, and no more
    record = records.read(tmp_path / "out/quick/uci/year/ss-ig-00.json")
    assert record["data"]["train"] == 200
    assert record["nodes"] == {"0": 100}
    assert record["final"]["test_rmse"] > 0


def test_what_cannot_be_had_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODESLAB_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (outcome,) = reproduce(["uci/year/ss-ig"], tmp_path / "out", quick=True)
    assert outcome.made == 0
    assert "not run, the data set is not here; get it with: nodeslab data year" in str(outcome)
    with pytest.raises(ValueError, match="sees no such device"):
        next(reproduce(["sim1"], tmp_path / "out", device="cuda"))


@pytest.mark.parametrize("name", ["uci/wine", "uci/protein", "mlp", "lenet/fashion-mnist/ss-ig", "widths/400"])
def test_the_rows_on_larger_data_run(
    name: str, tmp_path: Path, data_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = [
        replace(r, data_rows=(64, 32), batch_size=32, epochs=1, seeds=1, curve_draws=2, draws=3)
        for r in rows_of([name], True)
    ]
    monkeypatch.setattr(running, "rows_of", lambda *a: small)
    outcomes = list(reproduce([name], tmp_path, quick=True, workers=1))
    assert all(o.made == 1 for o in outcomes), [str(o) for o in outcomes]
    found = records.read_all(tmp_path / "quick")
    assert {r["name"] for r in found} == {r.name for r in small}
    for record in found:
        assert all(np.isfinite(v) for v in record["final"].values())
        assert record["curve"]["epoch"] == [1]
        json.dumps(record)
    assert os.environ["NODESLAB_DATA"]
