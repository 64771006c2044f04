"""Convolutions in blocks: the same function, in torch and in onnxruntime, for any number of channels."""

from __future__ import annotations

import itertools
from pathlib import Path

import onnxruntime
import pytest
import torch
from torch import nn

import nodeslab as ns
from nodeslab.blocks import _Conv, in_blocks

CHANNELS = (1, 2, 3, 5, 7, 16, 17, 18, 20, 22, 33, 50)


def _net(a: int, b: int, activation: nn.Module, padding: int, bias: bool) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, a, 3, padding=padding, bias=bias),
        nn.MaxPool2d(2),
        activation,
        nn.Conv2d(a, b, 3, padding=padding, bias=bias),
        activation,
        nn.MaxPool2d(2),
        nn.Conv2d(b, 6, 2, stride=2, bias=bias),
        nn.MaxPool2d((2, 2), 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 3),
    )


@pytest.mark.parametrize("a", CHANNELS)
def test_the_same_function(a: int) -> None:
    arranged = 0
    activations = (nn.Sigmoid(), nn.SiLU())
    for b, activation, padding, bias in itertools.product((3, 17, 20), activations, (0, 1), (False, True)):
        torch.manual_seed(0)
        net = _net(a, b, activation, padding, bias).double()
        x = torch.randn(3, 2, 30, 34, dtype=torch.float64)
        other = in_blocks(net, (x,))
        arranged += any(isinstance(m, _Conv) for m in other.modules())
        assert (other(x) - net(x)).abs().max() <= 1e-13
    assert arranged > 0 or a in (16, 20)


@pytest.mark.parametrize("a", [5, 17])
def test_in_onnxruntime(a: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = _net(a, 19, nn.Sigmoid(), 1, bias=True)
    assert in_blocks(net, (torch.zeros(2, 2, 30, 34),)) is not net
    file = ns.export(net, torch.zeros(1, 2, 30, 34), tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for rows in (1, 2, 33):
        x = torch.randn(rows, 2, 30, 34)
        assert torch.allclose(torch.from_numpy(session.run(None, {"input": x.numpy()})[0]), net(x), rtol=0, atol=1e-5)


def test_what_stays() -> None:
    """Widths that a runtime reads in blocks by itself, values with two readers, layers used twice, groups."""
    x = torch.zeros(2, 3, 16, 16)
    aligned = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 20, 3), nn.ReLU(), nn.Conv2d(20, 6, 3))
    assert in_blocks(aligned, (x,)) is aligned
    shared = nn.Conv2d(17, 17, 3, padding=1)
    twice = nn.Sequential(nn.Conv2d(3, 17, 3), shared, shared)
    assert in_blocks(twice, (x,)) is twice
    grouped = nn.Sequential(nn.Conv2d(3, 17, 3), nn.Conv2d(17, 17, 3, groups=17))
    assert in_blocks(grouped, (x,)) is grouped


class TwoReaders(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 17, 3), nn.Conv2d(17, 4, 1), nn.Conv2d(17, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        return self.b(h) + self.c(h)


def test_two_readers() -> None:
    net = TwoReaders()
    assert in_blocks(net, (torch.zeros(2, 3, 8, 8),)) is net
