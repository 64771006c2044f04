"""Two gloo processes, each with half a batch and the same draw, equal one process with the whole batch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import nodeslab as ns

STEPS = 20


def _batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    out = []
    for _ in range(STEPS):
        x = torch.randn(16, 4, generator=generator)
        out.append((x, torch.sin(x[:, :1])))
    return out


def _train(rank: int, world: int, place: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    model = ns.bayesian(net, ns.ssig(), n=320).double()
    called: nn.Module = model
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=world)
        called = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    likelihood = ns.Gaussian(0.5)
    torch.manual_seed(1)  # the same draws on every rank
    for x, y in _batches():
        mine = slice(rank * 16 // world, (rank + 1) * 16 // world)
        with model.drawn():
            out = called(x[mine].double())
            loss = likelihood.nll(out, y[mine].double(), None) / len(out) + model.kl() / 320
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        torch.save(dict(model.state_dict()), f"{place}/state{world}")
    if world > 1:
        dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available(), reason="torch was built without distributed")
def test_two_processes_equal_one(tmp_path: Path) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    _train(0, 1, str(tmp_path))
    mp.spawn(_train, args=(2, str(tmp_path)), nprocs=2)
    one, two = (torch.load(tmp_path / f"state{w}", weights_only=True) for w in (1, 2))
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.allclose(value, two[name], rtol=0, atol=1e-10), name
