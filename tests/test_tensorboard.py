"""The TensorBoard callback: its events are read back and held to the fit's own records."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nodeslab as ns
from nodeslab.parallel import Ranks
from nodeslab.tensorboard import scalars

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

X = np.random.default_rng(0).normal(size=(60, 3))
Y = X[:, 0] - X[:, 1]


def _model() -> ns.Bayesian:
    torch.manual_seed(0)
    return ns.bayesian(nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)), ns.ssig(), n=60)


def _fit(model: ns.Bayesian, callback: Any, epochs: int = 5, **more: Any) -> ns.History:
    return ns.fit(model, (X, Y), likelihood=ns.Gaussian(1.0), epochs=epochs, seed=3, callback=callback, **more)


def _read(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"histograms": 0, "scalars": 0}).Reload()


def test_every_figure_of_every_record(tmp_path: Path) -> None:
    history = _fit(_model(), ns.TensorBoard(tmp_path / "run", every=2), validation=(X, Y))
    events = _read(tmp_path / "run")
    wanted = scalars(history[-1])
    assert {"elbo", "nll", "kl", "flops_ratio", "lr", "seconds", "open/0", "validation/rmse"} <= wanted.keys()
    assert set(events.Tags()["scalars"]) == wanted.keys()
    for name in wanted:
        written = events.Scalars(name)
        assert [e.step for e in written] == [1, 2, 3, 4, 5]
        np.testing.assert_allclose([e.value for e in written], [scalars(r)[name] for r in history], rtol=1e-6)


def test_histograms_of_inclusion(tmp_path: Path) -> None:
    model = _model()
    _fit(model, ns.TensorBoard(tmp_path, every=2))
    written = _read(tmp_path).Histograms("inclusion/0")
    assert [e.step for e in written] == [1, 3, 5]
    last = written[-1].histogram_value
    gamma = model.nodes()[0].inclusion
    assert last.num == 6
    assert last.max == pytest.approx(float(gamma.max()))
    assert last.sum == pytest.approx(float(gamma.sum()), rel=1e-6)


def test_no_histograms(tmp_path: Path) -> None:
    _fit(_model(), ns.TensorBoard(tmp_path, every=0), epochs=2)
    assert _read(tmp_path).Tags()["histograms"] == []


def test_the_fit_is_the_same_to_the_bit(tmp_path: Path) -> None:
    models = _model(), _model()
    state = torch.get_rng_state()
    _fit(models[0], ns.TensorBoard(tmp_path, every=1))
    _fit(models[1], None)
    assert torch.equal(torch.get_rng_state(), state)
    for a, b in zip(models[0].state_dict().values(), models[1].state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_writing_draws_nothing(tmp_path: Path) -> None:
    model = _model()
    record = _fit(model, None, epochs=1)[0]
    state, before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    ns.TensorBoard(tmp_path, every=1)(model, record)
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], before)  # type: ignore[index]


def test_a_resumed_fit_goes_on_in_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "fit.checkpoint"
    _fit(_model(), ns.TensorBoard(tmp_path / "run"), epochs=3, checkpoint=file)
    file_of_three = file.read_bytes()
    _fit(_model(), ns.TensorBoard(tmp_path / "run"), epochs=5, checkpoint=file)  # epochs that a crash would lose
    file.write_bytes(file_of_three)
    history = _fit(_model(), ns.TensorBoard(tmp_path / "run"), epochs=6, checkpoint=file)
    written = _read(tmp_path / "run").Scalars("elbo")
    assert [e.step for e in written] == [1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose([e.value for e in written], history.column("elbo"), rtol=1e-6)


def test_nodes_that_were_cut_out_stay_in_the_histogram(tmp_path: Path) -> None:
    model = _model()
    model.set_nodes({"0": [True] * 2 + [False] * 4})
    _fit(model, ns.TensorBoard(tmp_path, every=1), compact=True)
    assert model.posteriors[0].geometry.nodes < 6  # type: ignore[union-attr]
    events = _read(tmp_path)
    assert events.Histograms("inclusion/0")[-1].histogram_value.num == 6
    assert events.Scalars("open/0")[-1].value == 2


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] == "tensorboard":
            raise ImportError(name)
        return real(name, *rest, **more)

    for name in [n for n in sys.modules if n.split(".")[0] == "tensorboard" or n.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(
        ValueError, match=r'^TensorBoard needs another package: pip install "nodeslab\[tensorboard\]"\.$'
    ):
        ns.TensorBoard(tmp_path)


@pytest.mark.parametrize(("folder", "every", "words"), [(3, 1, "folder must be a path"), ("run", -1, "every")])
def test_what_it_refuses(folder: Any, every: int, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        ns.TensorBoard(folder, every)


def test_nothing_is_written_before_the_first_record(tmp_path: Path) -> None:
    ns.TensorBoard(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_one_rank_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model()
    record = _fit(model, None, epochs=1)[0]
    monkeypatch.setattr("nodeslab.tensorboard.join", lambda: Ranks(1, 2, torch.device("cpu")))
    ns.TensorBoard(tmp_path / "run")(model, record)
    assert not (tmp_path / "run").exists()
