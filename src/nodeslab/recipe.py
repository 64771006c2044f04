"""What `nodeslab fit` and the scikit-learn estimators do with a table: the one home of their defaults.

The defaults are for columns and targets of mean 0 and standard deviation 1. Where a number depends on the data, it
depends on their count of rows alone, and `Recipe.settled` says how.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from nodeslab.checks import number, whole
from nodeslab.likelihoods import Categorical, Gaussian, Likelihood, Noise, Weighted
from nodeslab.model import Bayesian, bayesian
from nodeslab.prediction import isolated_seed
from nodeslab.replicas import fit_replicas
from nodeslab.spec import Edge, Factor, Horseshoe, Node, Normal, Prior
from nodeslab.training import History, Ramp, Record, fit

__all__ = ["MODELS", "TASKS", "Fitted", "Recipe", "Rows", "build", "fit_rows", "fit_tables"]

#: What stands beside the slab in the prior of each model.
MODELS: Mapping[str, Factor | None] = {"ss-ig": Node(), "vbnn": None, "sv-bnn": Edge(), "hs-bnn": Horseshoe()}
TASKS = ("regression", "classification")
ACTIVATIONS: Mapping[str, type[nn.Module]] = {"relu": nn.ReLU, "silu": nn.SiLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh}


@dataclass(frozen=True)
class Recipe:
    """How a table is fitted; None stands for the rule in `settled`.

    hidden: the widths of the hidden layers. epochs: at most so many. tol: the fit ends early when the ELBO, averaged
    over `window` epochs, changes by less than tol nats a row; 0 never does. weight: that of the likelihood, 1 is Bayes
    (with few rows, Bayes keeps hardly a node; more than 1 keeps more, and trusts the rows more). spread: where the
    standard deviation of every weight starts. gate_rate: the gates' learning rate, in units of lr.

    The likelihood starts with so much weight that the KL of the fresh posterior cannot close nodes before they have
    learnt anything, and comes down to `weight` between 10 and 50 % of the epochs; the rate decays over the last 40 %.
    """

    model: str = "ss-ig"
    hidden: tuple[int, ...] = (50, 50)
    activation: str = "relu"
    epochs: int | None = None
    batch_size: int | None = None
    lr: float = 5e-3
    gate_rate: float = 2.0
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
        steps = min(15_000, 7_500 + n)
        epochs = self.epochs or min(500, max(100, round(steps * batch_size / n)))
        weight = self.weight or (10.0 if task == "classification" else max(1.0, 10.0 * min(1.0, (10_000 / n) ** 0.5)))
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


@dataclass(frozen=True, eq=False)
class Rows:
    """A table to fit: X (n, p) and y, standardised, (n,) or (n, t), or codes 0 ... K-1; how often each row counts."""

    X: Any
    y: Any
    recipe: Recipe
    weights: Any = None


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
    work = _Work.of(Rows(X, y, Recipe() if recipe is None else recipe, weights), task)
    history = fit(
        work.model,
        work.data,
        seed=work.recipe.seed,
        compact=work.recipe.model == "ss-ig",
        checkpoint=checkpoint,
        callback=callback,
        progress=progress,
        **work.arguments(),
    )
    return work.fitted(history)


def fit_tables(tables: Sequence[Rows], task: str, progress: bool | None = None) -> list[Fitted]:
    """`fit_rows` for each of several tables, those of one size and recipe (its seed aside) as one batched run.

    Nodes that close are not cut out on the way, as they are in `fit_rows`.
    """
    works = [_Work.of(table, task) for table in tables]
    groups: dict[str, list[int]] = {}
    for i, work in enumerate(works):
        key = repr((replace(work.recipe, seed=0), work.used, [a.shape for a in work.data]))
        groups.setdefault(key, []).append(i)
    histories: dict[int, History] = {}
    for members in groups.values():
        found = fit_replicas(
            [works[i].model for i in members],
            [works[i].data for i in members],
            seeds=[works[i].recipe.seed for i in members],
            progress=progress,
            **works[members[0]].arguments(),
        )
        histories |= dict(zip(members, found, strict=True))
    return [work.fitted(histories[i]) for i, work in enumerate(works)]


@dataclass(frozen=True, eq=False)
class _Work:
    """A table on its way: a fresh model, the data as `fit` takes them, and the recipe without any None."""

    model: Bayesian
    data: tuple[Any, Any]
    likelihood: Likelihood
    used: Likelihood  # in the fit: with weights where there are some
    task: str
    recipe: Recipe

    @staticmethod
    def of(table: Rows, task: str) -> _Work:
        if task not in TASKS:
            raise ValueError(f"task must be 'regression' or 'classification', got {task!r}.")
        X, y = np.asarray(table.X), np.asarray(table.y)
        outputs = int(y.max()) + 1 if task == "classification" else 1 if y.ndim == 1 else y.shape[1]
        settled = table.recipe.settled(len(X), task)
        with isolated_seed(settled.seed):
            model = build(X.shape[1], outputs, len(X), settled)
        likelihood: Likelihood = Gaussian("learn") if task == "regression" else Categorical()
        if table.weights is None:
            return _Work(model, (X, y), likelihood, likelihood, task, settled)
        used = Weighted(likelihood)
        if likelihood.learns:
            model.noise = Noise(_weighted_std(y, table.weights))
            model.likelihood = used
        return _Work(model, (X, _beside(y, table.weights)), likelihood, used, task, settled)

    def arguments(self) -> dict[str, Any]:
        """Those that `fit` and `fit_replicas` share."""
        recipe = self.recipe
        weight = recipe.weight or 1.0
        fresh = sum(p.numel() for p in self.model.net.parameters()) * (-math.log(recipe.spread) - 0.5)  # nats of KL
        start = max(weight, 3.0 * fresh / len(self.data[0]))
        return {
            "likelihood": self.used,
            "epochs": recipe.epochs,
            "batch_size": recipe.batch_size,
            "lr": recipe.lr,
            "epsilon": recipe.tol * len(self.data[0]) or None,
            "window": recipe.window,
            "lr_schedule": Ramp(1.0, 0.02, 0.6, 1.0),
            "likelihood_schedule": Ramp(start, weight, 0.1, 0.5, log=True),
            "gate_rate": recipe.gate_rate,
            "allow_constant": True,
        }

    def fitted(self, history: History) -> Fitted:
        self.model.likelihood = self.likelihood
        return Fitted(self.model, history, self.likelihood, self.task, self.recipe)


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
