"""`nodeslab fit`: files to figures, by one process or several, resumed or not."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nodeslab as ns
from nodeslab import cli, tabular

NAMES = ("a", "b", "c")


def _table(rows: int = 200) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    X = np.random.default_rng(0).normal(size=(rows, 3)) * [1, 10, 100] + 5
    return X, 50 + 20 * np.sin(X[:, 0])


def _csv(file: Path, X: np.ndarray[Any, Any], y: np.ndarray[Any, Any], header: tuple[str, ...] = NAMES) -> str:
    with open(file, "w", newline="") as f:
        writer = csv.writer(f)
        writer.writerow([header[0], "price", *header[1:]])  # the target may stand anywhere
        writer.writerows([row[0], value, *row[1:]] for row, value in zip(X.tolist(), y.tolist(), strict=True))
    return str(file)


def _run(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, Any]:
    assert cli.main(["fit", *map(str, argv), "--json"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def test_the_three_kinds_of_files_are_the_same_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    X, y = _table()
    files = [_csv(tmp_path / "t.csv", X, y), str(tmp_path / "t.parquet"), str(tmp_path / "t.npz")]
    pq.write_table(pa.table({**dict(zip(NAMES, X.T, strict=True)), "price": y}), files[1])
    np.savez(files[2], X=X, price=y)
    said = [_run(capsys, f, "--target", "price", "--epochs", 3, "--out", tmp_path / f"o{f[-3:]}") for f in files]
    assert said[0]["task"] == "regression"
    assert said[0]["test"] == said[1]["test"] == said[2]["test"]
    assert said[0]["nodes"] == [{"path": "0", "total": 50, "open": 50}]


def test_what_is_written_predicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The figures printed are those of the files written, on the rows that were held out."""
    X, y = _table(400)
    file, out = _csv(tmp_path / "t.csv", X, y), tmp_path / "deep" / "out"
    argv = [file, "--target", "price", "--epochs", 200, "--hidden", 30, "--seed", 3, "--lr", 0.01, "--out", out]
    said = _run(capsys, *argv)
    made = tabular.Preprocessing(**json.loads((out / "preprocessing.json").read_text()))
    assert (made.features, made.target) == (list(NAMES), "price")
    test = np.random.default_rng(3).permutation(400)[:40]
    train = np.setdiff1d(np.arange(400), test)
    assert np.allclose(made.center, X[train].mean(0))
    assert made.target_scale == pytest.approx(y[train].std())
    model = ns.load(out / "model.nodeslab")
    assert isinstance(model, ns.Bayesian)
    p = ns.predict(model, made.X(X[test]), draws=100, seed=0)
    mean = p.mean[:, 0].double().numpy() * made.target_scale + made.target_center
    assert said["test"]["rmse"] == pytest.approx(np.sqrt(np.mean((mean - y[test]) ** 2)), rel=1e-4)
    assert said["test"]["rmse"] < 0.75 * y.std()  # it has learnt
    again = _run(capsys, *argv)  # from the checkpoint, which is at its end
    assert again["test"] == said["test"]
    assert again["epochs"] == 200


def test_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X, _ = _table(300)
    labels = np.where(X[:, 0] > 5, 7.0, np.where(X[:, 0] > 4, 3.0, -1.0))
    file = _csv(tmp_path / "t.csv", X, labels)
    argv = [file, "--target", "price", "--model", "vbnn", "--epochs", 60, "--lr", 0.02, "--out", tmp_path / "o"]
    assert cli.main(["fit", *map(str, argv)]) == 0
    out = capsys.readouterr().out
    assert "270 rows to train on, 30 to test; classification of 'price'" in out
    assert "test: accuracy" in out
    assert float(out.split("accuracy ")[1].split(",")[0]) > 0.8
    assert json.loads((tmp_path / "o" / "preprocessing.json").read_text())["classes"] == [-1, 3, 7]
    said = _run(capsys, file, "--target", "price", "--task", "regression", "--epochs", 1, "--out", tmp_path / "r")
    assert "rmse" in said["test"]


@pytest.mark.parametrize("model", list(tabular.MODELS))
def test_every_model(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X, y = _table(60)
    said = _run(
        capsys, _csv(tmp_path / "t.csv", X, y), "--target", "price", "--model", model, "--epochs", 1, "--out", tmp_path
    )
    assert np.isfinite(said["elbo"])


def _with(X: np.ndarray[Any, Any], row: int, column: int, value: float) -> np.ndarray[Any, Any]:
    out = X.copy()
    out[row, column] = value
    return out


REFUSED: dict[str, tuple[Any, str]] = {
    "no target": (lambda f, X, y: [_csv(f / "t.csv", X, y)], "Say which column"),
    "another target": (lambda f, X, y: [_csv(f / "t.csv", X, y), "--target", "cost"], "0 columns called 'cost'"),
    "no file": (lambda f, X, y: [f / "none.csv", "--target", "y"], "There is no file"),
    "another ending": (lambda f, X, y: [__file__, "--target", "y"], "must be a .csv, .parquet or .npz file, got .py"),
    "twice": (lambda f, X, y: [_csv(f / "t.csv", X, y, ("a", "price", "c")), "--target", "price"], "2 columns called"),
    "gap": (lambda f, X, y: [_csv(f / "t.csv", _with(X, 9, 1, np.nan), y), "--target", "price"], "'b' of"),
    "constant": (lambda f, X, y: [_csv(f / "t.csv", X * [1, 0, 1], y), "--target", "price"], "'b' is constant (0 in"),
    "halves": (
        lambda f, X, y: [_csv(f / "t.csv", X, y), "--target", "price", "--task", "classification"],
        "must be whole numbers",
    ),
    "few rows": (lambda f, X, y: [_csv(f / "t.csv", X[:3], y[:3]), "--target", "price"], "at least 4 are needed"),
    "width": (
        lambda f, X, y: [_csv(f / "t.csv", X, y), "--target", "price", "--hidden", "0"],
        "hidden must be at least 1",
    ),
    "epochs": (lambda f, X, y: [_csv(f / "t.csv", X, y), "--target", "price", "--epochs", "0"], "epochs must be at"),
    "out": (lambda f, X, y: [_csv(f / "t.csv", X, y), "--target", "price", "--out", f / "t.csv"], "is not a folder"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_one_sentence(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, word = REFUSED[name]
    argv = list(map(str, make(tmp_path, *_table(60))))
    assert cli.main(["fit", *argv, *([] if "--out" in argv else ["--out", str(tmp_path / "o")])]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert word in err
    assert len(err.splitlines()) == 1


def test_text_and_ragged_rows_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for content, word in (
        ("a,b,price\n1,2,3\n4,red,6\n", "holds 'red' in row 1, column 'b'; every value must be a number"),
        ("a,b,price\n1,2,3\n4,,6\n", "holds '' in row 1, column 'b'"),
        ("a,b,price\n1,2,3\n4,5\n", "has 2 values in row 1, but 3 columns"),
        ("a,b,price\n", "a header and no rows"),
        ("", "is empty"),
    ):
        (tmp_path / "t.csv").write_text(content)
        assert cli.main(["fit", str(tmp_path / "t.csv"), "--target", "price"]) == 1
        err = capsys.readouterr().err
        assert word in err
        assert len(err.splitlines()) == 1
    np.savez(tmp_path / "t.npz", X=np.zeros((3, 2)), z=np.zeros(3))
    assert cli.main(["fit", str(tmp_path / "t.npz")]) == 1
    assert "holds X, z; arrays X and y were expected" in capsys.readouterr().err
    np.savez(tmp_path / "t.npz", X=np.zeros((3, 2)), y=np.zeros(4))
    assert cli.main(["fit", str(tmp_path / "t.npz")]) == 1
    assert "X of shape (3, 2) and y of shape (4,)" in capsys.readouterr().err


def test_torchrun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two processes started by torchrun: one report, one set of files, the model of one process."""
    X, y = _table()
    file = _csv(tmp_path / "t.csv", X, y)
    argv = [file, "--target", "price", "--epochs", "8", "--batch-size", "41"]
    alone = _run(capsys, *argv, "--out", tmp_path / "one")
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    command = [sys.executable, "-m", *launcher, "nodeslab", "fit", *argv, "--out", str(tmp_path / "two"), "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.strip().splitlines()
    together = json.loads(line)
    assert (together["ranks"], alone["ranks"]) == (2, 1)
    assert together["test"]["rmse"] == pytest.approx(alone["test"]["rmse"], rel=1e-4)
    one, two = (ns.load(tmp_path / name / "model.nodeslab").state_dict() for name in ("one", "two"))
    for name, value in one.items():
        assert torch.allclose(value, two[name], rtol=0, atol=1e-5), name
