"""A network before and after shrinking: parameters, multiplications, bytes of its file, and measured milliseconds."""

from __future__ import annotations

import statistics
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nodeslab.bench import interleaved, one_thread
from nodeslab.costs import cost
from nodeslab.io import save
from nodeslab.model import Bayesian
from nodeslab.shrinking import shrink

__all__ = ["ROWS", "Size", "sizes"]

ROWS = 1000  # in the batch that is timed
ROUNDS = 25


@dataclass(frozen=True)
class Size:
    """One network: ms is the median over some rounds, for a batch of 1000 rows."""

    parameters: int
    multiplications: int
    bytes: int
    ms: float


def sizes(model: Bayesian, example: tuple[Tensor, ...]) -> tuple[Size, Size]:
    """The plain network with all of its nodes, and the one that is cut to the open ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a layer without an open node keeps one: the page shows it
        nets = {"before": whole(model).cpu().eval(), "after": shrink(model, example).cpu().eval()}
    rows = tuple(torch.cat([x.cpu()] * -(-ROWS // len(x)))[:ROWS] for x in example)
    with one_thread():
        times = interleaved({name: _run(net, rows) for name, net in nets.items()}, ROUNDS)
    before, after = (_size(net, example, statistics.median(times[name])) for name, net in nets.items())
    return before, after


def _run(net: nn.Module, rows: tuple[Tensor, ...]) -> Any:
    def once() -> None:
        with torch.inference_mode():
            net(*rows)

    return once


def _size(net: nn.Module, example: tuple[Tensor, ...], seconds: float) -> Size:
    with tempfile.TemporaryDirectory() as folder:
        file = save(net, Path(folder) / "network.nodeslab", example)
        length = file.stat().st_size
    count = sum(p.numel() for p in net.parameters())
    return Size(count, cost(net, example).flops_dense, length, 1e3 * seconds)


def whole(model: Bayesian) -> nn.Module:
    """The plain network as it was before any node closed; where training has cut nodes out, with zeros for them."""
    net = model.mean()
    if not model.origin:
        return net
    known = {r.path: r.total for r in model.nodes()}
    if not isinstance(net, nn.Sequential) or any(
        not isinstance(m, nn.Linear) and next(m.parameters(), None) is not None for m in net
    ):
        raise ValueError(
            f"The {type(net).__name__} was cut while it trained, and only a Sequential of Linear layers can be "
            "put back to its first size."
        )
    layers: list[nn.Module] = []
    width: int | None = None
    for name, module in net.named_children():
        if isinstance(module, nn.Linear):
            into = module.in_features if width is None else width
            width = known.get(name, module.out_features)
            module = nn.Linear(into, width, module.bias is not None)
        layers.append(module)
    return nn.Sequential(*layers)
