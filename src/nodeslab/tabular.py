"""`nodeslab fit`: a table of numbers in a file, a network, a fit that can be resumed, and figures on held-out rows."""

from __future__ import annotations

import csv
import json
import os
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from nodeslab.checks import number, whole
from nodeslab.io import save
from nodeslab.likelihoods import Categorical, Gaussian, Likelihood
from nodeslab.metrics import rmse
from nodeslab.model import Bayesian, bayesian
from nodeslab.parallel import join
from nodeslab.parquet import Parquet
from nodeslab.prediction import predict
from nodeslab.spec import Prior, hsbnn, ssig, svbnn, vbnn
from nodeslab.training import History, fit

__all__ = ["MODELS", "Choices", "Preprocessing", "fit_file", "read"]

MODELS = {"ss-ig": ssig, "vbnn": vbnn, "sv-bnn": svbnn, "hs-bnn": hsbnn}
#: A target of whole numbers with at most so many values is taken for classes.
CLASSES = 10
HELD_OUT = 0.1

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Choices:
    """What `nodeslab fit` can be told."""

    model: str = "ss-ig"
    task: str = "auto"
    hidden: tuple[int, ...] = (50,)
    epochs: int = 500
    batch_size: int = 128
    lr: float = 3e-3
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("seed", 0)):
            whole(name, getattr(self, name), least)
        for width in self.hidden:
            whole("hidden", width)
        number("lr", self.lr, 0.0)


@dataclass(frozen=True)
class Preprocessing:
    """What a row goes through before the network sees it: x = (column - center) / scale; y too, or its class."""

    features: tuple[str, ...]
    target: str
    task: str
    center: tuple[float, ...]
    scale: tuple[float, ...]
    target_center: float = 0.0
    target_scale: float = 1.0
    classes: tuple[float, ...] = ()

    def X(self, rows: Array) -> Array:
        out: Array = (rows - np.array(self.center)) / np.array(self.scale)
        return out

    def y(self, values: Array) -> np.ndarray[Any, Any]:
        if self.task == "classification":
            return np.searchsorted(np.array(self.classes), values)
        return (values - self.target_center) / self.target_scale


def read(file: Path, target: str | None) -> tuple[Array, Array, tuple[str, ...], str]:
    """X, y, the names of X's columns and the target's, from .csv (with a header), .parquet or .npz (X and y)."""
    kind = file.suffix.lower()
    if not file.is_file():
        raise FileNotFoundError(f"There is no file {file}.")
    if kind == ".npz":
        return _npz(file, target or "y")
    if kind not in (".csv", ".parquet"):
        raise ValueError(f"{file} must be a .csv, .parquet or .npz file, got {kind or 'no ending'}.")
    if target is None:
        raise ValueError(f"Say which column of {file} is to be predicted: --target NAME.")
    if kind == ".parquet":
        table = Parquet(file, target)
        parts = [(X.astype(np.float64), y.astype(np.float64)) for X, y in table.batches()]
        return np.concatenate([X for X, _ in parts]), np.concatenate([y for _, y in parts]), table.columns, target
    return _csv(file, target)


def _npz(file: Path, target: str) -> tuple[Array, Array, tuple[str, ...], str]:
    try:
        arrays = dict(np.load(file, allow_pickle=False))
    except (EOFError, OSError, TypeError, ValueError, zipfile.BadZipFile) as e:
        raise ValueError(
            f"{file} cannot be read as an .npz file ({e}); write it with numpy.savez(file, X=X, y=y)."
        ) from e
    missing = [name for name in ("X", target) if name not in arrays]
    if missing:
        raise ValueError(f"{file} holds {', '.join(arrays)}; arrays X and {target} were expected.")
    X, y = arrays["X"], arrays[target]
    for name, array in (("X", X), (target, y)):
        if array.dtype.kind not in "fiub":
            raise TypeError(f"{name} in {file} has type {array.dtype}; it must hold real numbers.")
    if X.ndim != 2 or y.shape not in ((len(X),), (len(X), 1)):
        raise ValueError(f"{file} has X of shape {X.shape} and {target} of shape {y.shape}, not (n, columns) and (n,).")
    names = tuple(f"X[{i}]" for i in range(X.shape[1]))
    return X.astype(np.float64), y.reshape(-1).astype(np.float64), names, target


def _csv(file: Path, target: str) -> tuple[Array, Array, tuple[str, ...], str]:
    with open(file, newline="", encoding="utf-8-sig") as f:
        try:
            header, *rows = list(csv.reader(f)) or [[]]
        except (csv.Error, UnicodeDecodeError) as e:
            raise ValueError(f"{file} cannot be read as a CSV file ({e}); save it as plain CSV in UTF-8.") from e
    if not header:
        raise ValueError(f"{file} is empty; a header and rows of numbers were expected.")
    if header.count(target) != 1:
        raise ValueError(f"{file} has {header.count(target)} columns called {target!r}; it has {', '.join(header)}.")
    for i, row in enumerate(rows):
        if len(row) != len(header):
            raise ValueError(f"{file} has {len(row)} values in row {i}, but {len(header)} columns.")
    try:
        values = np.array(rows, dtype=np.float64)
    except ValueError:
        values = np.array([[_number(file, header[j], i, v) for j, v in enumerate(r)] for i, r in enumerate(rows)])
    if len(values) == 0:
        raise ValueError(f"{file} has a header and no rows.")
    place = header.index(target)
    features = tuple(name for name in header if name != target)
    return np.delete(values, place, 1), values[:, place], features, target


def _number(file: Path, column: str, row: int, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(
            f"{file} holds {value!r} in row {row}, column {column!r}; every value must be a number: encode it or drop "
            "the column."
        ) from None


def _prepare(X: Array, y: Array, features: tuple[str, ...], target: str, task: str) -> Preprocessing:
    """The training rows' means and standard deviations, and the target's, or its classes."""
    for name, column in (*zip(features, X.T, strict=True), (target, y)):
        if (column == column[0]).all():
            raise ValueError(f"Column {name!r} is constant ({column[0]:g} in every training row); drop it.")
    values = np.unique(y)
    integers = bool((values == np.round(values)).all())
    chosen = task if task != "auto" else "classification" if integers and len(values) <= CLASSES else "regression"
    common = (features, target, chosen, tuple(X.mean(0).tolist()), tuple(X.std(0).tolist()))
    if chosen == "classification":
        if not integers:
            raise ValueError(f"The classes in {target!r} must be whole numbers, got {values[0]:g}; encode them.")
        return Preprocessing(*common, classes=tuple(values.tolist()))
    return Preprocessing(*common, target_center=float(y.mean()), target_scale=float(y.std()))


def _build(inputs: int, made: Preprocessing, choices: Choices, n: int) -> tuple[Bayesian, Likelihood]:
    """The paper's networks: sigmoid and U(-0.6, 0.6) for regression, swish and Kaiming uniform for classes."""
    regression = made.task == "regression"
    prior: Prior = MODELS[choices.model]()
    layers: list[nn.Module] = []
    before = inputs
    torch.manual_seed(choices.seed)
    for width in choices.hidden:
        layers += [nn.Linear(before, width), nn.Sigmoid() if regression else nn.SiLU()]
        before = width
    net = nn.Sequential(*layers, nn.Linear(before, 1 if regression else len(made.classes)))
    model = bayesian(net, prior, n=n, init="uniform" if regression else "kaiming")
    return model, Gaussian("learn") if regression else Categorical()


def _figures(
    model: Bayesian, likelihood: Likelihood, made: Preprocessing, X: Array, y: np.ndarray[Any, Any]
) -> dict[str, float]:
    """On rows that the fit has not seen; rmse in the target's own units."""
    p = predict(model, X, draws=100, seed=0)
    target = likelihood.targets(torch.from_numpy(y), p.mean)
    figures = likelihood.metrics(p, target)
    if made.task == "regression":
        figures["rmse"] = rmse(p.mean, target) * made.target_scale
    return figures


def fit_file(file: Path, target: str | None, out: Path, choices: Choices, as_json: bool) -> None:
    """Fit, save `model.nodeslab` and `preprocessing.json` in `out`, and print the plan and the figures."""
    X, y, features, target = read(file, target)
    order = np.random.default_rng(choices.seed).permutation(len(y))
    held = max(2, round(len(y) * HELD_OUT))
    if len(y) - held < 2:
        raise ValueError(f"{file} has {len(y)} rows; at least 4 are needed, of which some are held out as a test.")
    for name, column in (*zip(features, X.T, strict=True), (target, y)):
        if not np.isfinite(column).all():
            row = int(np.flatnonzero(~np.isfinite(column))[0])
            raise ValueError(f"Column {name!r} of {file} holds {column[row]} in row {row}; impute it or drop the row.")
    test, train = order[:held], order[held:]
    made = _prepare(X[train], y[train], features, target, choices.task)
    unknown = np.setdiff1d(y[test], np.array(made.classes)) if made.classes else np.empty(0)
    if len(unknown):
        raise ValueError(f"The class {unknown[0]:g} of {target!r} is too rare: no training row has it; drop its rows.")
    ranks = join()
    if ranks.first:
        out.mkdir(parents=True, exist_ok=True)
    ranks.wait()
    model, likelihood = _build(len(features), made, choices, len(train))
    if ranks.first and not as_json:
        print(f"{file}: {len(train)} rows to train on, {held} to test; {made.task} of {target!r}.\n{model}", flush=True)
    history = fit(
        model,
        (made.X(X[train]), made.y(y[train])),
        likelihood=likelihood,
        epochs=choices.epochs,
        batch_size=choices.batch_size,
        lr=choices.lr,
        seed=choices.seed,
        checkpoint=out / "fit.checkpoint",
    )
    if ranks.first:
        figures = _figures(model, likelihood, made, made.X(X[test]), made.y(y[test]))
        save(model, out / "model.nodeslab", torch.from_numpy(made.X(X[test[:2]])).float())
        aside = out / ".preprocessing.partial"
        aside.write_text(json.dumps(asdict(made), indent=1) + "\n")
        os.replace(aside, out / "preprocessing.json")
        _report(model, history, figures, out, made.task, ranks.count, as_json)
    ranks.leave()


def _report(
    model: Bayesian, history: History, figures: dict[str, float], out: Path, task: str, ranks: int, as_json: bool
) -> None:
    nodes = [{"path": r.path, "total": r.total, "open": r.open} for r in model.nodes()]
    seconds = sum(history.column("seconds"))
    if as_json:
        said = {"out": str(out), "task": task, "test": figures, "nodes": nodes, "elbo": history[-1].elbo}
        print(json.dumps(said | {"epochs": len(history), "seconds": seconds, "ranks": ranks}))
        return
    for r in model.nodes():
        print(f"layer {r.path}: {r.open} of {r.total} nodes open")
    print(f"test: {', '.join(f'{name} {value:.4g}' for name, value in figures.items())}")
    print(f"wrote {out / 'model.nodeslab'} and {out / 'preprocessing.json'} after {seconds:.0f} s of training")
