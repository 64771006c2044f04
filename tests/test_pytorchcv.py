"""Networks that others wrote, from the package pytorchcv: whatever their forward does, shrinking stays exact."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

import nodeslab as ns


def _named(module: str, name: str) -> Callable[[], nn.Module]:
    return lambda: getattr(importlib.import_module(f"pytorchcv.models.{module}"), name)()


def _vgg() -> nn.Module:
    vgg = importlib.import_module("pytorchcv.models.vgg")
    return vgg.VGG([[8], [16], [16, 24], [24, 32], [32, 16]], use_bn=True)


#: name: (how it is made, side of its images, the share of the parameters that half of the nodes may leave at most)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, float]] = {
    "ResNet": (_named("resnet_cifar", "resnet20_cifar10"), 32, 0.6),
    "preactivation ResNet": (_named("preresnet_cifar", "preresnet20_cifar10"), 32, 0.6),
    "ResNet of ResNets": (_named("ror_cifar", "ror3_56_cifar10"), 32, 0.6),
    "DenseNet": (_named("densenet_cifar", "densenet40_k12_cifar10"), 32, 0.4),
    "network in network": (_named("nin_cifar", "nin_cifar10"), 32, 0.4),
    "squeeze-and-excitation ResNet": (_named("seresnet_cifar", "seresnet20_cifar10"), 32, 0.7),
    "PyramidNet": (_named("pyramidnet_cifar", "pyramidnet110_a48_cifar10"), 32, 0.6),
    "VGG with BatchNorm": (_vgg, 224, 0.5),
    "SqueezeNet": (_named("squeezenet", "squeezenet_v1_1"), 224, 0.5),
    "SqueezeNext": (_named("squeezenext", "sqnxt23_w1"), 224, 0.6),
    "MobileNet": (_named("mobilenet", "mobilenet_wd4"), 224, 0.6),
    "MobileNetV2": (_named("mobilenetv2", "mobilenetv2_wd4"), 224, 0.6),
    "MobileNetV3": (_named("mobilenetv3", "mobilenetv3_small_w7d20"), 224, 0.6),
    "ShuffleNetV2": (_named("shufflenetv2", "shufflenetv2_wd2"), 224, 0.6),
    "GhostNet": (_named("ghostnet", "ghostnet"), 224, 0.6),
    "PeleeNet": (_named("peleenet", "peleenet"), 224, 0.5),
    "CondenseNet": (_named("condensenet", "condensenet74_c4_g4"), 224, 1.0),  # its channels are picked by index
}


@pytest.mark.parametrize("name", NETWORKS)
def test_exact(name: str) -> None:
    make, side, share = NETWORKS[name]
    torch.manual_seed(0)
    net = make()
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):  # nothing trivial, and outputs of a moderate size
            m.running_mean.normal_(0.0, 0.5)
            m.running_var.uniform_(0.5, 2.0)
            nn.init.uniform_(m.weight, -0.8, 0.8)
            nn.init.normal_(m.bias, 0.0, 0.5)
    model = ns.bayesian(net, ns.ssig(), n=10).double().eval()
    model.set_nodes({r.path: torch.rand(r.total) < 0.5 for r in model.nodes()})
    x = torch.randn(2, 3, side, side, dtype=torch.float64)
    dense = model.mean()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a layer with no open node
        small = ns.shrink(model, x)
    with torch.no_grad():
        assert (small(x) - dense(x)).abs().max() <= 1e-12
    weights, before = (sum(p.numel() for p in n.parameters()) for n in (small, dense))
    assert weights <= share * before
