"""From a table in a file to a network: the plan, the fit that goes on where it stopped, predictions in its units."""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nodeslab.checks import number, whole
from nodeslab.folder import Folder, aside, history_json, read_json, write_json
from nodeslab.io import save
from nodeslab.likelihoods import Likelihood
from nodeslab.metrics import rmse
from nodeslab.model import Bayesian
from nodeslab.parallel import join
from nodeslab.parquet import pyarrow_modules
from nodeslab.prediction import ClassPrediction, Prediction, RegressionPrediction, predict
from nodeslab.preprocessing import Findings, Preprocessing, Rows, prepare, task_of
from nodeslab.recipe import Fitted, Recipe, fit_rows
from nodeslab.sealed import previous_of
from nodeslab.table import Array, Table, read_table

__all__ = ["DRAWS", "Answer", "Ask", "Plan", "answer", "fit_plan", "plan", "state", "write_answer"]

HELD_OUT = 0.1
#: Draws of a prediction, of the figures and of an exported file: the same, with seed 0, so that they agree.
DRAWS = 100
AT_ONCE = 50_000  # rows of one prediction, to bound the memory


@dataclass(frozen=True)
class Ask:
    """What `nodeslab fit` was asked for."""

    file: Path
    target: str | None
    recipe: Recipe
    task: str = "auto"
    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """What tells one fit from another; the file counts by what is in it, wherever it lies."""
        if not self.file.is_file():
            what = "is a folder; give a .csv, .parquet or .npz file" if self.file.is_dir() else "does not exist"
            raise FileNotFoundError(f"The file {self.file} {what}.")
        with open(self.file, "rb") as f:
            digest = hashlib.file_digest(f, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _digest(f)
        recipe = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self.recipe).items()}
        lists = {"drop": sorted(self.drop), "categories": sorted(self.categories)}
        return {"data": digest, "target": self.target, "task": self.task, **lists, **recipe}


def _digest(f: Any) -> str:
    h = hashlib.sha256()
    while part := f.read(1 << 20):
        h.update(part)
    return h.hexdigest()


@dataclass(frozen=True, eq=False)
class Plan:
    """What is going to be fitted, as data that prints itself."""

    ask: Ask
    made: Preprocessing
    findings: Findings
    X: Array
    y: np.ndarray[Any, Any]
    X_test: Array
    y_test: np.ndarray[Any, Any]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        made = self.made
        count = len(made.numbers), len(made.categories)
        kinds = [f"{n} column{'s' if n != 1 else ''} of {k}" for n, k in zip(count, ("numbers", "texts"), strict=True)]
        said = " and ".join(k for k, n in zip(kinds, count, strict=True) if n)
        classes = f" into {len(made.classes)} classes" if made.classes else ""
        head = (
            f"{self.ask.file}: {len(self.y)} rows to train on, {len(self.y_test)} to test; {made.task} of "
            f"{made.target!r}{classes} from {said}."
        )
        return "\n".join([head, *(f"  {note}" for note in self.notes)])


def state(out: Path, facts: Mapping[str, Any]) -> str:
    """What a folder holds of this fit: "new", "begun" or "finished"; another fit's folder is refused."""
    folder = Folder(out)
    if (out.exists() and not out.is_dir()) or any(p.is_file() for p in out.parents):
        raise ValueError(f"--out {out} is not a folder, and cannot become one.")
    if not folder.fit.exists():
        if folder.model.exists():
            raise ValueError(f"{out} holds a model that is not of a fit; name another --out.")
        return "new"
    before = read_json(folder.fit)
    changed = [name for name in {**facts, **before} if before.get(name) != facts.get(name)]
    if changed:
        raise ValueError(
            f"{out} holds another fit ({', '.join(changed)} differ); give the same arguments, or another --out."
        )
    return "finished" if folder.finished else "begun"


def plan(ask: Ask) -> Plan:
    """Read the file, look at every column, and hold rows out for a test."""
    table = read_table(ask.file).without(ask.drop)
    if ask.target is None and ask.file.suffix.lower() != ".npz":
        raise ValueError(f"Say which column of {ask.file} is to be predicted: --target NAME. It has {table.names()}.")
    target = ask.target or "y"
    for name in (target, *ask.categories):
        table.column(name)
    if len(table.columns) == 1:
        raise ValueError(f"{ask.file} has no column but {target!r}; a prediction needs at least one more.")
    task, texts = task_of(table, target, ask.task, ask.categories)
    there = table.texts(target) != "" if texts else ~np.isnan(table.numbers(target))
    rows = np.flatnonzero(there)
    order: Rows = rows[np.random.default_rng(ask.recipe.seed).permutation(len(rows))]
    held = max(2, round(len(rows) * HELD_OUT))
    if len(rows) - held < 2:
        raise ValueError(
            f"{ask.file} has {len(rows)} rows with a target; at least 4 are needed, of which some are held out as a "
            "test."
        )
    test, train = order[:held], order[held:]
    made, findings = prepare(table, target, train, task, texts, ask.categories)
    X, _ = made.X(table)
    y, _ = made.y(table)
    if made.classes and (y[test] < 0).any():
        row = test[y[test] < 0][0]
        raise ValueError(
            f"The class {table.column(target)[row]!r} of {target!r} is too rare: no training row has it; drop its rows."
        )
    notes = findings.notes
    if len(rows) < table.rows:
        gone = table.rows - len(rows)
        notes = (f"{gone} row{'s' if gone != 1 else ''} without a target left out.", *notes)
    return Plan(ask, made, findings, X[train], y[train], X[test], y[test], notes)


def fit_plan(planned: Plan, out: Path, facts: Mapping[str, Any], progress: bool | None = None) -> dict[str, Any]:
    """Fit, going on from what `out` holds; write the model and the rest there, and give the result as JSON."""
    folder, made, ranks = Folder(out), planned.made, join()
    if ranks.first:
        out.mkdir(parents=True, exist_ok=True)
        write_json(folder.fit, facts)
    ranks.wait()
    recipe = planned.ask.recipe
    try:
        fitted = fit_rows(planned.X, planned.y, made.task, recipe, checkpoint=folder.checkpoint, progress=progress)
    except (ValueError, ArithmeticError):
        if ranks.first and not folder.checkpoint.exists():  # nothing was done, so nothing is to be gone on with
            folder.fit.unlink(missing_ok=True)
        raise
    result = _result(planned, fitted, ranks.count)
    if ranks.first:
        save(fitted.model, folder.model, torch.from_numpy(planned.X_test[:2]).float())
        aside(folder.test, lambda file: np.savez(file, X=planned.X_test, y=planned.y_test))
        write_json(folder.preprocessing, made.as_json())
        write_json(folder.result, result)
        for file in (folder.checkpoint, previous_of(folder.checkpoint)):
            file.unlink(missing_ok=True)
    ranks.leave()
    return result


def _result(planned: Plan, fitted: Fitted, ranks: int) -> dict[str, Any]:
    made, model, history = planned.made, fitted.model, fitted.history
    return {
        "file": planned.ask.file.name,
        "target": made.target,
        "task": made.task,
        "rows": {"train": len(planned.y), "test": len(planned.y_test)},
        "inputs": len(made.encoded),
        "test": figures(model, fitted.likelihood, made, planned.X_test, planned.y_test),
        "nodes": [{"path": r.path, "total": r.total, "open": r.open} for r in model.nodes()],
        "flops_ratio": history[-1].flops_ratio,
        "elbo": history[-1].elbo,
        "epochs": len(history),
        "seconds": sum(history.column("seconds")),
        "ranks": ranks,
        "notes": list(planned.notes),
        "leaks": list(planned.findings.leaks),
        "recipe": {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(fitted.recipe).items()},
        "history": history_json(history),
    }


def figures(
    model: Bayesian, likelihood: Likelihood, made: Preprocessing, X: Array, y: np.ndarray[Any, Any]
) -> dict[str, float]:
    """On rows that the fit has not seen; rmse and nll in the target's own units, beside the mean's or commonest's."""
    p = predict(model, X, draws=DRAWS, seed=0)
    target = likelihood.targets(torch.from_numpy(y), p.mean)
    out = likelihood.metrics(p, target)
    if made.task == "regression":
        out["rmse"] = rmse(p.mean, target) * made.scale
        out["nll"] += math.log(made.scale)
        return out | {"rmse_of_the_mean": float(np.sqrt(np.mean(y**2))) * made.scale}
    return out | {"accuracy_of_the_commonest": float(np.mean(y == np.bincount(y).argmax()))}


# ---- predictions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Answer:
    """Predictions of every row of a table, column by column; what was filled in; the score where there is a target."""

    columns: dict[str, list[Any]]
    notes: tuple[str, ...]
    score: dict[str, float]


def answer(
    model: Bayesian, made: Preprocessing, table: Table, level: float = 0.9, draws: int = DRAWS, seed: int = 0
) -> Answer:
    """Regression: prediction, std, low, high. Classes: prediction, its probability, entropy, and each class's p."""
    number("interval", level, 0.0, 1.0)
    whole("draws", draws)
    X, notes = made.X(table)
    parts: list[dict[str, list[Any]]] = []
    for i in range(0, len(X), AT_ONCE):  # the draws are the seed's in each part
        parts.append(_columns(predict(model, X[i : i + AT_ONCE], draws=draws, seed=seed), made, level))
    columns = {name: [v for part in parts for v in part[name]] for name in parts[0]}
    score: dict[str, float] = {}
    if made.target in table.columns:
        try:
            y, there = made.y(table)
        except ValueError as e:
            return Answer(columns, (*notes, f"No score: {e}"), {})
        if there.any():
            score = _score(columns, made, y[there], there)
    return Answer(columns, tuple(notes), score)


def _columns(p: Prediction, made: Preprocessing, level: float) -> dict[str, list[Any]]:
    if isinstance(p, RegressionPrediction):
        low, high = p.interval(level)
        values = {"prediction": _units(p.mean, made), "low": _units(low, made), "high": _units(high, made)}
        spread = (p.std[:, 0].double() * made.scale).tolist()
        return {"prediction": values["prediction"], "std": spread, "low": values["low"], "high": values["high"]}
    assert isinstance(p, ClassPrediction)
    labels = p.labels.tolist()
    out: dict[str, list[Any]] = {"prediction": [made.classes[i] for i in labels]}
    out["probability"] = p.probabilities.double().max(1).values.tolist()
    out["entropy"] = p.entropy.double().tolist()
    for i, name in enumerate(made.classes):
        out[f"p({name if isinstance(name, str) else format(name, 'g')})"] = p.probabilities[:, i].double().tolist()
    return out


def _units(standardised: Tensor, made: Preprocessing) -> list[float]:
    out: list[float] = (standardised[:, 0].double() * made.scale + made.center).tolist()
    return out


def _score(columns: Mapping[str, list[Any]], made: Preprocessing, y: Any, there: Any) -> dict[str, float]:
    """y: the rows that have a target, in the network's units or codes."""
    if made.task == "regression":
        truth = y * made.scale + made.center
        mean, low, high = (np.array(columns[name])[there] for name in ("prediction", "low", "high"))
        covered = float(np.mean((low <= truth) & (truth <= high)))
        return {"rmse": float(np.sqrt(np.mean((mean - truth) ** 2))), "coverage": covered, "rows": len(truth)}
    places: Mapping[Any, int] = {c: i for i, c in enumerate(made.classes)}
    labels = np.array([places[v] for v in columns["prediction"]])[there]
    return {"accuracy": float(np.mean(labels == y)), "rows": len(y)}


def write_answer(columns: Mapping[str, list[Any]], file: Path) -> Path:
    """Predictions as .csv or .parquet, in one step."""
    if file.suffix.lower() == ".parquet":
        pa, pq = pyarrow_modules()
        return aside(file, lambda partial: pq.write_table(pa.table(dict(columns)), partial))
    return aside(file, lambda partial: _write_csv(columns, partial))


def _write_csv(columns: Mapping[str, list[Any]], file: Path) -> None:
    with open(file, "w", newline="", encoding="utf-8") as f:
        print_csv(columns, f)


def print_csv(columns: Mapping[str, list[Any]], f: Any) -> None:
    """A line of names and a line for each row, twelve digits of every number."""
    writer = csv.writer(f, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow([f"{v:.12g}" if isinstance(v, float) else v for v in row])
