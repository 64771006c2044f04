"""The step of other packages, where they are installed, in the same process: `benchmarks/peers.txt` lists them.

They are variational Gaussian networks (VBNN) without selection, each used as its own documentation shows; SS-IG and
VBNN of this library, and SS-IG in the authors' way, stand beside them. blitz is under the GPL: it is imported here, by
this measurement, and nowhere else.
"""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nodeslab.bench import against, interleaved, lenet, machine, mlp, plain_step
from nodeslab.bench.authors import authors_step, converted
from nodeslab.likelihoods import Categorical
from nodeslab.model import bayesian
from nodeslab.spec import ssig, vbnn
from nodeslab.theory import authors_image_priors
from nodeslab.training import single_steps

__all__ = ["peers"]

N = 60_000
Step = Callable[[], object]


def peers(rounds: int = 30) -> dict[str, Any]:
    """The MLP at batch 1024 and LeNet at batch 256."""
    result: dict[str, Any] = {"bench": "peers", "rounds": rounds, **machine()}
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    for name, network, net, shape in (
        ("mlp 784-400-400-10, batch 1024", "mlp", mlp(), (1024, 784)),
        ("lenet-caffe, batch 256", "lenet", lenet(), (256, 1, 28, 28)),
    ):
        X = torch.randn(shape, generator=generator)
        y = torch.randint(0, 10, (shape[0],), generator=generator)
        authors = converted(net, tuple(authors_image_priors(network)))
        step = authors_step(authors, N, torch.optim.Adam(authors.parameters(), lr=1e-3))
        runs: dict[str, Step] = {
            "plain": plain_step(copy.deepcopy(net), X, y),
            "nodeslab, SS-IG": single_steps(bayesian(net, ssig(), n=N), (X, y), Categorical()),
            "nodeslab, VBNN": single_steps(bayesian(net, vbnn(), n=N), (X, y), Categorical()),
            "authors' layers, SS-IG": _on(step, X, y),
        }
        missing: dict[str, Any] = {}
        for peer, make in PEERS.items():
            try:
                with warnings.catch_warnings():  # of their own imports
                    warnings.simplefilter("ignore")
                    runs[peer] = make(copy.deepcopy(net), X, y)
            except ImportError as e:
                missing[peer] = {"not_installed": str(e)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result[name] = against(interleaved(runs, rounds), "plain") | missing
    return result


def _on(step: Callable[[Tensor, Tensor], None], X: Tensor, y: Tensor) -> Step:
    return lambda: step(X, y)


def _adam(net: nn.Module, loss: Callable[[], Tensor]) -> Step:
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def run() -> None:
        optimizer.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return run


def _rebuilt(net: nn.Sequential, linear: Callable[[nn.Linear], Any], conv: Callable[[nn.Conv2d], Any]) -> nn.Sequential:
    """The chain with another package's layers in the places of its own."""
    layers = []
    for m in net:
        layers.append(linear(m) if isinstance(m, nn.Linear) else conv(m) if isinstance(m, nn.Conv2d) else m)
    return nn.Sequential(*layers)


def _bayesian_torch(net: nn.Sequential, X: Tensor, y: Tensor) -> Step:
    models = importlib.import_module("bayesian_torch.models.dnn_to_bnn")
    choice = {
        "prior_mu": 0.0,
        "prior_sigma": 1.0,
        "posterior_mu_init": 0.0,
        "posterior_rho_init": -6.0,
        "type": "Reparameterization",
        "moped_enable": False,
        "moped_delta": 0.5,
    }
    models.dnn_to_bnn(net, choice)
    return _adam(net, lambda: F.cross_entropy(net(X), y) + models.get_kl_loss(net) / N)


def _torchbnn(net: nn.Sequential, X: Tensor, y: Tensor) -> Step:
    package = importlib.import_module("torchbnn")
    chain = _rebuilt(
        net,
        lambda m: package.BayesLinear(
            prior_mu=0.0, prior_sigma=1.0, in_features=m.in_features, out_features=m.out_features
        ),
        lambda m: package.BayesConv2d(
            prior_mu=0.0,
            prior_sigma=1.0,
            in_channels=m.in_channels,
            out_channels=m.out_channels,
            kernel_size=m.kernel_size[0],
        ),
    )
    divergence = package.BKLLoss(reduction="sum")
    return _adam(chain, lambda: F.cross_entropy(chain(X), y) + divergence(chain).sum() / N)


def _blitz(net: nn.Sequential, X: Tensor, y: Tensor) -> Step:
    modules = importlib.import_module("blitz.modules")
    losses = importlib.import_module("blitz.losses")
    chain = _rebuilt(
        net,
        lambda m: modules.BayesianLinear(m.in_features, m.out_features, prior_sigma_1=1.0),
        lambda m: modules.BayesianConv2d(m.in_channels, m.out_channels, kernel_size=m.kernel_size, prior_sigma_1=1.0),
    )
    return _adam(chain, lambda: F.cross_entropy(chain(X), y) + losses.kl_divergence_from_nn(chain) / N)


def _posteriors(net: nn.Sequential, X: Tensor, y: Tensor) -> Step:
    package = importlib.import_module("posteriors")
    torchopt = importlib.import_module("torchopt")

    def log_posterior(parameters: dict[str, Tensor], batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        output = torch.func.functional_call(net, parameters, (batch[0],))
        return -F.cross_entropy(output, batch[1]) + package.diag_normal_log_prob(parameters) / N, output

    transform = package.vi.diag.build(
        log_posterior, torchopt.adam(lr=1e-3), temperature=1 / N, init_log_sds=-6.0, stl=False
    )
    state = transform.init(dict(net.named_parameters()))

    def run() -> None:
        nonlocal state
        state, _ = transform.update(state, (X, y), inplace=False)

    return run


PEERS: dict[str, Callable[[nn.Sequential, Tensor, Tensor], Step]] = {
    "bayesian-torch, VBNN": _bayesian_torch,
    "torchbnn, VBNN": _torchbnn,
    "posteriors, VBNN": _posteriors,
    "blitz, VBNN": _blitz,
}
