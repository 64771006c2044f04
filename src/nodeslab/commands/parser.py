"""The command line as data: every command, its options with their types, and an example. Nothing heavy is imported."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from nodeslab import __version__

__all__ = ["Parser", "UsageError", "make_parser"]

MODELS = ("ss-ig", "vbnn", "sv-bnn", "hs-bnn")
ACTIVATIONS = ("relu", "silu", "sigmoid", "tanh")
LARGEST_SEED = 2**63 - 1


class UsageError(ValueError):
    """A command line that cannot be meant; where: the command."""

    def __init__(self, message: str, where: str | None = None) -> None:
        super().__init__(message)
        self.where = where


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message.rstrip('.')}; see {self.prog} --help.", self.prog)


def _whole(least: int, most: int | None = None) -> Callable[[str], int]:
    bounds = f"from {least}" + (f" to {most}" if most is not None else "")

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"must be a whole number {bounds}, got {text!r}")
        return value

    return read


def _between(low: float, high: float) -> Callable[[str], float]:
    bounds = f"between {low:g} and {high:g}" if high < float("inf") else f"greater than {low:g} and finite"

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low < value < high:
            raise argparse.ArgumentTypeError(f"must be a number {bounds}, got {text!r}")
        return value

    return read


def make_parser() -> Parser:
    parser = Parser(
        prog="nodeslab",
        description="Node-selecting Bayesian neural networks: fit a table in a file, look at what came of it, predict.",
        epilog="example: nodeslab fit data.csv --target price && nodeslab predict fit new.csv",
    )
    parser.add_argument("--version", action="version", version=f"nodeslab {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (_fit, _predict, _report, _shrink, _export, _show, _theory, _reproduce, _bench, _data, _demo):
        add(commands)
    return parser


def _command(commands: Any, name: str, what: str, example: str) -> argparse.ArgumentParser:
    words = what[0].upper() + what[1:] + "."
    made: argparse.ArgumentParser = commands.add_parser(
        name, help=what, description=words, epilog=f"example: nodeslab {example}"
    )
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def _fit(commands: Any) -> None:
    fit = _command(
        commands, "fit", "fit a network to a table in a file (.csv, .parquet, .npz)", "fit data.csv --target price"
    )
    fit.add_argument("file", type=Path, metavar="FILE")
    fit.add_argument("--target", metavar="NAME", help="the column to predict (.npz: the array, default y)")
    fit.add_argument("--task", choices=["auto", "regression", "classification"], default="auto", help="default: auto")
    fit.add_argument("--drop", nargs="+", default=[], metavar="NAME", help="columns to leave out")
    fit.add_argument(
        "--categories", nargs="+", default=[], metavar="NAME", help="columns of numbers that stand for kinds"
    )
    fit.add_argument("--model", choices=MODELS, default="ss-ig", help="default: ss-ig")
    fit.add_argument("--hidden", type=_whole(1), nargs="+", metavar="K", help="hidden widths (default: 50 50)")
    fit.add_argument("--activation", choices=ACTIVATIONS, help="default: relu")
    fit.add_argument("--epochs", type=_whole(1), metavar="N", help="at most so many (default: by the number of rows)")
    fit.add_argument("--batch-size", type=_whole(1), metavar="N", help="default: by the number of rows")
    fit.add_argument("--lr", type=_between(0.0, float("inf")), metavar="X", help="Adam's rate (default: 0.005)")
    fit.add_argument("--seed", type=_whole(0, LARGEST_SEED), default=0, metavar="N", help="default: 0")
    fit.add_argument("--out", type=Path, default=Path("fit"), metavar="DIR", help="folder to write (default: fit)")


def _predict(commands: Any) -> None:
    predict = _command(
        commands, "predict", "predict the rows of a file with a finished fit", "predict fit new.csv --out answers.csv"
    )
    predict.add_argument("folder", type=Path, metavar="DIR", help="what nodeslab fit wrote")
    predict.add_argument("file", type=Path, metavar="FILE", help="a .csv, .parquet or .npz with the same columns")
    predict.add_argument("--out", type=Path, metavar="OUT", help="a .csv or .parquet to write (default: print CSV)")
    predict.add_argument(
        "--interval", type=_between(0.0, 1.0), default=0.9, metavar="P", help="what low to high holds (default: 0.9)"
    )
    predict.add_argument("--draws", type=_whole(1), default=100, metavar="N", help="default: 100")
    predict.add_argument("--small", action="store_true", help="with the model that nodeslab shrink has made")


def _report(commands: Any) -> None:
    report = _command(
        commands, "report", "a page about a fit; or, without DIR, tables of what reproduce has recorded", "report fit"
    )
    report.add_argument("folder", type=Path, nargs="?", metavar="DIR", help="what nodeslab fit wrote")
    report.add_argument("--records", type=Path, metavar="DIR", help="reproduce's folder (default: results)")
    report.add_argument(
        "--out", type=Path, metavar="OUT", help="default: DIR/report.html; of records, the folder report"
    )


def _shrink(commands: Any) -> None:
    shrink = _command(commands, "shrink", "cut the closed nodes out of a fit or a saved model", "shrink fit")
    shrink.add_argument("--out", type=Path, help="the file to write (default: FILE with '-small' in its name)")
    kind = shrink.add_mutually_exclusive_group()
    kind.add_argument(
        "--bayesian", action="store_true", help="keep it Bayesian: it predicts with uncertainty (a fit's default)"
    )
    kind.add_argument("--plain", action="store_true", help="a plain network at the mean (a file's default)")
    _saved(shrink)


def _export(commands: Any) -> None:
    export = _command(
        commands, "export", "write a fit or a saved model as ONNX or torch.export", "export fit --onnx model.onnx"
    )
    for kind in ("onnx", "pt2"):
        export.add_argument(
            f"--{kind}", type=Path, nargs="?", const=Path(), metavar="OUT", help=f"write OUT (default: FILE.{kind})"
        )
    export.add_argument(
        "--draws", type=_whole(1), metavar="N", help="how many draws to freeze (default: a fit's 100, as predict takes)"
    )
    export.add_argument(
        "--seed", type=_whole(0, LARGEST_SEED), default=0, metavar="N", help="of the draws (default: 0)"
    )
    export.add_argument("--small", action="store_true", help="of a fit: the model that nodeslab shrink has made")
    _saved(export)


def _saved(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", type=Path, metavar="FILE", help="the folder of a fit, or what ns.save wrote")
    command.add_argument(
        "--shape", type=_whole(1), nargs="+", metavar="K", help="one row of the input, such as 1 28 28"
    )
    command.add_argument("--net", metavar="MODULE:CLASS", help="the class of a network of your own")


def _show(commands: Any) -> None:
    show = _command(commands, "show", "print the plan and the open nodes of a fit or a saved model", "show fit")
    show.add_argument("file", type=Path, metavar="FILE", help="the folder of a fit, or what ns.save wrote")


def _theory(commands: Any) -> None:
    theory = _command(
        commands,
        "theory",
        "prior inclusion probabilities and what they are made of",
        "theory --widths 784 400 400 10 --n 60000",
    )
    theory.add_argument("--widths", type=int, nargs="+", metavar="K", help="k_0 ... k_(L+1), inputs to outputs")
    theory.add_argument("--n", type=_whole(1), help="number of observations")
    theory.add_argument("--C", type=float, nargs="+", metavar="C", help="C_l, one or one for each hidden layer")
    theory.add_argument("--authors", choices=["mlp", "lenet"], help="the authors' own image settings instead")
    theory.add_argument("--plot", type=Path, metavar="OUT", help="also draw lambda_l against C_l (.png, .svg, .pdf)")


def _reproduce(commands: Any) -> None:
    again = _command(
        commands,
        "reproduce",
        "run the paper's experiments; what has its record is not run again",
        "reproduce uci/concrete --seeds 3",
    )
    again.add_argument("names", nargs="+", metavar="NAME", help="sim1, sim2, uci, mlp, lenet, widths, or uci/concrete")
    again.add_argument("--quick", action="store_true", help="small versions, to see that all of it works")
    again.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    again.add_argument("--device", default="cpu", metavar="NAME", help="cpu or cuda (default: cpu)")
    again.add_argument(
        "--seeds", type=_whole(1), metavar="N", help="how many seeds or splits (default: each row's own)"
    )
    again.add_argument("--workers", type=_whole(1), metavar="N", help="runs at a time (default: one for each core)")
    again.add_argument(
        "--backend",
        choices=["processes", "dask", "ray", "serial"],
        default="processes",
        help="where runs go that cannot train as one batch (default: processes)",
    )


def _data(commands: Any) -> None:
    data = _command(commands, "data", "list the data sets, or fetch and check those that are named", "data concrete")
    data.add_argument("names", nargs="*", metavar="NAME", help="what to fetch where it is missing, and check")
    data.add_argument("--from", dest="base", metavar="ADDRESS", help="a mirror, laid out as a data folder is")


def _demo(commands: Any) -> None:
    demo = _command(
        commands, "demo", "train on the data set that ships with nodeslab, and say what came of it", "demo --out demo"
    )
    demo.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="default: demo")


def _bench(commands: Any) -> None:
    bench: argparse.ArgumentParser = commands.add_parser(
        "bench",
        help="measure speed, and hold it to its bars",
        description="Measure speed, and hold it to its bars.",
        epilog="example: nodeslab bench step --json",
    )
    benches = bench.add_subparsers(dest="what", required=True, metavar="NAME")
    for what, help_ in (
        ("step", "one training step against the plain network's"),
        ("train", "a fit that shrinks while it trains, against the plain network's and the authors' way"),
        ("replicas", "twenty small fits as one batched run, against one after the other"),
        ("predict", "many draws against as many passes of the plain network"),
        ("scale", "time and memory by rows, width and batch"),
        ("peers", "the step of other packages, where they are installed"),
        ("infer", "shrunk networks against dense ones"),
        ("precision", "bfloat16 autocast: what a step gains by it, and what a fit loses"),
    ):
        one = _command(benches, what, help_, f"bench {what}")
        if what != "train":
            one.add_argument("--rounds", type=_whole(1), metavar="N", help="how often each is timed")
        else:
            one.set_defaults(rounds=None)
        if what == "step":
            one.add_argument("--compiled", action="store_true", help="the plain network through torch.compile as well")
        if what in ("train", "replicas", "predict", "precision"):
            epochs = {"replicas": 500, "precision": 30}.get(what, 100)
            one.add_argument("--epochs", type=_whole(1), default=epochs, help=f"of each fit (default: {epochs})")
        if what in ("train", "precision"):
            one.add_argument(
                "--seeds", type=_whole(1), default=3, help="fits for the spread of the accuracy (default: 3)"
            )
        if what == "replicas":
            one.add_argument("--splits", type=_whole(1), default=20, help="how many fits (default: 20)")
        if what == "predict":
            one.add_argument("--model", type=Path, metavar="FILE", help="a saved model, instead of training one")
            one.add_argument("--draws", type=_whole(1), default=30, help="default: 30")
        if what == "scale":
            one.add_argument("--rows", type=_whole(1), nargs="+", metavar="N", help="default: 10,000 to 5,000,000")
            one.add_argument("--widths", type=_whole(1), nargs="+", metavar="K", help="default: 100 to 4,000")
        one.add_argument("--guard", action="store_true", help="status 1 when a figure is worse than its bar")
