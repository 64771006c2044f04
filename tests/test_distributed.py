"""Several gloo processes equal one; when one of them dies the job ends, and can be taken up again."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import nodeslab as ns
from nodeslab import parallel, sealed

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="torch was built without distributed"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork: fresh interpreters would take too long"),
]
Job = Callable[[int, Path], Any]


def _rank(job: Job, rank: int, world: int, place: Path, meet: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{place}/{meet}", rank=rank, world_size=world, timeout=timedelta(seconds=20)
    )
    out = job(rank, place)
    torch.save(out, place / f"out{rank}")
    dist.destroy_process_group()


def _together(job: Job, place: Path, world: int = 2, meet: str = "meet") -> list[int | None]:
    """Run `job(rank, place)` on each rank; their statuses. What they return is read by `_out`."""
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_rank, args=(job, r, world, place, meet)) for r in range(world)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
        process.kill()
    return [process.exitcode for process in ranks]


def _out(place: Path, rank: int) -> Any:
    return torch.load(place / f"out{rank}", weights_only=False)


# ---- torch's own DistributedDataParallel ---------------------------------------------------------------------------


def _by_hand(place: Path | None, rank: int = 0, world: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    torch.manual_seed(0)
    model = ns.bayesian(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)), ns.ssig(), n=320).double()
    called: nn.Module = model if place is None else DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    likelihood = ns.Gaussian(0.5)
    torch.manual_seed(1)  # the same draws on every rank
    for _ in range(20):
        x = torch.randn(16, 4, generator=generator).double()
        y = torch.sin(x[:, :1])
        mine = slice(rank * 16 // world, (rank + 1) * 16 // world)
        with model.drawn():
            out = called(x[mine])
            loss = likelihood.nll(out, y[mine], None) / len(out) + model.kl() / 320
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return dict(model.state_dict())


def test_a_loop_of_ones_own(tmp_path: Path) -> None:
    one = _by_hand(None)
    assert _together(lambda rank, place: _by_hand(place, rank, 2), tmp_path) == [0, 0]
    for name, value in _out(tmp_path, 0).items():
        assert torch.allclose(value, one[name], rtol=0, atol=1e-10), name


# ---- ns.fit --------------------------------------------------------------------------------------------------------

ROWS, BATCH, EPOCHS = 61, 15, 4  # five batches, odd ones, and a last one of a single row: 20 steps in all


def _data() -> tuple[Tensor, Tensor]:
    X = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(5))
    return X, torch.sin(X[:, 0])


def _fit(dtype: torch.dtype = torch.float32, net: nn.Module | None = None, **options: Any) -> tuple[Any, ns.History]:
    torch.manual_seed(0)
    small = nn.Sequential(nn.Linear(3, 10), nn.Tanh(), nn.Linear(10, 1)) if net is None else net
    model = ns.bayesian(small, ns.ssig(), n=ROWS).to(dtype)
    chosen: dict[str, Any] = {"epochs": EPOCHS, "batch_size": BATCH, "lr": 1e-2, "seed": 1, "progress": False}
    history = ns.fit(model, _data(), likelihood=ns.Gaussian("learn"), **(chosen | options))
    return {k: v.clone() for k, v in model.state_dict().items()}, history


@pytest.mark.parametrize(
    ("dtype", "world", "options"),
    [
        (torch.float32, 2, {}),
        (torch.float64, 2, {}),
        (torch.float64, 3, {"samples": 2, "accumulate": 2, "clip": 0.1}),
    ],
    ids=["float32", "float64", "three ranks"],
)
def test_ranks_equal_one_process(dtype: torch.dtype, world: int, options: dict[str, Any], tmp_path: Path) -> None:
    one, alone = _fit(dtype, **options)
    assert _together(lambda rank, place: _fit(dtype, **options), tmp_path, world) == [0] * world
    states, histories = zip(*(_out(tmp_path, r) for r in range(world)), strict=True)
    for name, value in one.items():
        assert torch.allclose(states[0][name], value, rtol=0, atol=1e-6), name
        assert all(torch.equal(states[0][name], other[name]) for other in states[1:]), name
    assert all(other.records == histories[0].records for other in histories[1:])
    for mine, record in zip(histories[0], alone, strict=True):
        assert mine.elbo == pytest.approx(record.elbo, rel=1e-5)
        assert replace(mine, elbo=0, nll=0, kl=0, seconds=0) == replace(record, elbo=0, nll=0, kl=0, seconds=0)


def test_an_unseeded_fit_is_rank_0s(tmp_path: Path) -> None:
    def job(rank: int, place: Path) -> Any:
        torch.manual_seed(rank)
        X, y = _data()
        model = ns.bayesian(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), ns.ssig(), n=ROWS)
        history = ns.fit(model, (X, y), likelihood=ns.Gaussian(1.0), epochs=2, progress=False)
        return dict(model.state_dict()), history.seed

    assert _together(job, tmp_path) == [0, 0]
    (one, seed), (two, other) = _out(tmp_path, 0), _out(tmp_path, 1)
    assert seed == other
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_dropout_and_batch_norm_keep_the_ranks_together(tmp_path: Path) -> None:
    """A rank's masks are its own, of other shapes too; the draws, parameters and running averages are not."""

    def job(rank: int, place: Path) -> Any:
        masks: list[Tensor] = []
        norm = nn.BatchNorm1d(10)
        net = nn.Sequential(nn.Linear(3, 10), norm, nn.Tanh(), nn.Dropout(0.5), nn.Linear(10, 1))
        net[3].register_forward_hook(lambda m, args, out: masks.append((out == 0).clone()) if m.training else None)
        state, history = _fit(net=net, batch_size=22, epochs=3)
        return state, history, masks

    assert _together(job, tmp_path) == [0, 0]
    (one, first, masks), (two, second, others) = _out(tmp_path, 0), _out(tmp_path, 1)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert first.records == second.records
    pairs = [(a, b) for a, b in zip(masks, others, strict=True) if a.shape == b.shape and len(a) > 5]
    assert pairs
    assert not any(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(masks[0], masks[1])


def test_alone(tmp_path: Path) -> None:
    """Within `alone` the ranks' fits have nothing to do with each other."""

    def job(rank: int, place: Path) -> Any:
        with parallel.alone():
            return _fit(seed=rank)

    assert _together(job, tmp_path) == [0, 0]
    for rank in (0, 1):
        assert all(torch.equal(v, _fit(seed=rank)[0][k]) for k, v in _out(tmp_path, rank)[0].items())


def test_ranks_with_parts_of_the_data_are_refused(tmp_path: Path) -> None:
    def job(rank: int, place: Path) -> str:
        X, y = _data()
        half = slice(rank * 30, rank * 30 + 30)
        model = ns.bayesian(nn.Linear(3, 1), ns.vbnn(), n=30)
        with pytest.raises(ValueError, match="Rank 1 of 2 was given another model, data or arguments than rank 0") as e:
            ns.fit(model, (X[half], y[half]), likelihood=ns.Gaussian(1.0), epochs=1, progress=False, seed=0)
        return str(e.value)

    assert _together(job, tmp_path) == [0, 0]


def test_a_lonely_row_is_refused_on_every_rank(tmp_path: Path) -> None:
    def job(rank: int, place: Path) -> None:
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        with pytest.raises(ValueError, match="a rank's share, has one row"):
            _fit(net=net, batch_size=3)

    assert _together(job, tmp_path) == [0, 0]


# ---- when one of them ends -----------------------------------------------------------------------------------------


def _killed(rank: int, place: Path) -> Any:
    def die(model: Any, record: ns.Record) -> None:
        if rank == 1 and record.epoch == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        return _fit(checkpoint=place / "run", checkpoint_seconds=0, callback=die)
    except ConnectionError as e:
        (place / "said").write_text(str(e))
        raise SystemExit(1) from None


def _checkpointed(rank: int, place: Path) -> Any:
    return _fit(checkpoint=place / "run", checkpoint_seconds=0, callback=lambda model, record: None)


def test_a_killed_rank_ends_the_job_and_it_resumes(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    assert _together(_checkpointed, tmp_path / "whole") == [0, 0]
    begun = time.perf_counter()
    assert _together(_killed, tmp_path) == [1, -signal.SIGKILL]
    assert time.perf_counter() - begun < 15  # at once, not at the timeout
    assert "Rank 0 of 2 has lost the others" in (tmp_path / "said").read_text()
    meta, _ = sealed.read(tmp_path / "run", "checkpoint")
    assert meta["epoch"] == 2
    assert _together(_checkpointed, tmp_path, meet="again") == [0, 0]
    for rank in (0, 1):
        (state, history), (undisturbed, records) = _out(tmp_path, rank), _out(tmp_path / "whole", rank)
        assert all(torch.equal(v, undisturbed[k]) for k, v in state.items())
        assert [r.elbo for r in history] == [r.elbo for r in records]


def _terminated(rank: int, place: Path) -> Any:
    seen = 0

    def stop(module: nn.Module, args: Any, out: Tensor) -> None:
        nonlocal seen
        seen += module.training
        if rank == 1 and seen == 8:  # the third step of the second epoch; only one rank is told
            os.kill(os.getpid(), signal.SIGTERM)

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 10), nn.Tanh(), nn.Linear(10, 1))
    net[1].register_forward_hook(stop)
    return _fit(net=net, accumulate=2, checkpoint=place / "run")


def test_a_signal_to_one_rank_stops_all_in_the_same_step(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    assert _together(lambda rank, place: _fit(accumulate=2), tmp_path / "whole") == [0, 0]
    assert _together(_terminated, tmp_path) == [128 + signal.SIGTERM] * 2
    meta, tensors = sealed.read(tmp_path / "run", "checkpoint")
    assert (meta["epoch"], meta["step"]) == (1, 4)  # the accumulated step was finished first
    assert not any(name.startswith("gradient") for name in tensors)
    resume = lambda rank, place: _fit(accumulate=2, checkpoint=place / "run")  # noqa: E731
    assert _together(resume, tmp_path, meet="again") == [0, 0]
    state, undisturbed = _out(tmp_path, 1)[0], _out(tmp_path / "whole", 1)[0]
    assert all(torch.equal(v, undisturbed[k]) for k, v in state.items())
