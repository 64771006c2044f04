"""Data in: arrays, frames and tensors become checked tensors, or a sentence says where they cannot."""

from __future__ import annotations

import warnings
from collections.abc import Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["NARROW", "as_inputs", "as_targets", "refuse_constant_columns", "same_rows"]

#: Up to this many columns an input is taken for a table, where a constant column is a mistake; wider ones
#: (pixels, counts, codes) may hold constants.
NARROW = 50


def _array(value: Any, name: str) -> np.ndarray[Any, Any]:
    """A numpy array of numbers with rows first."""
    if value is None or isinstance(value, (str, bytes, dict, set)):
        raise TypeError(f"{name} must be an array of numbers with rows first, got {type(value).__name__}.")
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array; fill its gaps (numpy.ma.filled) or drop those rows first.")
    if type(value).__module__.startswith("scipy.sparse"):
        raise TypeError(f"{name} is a sparse matrix; pass {name}.toarray().")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            array = np.asarray(value)
    except Exception as e:
        raise ValueError(f"{name} cannot be read as an array ({e}); its rows must all have the same length.") from e
    if array.dtype == object and all(isinstance(v, (bool, int, float, np.number, np.bool_)) for v in array.flat):
        with np.errstate(over="ignore"):
            array = array.astype(np.float64)  # numbers in a mixed frame
    if array.dtype == object:
        raise TypeError(
            f"{name} holds {_odd_one(value, array)}; every value must be a number: encode or drop the others."
        )
    if array.dtype.kind in "US":
        raise TypeError(f"{name} holds text ({array.dtype}); encode it as numbers first.")
    if array.dtype.kind in "Mm":
        raise TypeError(
            f"{name} holds dates or durations ({array.dtype}); turn them into numbers, such as days, first."
        )
    if array.dtype.kind == "c":
        raise TypeError(f"{name} is complex; pass its real and imaginary parts as separate columns.")
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} has type {array.dtype}; it must hold real numbers.")
    return array


def _odd_one(value: Any, array: np.ndarray[Any, Any]) -> str:
    """Where the first value that is not a number stands in an object array."""
    columns = getattr(value, "columns", None)
    for place in np.ndindex(array.shape):
        item = array[place]
        if isinstance(item, (int, float, np.number)) and not isinstance(item, complex):
            continue
        where = f"row {place[0]}" if place else "the value"
        if len(place) > 1:
            where += f", column {columns[place[1]]!r}" if columns is not None else f", column {place[1]}"
        return f"{item!r} ({type(item).__name__}) at {where}"
    return "Python objects (dtype object); convert it with astype(float)"


def _whole_device(x: Tensor, name: str) -> None:
    if x.device.type == "meta":
        raise ValueError(f"{name} is on the meta device, which holds no numbers; give it real ones.")


def _shape(shape: tuple[int, ...], name: str) -> None:
    if len(shape) == 0:
        raise ValueError(f"{name} is a single number; it must have rows first, such as shape (n, features).")
    if shape[0] == 0:
        raise ValueError(f"{name} has no rows.")
    if 0 in shape:
        raise ValueError(f"{name} has shape {tuple(shape)}: there is nothing in it.")


def _finite(before: Any, after: Tensor, name: str, rows: np.ndarray[Any, Any] | None = None) -> None:
    """Refuse NaN and inf, and numbers that overflow in the model's type, naming the first.

    rows: where each row stands in the whole of the data, when this is a part of it.
    """
    bad = ~torch.isfinite(after)
    if not bool(bad.any()):
        return
    place = tuple(int(i) for i in torch.nonzero(bad)[0])
    value = float(before[place])
    where = f"row {place[0] if rows is None else rows[place[0]]}" + (
        f", column {place[1]}" if len(place) == 2 else f", index {place[1:]}" if place[1:] else ""
    )
    if np.isfinite(value):
        raise ValueError(
            f"{name} holds {value:g} at {where}, which does not fit into {str(after.dtype).removeprefix('torch.')}; "
            "standardise the data."
        )
    raise ValueError(f"{name} holds {value} at {where}; impute it or drop the row.")


def as_inputs(
    X: Any,
    dtype: torch.dtype,
    name: str = "X",
    keep_integers: bool = False,
    rows: np.ndarray[Any, Any] | None = None,
) -> Tensor:
    """X as a tensor of the model's type, rows first, every value finite; rows: as for `as_targets`."""
    if isinstance(X, Tensor):
        if X.is_complex():
            raise TypeError(f"{name} is complex; pass its real and imaginary parts as separate columns.")
        if X.is_sparse or X.layout != torch.strided:
            raise TypeError(f"{name} is a sparse tensor; pass {name}.to_dense().")
        _shape(tuple(X.shape), name)
        _whole_device(X, name)
        if keep_integers and not X.is_floating_point():
            return X.detach().long()
        out = X.detach().to(dtype)
        _finite(X.detach(), out, name, rows)
        return out
    array = _array(X, name)
    _shape(array.shape, name)
    if keep_integers and array.dtype.kind in "iub":
        return torch.from_numpy(array.astype(np.int64))
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(np.float64 if dtype == torch.float64 else np.float32, order="C")
    out = torch.from_numpy(cast).to(dtype)
    _finite(array, out, name, rows)
    return out


def as_targets(y: Any, name: str = "y", rows: np.ndarray[Any, Any] | None = None) -> Tensor:
    """y as a tensor, integers kept as integers, every value finite.

    rows: the number of each row in the whole of the data, for an error's sentence, when this is a part of it.
    """
    if isinstance(y, Tensor):
        if y.layout != torch.strided:
            raise TypeError(f"{name} is a sparse tensor; pass {name}.to_dense().")
        _whole_device(y, name)
        out = y.detach().cpu()
    else:
        array = _array(y, name)
        _shape(array.shape, name)
        out = torch.from_numpy(array.astype(np.int64 if array.dtype.kind in "iub" else np.float64, order="C"))
    if out.is_complex():
        raise TypeError(f"{name} is complex; targets must be real numbers or labels.")
    _shape(tuple(out.shape), name)
    if out.dtype == torch.bool:
        out = out.long()
    if out.is_floating_point():
        _finite(out, out, name, rows)
    return out


def same_rows(X: Sized, y: Sized, names: tuple[str, str] = ("X", "y")) -> None:
    if len(X) != len(y):
        raise ValueError(
            f"{names[0]} has {len(X)} rows and {names[1]} has {len(y)}; they must be the same observations."
        )


def refuse_constant_columns(X: Tensor, name: str = "X") -> None:
    """In a narrow table a column that never varies says nothing, and repeats the bias."""
    if X.dim() != 2 or X.shape[1] > NARROW or not X.is_floating_point():
        return
    constant = (X[:1] == X).all(0)
    if bool(constant.any()):
        column = int(torch.nonzero(constant)[0])
        raise ValueError(
            f"Column {column} of {name} is constant ({float(X[0, column]):g} in every row): it only repeats the bias. "
            "Drop it, or pass allow_constant=True."
        )
