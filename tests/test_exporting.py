"""Exported files answer as the model does, in a process that knows nothing of nodeslab."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import nodeslab as ns
from nodeslab import exporting
from nodeslab.bench import lenet

# torch's own exporter warns of its dependencies
pytestmark = pytest.mark.filterwarnings("ignore")


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.norm, self.head = (
            nn.Conv2d(1, 6, 3),
            nn.Conv2d(6, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.Linear(6, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.stem(x))
        return self.head(torch.relu(h + self.norm(self.a(h))).mean((2, 3)))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(5, 12), nn.Sigmoid(), nn.Linear(12, 8), nn.SiLU(), nn.Linear(8, 3)), (5,)),
    "lenet": (lenet, (1, 28, 28)),
    "resnet": (Residual, (1, 12, 12)),
}
BATCHES = (1, 2, 64, 257)


def _model(name: str) -> tuple[ns.Bayesian, tuple[int, ...]]:
    make, shape = NETS[name]
    model = ns.bayesian(make(), ns.ssig(), n=10).eval()
    model.set_nodes({r.path: torch.rand(r.total) < 0.4 for r in model.nodes()})
    return model, shape


def _run_onnx(file: Path, x: Tensor) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return session.run(None, {"input": x.numpy()})


@pytest.mark.parametrize("name", NETS)
def test_plain_networks(name: str, tmp_path: Path) -> None:
    model, shape = _model(name)
    small = ns.shrink(model, torch.randn(1, *shape)).eval()
    files = [ns.export(small, torch.randn(1, *shape), tmp_path / f"m.{end}") for end in ("onnx", "pt2")]
    program = torch.export.load(files[1]).module()
    for batch in BATCHES:
        x = torch.randn(batch, *shape)
        expected = small(x).detach()
        assert np.abs(_run_onnx(files[0], x)[0] - expected.numpy()).max() <= 1e-5
        assert (program(x) - expected).abs().max() <= 1e-5
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "m.pt2"]


@pytest.mark.parametrize("likelihood", [None, ns.Gaussian(0.3), ns.Categorical(), ns.Bernoulli()])
@pytest.mark.parametrize("name", ["mlp", "resnet"])
def test_ensembles(name: str, likelihood: ns.Gaussian | None, tmp_path: Path) -> None:
    """The frozen draws are those of `predict` with the same seed, and so are their figures."""
    model, shape = _model(name)
    model.likelihood = likelihood
    example = torch.randn(1, *shape)
    files = [ns.export(model, example, tmp_path / f"m.{end}", draws=5, seed=2) for end in ("onnx", "pt2")]
    program = torch.export.load(files[1]).module()
    for batch in BATCHES:
        x = torch.randn(batch, *shape)
        p = ns.predict(model, x, draws=5, seed=2)
        if isinstance(likelihood, (ns.Categorical, ns.Bernoulli)):
            expected = [p.mean, p.entropy, p.mutual_information]
        else:
            expected = [p.mean, p.std]
        for outputs in (_run_onnx(files[0], x), [o.detach().numpy() for o in program(x)]):
            assert len(outputs) == len(expected)
            for a, b in zip(outputs, expected, strict=True):
                assert np.abs(a - b.numpy()).max() <= 1e-5


def test_a_process_that_knows_nothing_of_nodeslab(tmp_path: Path) -> None:
    model, shape = _model("mlp")
    small = ns.shrink(model, torch.randn(1, *shape)).eval()
    x = torch.ones(3, *shape)
    for end, code in (
        ("pt2", "import torch; y = torch.export.load(f).module()(torch.ones(3, 5)).detach().numpy()"),
        (
            "onnx",
            "import numpy, onnxruntime; "
            "y = onnxruntime.InferenceSession(f).run(None, {'input': numpy.ones((3, 5), 'float32')})[0]",
        ),
    ):
        file = ns.export(small, x, tmp_path / f"m.{end}")
        check = f"import sys; f = {str(file)!r}; {code}; assert 'nodeslab' not in sys.modules; print(repr(y.tolist()))"
        done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
        assert np.abs(np.array(eval(done.stdout)) - small(x).detach().numpy()).max() <= 1e-5


def test_the_file_is_hardly_larger_than_its_weights(tmp_path: Path) -> None:
    """The paper's LeNet, cut to the 17-5-17-20 that its authors ended with."""
    model = ns.bayesian(lenet(), ns.ssig(), n=10)
    model.set_nodes({r.path: torch.arange(r.total) < k for r, k in zip(model.nodes(), (17, 5, 17, 20), strict=True)})
    example = torch.zeros(1, 1, 28, 28)
    small = ns.shrink(model, example)
    file = ns.export(small, example, tmp_path / "m.onnx")
    assert file.stat().st_size <= 1.15 * 4 * sum(p.numel() for p in small.parameters())


class Control(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if x.sum() > 0 else -self.a(x)


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda m, p: ns.export(m, torch.zeros(1, 5), p / "m.onnx"), ValueError, "cannot sample.*draws=16"),
        (lambda m, p: ns.export(m, torch.zeros(1, 5), p / "m.onnx", draws=0), ValueError, "draws must be at least 1"),
        (lambda m, p: ns.export(m.mean(), torch.zeros(1, 5), p / "m.onnx", draws=3), ValueError, "no posterior"),
        (lambda m, p: ns.export(m.net, torch.zeros(1, 5), p / "m.onnx"), ValueError, "inner network"),
        (lambda m, p: ns.export(m.mean(), torch.zeros(1, 5), p / "m.h5"), ValueError, "end in .onnx or .pt2"),
        (lambda m, p: ns.export(m.mean(), torch.zeros(1, 5), p / "no" / "m.pt2"), ValueError, "make it first"),
        (lambda m, p: ns.export(m.mean(), torch.zeros(1, 4), p / "m.pt2"), ValueError, r"example of shape \(2, 4\)"),
        (lambda m, p: ns.export(Control(), torch.zeros(1, 5), p / "m.pt2"), ValueError, "Control cannot be traced"),
    ],
)
def test_refusals(call: Callable[..., object], error: type[Exception], sentence: str, tmp_path: Path) -> None:
    model, _ = _model("mlp")
    with pytest.raises(error, match=sentence):
        call(model, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_onnx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, _ = _model("mlp")
    monkeypatch.setattr(exporting.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"nodeslab\[onnx\]"):
        ns.export(model.mean(), torch.zeros(1, 5), tmp_path / "m.onnx")
