"""From a table in a file to predictions: the whole path, by one process or several, broken off or not."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import nodeslab as ns
from nodeslab import cli, recipe, tabular
from nodeslab.folder import Folder, read_json
from nodeslab.table import read_table

NAMES = ("a", "b", "c")
Rows = np.ndarray[Any, Any]


def _table(rows: int = 200) -> tuple[Rows, Rows]:
    X = np.random.default_rng(0).normal(size=(rows, 3)) * [1, 10, 100] + 5
    return X, 50 + 20 * np.sin(X[:, 0])


def _csv(file: Path, X: Rows, y: Rows, header: tuple[str, ...] = NAMES) -> str:
    return _write(file, {header[0]: X[:, 0], "price": y, **dict(zip(header[1:], X.T[1:], strict=True))})


def _write(file: Path, columns: dict[str, Any]) -> str:
    with open(file, "w", newline="") as f:
        writer = csv.writer(f)
        writer.writerow(columns)
        writer.writerows(zip(*(np.asarray(c, dtype=object).tolist() for c in columns.values()), strict=True))
    return str(file)


def _said(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, Any]:
    capsys.readouterr()
    assert cli.main([*map(str, argv), "--json"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def _answers(file: Path) -> dict[str, list[str]]:
    with open(file, newline="") as f:
        header, *rows = list(csv.reader(f))
    return dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))


# ---- the whole path ------------------------------------------------------------------------------------------------


def test_the_whole_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """fit, report, predict, shrink, export: onnxruntime on raw rows answers as `nodeslab predict` does.

    Columns far from 0 for their spread, gaps among them: float32 could not hold them.
    """
    r = np.random.default_rng(1)
    X = r.normal(size=(300, 3)) * [1e-3, 1.0, 50.0] + [1e6, 0.0, -20.0]
    y = 1000 + 30 * np.sin(X[:, 1]) + 0.2 * X[:, 2]
    file, out = _csv(tmp_path / "t.csv", X, y), tmp_path / "deep" / "out"
    fitted = _said(capsys, "fit", file, "--target", "price", "--epochs", 60, "--hidden", 20, "--out", out)
    assert fitted["test"]["rmse"] < 0.8 * fitted["test"]["rmse_of_the_mean"]
    assert sorted(p.name for p in out.iterdir()) == [
        "fit.json",
        "model.nodeslab",
        "preprocessing.json",
        "result.json",
        "test.npz",
    ]
    assert cli.main(["report", str(out)]) == 0
    page = (out / "report.html").read_text()
    assert "<svg" in page
    assert "price" in page

    new = r.normal(size=(50, 3)) * [1e-3, 1.0, 50.0] + [1e6, 0.0, -20.0]
    new[3, 0], new[5, 1], new[7] = np.nan, np.nan, np.nan
    rows = _write(
        tmp_path / "new.csv", {n: [v if v == v else "" for v in c] for n, c in zip(NAMES, new.T, strict=True)}
    )
    answers = tmp_path / "answers.csv"
    said = _said(capsys, "predict", out, rows, "--out", answers)
    assert said["rows"] == 50
    assert [n.split(",")[0] for n in said["notes"]] == [
        f"2 gaps of 'a' filled with {np.median(_train(X, 0)[:, 0]):.6g}",
        f"2 gaps of 'b' filled with {np.median(_train(X, 0)[:, 1]):.6g}",
        f"1 gap of 'c' filled with {np.median(_train(X, 0)[:, 2]):.6g}",
    ]
    scale = float(_train(y, 0).std())
    _same_as_onnx(capsys, out, new, _answers(answers), scale)

    shrunk = _said(capsys, "shrink", out)
    assert shrunk["bayesian"] is True
    assert (out / "model-small.nodeslab").exists()
    small = tmp_path / "small.csv"
    _said(capsys, "predict", out, rows, "--out", small, "--small", "--draws", 20)
    exact, close = np.array(_answers(answers)["prediction"], float), np.array(_answers(small)["prediction"], float)
    assert np.abs(exact - close).max() < 0.5 * scale  # other draws of nearly the same nodes
    _same_as_onnx(capsys, out, new, _answers(small), scale, "--small", "--draws", "20")
    plain = _said(capsys, "shrink", out, "--plain")
    assert not isinstance(ns.load(plain["out"]), ns.Bayesian)


def _same_as_onnx(
    capsys: pytest.CaptureFixture[str], out: Path, rows: Rows, answers: dict[str, list[str]], scale: float, *more: str
) -> None:
    said = _said(capsys, "export", out, "--onnx", out / "m.onnx", *more)
    assert said["onnx"] == {"numbers": list(NAMES), "categories": [], "outputs": ["prediction", "std"]}
    session = onnxruntime.InferenceSession(str(out / "m.onnx"))
    for name, got in zip(said["onnx"]["outputs"], session.run(None, {"numbers": rows}), strict=True):
        assert np.abs(got - np.array(answers[name], float)).max() < 1e-5 * scale


def _train(rows: Rows, seed: int) -> Rows:
    """The rows that a fit trains on: a tenth is held out."""
    order = np.random.default_rng(seed).permutation(len(rows))
    return rows[order[round(0.1 * len(rows)) :]]


def test_texts_and_gaps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Classes that are texts, levels, rare and unknown ones, gaps; the ONNX file reads the texts themselves."""
    r = np.random.default_rng(2)
    n = 240
    size = [v if i % 11 else "" for i, v in enumerate(r.normal(size=n))]
    colour = ["NA" if i % 13 == 0 else "pink" if i in (50, 90) else str(r.choice(["red", "blue"])) for i in range(n)]
    kind = ["big" if (c == "red") == (s != "" and s > 0) else "small" for c, s in zip(colour, size, strict=True)]
    columns = {"size": size, "colour": colour, "code": [10 * (i % 3) for i in range(n)], "kind": kind}
    file, out = _write(tmp_path / "t.csv", columns), tmp_path / "o"
    argv = ["fit", file, "--target", "kind", "--categories", "code", "--epochs", "60", "--hidden", "16", "--out", out]
    fitted = _said(capsys, *argv)
    assert fitted["task"] == "classification"
    assert fitted["inputs"] == 1 + 4 + 3  # size; red, blue, missing, other; 0, 10, 20
    notes = " ".join(fitted["notes"])
    assert "gaps filled with the training rows' median (how many, with what): size (22," in notes
    assert "a level of their own, (missing): colour." in notes
    assert "rare levels pooled as (other): colour." in notes
    new = {
        "size": ["0.5", "", "-1"],
        "colour": ["red", "", "green"],
        "code": ["10", "0", "30"],
        "more": ["x", "y", "z"],
    }
    rows, answers = _write(tmp_path / "new.csv", new), tmp_path / "answers.csv"
    said = _said(capsys, "predict", out, rows, "--out", answers, "--draws", 20)
    assert "that had no level of their own in training (green) taken for (other)" in " ".join(said["notes"])
    assert "(30) taken for none of its levels" in " ".join(said["notes"])
    found = _answers(answers)
    assert set(found["prediction"]) <= {"big", "small"}
    graph = _said(capsys, "export", out, "--onnx", "--pt2", "--draws", 20)
    assert graph["onnx"]["categories"] == ["colour", "code"]
    levels = {"colour": ("red", "blue", "(missing)", "(other)"), "code": ("0", "10", "20")}
    wanted_inputs = {"size", *(f"{name}={level}" for name, of in levels.items() for level in of)}
    assert set(graph["pt2"]["inputs"]) == wanted_inputs
    assert read_json(out / "model.encoding.json")["inputs"] == graph["pt2"]["inputs"]
    session = onnxruntime.InferenceSession(str(out / "model.onnx"))
    texts = np.array(list(zip(new["colour"], new["code"], strict=True)), dtype=object)
    got = session.run(None, {"numbers": np.array([[0.5], [math.nan], [-1.0]]), "categories": texts})
    assert list(got[0]) == found["prediction"]
    wanted = np.array([found["p(big)"], found["p(small)"]], float).T
    assert np.abs(got[1] - wanted).max() < 1e-5
    assert np.abs(got[2] - np.array(found["entropy"], float)).max() < 1e-5


def test_numbers_as_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X, _ = _table(300)
    labels = np.where(X[:, 0] > 5, 7.0, np.where(X[:, 0] > 4, 3.0, -1.0))
    file, out = _csv(tmp_path / "t.csv", X, labels), tmp_path / "o"
    argv = ["fit", file, "--target", "price", "--model", "vbnn", "--epochs", "60", "--lr", "0.02", "--out", str(out)]
    assert cli.main(argv) == 0
    text = capsys.readouterr().out
    assert "270 rows to train on, 30 to test; classification of 'price' into 3 classes from 3 columns of num" in text
    assert float(text.split("accuracy ")[1].split(",")[0]) > 0.8
    assert read_json(out / "preprocessing.json")["classes"] == [-1, 3, 7]
    score = _said(capsys, "predict", out, file)
    assert set(score["columns"]["prediction"]) == {-1.0, 3.0, 7.0}
    assert score["score"]["accuracy"] == np.mean(np.array(score["columns"]["prediction"]) == labels) > 0.8
    said = _said(
        capsys, "fit", file, "--target", "price", "--task", "regression", "--epochs", 1, "--out", tmp_path / "r"
    )
    assert "rmse" in said["test"]


def test_what_is_printed_is_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The figures and the predictions, computed again from the files: standardise, draw, scale back."""
    X, y = _table(400)
    file, out = _csv(tmp_path / "t.csv", X, y), tmp_path / "o"
    fitted = _said(capsys, "fit", file, "--target", "price", "--epochs", 50, "--seed", 3, "--out", out)
    train, center, scale = _train(X, 3), _train(y, 3).mean(), _train(y, 3).std()
    made = read_json(out / "preprocessing.json")
    assert [c["name"] for c in made["numbers"]] == list(NAMES)
    assert np.allclose([c["center"] for c in made["numbers"]], train.mean(0))
    assert made["scale"] == pytest.approx(scale)
    model = ns.load(out / "model.nodeslab")
    assert isinstance(model, ns.Bayesian)
    p = ns.predict(model, (X - train.mean(0)) / train.std(0), draws=100, seed=0)
    mean, low = p.mean[:, 0].numpy() * scale + center, p.interval(0.5)[0]
    said = _said(capsys, "predict", out, file, "--interval", 0.5)
    assert np.allclose(said["columns"]["prediction"], mean, rtol=1e-4)
    assert np.allclose(said["columns"]["low"], low[:, 0].numpy() * scale + center, rtol=1e-4)
    inside = (np.array(said["columns"]["low"]) <= y) & (y <= np.array(said["columns"]["high"]))
    assert said["score"]["coverage"] == inside.mean()
    test = np.random.default_rng(3).permutation(400)[:40]
    assert fitted["test"]["rmse"] == pytest.approx(np.sqrt(np.mean((mean - y)[test] ** 2)), rel=1e-4)
    assert fitted["test"]["rmse_of_the_mean"] == pytest.approx(np.sqrt(np.mean((center - y)[test] ** 2)))
    std = p.std[test, 0].numpy() * scale
    assert fitted["test"]["nll"] == pytest.approx(
        ns.metrics.gaussian_nll(mean[test], std, y[test]), abs=0.1
    )  # a mixture, nearly
    held, kept = Folder(out).test_rows()
    assert np.allclose(kept * scale + center, y[test])
    assert np.allclose(held, ((X - train.mean(0)) / train.std(0))[test])


# ---- files ---------------------------------------------------------------------------------------------------------


def test_the_three_kinds_of_files_are_the_same_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    X, y = _table()
    files = [_csv(tmp_path / "t.csv", X, y), str(tmp_path / "t.parquet"), str(tmp_path / "t.npz")]
    pq.write_table(pa.table({**dict(zip(NAMES, X.T, strict=True)), "price": y}), files[1])
    np.savez(files[2], X=X, price=y)
    said = [
        _said(capsys, "fit", f, "--target", "price", "--epochs", 3, "--out", tmp_path / f"o{f[-3:]}") for f in files
    ]
    assert said[0]["task"] == "regression"
    assert said[0]["test"] == said[1]["test"] == said[2]["test"]
    answers = [_said(capsys, "predict", tmp_path / f"o{f[-3:]}", f)["columns"] for f in files]
    assert answers[0] == answers[1] == answers[2]
    out = tmp_path / "answers.parquet"
    _said(capsys, "predict", tmp_path / "ocsv", files[0], "--out", out)
    assert pq.read_table(out).to_pydict() == answers[0]


def test_parquet_columns_of_every_kind(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "whole": pa.array([1, None, 3]),
        "yes": pa.array([True, False, None]),
        "exact": pa.array([1, 2, None]).cast(pa.decimal128(21, 2)),
        "text": pa.array(["x", "NaN", None]),
        "level": pa.array(["x", "y", None]).dictionary_encode(),
        "none": pa.nulls(3),
        "day": pa.array([0, 1, None], pa.date32()),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    for name, wanted in (("whole", [1, math.nan, 3]), ("yes", [1, 0, math.nan]), ("exact", [1, 2, math.nan])):
        assert np.array_equal(table.numbers(name), wanted, equal_nan=True)
    assert table.texts("text").tolist() == ["x", "", ""]
    assert table.texts("level").tolist() == ["x", "y", ""]
    assert table.texts("whole").tolist() == ["1", "", "3"]
    assert np.isnan(table.numbers("none")).all()
    with pytest.raises(ValueError, match="holds dates or times"):
        table.is_category("day")
    assert set(table.without(["day"]).columns) == set(columns) - {"day"}


def test_csv_as_people_write_it(tmp_path: Path) -> None:
    """Semicolons, a mark at the start, spaces, quotes, blank lines, many words for a gap, a column without a name."""
    text = '\ufeff;a; b ;"c;d"\n0; 1 ;x;"p;q"\n\n1;?;N/A;\n2;3e2;None;r\n'
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    table = read_table(tmp_path / "t.csv")
    assert list(table.columns) == ["(column 0)", "a", "b", "c;d"]
    assert np.array_equal(table.numbers("a"), [1, math.nan, 300], equal_nan=True)
    assert table.texts("b").tolist() == ["x", "", ""]
    assert table.texts("c;d").tolist() == ["p;q", "", "r"]


# ---- what is found in the columns ----------------------------------------------------------------------------------


def test_columns_that_say_nothing_or_too_much(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    r = np.random.default_rng(3)
    n = 150
    y = r.normal(size=n) * 4 + 100
    a = r.normal(size=n)
    columns: dict[str, Any] = {
        "": range(n),
        "a": a,
        "b": r.normal(size=n),
        "same": a,
        "still": [7] * n,
        "nothing": [""] * n,
        "person": [f"n{i}" for i in range(n)],
        "twice": 1 - 2 * y,
        "nearly": y + r.normal(size=n),
        "price": [v if i else "" for i, v in enumerate(y)],
    }
    file = _write(tmp_path / "t.csv", columns)
    argv = ["fit", file, "--target", "price", "--epochs", "1", "--out", str(tmp_path / "o")]
    assert cli.main([*argv, "--json"]) == 0
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert said["inputs"] == 4
    assert said["notes"] == [
        "1 row without a target left out.",
        "left out, had no name: (column 0).",
        "left out, equals 'a': same.",
        "left out, constant: still.",
        "left out, empty: nothing.",
        "left out, nearly as many texts as rows: person.",
    ]
    assert err.startswith("nodeslab fit: WARNING: Column 'twice' gives the target away: its correlation is -1.000000")
    assert "--drop twice" in err
    assert len(said["leaks"]) == 1
    left = [*argv[:-1], str(tmp_path / "o2"), "--drop", "twice", "--json"]
    assert cli.main(left) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out)["leaks"], err) == ([], "")


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_a_category_that_determines_the_target(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    r = np.random.default_rng(4)
    code = r.integers(0, 4, 120)
    y = np.array([1.5, 2.5, -3.0, 8.0])[code] if task == "regression" else code % 2
    mostly = np.where(np.arange(120) == 119, 1 - code % 2, code % 2)  # wrong once, and in a training row with seed 0
    columns = {"a": r.normal(size=120), "word": [f"w{c}" for c in code], "number": code, "mostly": mostly, "y": y}
    file = _write(tmp_path / "t.csv", columns)
    assert 119 not in np.random.default_rng(0).permutation(120)[:12]
    said = _said(capsys, "fit", file, "--target", "y", "--task", task, "--epochs", 1, "--out", tmp_path / "o")
    named = [leak.split("'")[1] for leak in said["leaks"]]
    assert named == (["word"] if task == "regression" else ["word", "number"])


# ---- going on ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", list(recipe.MODELS))
def test_every_model(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X, y = _table(60)
    file = _csv(tmp_path / "t.csv", X, y)
    said = _said(capsys, "fit", file, "--target", "price", "--model", model, "--epochs", 1, "--out", tmp_path / "o")
    assert np.isfinite(said["elbo"])
    assert said["recipe"]["model"] == model


def test_a_fit_goes_on_where_it_was_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = _table()
    file = _csv(tmp_path / "t.csv", X, y)
    argv = ["fit", file, "--target", "price", "--epochs", "6", "--hidden", "5"]
    whole = _said(capsys, *argv, "--out", tmp_path / "whole")

    def stopped(*args: Any, **options: Any) -> Any:
        def stop(model: Any, record: Any) -> None:
            if record.epoch == 3:
                signal.raise_signal(signal.SIGINT)

        return recipe.fit_rows(*args, **options, callback=stop)

    out = tmp_path / "o"
    with monkeypatch.context() as m:
        m.setattr(tabular, "fit_rows", stopped)
        assert cli.main([*argv, "--out", str(out)]) == 130
    err = capsys.readouterr().err
    assert "stopped by SIGINT in epoch 4 of 6; saved" in err
    assert sorted(p.name for p in out.iterdir()) == ["fit.checkpoint", "fit.json"]
    assert cli.main(["predict", str(out), file]) == 1
    assert "give the same nodeslab fit again to go on" in capsys.readouterr().err
    assert cli.main([*argv, "--out", str(out)]) == 0
    assert f"Going on with the fit in {out}." in capsys.readouterr().out
    timeless = {"history", "seconds"}
    one, two = (Folder(p).results() for p in (tmp_path / "whole", out))
    assert {k: v for k, v in one.items() if k not in timeless} == {k: v for k, v in two.items() if k not in timeless}
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    assert cli.main([*argv, "--out", str(out)]) == 0
    assert "holds this fit already, finished; nothing was done" in capsys.readouterr().out
    again = _said(capsys, *argv, "--out", out)
    assert again["finished_before"] is True
    assert again["test"] == whole["test"]
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


def test_torchrun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two processes started by torchrun: one report, one set of files, the model of one process; and then nothing."""
    X, y = _table()
    file = _csv(tmp_path / "t.csv", X, y)
    argv = ["fit", file, "--target", "price", "--epochs", "8", "--batch-size", "41"]
    alone = _said(capsys, *argv, "--out", tmp_path / "one")
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    command = [sys.executable, "-m", *launcher, "nodeslab", *argv, "--out", str(tmp_path / "two"), "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    found = []
    for _ in range(2):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        (line,) = done.stdout.strip().splitlines()
        found.append(json.loads(line))
    assert [said["finished_before"] for said in found] == [False, True]
    assert (found[0]["ranks"], alone["ranks"]) == (2, 1)
    assert found[0]["test"]["rmse"] == pytest.approx(alone["test"]["rmse"], rel=1e-4)
    one, two = (ns.load(tmp_path / name / "model.nodeslab").state_dict() for name in ("one", "two"))
    for name, value in one.items():
        assert torch.allclose(value, two[name], rtol=0, atol=1e-5), name
