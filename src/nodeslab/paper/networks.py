"""A row's network, its prior and the Bayesian model of both."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import nn

from nodeslab.likelihoods import Categorical, Gaussian, Likelihood
from nodeslab.model import Bayesian, bayesian
from nodeslab.paper.cases import Case
from nodeslab.paper.rows import Row
from nodeslab.prediction import isolated_seed
from nodeslab.spec import Edge, Horseshoe, Node, Normal, Prior
from nodeslab.theory import authors_image_priors, edge_prior

__all__ = ["likelihood_of", "model_of", "network_of", "prior_of"]

ACTIVATIONS = {"sigmoid": nn.Sigmoid, "relu": nn.ReLU, "swish": nn.SiLU}
CLASSES = 10
#: LeNet-Caffe as the theory counts it: weights into a node, and nodes, of each layer.
LENET = ((25, 500, 800, 800, 500), (20, 50, 800, 500, 10))


def network_of(row: Row, case: Case) -> nn.Sequential:
    """Linear layers of the row's widths, or LeNet-Caffe (section 6.4), with torch's own first weights."""
    activation = ACTIVATIONS[row.activation]
    outputs = 1 if case.y.is_floating_point() else CLASSES
    if isinstance(row.network, tuple):
        widths = (case.X.shape[1], *row.network)
        hidden = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), activation())]
        return nn.Sequential(*hidden, nn.Linear(widths[-1], outputs))
    if row.network != "lenet":
        raise ValueError(f'experiments.json, row {row.name}: network must be widths or "lenet", got {row.network!r}.')
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5), activation(), nn.MaxPool2d(2)),
        *(nn.Conv2d(20, 50, 5), activation(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(800, 800), activation(), nn.Linear(800, 500), activation()),
        nn.Linear(500, outputs),
    )


def prior_of(row: Row, case: Case) -> Prior:
    """The row's model as a product of factors, with its inclusion priors."""
    slab = Normal(row.slab, row.rho)
    if row.model == "vbnn":
        return Prior((slab,))
    if row.model == "hs-bnn":
        return slab * Horseshoe()
    if row.model == "sv-bnn":
        chance = None if row.edge_layers is None else _edge_prior(row, case)
        return slab * Edge(chance, row.gate_start, gradient=row.gradient)
    if row.model != "ss-ig":
        raise ValueError(f"experiments.json, row {row.name}: there is no model {row.model!r}.")
    prior: float | tuple[float, ...] | None
    if row.exponents is not None:
        widths = row.network if isinstance(row.network, tuple) else LENET[1][:-1]
        prior = tuple(math.exp(-e) / k for e, k in zip(row.exponents, widths, strict=True))
    elif row.prior == "authors":
        prior = tuple(authors_image_priors("lenet" if row.network == "lenet" else "mlp", len(case.y)))
    elif isinstance(row.prior, str):
        raise ValueError(f'experiments.json, row {row.name}: prior must be "authors" or a number, got {row.prior!r}.')
    else:
        prior = row.prior
    return slab * Node(prior, row.gate_start, gradient=row.gradient)


def _edge_prior(row: Row, case: Case) -> float:
    if isinstance(row.network, tuple):
        return edge_prior((case.X.shape[1], *row.network, CLASSES), len(case.y), row.edge_layers)
    weights = sum((k + 1) * out for k, out in zip(*LENET, strict=True))
    return edge_prior((784, *LENET[1]), len(case.y), row.edge_layers, weights)


def likelihood_of(row: Row, case: Case) -> Likelihood:
    """Classes, or normal noise in the units of the standardised target."""
    if not case.y.is_floating_point():
        return Categorical()
    if isinstance(row.sigma, str):
        return Gaussian(row.sigma)
    if row.sigma_units == "noise" and case.sigma_noise is not None:
        return Gaussian(row.sigma * case.sigma_noise)
    return Gaussian(row.sigma / case.scale if row.sigma_units == "raw" else row.sigma)


def model_of(row: Row, case: Case, seed: int) -> Bayesian:
    """A fresh model, the same for the same seed; torch's own generators are left as they were."""
    with isolated_seed(seed):
        model = bayesian(network_of(row, case), prior_of(row, case), n=len(case.y), init=row.init)
    if row.network == "lenet":  # a step takes 0.64 of the time on a CPU
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model
