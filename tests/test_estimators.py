"""scikit-learn's contract: its own checks, all of them; what is promised beside it; nested, and across processes."""

from __future__ import annotations

import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.datasets import make_classification, make_regression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import nodeslab as ns
from nodeslab.estimators import _distinct

SMALL: dict[str, Any] = {"hidden": (20,), "epochs": 150, "random_state": 0}
ESTIMATORS = (ns.SpikeSlabRegressor, ns.SpikeSlabClassifier)


def _curve(rows: int = 200) -> tuple[Any, Any]:
    X = np.random.default_rng(0).normal(size=(rows, 3)) * [1, 10, 100] + 5
    return X, 50 + 20 * np.sin(X[:, 0]) + np.random.default_rng(1).normal(size=rows)


def _blobs(rows: int = 200) -> tuple[Any, Any]:
    X, y = make_classification(rows, 5, n_informative=3, n_redundant=0, class_sep=2.0, random_state=0)
    return X, np.array(["no", "yes"])[y]


# ---- scikit-learn's own checks -------------------------------------------------------------------------------------


def _checks() -> list[Any]:
    found = []
    for kind in ESTIMATORS:
        for estimator, check in estimator_checks_generator(kind()):
            name = getattr(check, "func", check).__name__
            found.append(pytest.param(estimator, check, id=f"{kind.__name__}-{name}"))
    return found


@pytest.mark.filterwarnings("default")  # the checks provoke scikit-learn's own warnings
@pytest.mark.parametrize(("estimator", "check"), _checks())
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    """With the defaults, but for the most epochs that a fit may take."""
    check(clone(estimator).set_params(epochs=200))


# ---- what is promised beside them ----------------------------------------------------------------------------------


def test_the_regressor_in_the_targets_own_units() -> None:
    X, y = _curve(400)
    fitted = ns.SpikeSlabRegressor(hidden=(30,), epochs=400, random_state=0).fit(X[:300], y[:300])
    mean, std = fitted.predict(X[300:], return_std=True)
    low, high = fitted.predict_interval(X[300:], level=0.9)
    assert fitted.score(X[300:], y[300:]) > 0.9
    assert np.sqrt(np.mean((mean - y[300:]) ** 2)) < 4
    assert (low < mean).all()
    assert (mean < high).all()
    assert 0.75 < np.mean((low <= y[300:]) & (y[300:] <= high)) <= 1
    assert (std > 0).all()
    draws = fitted.sample_posterior(X[300:], draws=7)
    assert draws.shape == (7, 100)
    assert np.allclose(fitted.sample_posterior(X[300:]).mean(0), mean)
    assert np.array_equal(fitted.predict(X[300:]), mean)  # the same draws again
    assert np.allclose(fitted.predict(X[310:311]), mean[10], rtol=1e-10)
    (record,) = fitted.nodes_
    assert (record.total, record.open) == (30, fitted.history_[-1].open["0"])
    rows = torch.tensor((X[300:] - fitted.center_) / fitted.scale_).float()
    plain = fitted.network_(rows).detach().numpy()[:, 0] * fitted.y_scale_ + fitted.y_center_
    assert np.sqrt(np.mean((plain - mean) ** 2)) < 0.3 * y.std()
    assert fitted.network_[0].out_features == max(1, record.open)
    assert 0 < fitted.flops_ratio_ <= 1
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        fitted.predict_interval(X, level=2)


def test_several_targets() -> None:
    X, y = _curve()
    both = np.column_stack([y, 1000 * X[:, 1]])
    fitted = ns.SpikeSlabRegressor(**SMALL).fit(X, both)
    mean, std = fitted.predict(X, return_std=True)
    low, high = fitted.predict_interval(X)
    assert mean.shape == std.shape == low.shape == high.shape == (200, 2)
    assert fitted.sample_posterior(X, 3).shape == (3, 200, 2)
    assert fitted.score(X, both) > 0.5
    column = ns.SpikeSlabRegressor(**SMALL).fit(X, y[:, None])
    assert column.predict(X).shape == (200, 1)
    assert np.array_equal(column.predict(X)[:, 0], ns.SpikeSlabRegressor(**SMALL).fit(X, y).predict(X))


def test_the_classifiers_probabilities() -> None:
    X, y = _blobs()
    fitted = ns.SpikeSlabClassifier(**SMALL).fit(X, y)
    assert fitted.classes_.tolist() == ["no", "yes"]
    p = fitted.predict_proba(X)
    assert np.allclose(p.sum(1), 1)
    assert np.allclose(fitted.sample_posterior(X).mean(0), p)
    assert (fitted.predict(X) == fitted.classes_[p.argmax(1)]).all()
    assert fitted.score(X, y) > 0.9
    with pytest.raises(ValueError, match="one class only"):
        ns.SpikeSlabClassifier().fit(X, np.zeros(len(X)))


def test_class_weights_move_the_border() -> None:
    X, y = make_classification(300, 4, n_informative=2, n_redundant=0, weights=[0.85], class_sep=0.5, random_state=1)
    share = {}
    for name, weights in (("none", None), ("balanced", "balanced"), ("given", {0: 1.0, 1: 20.0})):
        fitted = ns.SpikeSlabClassifier(**SMALL, class_weight=weights).fit(X, y)
        share[name] = fitted.predict(X).mean()
    assert share["none"] < share["balanced"] < share["given"]


def test_a_row_of_weight_two_is_two_rows() -> None:
    """To the bit; so is the order of rows, and a row of weight 0 is none."""
    X, y = _curve(40)
    weights = np.arange(40) % 3
    twice = np.repeat(np.arange(40), weights)
    a = ns.SpikeSlabRegressor(**SMALL).fit(X, y, sample_weight=weights).predict(X)
    b = ns.SpikeSlabRegressor(**SMALL).fit(X[twice][::-1], y[twice][::-1]).predict(X)
    assert np.array_equal(a, b)


def test_rows_that_repeat_are_one_of_more_weight() -> None:
    X = np.array([[1.0, 2.0], [0.0, 5.0], [1.0, 2.0], [1.0, 2.0], [-0.0, 5.0]])
    y = np.array([3.0, 1.0, 3.0, 4.0, 1.0])
    rows, targets, weights = _distinct(X, y, np.array([1.0, 2.0, 0.5, 1.0, 0.0]))
    assert rows.tolist() == [[0.0, 5.0], [1.0, 2.0], [1.0, 2.0]]
    assert targets.tolist() == [1.0, 3.0, 4.0]
    assert weights.tolist() == [2.0, 1.5, 1.0]


@pytest.mark.parametrize("model", ["vbnn", "sv-bnn", "hs-bnn"])
def test_the_rivals_too(model: str) -> None:
    X, y = _curve()
    fitted = ns.SpikeSlabRegressor(model=model, **SMALL).fit(X, y)
    assert fitted.score(X, y) > 0.3
    assert fitted.nodes_ == [] if model == "vbnn" else len(fitted.nodes_) == 1


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"model": "ridge"}, "model must be one of ss-ig"),
        ({"hidden": (0,)}, r"hidden\[0\] must be at least 1"),
        ({"lr": -1}, "lr must be greater than 0"),
        ({"draws": 0}, "draws must be at least 1"),
        ({"activation": "step"}, "activation must be one of relu"),
    ],
)
def test_options_are_checked_at_fit(changed: dict[str, Any], sentence: str) -> None:
    X, y = _curve(20)
    with pytest.raises(ValueError, match=sentence):
        ns.SpikeSlabRegressor(**{**SMALL, **changed}).fit(X, y)


# ---- among others --------------------------------------------------------------------------------------------------


def _frame() -> tuple[pd.DataFrame, pd.Series]:
    X, y = _curve(120)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    frame["colour"] = np.where(X[:, 0] > 5, "red", "blue")
    return frame, pd.Series(y, name="price")


def _pipeline(**options: Any) -> Pipeline:
    columns = ColumnTransformer(
        [("numbers", StandardScaler(), ["a", "b", "c"]), ("texts", OneHotEncoder(sparse_output=False), ["colour"])]
    ).set_output(transform="pandas")
    return make_pipeline(columns, ns.SpikeSlabRegressor(**{**SMALL, "epochs": 60, **options}))


def test_a_pipeline_in_a_grid_search_over_frames() -> None:
    X, y = _frame()
    search = GridSearchCV(_pipeline(), {"spikeslabregressor__hidden": [(5,), (20,)]}, cv=3).fit(X, y)
    assert search.best_estimator_[-1].feature_names_in_.tolist()[-1] == "texts__colour_red"
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert len(cross_val_score(_pipeline(), X, y, cv=3, n_jobs=2)) == 3
    again = pickle.loads(pickle.dumps(search))
    assert np.array_equal(again.predict(X), search.predict(X))


def test_a_calibrated_classifier() -> None:
    X, y = _blobs(150)
    fitted = CalibratedClassifierCV(ns.SpikeSlabClassifier(**SMALL), cv=3).fit(X, y)
    assert fitted.score(X, y) > 0.9


def _predicted(packed: bytes, X: Any) -> Any:
    return pickle.loads(packed).predict(X)


def test_pickled_across_processes() -> None:
    X, y = _curve(60)
    fitted = ns.SpikeSlabRegressor(**SMALL).fit(X, y)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        there = pool.submit(_predicted, pickle.dumps(fitted), X).result()
    assert np.allclose(there, fitted.predict(X), rtol=1e-12)


def test_cross_validation_as_replicas() -> None:
    """Each fold's estimator is that of its lone fit, nodes not cut out on the way, to float error."""
    X, y = make_regression(90, 4, n_informative=2, noise=5.0, random_state=0)
    estimator = ns.SpikeSlabRegressor(model="vbnn", hidden=(8,), epochs=30, tol=0, random_state=0)
    found = ns.cross_validate(estimator, X, y, cv=3)
    alone = cross_val_score(estimator, X, y, cv=3)
    assert np.allclose(found.scores, alone, rtol=1e-3)
    assert "3 folds" in repr(found)
    assert len({len(e.history_) for e in found.estimators}) == 1
    labels = np.repeat(["x", "y"], 45)
    classes = ns.cross_validate(ns.SpikeSlabClassifier(**SMALL), X + 3 * (labels == "y")[:, None], labels, cv=2)
    assert classes.scores.min() > 0.8
    weighted = ns.cross_validate(estimator, X, y, cv=2, sample_weight=np.arange(90) % 3 + 1)
    assert np.isfinite(weighted.scores).all()
    with pytest.raises(TypeError, match="is for SpikeSlabRegressor"):
        ns.cross_validate(StandardScaler(), X, y)
