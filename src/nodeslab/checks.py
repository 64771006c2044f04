"""Numbers as arguments: Python's or numpy's, checked and named in the error."""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import Any

import numpy as np

__all__ = ["flag", "number", "probability", "whole"]


def number(where: str, value: Any, low: float, high: float = math.inf, least: bool = False) -> float:
    """A float with low < value < high (`least`: low <= value), or a sentence; where: what it is called."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise TypeError(f"{where} must be a number, got {value!r} of type {type(value).__name__}.")
    try:
        out = float(value)
    except OverflowError:
        out = math.inf
    if not ((low <= out if least else low < out) and out < high):
        if math.isfinite(high):
            bounds = f"between {low:g} and {high:g}"
        else:
            bounds = f"at least {low:g} and finite" if least else f"greater than {low:g} and finite"
        raise ValueError(f"{where} must be {bounds}, got {value!r}.")
    return out


def probability(where: str, value: Any) -> float:
    """A number strictly between 0 and 1."""
    return number(where, value, 0.0, 1.0)


def whole(where: str, value: Any, least: int = 1) -> int:
    """An integer of at least `least`, or a sentence."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{where} must be a whole number, got {value!r} of type {type(value).__name__}.")
    try:
        out = operator.index(value)
    except TypeError:
        kind = type(value).__name__
        raise TypeError(f"{where} must be a whole number, got {value!r} of type {kind}.") from None
    if out < least:
        raise ValueError(f"{where} must be at least {least}, got {out}.")
    return out


def flag(where: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{where} must be True or False, got {value!r} of type {type(value).__name__}.")
    return bool(value)
