"""`nodeslab bench NAME`: measure, print every figure beside its bar, and with --guard fail where one is worse."""

from __future__ import annotations

import argparse
import json
from typing import Any

from nodeslab.bench.bars import Verdict, verdicts

__all__ = ["as_record", "guard", "lines", "measure", "run"]


def run(args: argparse.Namespace) -> None:
    """What the command does with its arguments."""
    result = measure(args)
    found = verdicts(result)
    if args.json:
        print(json.dumps(as_record(result, found), indent=1))
    else:
        print("\n".join(lines(result, found)))
    if args.guard:
        guard(args.what, found)


def as_record(result: dict[str, Any], found: list[Verdict]) -> dict[str, Any]:
    """The result with its bars, as it is kept."""
    bars = [{"case": v.case, "row": v.row, "figure": v.bar.figure, "bar": str(v.bar), "holds": v.holds} for v in found]
    return result | {"bars": bars}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The result of the bench that the arguments name."""
    rounds = {} if args.rounds is None else {"rounds": args.rounds}
    if args.what == "step":
        from nodeslab.bench.step import step

        return step(**rounds, compiled=args.compiled)
    if args.what == "train":
        from nodeslab.bench.train import train

        return train(epochs=args.epochs, seeds=args.seeds)
    if args.what == "replicas":
        from nodeslab.bench.replicas import replicas

        return replicas(**rounds, epochs=args.epochs, splits=args.splits)
    if args.what == "predict":
        from nodeslab.bench.predict import predict

        return predict(**rounds, epochs=args.epochs, model=args.model, draws=args.draws)
    if args.what == "scale":
        from nodeslab.bench.scale import ROWS, WIDTHS, scale

        return scale(**rounds, rows=tuple(args.rows or ROWS), widths=tuple(args.widths or WIDTHS))
    if args.what == "precision":
        from nodeslab.bench.precision import precision

        return precision(**rounds, epochs=args.epochs, seeds=args.seeds)
    if args.what == "peers":
        from nodeslab.bench.peers import peers

        return peers(**rounds)
    from nodeslab.bench.infer import infer

    return infer(**rounds)


def guard(what: str, found: list[Verdict]) -> None:
    """Raise where a figure is worse than its bar."""
    if not found:
        raise ValueError(
            f"{what}: no figure of this run has a bar, so there is nothing to guard; measure it as it comes."
        )
    worse = [str(v) for v in found if not v.holds]
    if worse:
        raise ValueError(
            f"{what}: {len(worse)} of {len(found)} figures are worse than their bars: {'; '.join(worse)}. Measure "
            "again on a machine that does nothing else, then look for what slowed it."
        )


def lines(result: dict[str, Any], found: list[Verdict]) -> list[str]:
    """The result as text: a line for each row, its figures, and the bars that it is held to."""
    out: list[str] = []
    for case, rows in result.items():
        if not isinstance(rows, dict):
            continue
        out.append(case)
        for row, figures in rows.items():
            if isinstance(figures, dict):
                out += _row(row, figures, [v for v in found if v.case == case and v.row.split("/")[0] == row])
            else:
                out.append(f"  {row}: {figures}")
    return out


def _row(row: str, figures: dict[str, Any], found: list[Verdict]) -> list[str]:
    if any(isinstance(v, dict) for v in figures.values()):  # a group: a line for each of its members
        inner = []
        for name, values in figures.items():
            own = [v for v in found if v.row == f"{row}/{name}"]
            inner += _row(f"{row}, {name}", values, own)
        return inner
    parts = [f"{name.replace('_', ' ')} {_shown(value)}" for name, value in figures.items() if name != "epoch_ms"]
    held = [f"{v.bar.figure.replace('_', ' ')}: {v.bar}, {'holds' if v.holds else 'MISSED'}" for v in found]
    return [f"  {row:<26}{'   '.join(parts)}{'   [' + '; '.join(held) + ']' if held else ''}"]


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " to ".join(_shown(v) for v in value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)
