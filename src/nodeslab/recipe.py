"""What `nodeslab fit` and the scikit-learn estimators do with a table: the one home of their defaults.

The defaults are for columns and targets of mean 0 and standard deviation 1. Where a number depends on the data, it
depends on their count of rows alone, and `Recipe.settled` says how.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from nodeslab.checks import number, whole
from nodeslab.likelihoods import Categorical, Gaussian, Likelihood, Noise, Weighted
from nodeslab.model import Bayesian, bayesian
from nodeslab.prediction import isolated_seed
from nodeslab.spec import Edge, Factor, Horseshoe, Node, Normal, Prior
from nodeslab.training import History, Ramp, Record, fit

__all__ = ["MODELS", "TASKS", "Fitted", "Recipe", "build", "fit_rows"]

#: What stands beside the slab in the prior of each model.
MODELS: Mapping[str, Factor | None] = {"ss-ig": Node(), "vbnn": None, "sv-bnn": Edge(), "hs-bnn": Horseshoe()}
TASKS = ("regression", "classification")
ACTIVATIONS: Mapping[str, type[nn.Module]] = {"relu": nn.ReLU, "silu": nn.SiLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh}


@dataclass(frozen=True)
class Recipe:
    """How a table is fitted; None stands for the rule in `settled`.

    hidden: the widths of the hidden layers. epochs: at most so many. tol: the fit ends early when the ELBO, averaged
    over `window` epochs, changes by less than tol nats a row; 0 never does. weight: that of the likelihood, 1 is Bayes.
    spread: where the standard deviation of every weight starts. gate_rate: the gates' learning rate, in units of lr.
    """

    model: str = "ss-ig"
    hidden: tuple[int, ...] = (50, 50)
    activation: str = "relu"
    epochs: int | None = None
    batch_size: int | None = None
    lr: float = 3e-3
    gate_rate: float = 5.0
    spread: float = 0.05
    weight: float | None = None
    tol: float = 1e-4
    window: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        for name, known in (("model", MODELS), ("activation", ACTIVATIONS)):
            value = getattr(self, name)
            if not isinstance(value, str) or value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}.")
        widths = (self.hidden,) if isinstance(self.hidden, (int, np.integer)) else self.hidden
        if isinstance(widths, str) or not hasattr(widths, "__iter__"):
            raise TypeError(f"hidden must be the widths of the hidden layers, such as (50, 50), got {widths!r}.")
        put("hidden", tuple(whole(f"hidden[{i}]", width) for i, width in enumerate(widths)))
        if not self.hidden and self.model == "ss-ig":
            raise ValueError("hidden is empty, but ss-ig selects among hidden nodes; give a width, or model='vbnn'.")
        for name in ("epochs", "batch_size"):
            if getattr(self, name) is not None:
                put(name, whole(name, getattr(self, name)))
        put("window", whole("window", self.window))
        put("seed", whole("seed", self.seed, least=0))
        for name in ("lr", "gate_rate", "spread"):
            put(name, number(name, getattr(self, name), 0.0))
        put("tol", number("tol", self.tol, 0.0, least=True))
        if self.weight is not None:
            put("weight", number("weight", self.weight, 0.0))

    def settled(self, n: int, task: str) -> Recipe:
        """This recipe with a number for each None, for n rows."""
        batch_size = self.batch_size or min(512, max(32, 2 ** round(math.log2(n / 32))))
        steps = 20_000
        epochs = self.epochs or min(1000, max(100, round(steps * batch_size / n)))
        weight = self.weight or (1.0 if task == "regression" else 10.0)
        return replace(self, batch_size=batch_size, epochs=epochs, weight=weight)


@dataclass(frozen=True, eq=False)
class Fitted:
    """What comes out: the model, its history, the likelihood it was fitted with, and the recipe without any None."""

    model: Bayesian
    history: History
    likelihood: Likelihood
    task: str
    recipe: Recipe


def build(inputs: int, outputs: int, n: int, recipe: Recipe) -> Bayesian:
    """The network of a recipe under its prior: linear layers, an activation after each but the last."""
    layers: list[nn.Module] = []
    before = inputs
    for width in recipe.hidden:
        layers += [nn.Linear(before, width), ACTIVATIONS[recipe.activation]()]
        before = width
    beside = MODELS[recipe.model]
    slab = Normal(1.0, rho=math.log(math.expm1(recipe.spread)))
    prior = Prior((slab,) if beside is None else (slab, beside))
    return bayesian(nn.Sequential(*layers, nn.Linear(before, outputs)), prior, n=n)


def fit_rows(
    X: Any,
    y: Any,
    task: str,
    recipe: Recipe | None = None,
    *,
    weights: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    callback: Callable[[Bayesian, Record], object] | None = None,
    progress: bool | None = None,
) -> Fitted:
    """Fit a table of standardised numbers as `recipe` says; resumable with `checkpoint`, and joined under torchrun.

    X: (n, p). y: standardised, (n,) or (n, t), for "regression"; codes 0 ... K-1 for "classification".
    weights: how often each row counts, (n,); a row of weight 2 is two equal rows.
    """
    if task not in TASKS:
        raise ValueError(f"task must be 'regression' or 'classification', got {task!r}.")
    X, y = np.asarray(X), np.asarray(y)
    outputs = int(y.max()) + 1 if task == "classification" else 1 if y.ndim == 1 else y.shape[1]
    settled = (Recipe() if recipe is None else recipe).settled(len(X), task)
    assert settled.epochs is not None
    assert settled.batch_size is not None
    assert settled.weight is not None
    with isolated_seed(settled.seed):
        model = build(X.shape[1], outputs, len(X), settled)
    likelihood: Likelihood = Gaussian("learn") if task == "regression" else Categorical()
    if weights is None:
        used, target = likelihood, y
    else:
        used, target = Weighted(likelihood), _beside(y, weights)
        if likelihood.learns:
            model.noise = Noise(_weighted_std(y, weights))
            model.likelihood = used
    history = fit(
        model,
        (X, target),
        likelihood=used,
        epochs=settled.epochs,
        batch_size=settled.batch_size,
        lr=settled.lr,
        seed=settled.seed,
        epsilon=settled.tol * len(X) or None,
        window=settled.window,
        lr_schedule=Ramp(1.0, 0.02, 0.6, 1.0),
        likelihood_schedule=None if settled.weight == 1.0 else Ramp(settled.weight, settled.weight),
        compact=settled.model == "ss-ig",
        gate_rate=settled.gate_rate,
        allow_constant=True,
        checkpoint=checkpoint,
        callback=callback,
        progress=progress,
    )
    model.likelihood = likelihood
    return Fitted(model, history, likelihood, task, settled)


def _beside(y: np.ndarray[Any, Any], weights: Any) -> np.ndarray[Any, Any]:
    """y and one more column, the weights, as `Weighted` takes them."""
    w = np.asarray(weights, dtype=np.float64)
    if w.shape != (len(y),):
        raise ValueError(f"weights has shape {w.shape}; one number for each of the {len(y)} rows was expected.")
    return np.column_stack([y.astype(np.float64), w])


def _weighted_std(y: np.ndarray[Any, Any], weights: Any) -> torch.Tensor:
    columns, w = y.reshape(len(y), -1), np.asarray(weights, dtype=np.float64)
    center = np.average(columns, axis=0, weights=w)
    spread = np.sqrt(np.average((columns - center) ** 2, axis=0, weights=w))
    return torch.as_tensor(np.maximum(spread, 1e-6), dtype=torch.float32)
