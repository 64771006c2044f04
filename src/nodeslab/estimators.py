"""scikit-learn's estimators over a table's fit (`recipe.py`): `SpikeSlabRegressor` and `SpikeSlabClassifier`.

Rows that repeat are one row of more weight, and rows are put into one order, before anything is drawn: a row of weight
2 is two equal rows, to the bit, and the order in which rows are given does not matter. Predictions are of draws that
are fixed at fit, in float64, so that a row's answer is the same alone and among others.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone, is_classifier
    from sklearn.model_selection import check_cv
    from sklearn.utils import _safe_indexing, check_random_state, compute_class_weight, indexable
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, validate_data
except ImportError as e:
    raise ImportError('The estimators need scikit-learn 1.6 or newer: pip install "nodeslab[sklearn]".') from e

from nodeslab.checks import probability, whole
from nodeslab.likelihoods import Gaussian
from nodeslab.prediction import predict
from nodeslab.recipe import Fitted, Recipe, Rows, fit_rows, fit_tables
from nodeslab.shrinking import shrink

if TYPE_CHECKING:
    from torch import nn
    from typing_extensions import Self

    from nodeslab.model import Bayesian, NodeRecord
    from nodeslab.prediction import RegressionPrediction
    from nodeslab.training import History

__all__ = ["CrossValidation", "SpikeSlabClassifier", "SpikeSlabRegressor", "cross_validate"]

Array = NDArray[Any]
AT_ONCE = 50_000  # rows of one prediction, to bound the memory


class _SpikeSlab(BaseEstimator):  # type: ignore[misc]
    """What both estimators share; the arguments are those of `nodeslab.recipe.Recipe`."""

    def __init__(
        self,
        model: str = "ss-ig",
        hidden: Sequence[int] = (50, 50),
        activation: str = "relu",
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float = 5e-3,
        gate_rate: float = 2.0,
        spread: float = 0.05,
        weight: float | None = None,
        tol: float = 1e-4,
        window: int = 20,
        draws: int = 100,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.hidden = hidden
        self.activation = activation
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.gate_rate = gate_rate
        self.spread = spread
        self.weight = weight
        self.tol = tol
        self.window = window
        self.draws = draws
        self.random_state = random_state
        self.verbose = verbose

    def _recipe(self) -> Recipe:
        """The arguments, checked; a seed for the fit is drawn from `random_state`."""
        names = ("model", "hidden", "activation", "epochs", "batch_size", "lr", "gate_rate", "spread", "weight", "tol")
        given = {name: getattr(self, name) for name in (*names, "window")}
        whole("draws", self.draws)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return Recipe(**given, seed=seed)

    task: ClassVar[str]

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """X: (n, p). y: (n,), or (n, t) for a regression of several targets. sample_weight: how often a row counts."""
        table = self._table(X, y, sample_weight)
        progress = None if self.verbose else False
        with _quiet():
            fitted = fit_rows(table.X, table.y, self.task, table.recipe, weights=table.weights, progress=progress)
            self._keep(fitted, table)
        return self

    @abstractmethod
    def _table(self, X: Any, y: Any, sample_weight: Any) -> Rows:
        """The rows to fit, checked; what stands between them and the user's units is noted in self."""

    def _rows_of(self, X: Array, y: Array, weights: Array) -> tuple[Array, Array, Array]:
        """Every different row once, its columns standardised."""
        X, y, weights = _distinct(X, y, weights)
        if len(X) < 2:
            raise ValueError(f"n_samples = {len(X)}: a fit needs at least 2 different rows (1 sample is not enough).")
        self.center_, self.scale_ = _moments(X, weights)
        return ((X - self.center_) / self.scale_).astype(np.float32), y, weights

    def _keep(self, fitted: Fitted, table: Rows) -> None:
        self.seed_ = fitted.recipe.seed
        self.history_: History = fitted.history
        self.flops_ratio_ = float(fitted.history[-1].flops_ratio)
        self.n_iter_ = len(fitted.history)
        self.network_: nn.Module = shrink(fitted.model, table.X[:2]).cpu().eval()
        self.model_: Bayesian = fitted.model.double()
        self.nodes_: list[NodeRecord] = self.model_.nodes()

    def _rows(self, X: Any) -> Array:
        """New rows, checked and standardised."""
        check_is_fitted(self)
        checked = validate_data(self, X, reset=False, dtype=np.float64)
        rows: Array = (checked - self.center_) / self.scale_
        return rows

    def _outputs(self, X: Any, draws: int | None = None) -> list[RegressionPrediction]:
        """What the network gives for every row, in each of the fixed draws, part by part."""
        rows = self._rows(X)
        count = whole("draws", self.draws if draws is None else draws)
        parts = [rows[i : i + AT_ONCE] for i in range(0, len(rows), AT_ONCE)]
        noise = self.model_.likelihood if isinstance(self.model_.likelihood, Gaussian) else Gaussian(1.0)
        return [predict(self.model_, part, draws=count, seed=self.seed_, likelihood=noise) for part in parts]  # type: ignore[misc]

    @abstractmethod
    def sample_posterior(self, X: Any, draws: int | None = None) -> Array: ...

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        return tags


class SpikeSlabRegressor(RegressorMixin, _SpikeSlab):  # type: ignore[misc]
    """y = f(x; w) + noise: a network whose nodes close where the data do not need them; the noise is learnt.

    Columns and targets are standardised inside. model: "ss-ig" (nodes are selected), "vbnn" (nothing is), "sv-bnn"
    (edges are) or "hs-bnn". hidden: the widths of the hidden layers. epochs, batch_size, weight: None stands for a rule
    that depends on the count of rows (`nodeslab.recipe.Recipe`). tol: the fit ends early when the ELBO, averaged over
    `window` epochs, changes by less than tol nats a row. draws: of the weights, fixed at fit, for every prediction.

    After fit: nodes_ (a record for each layer: which nodes are open), network_ (the plain, small network, from
    standardised columns to standardised targets), history_ (a record for each epoch), flops_ratio_ (multiplications
    left), model_ (the posterior), center_, scale_, y_center_, y_scale_.
    """

    task = "regression"

    def _table(self, X: Any, y: Any, sample_weight: Any) -> Rows:
        X, y = validate_data(self, X, y, multi_output=True, y_numeric=True, dtype=np.float64)
        y = np.asarray(y, dtype=np.float64)
        self._flat = y.ndim == 1
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        rows, y, weights = self._rows_of(X, y.reshape(len(y), -1), weights)
        constant = (y == y[:1]).all(0)
        if constant.any():
            raise ValueError(f"y is constant ({y[0, constant.argmax()]:g} in every row): there is nothing to learn.")
        self.y_center_, self.y_scale_ = _moments(y, weights)
        return Rows(rows, (y - self.y_center_) / self.y_scale_, self._recipe(), _uneven(weights))

    def _shaped(self, values: Array) -> Array:
        """Back to the target's own units and shape; `values` has rows before columns at the end."""
        out: Array = values * self.y_scale_ + self.y_center_
        return out[..., 0] if self._flat else out

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """E[y] of each row; with return_std also the standard deviation of y, noise included."""
        parts = self._outputs(X)
        mean = self._shaped(np.concatenate([p.mean.numpy() for p in parts]))
        if not return_std:
            return mean
        std = np.concatenate([p.std.numpy() for p in parts]) * self.y_scale_
        return mean, std[:, 0] if self._flat else std

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[Array, Array]:
        """The central interval that holds y with probability `level`: (low, high)."""
        probability("level", level)
        low, high = zip(*(p.interval(level) for p in self._outputs(X)), strict=True)
        return tuple(self._shaped(torch.cat(ends).numpy()) for ends in (low, high))  # type: ignore[return-value]

    def sample_posterior(self, X: Any, draws: int | None = None) -> Array:
        """f(x; w) for draws of the weights, without noise: (draws, n) or (draws, n, t)."""
        return self._shaped(np.concatenate([p.draws.numpy() for p in self._outputs(X, draws)], axis=1))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class SpikeSlabClassifier(ClassifierMixin, _SpikeSlab):  # type: ignore[misc]
    """p(y = k | x) = E[softmax(f(x; w))_k]: a network whose nodes close where the data do not need them.

    The arguments are those of `SpikeSlabRegressor`. class_weight: {class: weight}, "balanced", or None.
    weight: how much more the likelihood weighs than in Bayes' rule, 10 unless said (1 is Bayes): at 1 most nodes of a
    classifier cost more than they explain.

    After fit: classes_, and what the regressor has, its target's units aside.
    """

    task = "classification"

    def __init__(
        self,
        model: str = "ss-ig",
        hidden: Sequence[int] = (50, 50),
        activation: str = "relu",
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float = 5e-3,
        gate_rate: float = 2.0,
        spread: float = 0.05,
        weight: float | None = None,
        tol: float = 1e-4,
        window: int = 20,
        draws: int = 100,
        class_weight: Any = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            model=model,
            hidden=hidden,
            activation=activation,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            gate_rate=gate_rate,
            spread=spread,
            weight=weight,
            tol=tol,
            window=window,
            draws=draws,
            random_state=random_state,
            verbose=verbose,
        )
        self.class_weight = class_weight

    def _table(self, X: Any, y: Any, sample_weight: Any) -> Rows:
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        counted = weights > 0
        self.classes_, codes = np.unique(y[counted], return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y holds one class only ({self.classes_[0]!r}); a classifier needs at least two classes.")
        X, weights = X[counted], weights[counted]
        if self.class_weight is not None:
            weights = weights * _of_classes(self.class_weight, self.classes_, codes, y[counted], weights)[codes]
        rows, codes, weights = self._rows_of(X, codes, weights)
        return Rows(rows, codes, self._recipe(), _uneven(weights))

    def sample_posterior(self, X: Any, draws: int | None = None) -> Array:
        """The probabilities of the classes for draws of the weights: (draws, n, classes)."""
        return np.concatenate([torch.softmax(p.draws, 2).numpy() for p in self._outputs(X, draws)], axis=1)

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, in the order of classes_: the mean over the draws."""
        return np.concatenate([torch.softmax(p.draws, 2).mean(0).numpy() for p in self._outputs(X)])

    def predict(self, X: Any) -> Array:
        """The most probable class of each row."""
        codes = self.predict_proba(X).argmax(1)
        labels: Array = self.classes_[codes]
        return labels


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """scores: estimator.score on the rows that each fold held out; estimators: those that were fitted without them."""

    scores: Array
    estimators: list[Any]

    def __repr__(self) -> str:
        return f"CrossValidation({len(self.scores)} folds, score {self.scores.mean():.4g} ± {self.scores.std():.4g})"


def cross_validate(estimator: Any, X: Any, y: Any, *, cv: Any = 5, sample_weight: Any = None) -> CrossValidation:
    """sklearn's cross_validate for one of these estimators, its folds as one batched run (`fit_replicas`).

    cv: a number of folds, or any splitter of scikit-learn's. Closed nodes are cut out after the fit, not during it.
    """
    if not isinstance(estimator, _SpikeSlab):
        raise TypeError(
            f"cross_validate is for SpikeSlabRegressor and SpikeSlabClassifier, got {type(estimator).__name__}; "
            "sklearn.model_selection.cross_validate takes any estimator."
        )
    X, y, sample_weight = indexable(X, y, sample_weight)
    folds = list(check_cv(cv, y, classifier=is_classifier(estimator)).split(X, y))
    made = [clone(estimator) for _ in folds]
    tables, held = [], []
    for one, (train, test) in zip(made, folds, strict=True):
        weights = None if sample_weight is None else _safe_indexing(sample_weight, train)
        tables.append(one._table(_safe_indexing(X, train), _safe_indexing(y, train), weights))
        held.append((_safe_indexing(X, test), _safe_indexing(y, test)))
    with _quiet():
        for one, fitted, table in zip(made, fit_tables(tables, estimator.task, progress=False), tables, strict=True):
            one._keep(fitted, table)
    return CrossValidation(np.array([one.score(*rows) for one, rows in zip(made, held, strict=True)]), made)


@contextmanager
def _quiet() -> Iterator[None]:
    """A layer in which no node stays open is no news here: nodes_ shows it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _uneven(weights: Array) -> Array | None:
    return None if (weights == 1.0).all() else weights


def _distinct(X: Array, y: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Every different row once, in one order, with the sum of its weights; rows without weight are left out."""
    counted = weights > 0
    X, y, weights = X[counted], y[counted], weights[counted]
    if not len(X):
        raise ValueError("n_samples = 0: every row has sample_weight 0.")
    columns = np.column_stack([X, y.reshape(len(y), -1)]) + 0.0  # -0.0 is 0.0
    order = np.lexsort(columns.T[::-1])
    columns = columns[order]
    new = np.ones(len(columns), dtype=bool)
    new[1:] = (columns[1:] != columns[:-1]).any(1)
    total = np.add.reduceat(weights[order], np.flatnonzero(new))
    return X[order][new], y[order][new], total


def _moments(values: Array, weights: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each column, 1 for those that are constant."""
    center = np.average(values, axis=0, weights=weights)
    scale = np.sqrt(np.average((values - center) ** 2, axis=0, weights=weights))
    constant = (values == values[:1]).all(0) | ~(scale > 1e-12 * np.abs(center))
    return center, np.where(constant, 1.0, scale)


def _of_classes(chosen: Any, classes: Array, codes: Array, y: Array, weights: Array) -> Array:
    """The weight of each class; "balanced": as if every class had the same total of row weights."""
    if isinstance(chosen, str) and chosen == "balanced":
        totals = np.bincount(codes, weights=weights, minlength=len(classes))
        return np.asarray(weights.sum() / (len(classes) * totals))
    return np.asarray(compute_class_weight(chosen, classes=classes, y=y))
