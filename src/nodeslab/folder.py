"""A fit's folder: what each file in it is called, sealed JSON, and opening a finished fit.

fit.json             what was asked for: it tells the same command, which goes on, from another
fit.checkpoint       the fit on its way, until it is finished
preprocessing.json   from columns to the network's inputs, and back to the target's units
model.nodeslab       the model (ns.load), and model-small.nodeslab once it is shrunk
test.npz             the held-out rows as the network reads them: X, y
result.json          figures and history; its presence means that the fit is finished
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nodeslab.preprocessing import Preprocessing

if TYPE_CHECKING:
    from nodeslab.model import Bayesian
    from nodeslab.training import History

__all__ = ["Folder", "aside", "is_fit", "read_json", "write_json"]


@dataclass(frozen=True)
class Folder:
    """The files of one fit."""

    path: Path

    @property
    def fit(self) -> Path:
        return self.path / "fit.json"

    @property
    def checkpoint(self) -> Path:
        return self.path / "fit.checkpoint"

    @property
    def preprocessing(self) -> Path:
        return self.path / "preprocessing.json"

    @property
    def model(self) -> Path:
        return self.path / "model.nodeslab"

    @property
    def small(self) -> Path:
        return self.path / "model-small.nodeslab"

    @property
    def test(self) -> Path:
        return self.path / "test.npz"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def finished(self) -> bool:
        return self.result.is_file()

    def refuse_unfinished(self) -> None:
        """A sentence for a folder that holds no fit, or half of one."""
        if not self.path.exists():
            raise FileNotFoundError(f"There is no folder {self.path}; nodeslab fit makes one.")
        if not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; give the folder that nodeslab fit has written.")
        if not is_fit(self.path):
            raise ValueError(
                f"{self.path} is not the folder of a fit: it has no {self.fit.name}; nodeslab fit makes one."
            )
        if not self.finished:
            raise ValueError(
                f"The fit in {self.path} is not finished; give the same nodeslab fit again to go on with it."
            )

    def made(self) -> Preprocessing:
        """The preprocessing of a finished fit."""
        self.refuse_unfinished()
        try:
            return Preprocessing.from_json(read_json(self.preprocessing))
        except (KeyError, TypeError) as e:
            raise ValueError(f"{self.preprocessing} is sealed but incomplete; it was not written by nodeslab.") from e

    def results(self) -> dict[str, Any]:
        self.refuse_unfinished()
        return read_json(self.result)

    def history(self) -> History:
        from nodeslab.training import History, Record

        said = self.results()["history"]
        try:
            return History([Record(**r) for r in said["records"]], said["seed"], said["stopped"])
        except (KeyError, TypeError) as e:
            raise ValueError(f"{self.result} is sealed but incomplete; it was not written by nodeslab.") from e

    def load(self, made: Preprocessing, small: bool = False) -> Bayesian:
        """The model, or the one that `nodeslab shrink` has made of it; it must fit the preprocessing."""
        from nodeslab.io import example_for, load
        from nodeslab.model import Bayesian

        file = self.small if small else self.model
        if small and not file.exists():
            raise FileNotFoundError(f"There is no {file}; nodeslab shrink {self.path} makes it.")
        model = load(file)
        example = example_for(file, model)
        width = None if example is None else example[0].shape[1]
        if not isinstance(model, Bayesian) or width != len(made.encoded):
            raise ValueError(f"{file} is not the model of {self.preprocessing}; restore both from the same fit.")
        return model

    def test_rows(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """X and y of the held-out rows, in the network's units."""
        try:
            with open(self.test, "rb") as f, np.load(f, allow_pickle=False) as arrays:
                return arrays["X"], arrays["y"]
        except Exception as e:  # numpy raises what the damage makes it meet
            raise ValueError(f"{self.test} is missing or damaged ({e}); restore it, or fit again elsewhere.") from e


def history_json(history: History) -> dict[str, Any]:
    return {"records": [asdict(r) for r in history.records], "seed": history.seed, "stopped": history.stopped}


def is_fit(path: Path) -> bool:
    """True for a folder that `nodeslab fit` has begun to write."""
    return (path / "fit.json").is_file()


def aside(target: Path, write: Callable[[Path], object]) -> Path:
    """Write a file in one step: `write` fills another one beside it, which then takes its place."""
    partial = target.with_name(f".{target.stem}.partial{target.suffix}")
    try:
        write(partial)
        with open(partial, "rb+") as f:
            os.fsync(f.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def write_json(target: Path, content: Mapping[str, Any]) -> Path:
    """Content under its sha256, as JSON that a person can read."""
    sealed = {"sha256": _seal(content), "content": content}
    return aside(
        target, lambda file: file.write_text(json.dumps(sealed, indent=1, ensure_ascii=False), encoding="utf-8")
    )


def read_json(file: Path) -> dict[str, Any]:
    """What `write_json` wrote, or a sentence for a file that is not as it was written."""
    if not file.is_file():
        raise FileNotFoundError(f"There is no file {file}; restore it, or fit again elsewhere.")
    try:
        sealed = json.loads(file.read_text(encoding="utf-8"))
        content, seal = sealed["content"], sealed["sha256"]
    except (ValueError, KeyError, TypeError) as e:
        raise ValueError(f"{file} is damaged: it is not what nodeslab writes; restore it from a copy.") from e
    if not isinstance(content, dict) or _seal(content) != seal:
        raise ValueError(f"{file} is damaged: its checksum does not match; restore it from a copy.")
    return content


def _seal(content: Mapping[str, Any]) -> str:
    """Of the content, not of the way it is written."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
