"""What every figure is held to, in one table, and the comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["BARS", "Bar", "Verdict", "verdicts"]


@dataclass(frozen=True)
class Bar:
    """A figure of a bench, held to at `most` or at `least`: in the cases that begin so, in this row ("": in all)."""

    bench: str
    case: str
    row: str
    figure: str
    most: float | None = None
    least: float | None = None

    def holds(self, value: float) -> bool:
        return (self.most is None or value <= self.most) and (self.least is None or value >= self.least)

    def __str__(self) -> str:
        return f"bar <= {self.most:g}" if self.most is not None else f"bar >= {self.least:g}"


#: Two cores, nothing else running. A ratio is to the plain network where nothing else is said.
BARS = (
    Bar("step", "mlp 784", "ss-ig", "ratio", most=1.15),
    Bar("step", "lenet-caffe", "ss-ig", "ratio", most=1.08),
    Bar("step", "exactness", "", "difference", most=1e-10),
    Bar("train", "784-400-400-10, 100 epochs, compact", "ss-ig", "ratio", most=0.6),
    Bar("train", "784-400-400-10, 100 epochs, compact", "ss-ig", "of_authors", most=0.35),
    Bar("train", "784-400-400-10, 300 epochs, compact", "ss-ig", "ratio", most=0.35),
    Bar("train", "784-400-400-10, 300 epochs, compact", "ss-ig", "of_authors", most=0.2),
    Bar("train", "accuracy", "compact", "accuracy_apart", most=1.0),
    Bar("train", "accuracy", "compact", "open_apart", most=1.0),
    Bar("replicas", "concrete, 20 splits, 500 epochs", "together", "ratio", most=1 / 6),
    Bar("predict", "10000 images, 30 draws", "predict", "ratio", most=0.35),
    Bar("scale", "one epoch", "", "from_linear", most=0.15),
    Bar("scale", "one epoch", "", "peak_gib", most=1.2),
    Bar("scale", "step against plain, by width", "", "ratio", most=1.25),
    Bar("infer", "lenet-caffe", "batch 64/onnxruntime", "reached", least=0.7),
    Bar("infer", "lenet-caffe", "files/shrunk", "over_weights", most=1.15),
)


@dataclass(frozen=True)
class Verdict:
    """A figure beside its bar."""

    case: str
    row: str
    bar: Bar
    value: float

    @property
    def holds(self) -> bool:
        return self.bar.holds(self.value)

    def __str__(self) -> str:
        return f"{self.case}, {self.row}: {self.bar.figure} {self.value:.4g} ({self.bar})"


def verdicts(result: dict[str, Any]) -> list[Verdict]:
    """Every figure of a result that has a bar."""
    out = []
    for bar in BARS:
        if bar.bench != result["bench"]:
            continue
        for case, rows in result.items():
            if isinstance(rows, dict) and case.startswith(bar.case):
                out += [
                    Verdict(case, row, bar, figures[bar.figure])
                    for row, figures in _rows(rows).items()
                    if bar.row in ("", row) and bar.figure in figures
                ]
    return out


def _rows(rows: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows of a case by name; those that are held in groups as group/name."""
    out: dict[str, dict[str, Any]] = {}
    for name, figures in rows.items():
        if isinstance(figures, dict):
            inner = {f"{name}/{k}": v for k, v in figures.items() if isinstance(v, dict)}
            out |= inner or {name: figures}
    return out
