"""The command line: what it prints, and how it fails."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch import nn

import nodeslab as ns
from nodeslab import bench, cli, demo


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys; from nodeslab import cli; cli._parser().format_help(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-m", "nodeslab", "--help"], check=True, capture_output=True)
        times.append(time.perf_counter() - begun)
    assert min(times) < 0.3


def test_theory(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["theory", "--widths", "8", "50", "1", "--n", "927", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["layers"]
    assert rows[0]["lambda"] == pytest.approx(ns.theory.inclusion_priors([8, 50, 1], 927)[0])
    assert rows[1]["C"] is None
    assert cli.main(["theory", "--authors", "lenet"]) == 0
    assert "0.0007477, 0.001196" in capsys.readouterr().out
    assert cli.main(["theory", "--authors", "mlp", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["C"] == [1e-9, 1e-9]


def test_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ns.bayesian(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), ns.ssig(), n=10)
    file = str(ns.save(model, tmp_path / "m"))
    assert cli.main(["show", file]) == 0
    assert capsys.readouterr().out.endswith("layer 0: 4 of 4 nodes open\n")
    assert cli.main(["show", file, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["layers"][0]["open"] == 4
    plain = str(ns.save(model.mean(), tmp_path / "p"))
    assert cli.main(["show", plain]) == 0
    assert "Linear(in_features=3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["show", "/nowhere"], "There is no file /nowhere"),
        (["theory"], "needs --widths and --n"),
        (["theory", "--widths", "3", "--n", "5"], "inputs and the outputs"),
        (["theory", "--widths", "3", "2", "1", "--n", "0"], "at least 1"),
        (["theory", "--widths", "3", "2", "1", "--n", "5", "--C", "-1"], "C[0] must be between 0"),
        (["theory", "--widths", "3", "2", "1", "--n", "5", "--plot", "/nowhere/x.png"], "/nowhere/x.png"),
    ],
)
def test_one_sentence_and_a_status(argv: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert word in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("argv", [[], ["fly"], ["theory", "--widths", "three"], ["bench", "fast"]])
def test_wrong_command_lines(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_bench_step_prints_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    """The format only: a ratio is measured by hand, on a machine that does nothing else."""
    assert cli.main(["bench", "step", "--rounds", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    for name in ("mlp 784-400-400-10, batch 1024", "lenet-caffe, batch 256"):
        assert result[name]["plain"]["ratio"] == 1.0
        assert 0.5 < result[name]["ss-ig"]["ratio"] < 20
    assert set(bench.machine()) <= set(result)


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The demo at a tenth of its length: every line of its report, and a model that loads."""
    figures = demo.run(tmp_path / "new", epochs=50)
    said = capsys.readouterr().out
    for word in ("Kept:", "Test RMSE:", "the dense network", "90 % intervals", "Saved:"):
        assert word in said
    assert 0 < figures["coverage"] <= 1
    model = ns.load(tmp_path / "new" / "concrete.nodeslab")
    assert isinstance(model, ns.Bayesian)
    assert model.likelihood == ns.Gaussian("learn")


def test_public_names() -> None:
    assert set(ns.__all__) <= set(dir(ns))
    for name in ns.__all__:
        assert getattr(ns, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ns.nothing  # type: ignore[attr-defined]
