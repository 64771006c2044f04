"""From a table's columns to what the network reads, and back to the target's units; as JSON, without pickle.

A number becomes (x - center) / scale, a gap in it the training rows' median first. A text becomes 0 or 1 for each
level; rare levels share one, which unknown ones take too. Everything is learnt from the training rows alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nodeslab.table import Array, Table, Texts, listed

__all__ = ["Category", "Findings", "Number", "Preprocessing", "prepare"]

#: A target of whole numbers with at most so many values is taken for classes.
CLASSES = 10
LEVELS = 50  # of a category, at most
RARE_ROWS, RARE_SHARE = 3, 0.005  # a level with fewer training rows is pooled
LEAK = 0.9999  # |correlation| with the target
GAP, OTHER = "(missing)", "(other)"

Codes = np.ndarray[Any, np.dtype[np.int64]]
Rows = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Number:
    """x -> ((fill where x is a gap, else x) - center) / scale."""

    name: str
    fill: float
    center: float
    scale: float

    @property
    def width(self) -> int:
        return 1

    @property
    def encoded(self) -> tuple[str, ...]:
        return (self.name,)

    def encode(self, table: Table, notes: list[str]) -> Array:
        values = table.numbers(self.name)
        gaps = np.isnan(values)
        if gaps.any():
            notes.append(f"{_counted(gaps)} of {self.name!r} filled with {self.fill:.6g}, the training rows' median.")
        out: Array = ((np.where(gaps, self.fill, values) - self.center) / self.scale)[:, None]
        return out


@dataclass(frozen=True)
class Category:
    """text -> 1 in its level's place and 0 elsewhere; "" is a gap. other: a last place for all that is no level."""

    name: str
    levels: tuple[str, ...]
    other: bool

    @property
    def width(self) -> int:
        return len(self.levels) + self.other

    @property
    def encoded(self) -> tuple[str, ...]:
        words = [level or GAP for level in self.levels] + [OTHER] * self.other
        return tuple(f"{self.name}={word}" for word in words)

    def codes(self, texts: Texts) -> Codes:
        """The place of each text, len(levels) for what is no level."""
        places = {level: i for i, level in enumerate(self.levels)}
        return np.array([places.get(text, len(self.levels)) for text in texts], dtype=np.int64)

    def encode(self, table: Table, notes: list[str]) -> Array:
        texts = table.texts(self.name)
        codes = self.codes(texts)
        unknown = codes == len(self.levels)
        if unknown.any():
            words = sorted({str(text) or GAP for text in texts[unknown]})
            taken = f"taken for {OTHER}" if self.other else "taken for none of its levels"
            notes.append(
                f"{unknown.sum()} value{'s' if unknown.sum() != 1 else ''} of {self.name!r} that had no level of their "
                f"own in training ({listed(words)}) {taken}."
            )
        out: Array = (codes[:, None] == np.arange(self.width)).astype(np.float64)
        return out


@dataclass(frozen=True)
class Preprocessing:
    """What a row goes through before the network sees it, numbers first; and what an output stands for."""

    numbers: tuple[Number, ...]
    categories: tuple[Category, ...]
    target: str
    task: str
    center: float = 0.0
    scale: float = 1.0
    classes: tuple[float, ...] | tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[Number | Category, ...]:
        """In the order of the network's inputs."""
        return (*self.numbers, *self.categories)

    @property
    def features(self) -> tuple[str, ...]:
        """The columns that are read."""
        return tuple(c.name for c in self.columns)

    @property
    def encoded(self) -> tuple[str, ...]:
        """The names of the network's inputs, such as 'age' and 'colour=red'."""
        return tuple(name for c in self.columns for name in c.encoded)

    def X(self, table: Table) -> tuple[Array, list[str]]:
        """The network's inputs, and what was filled in or not known."""
        missing = [name for name in self.features if name not in table.columns]
        if missing:
            raise ValueError(
                f"{table.file} lacks {'columns' if len(missing) > 1 else 'the column'} {listed(missing)} of the fit; "
                f"it has {table.names()}."
            )
        notes: list[str] = []
        parts = [c.encode(table, notes) for c in self.columns]
        return np.concatenate(parts, 1), notes

    def y(self, table: Table) -> tuple[Any, np.ndarray[Any, np.dtype[np.bool_]]]:
        """The target in the network's units, or classes' codes (-1: unknown), and which rows have it."""
        if self.task == "regression":
            values = table.numbers(self.target)
            return (values - self.center) / self.scale, ~np.isnan(values)
        if self.classes and isinstance(self.classes[0], str):
            texts = table.texts(self.target)
            places: Mapping[Any, int] = {c: i for i, c in enumerate(self.classes)}
            return np.array([places.get(t, -1) for t in texts], dtype=np.int64), texts != ""
        values = table.numbers(self.target)
        places = {c: i for i, c in enumerate(self.classes)}
        return np.array([places.get(v, -1) for v in values.tolist()], dtype=np.int64), ~np.isnan(values)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Preprocessing:
        return cls(
            numbers=tuple(Number(**c) for c in said["numbers"]),
            categories=tuple(Category(c["name"], tuple(c["levels"]), c["other"]) for c in said["categories"]),
            target=said["target"],
            task=said["task"],
            center=said["center"],
            scale=said["scale"],
            classes=tuple(said["classes"]),
        )


# ---- learning it ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Findings:
    """What was found in a table's columns: notes, and columns that give the target away."""

    notes: tuple[str, ...] = ()
    leaks: tuple[str, ...] = ()


def task_of(table: Table, target: str, task: str, categories: Collection[str]) -> tuple[str, bool]:
    """The task, and whether the target's classes are texts; by itself a text, or few whole numbers, are classes."""
    texts = target in categories or table.is_category(target)
    if texts:
        if task == "regression":
            raise ValueError(f"Column {target!r} of {table.file} holds texts, so there is nothing to regress on.")
        return "classification", True
    values = np.unique(table.numbers(target))
    values = values[~np.isnan(values)]
    if len(values) == 0:
        raise ValueError(f"Column {target!r} of {table.file}, the target, is empty.")
    integers = bool((values == np.round(values)).all())
    if task == "classification" and not integers:
        odd = values[values != np.round(values)][0]
        raise ValueError(f"The classes in {target!r} must be whole numbers or texts, got {odd:g}; encode them.")
    if task != "auto":
        return task, False
    return ("classification" if integers and len(values) <= CLASSES else "regression"), False


def prepare(
    table: Table, target: str, train: Rows, task: str, text_classes: bool, categories: Collection[str]
) -> tuple[Preprocessing, Findings]:
    """What the training rows say about each column; constant ones and copies are left out, and that is noted."""
    y, made = _target(table, target, train, task, text_classes)
    columns: list[Number | Category] = []
    left: dict[str, list[str]] = {}
    filled: list[str] = []
    pooled: list[str] = []
    leaks: list[str] = []
    seen: dict[bytes, str] = {}
    for name in table.columns:
        if name == target:
            continue
        if name.startswith("(column ") and name not in categories:
            left.setdefault("had no name", []).append(name)
            continue
        category = name in categories or table.is_category(name)
        values = table.texts(name) if category else table.numbers(name)
        reason = _empty(values[train])
        twin = seen.setdefault(_fingerprint(values), name)
        if reason is None and twin != name:
            reason = f"equals {twin!r}"
        seen_in_training = values[train]
        column: Number | Category | str = reason or ""
        if reason is None:
            column = _category(name, seen_in_training) if category else _number(table, name, seen_in_training)
        if isinstance(column, str):
            left.setdefault(column, []).append(name)
            continue
        columns.append(column)
        if isinstance(column, Number) and np.isnan(values).any():
            filled.append(f"{name} ({np.isnan(values).sum()}, {column.fill:.6g})")
        if isinstance(column, Category) and column.other:
            pooled.append(name)
        leak = _leak(seen_in_training, y, task, category)
        if leak:
            leaks.append(
                f"Column {name!r} {leak} {target!r}: if it is not known before the target is, leave it out with "
                f"--drop {name}."
            )
    if not columns:
        raise ValueError(f"{table.file} has no column to predict {target!r} from{_why(left)}.")
    notes = [f"left out, {reason}: {listed(names)}." for reason, names in left.items()]
    notes += [f"gaps filled with the training rows' median (how many, with what): {listed(filled)}."] * bool(filled)
    gaps = [c.name for c in columns if isinstance(c, Category) and "" in c.levels]
    notes += [f"gaps taken for a level of their own, {GAP}: {listed(gaps)}."] * bool(gaps)
    notes += [f"rare levels pooled as {OTHER}: {listed(pooled)}."] * bool(pooled)
    numbers = tuple(c for c in columns if isinstance(c, Number))
    texts = tuple(c for c in columns if isinstance(c, Category))
    return Preprocessing(numbers, texts, **made), Findings(tuple(notes), tuple(leaks))


def _why(left: Mapping[str, list[str]]) -> str:
    said = "; ".join(f"{listed(names)} {reason}" for reason, names in left.items())
    return f" ({said})" if said else ""


def _target(
    table: Table, target: str, train: Rows, task: str, text_classes: bool
) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    common = {"target": target, "task": task}
    values = (table.texts(target) if text_classes else table.numbers(target))[train]
    classes = sorted(set(values.tolist()))
    if len(classes) < 2:
        raise ValueError(f"The target {target!r} of {table.file} is constant ({classes[0]!r} in every training row).")
    if task == "classification":
        if len(classes) > max(2, len(values) // 2):
            raise ValueError(
                f"Column {target!r} of {table.file} holds {len(classes)} classes in {len(values)} training rows; a "
                "class needs several rows: is it the right column?"
            )
        return np.searchsorted(np.array(classes), values.astype(type(classes[0]))), {
            **common,
            "classes": tuple(classes),
        }
    scale = float(values.std())
    _finite(scale, f"The target {target!r} of {table.file}")
    return values, {**common, "center": float(values.mean()), "scale": scale}


def _finite(scale: float, what: str) -> None:
    if not (0.0 < scale < math.inf):
        raise ValueError(f"{what} holds numbers too large or too close together to be scaled; use other units.")


def _empty(values: Any) -> str | None:
    """Why a column says nothing: all gaps, or one value."""
    gaps = values == "" if values.dtype == object else np.isnan(values)
    if gaps.all():
        return "empty"
    return "constant" if not gaps.any() and (values == values[0]).all() else None


def _fingerprint(values: Any) -> bytes:
    if values.dtype == object:
        return "\x00".join(values).encode()
    exact: bytes = (np.asarray(values, dtype=np.float64) + 0.0).tobytes()
    return exact


def _number(table: Table, name: str, values: Any) -> Number | str:
    fill = float(np.nanmedian(values))
    full = np.where(np.isnan(values), fill, values)
    if (full == full[0]).all():
        return "constant apart from gaps"
    with np.errstate(over="ignore"):
        center, scale = float(full.mean()), float(full.std())
    _finite(scale, f"Column {name!r} of {table.file}")
    return Number(name, fill, center, scale)


def _category(name: str, texts: Any) -> Category | str:
    levels, counts = np.unique(texts.astype(str), return_counts=True)
    least = max(RARE_ROWS, math.ceil(RARE_SHARE * len(texts)))
    order = sorted(range(len(levels)), key=lambda i: (-counts[i], levels[i]))
    kept = [str(levels[i]) for i in order if counts[i] >= least][:LEVELS]
    if not kept:
        return "nearly as many texts as rows"
    return Category(name, tuple(kept), len(kept) < len(levels))


def _leak(values: Any, y: Any, task: str, category: bool) -> str | None:
    """How a column gives the target away; a column with nearly as many values as rows determines it by itself."""
    if not category:
        there = ~np.isnan(values)
        x, t = values[there], np.asarray(y, dtype=np.float64)[there]
        binary = task == "regression" or t.max(initial=0.0) <= 1.0
        if binary and len(x) > 3 and x.std() > 0 and t.std() > 0:
            correlation = float(np.mean((x - x.mean()) / x.std() * ((t - t.mean()) / t.std())))
            if abs(correlation) > LEAK:
                return f"gives the target away: its correlation is {correlation:.6f} with"
        if task == "regression":
            return None
        values, y = x, np.asarray(y)[there]
    levels, codes = np.unique(values.astype(str) if category else values, return_inverse=True)
    if not 1 < len(levels) <= len(values) / 5:
        return None
    counts = np.bincount(codes)
    t = np.asarray(y, dtype=np.float64)
    means = np.bincount(codes, t) / counts
    within, total = float(np.sum((t - means[codes]) ** 2)), float(np.sum((t - t.mean()) ** 2))
    determined = within <= (1 - LEAK**2) * total if task == "regression" else bool((t == means[codes]).all())
    return "gives the target away: each of its values stands for one value of" if determined and total > 0 else None


def _counted(gaps: Any) -> str:
    return f"{gaps.sum()} gap{'s' if gaps.sum() != 1 else ''}"
