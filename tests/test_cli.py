"""The command line: what it prints, and how it fails."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import nn

import nodeslab as ns
from nodeslab import bench, cli, demo, recipe, tabular
from nodeslab.commands import parser
from nodeslab.paper import running
from nodeslab.paper.rows import rows_of


def test_help_does_not_wait_for_torch() -> None:
    heavy = "{'torch', 'numpy', 'pandas', 'sklearn', 'matplotlib', 'pyarrow'}"
    code = f"import sys; from nodeslab import cli; cli.make_parser(); sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    for command in ([], ["fit"], ["bench", "scale"]):
        times = []
        for _ in range(3):
            begun = time.perf_counter()
            subprocess.run([sys.executable, "-m", "nodeslab", *command, "--help"], check=True, capture_output=True)
            times.append(time.perf_counter() - begun)
        assert min(times) < 0.3, command


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


def _model_file(folder: Path) -> tuple[ns.Bayesian, str]:
    model = ns.bayesian(nn.Sequential(nn.Linear(3, 9), nn.Sigmoid(), nn.Linear(9, 1)), ns.ssig(), n=10)
    model.set_nodes({"0": [True] * 4 + [False] * 5})
    return model, str(ns.save(model, folder / "m.nodeslab"))


def test_shrink_and_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, file = _model_file(tmp_path)
    x = torch.randn(7, 3)
    assert cli.main(["shrink", file]) == 0
    out = capsys.readouterr().out
    assert "9 -> 4" in out
    assert "21 of 46 weights" in out
    small = ns.load(tmp_path / "m-small.nodeslab")
    assert torch.allclose(small(x), model.mean()(x), atol=1e-6)
    assert cli.main(["export", str(tmp_path / "m-small.nodeslab"), "--onnx", "--pt2", str(tmp_path / "p.pt2")]) == 0
    assert "p.pt2" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(str(tmp_path / "m-small.onnx"))
    assert torch.allclose(torch.from_numpy(session.run(None, {"input": x.numpy()})[0]), small(x), atol=1e-6)
    slim = str(tmp_path / "slim")
    assert cli.main(["shrink", file, "--bayesian", "--out", slim, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["weights"] == [46, 21]
    assert said["layers"][1]["folded"] == 5
    assert cli.main(["export", slim, "--onnx", str(tmp_path / "e.onnx"), "--draws", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["out"] == [str(tmp_path / "e.onnx")]


NETWORK = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Conv2d(1, 6, 3), torch.nn.Linear(6, 2)
    def forward(self, x):
        return self.b(torch.sigmoid(self.a(x)).mean((2, 3)))
"""


def test_a_network_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "of_ones_own.py").write_text(NETWORK)
    names: dict[str, Any] = {}
    exec(NETWORK, names)
    model = ns.bayesian(names["Net"](), ns.ssig(), n=10)
    model.set_nodes({"a": [1, 0, 1, 0, 1, 0]})
    file = str(ns.save(model, tmp_path / "m"))
    command = [sys.executable, "-m", "nodeslab", "shrink", file, "--net", "of_ones_own:Net"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "give --shape" in done.stderr
    shaped = [*command, "--shape", "1", "8", "8"]
    done = subprocess.run(shaped, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "6 -> 3" in done.stdout
    noted = ns.save(model, tmp_path / "noted", example=torch.zeros(1, 1, 8, 8))
    command = [*command[:4], str(noted), *command[5:]]
    subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    small = ns.load(tmp_path / "noted-small", names["Net"]())
    assert small.a.out_channels == 3


@pytest.mark.parametrize(
    ("more", "status", "word"),
    [
        (["export"], 2, "say what to write"),
        (["export", "--onnx"], 1, "cannot sample"),
        (["export", "--onnx", "m.pt2", "--draws", "2"], 2, "must end in .onnx"),
        (["export", "--onnx", "--small"], 2, "--small is for the folder of a fit"),
        (["shrink", "--shape", "5"], 1, "cannot take an example of shape (2, 5)"),
        (["shrink", "--shape", "0"], 2, "must be a whole number from 1"),
        (["shrink", "--net", "nowhere:Net"], 1, "cannot be made: No module named 'nowhere'"),
        (["shrink", "--net", "nowhere"], 2, "must be MODULE:CLASS"),
        (["shrink", "--net", "json:dumps"], 1, "cannot be made"),
        (["shrink", "--net", "collections:OrderedDict"], 1, "not a torch.nn.Module"),
        (["shrink", "--out", "/nowhere/m"], 1, "make it first"),
    ],
)
def test_shrink_and_export_refuse(
    more: list[str], status: int, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, file = _model_file(tmp_path)
    assert cli.main([more[0], file, *more[1:]]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert word in err
    assert len(err.splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["m.nodeslab"]


def test_bench_infer_prints_ratios(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The format, and what does not depend on speed: sizes of files."""
    from nodeslab.bench import infer

    monkeypatch.setattr(infer, "BATCHES", (64,))
    assert cli.main(["bench", "infer", "--rounds", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    for case in (v for v in result.values() if isinstance(v, dict)):
        assert 0.1 < case["flops_ratio"] < 0.14
        assert case["batch 64"]["onnxruntime"]["speedup"] > 1
        assert case["files"]["shrunk"]["over_weights"] <= 1.15
        assert case["files"]["shrunk"]["onnxruntime_peak_mib"] < case["files"]["dense"]["onnxruntime_peak_mib"]
    assert cli.main(["bench", "infer", "--rounds", "2"]) == 0
    assert "reached" in capsys.readouterr().out


def test_theory_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "x.svg"
    assert cli.main(["theory", "--widths", "3", "2", "1", "--n", "5", "--json", "--plot", str(picture)]) == 0
    assert "svg" in picture.read_text()
    assert json.loads(capsys.readouterr().out)["n"] == 5
    assert cli.main(["theory", "--widths", "3", "2", "1", "--n", "5", "--plot", "/nowhere/x.png"]) == 1
    assert "the folder /nowhere does not exist" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["x.svg"]


def test_the_parser_knows_the_recipe() -> None:
    """Names that the parser repeats, since it must not import torch."""
    assert tuple(recipe.MODELS) == parser.MODELS
    assert tuple(recipe.ACTIVATIONS) == parser.ACTIVATIONS
    args = parser.make_parser().parse_args(["predict", "fit", "new.csv"])
    assert args.draws == tabular.DRAWS


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


def test_demo_and_reproduce_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "run", lambda out: print("much") or {"rmse": 1.0})
    assert cli.main(["demo", "--json", "--out", str(tmp_path / "d")]) == 0
    assert json.loads(capsys.readouterr().out) == {"out": str(tmp_path / "d"), "rmse": 1.0}
    argv = ["reproduce", "mlp/ss-ig", "--quick", "--seeds", "1", "--out", str(tmp_path / "r"), "--json"]
    row = rows_of(["mlp"])[0]
    monkeypatch.setattr(running, "reproduce", lambda names, out, **options: iter([running.Outcome(row, 1, 2)]))
    assert cli.main(argv) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["rows"] == [{"name": row.name, "made": 1, "there": 2, "reason": None}]


def test_public_names() -> None:
    assert set(ns.__all__) <= set(dir(ns))
    for name in ns.__all__:
        assert getattr(ns, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ns.nothing  # type: ignore[attr-defined]
