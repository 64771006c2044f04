"""The `nodeslab` command. Torch is imported by the commands that need it, not by `--help`."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from nodeslab import __version__

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nodeslab", description="Node-selecting Bayesian neural networks for PyTorch."
    )
    parser.add_argument("--version", action="version", version=f"nodeslab {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="train on the data set that ships with nodeslab, and say what came of it")
    demo.add_argument("--out", type=Path, default=Path("demo"), help="folder for the saved model (default: demo)")

    theory = commands.add_parser("theory", help="prior inclusion probabilities and what they are made of")
    theory.add_argument("--widths", type=int, nargs="+", metavar="K", help="k_0 ... k_(L+1), inputs to outputs")
    theory.add_argument("--n", type=int, help="number of observations")
    theory.add_argument("--C", type=float, nargs="+", metavar="C", help="C_l, one or one for each hidden layer")
    theory.add_argument("--authors", choices=["mlp", "lenet"], help="the authors' own image settings instead")
    theory.add_argument("--plot", type=Path, metavar="FILE", help="also draw lambda_l against C_l (.png, .svg, .pdf)")
    theory.add_argument("--json", action="store_true", help="print JSON")

    show = commands.add_parser("show", help="print the plan and the open nodes of a saved model")
    show.add_argument("file", type=Path)
    show.add_argument("--json", action="store_true", help="print JSON")

    shrink = commands.add_parser("shrink", help="cut the closed nodes out of a saved model")
    shrink.add_argument("--out", type=Path, help="the file to write (default: FILE with '-small' in its name)")
    shrink.add_argument("--bayesian", action="store_true", help="keep it Bayesian: it predicts with uncertainty")

    export = commands.add_parser("export", help="write a saved model as ONNX or torch.export, to run without nodeslab")
    export.add_argument(
        "--onnx", type=Path, nargs="?", const=Path(), metavar="OUT", help="write OUT (default: FILE.onnx)"
    )
    export.add_argument(
        "--pt2", type=Path, nargs="?", const=Path(), metavar="OUT", help="write OUT (default: FILE.pt2)"
    )
    export.add_argument("--draws", type=int, help="how many draws of a Bayesian model to freeze, such as 16")
    export.add_argument("--seed", type=int, default=0, help="the seed of the draws (default: 0)")

    for command in (shrink, export):
        command.add_argument("file", type=Path, metavar="FILE", help="what ns.save wrote")
        command.add_argument("--shape", type=int, nargs="+", metavar="K", help="one row of the input, such as 1 28 28")
        command.add_argument("--net", metavar="MODULE:CLASS", help="the class of a network of your own")
        command.add_argument("--json", action="store_true", help="print JSON")

    data = commands.add_parser("data", help="list the data sets, or fetch and check those that are named")
    data.add_argument("names", nargs="*", metavar="NAME", help="what to fetch where it is missing, and check")
    data.add_argument("--from", dest="base", metavar="ADDRESS", help="a mirror, laid out as a data folder is")
    data.add_argument("--json", action="store_true", help="print JSON")

    fitted = commands.add_parser("fit", help="fit a network to a table of numbers in a file (.csv, .parquet, .npz)")
    fitted.add_argument("file", type=Path, metavar="FILE")
    fitted.add_argument("--target", metavar="NAME", help="the column to predict (.npz: the array, default y)")
    fitted.add_argument("--model", choices=["ss-ig", "vbnn", "sv-bnn", "hs-bnn"], default="ss-ig")
    fitted.add_argument("--task", choices=["auto", "regression", "classification"], default="auto")
    fitted.add_argument("--hidden", type=int, nargs="+", default=[50], metavar="K", help="hidden widths (default: 50)")
    fitted.add_argument("--epochs", type=int, default=500, metavar="N", help="default: 500")
    fitted.add_argument("--batch-size", type=int, default=128, metavar="N", help="default: 128")
    fitted.add_argument("--lr", type=float, default=3e-3, metavar="X", help="Adam's rate (default: 0.003)")
    fitted.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    fitted.add_argument("--out", type=Path, default=Path("fit"), metavar="DIR", help="folder to write (default: fit)")
    fitted.add_argument("--json", action="store_true", help="print JSON")

    again = commands.add_parser("reproduce", help="run the paper's experiments; what has its record is not run again")
    again.add_argument("names", nargs="+", metavar="NAME", help="sim1, sim2, uci, mlp, lenet, widths, or uci/concrete")
    again.add_argument("--quick", action="store_true", help="small versions, to see that all of it works")
    again.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    again.add_argument("--device", default="cpu", metavar="NAME", help="cpu or cuda (default: cpu)")
    again.add_argument("--seeds", type=int, metavar="N", help="how many seeds or splits (default: each row's own)")
    again.add_argument("--workers", type=int, metavar="N", help="runs at a time (default: one for each core)")

    report = commands.add_parser("report", help="tables, figures and a page of what reproduce has recorded")
    report.add_argument("--records", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    report.add_argument("--out", type=Path, default=Path("report"), metavar="DIR", help="default: report")

    bench = commands.add_parser("bench", help="measure speed, and hold it to its bars")
    benches = bench.add_subparsers(dest="what", required=True, metavar="NAME")
    for what, help_ in (
        ("step", "one training step against the plain network's"),
        ("train", "a fit that shrinks while it trains, against the plain network's and the authors' way"),
        ("replicas", "twenty small fits as one batched run, against one after the other"),
        ("predict", "many draws against as many passes of the plain network"),
        ("scale", "time and memory by rows, width and batch"),
        ("peers", "the step of other packages, where they are installed"),
        ("infer", "shrunk networks against dense ones"),
    ):
        one = benches.add_parser(what, help=help_)
        if what != "train":
            one.add_argument("--rounds", type=int, help="how often each is timed")
        else:
            one.set_defaults(rounds=None)
        if what == "step":
            one.add_argument("--compiled", action="store_true", help="the plain network through torch.compile as well")
        if what in ("train", "replicas", "predict"):
            epochs = 500 if what == "replicas" else 100
            one.add_argument("--epochs", type=int, default=epochs, help=f"of each fit (default: {epochs})")
        if what == "train":
            one.add_argument("--seeds", type=int, default=3, help="fits for the spread of the accuracy (default: 3)")
        if what == "replicas":
            one.add_argument("--splits", type=int, default=20, help="how many fits (default: 20)")
        if what == "predict":
            one.add_argument("--model", type=Path, metavar="FILE", help="a saved model, instead of training one")
            one.add_argument("--draws", type=int, default=30, help="default: 30")
        if what == "scale":
            one.add_argument("--rows", type=int, nargs="+", metavar="N", help="default: 10,000 to 5,000,000")
            one.add_argument("--widths", type=int, nargs="+", metavar="K", help="default: 100 to 4,000")
        one.add_argument("--guard", action="store_true", help="status 1 when a figure is worse than its bar")
        one.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _theory(args: argparse.Namespace) -> None:
    from nodeslab import theory

    if args.authors:
        priors = theory.authors_image_priors(args.authors, 60_000 if args.n is None else args.n)
        if args.json:
            print(json.dumps({"network": args.authors, "lambda": list(priors), "C": list(priors.C)}))
        else:
            print(
                f"The authors' {args.authors}: lambda = {', '.join(f'{v:.4g}' for v in priors)} (C = {priors.C[0]:g})"
            )
        return
    if args.widths is None or args.n is None:
        raise ValueError("theory needs --widths and --n, such as: nodeslab theory --widths 784 400 400 10 --n 60000")
    C = args.C if args.C is None or len(args.C) > 1 else args.C[0]
    rows = theory.table(args.widths, args.n, C)
    if args.plot is not None:
        _plot_theory(args, C)
    if args.json:
        finite = [{k: None if math.isnan(v) else v for k, v in row.items()} for row in rows]
        print(json.dumps({"widths": args.widths, "n": args.n, "layers": finite}))
        return
    print(f"{'l':>2}{'k_l':>11}{'k_l+1':>11}{'u_l':>10}{'vartheta_l':>12}{'C_l':>9}{'exponent':>10}{'lambda_l':>11}")
    for row in rows:
        hidden = not math.isnan(row["C"])
        C_l, exponent = (f"{row['C']:g}", f"{row['exponent']:.3f}") if hidden else ("-", "-")
        print(
            f"{row['l']:>2}{row['k_l']:>11}{row['k_l+1']:>11}{row['u']:>10.2f}{row['vartheta']:>12.2f}"
            f"{C_l:>9}{exponent:>10}{row['lambda']:>11.4g}"
        )
    print("k_l+1 is the number of nodes; lambda_l = exp(-C_l (k_l + 1) vartheta_l) / k_(l+1), B_l = k_l + 1.")


def _plot_theory(args: argparse.Namespace, C: float | Sequence[float] | None) -> None:
    from nodeslab import theory

    try:
        from matplotlib.figure import Figure
    except ImportError as e:
        raise ValueError('--plot needs matplotlib: pip install "nodeslab[plot]"') from e
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    theory.plot(args.widths, args.n, figure.subplots(), C)
    if not args.plot.parent.is_dir():
        raise ValueError(f"Cannot write {args.plot}: the folder {args.plot.parent} does not exist; make it first.")
    figure.savefig(args.plot, dpi=150)
    print(f"wrote {args.plot}", file=sys.stderr)


def _show(args: argparse.Namespace) -> None:
    from nodeslab.io import load
    from nodeslab.model import Bayesian

    model = load(args.file)
    if not isinstance(model, Bayesian):
        print(json.dumps({"bayesian": False, "network": repr(model)}) if args.json else repr(model))
        return
    records = model.nodes()
    if args.json:
        layers = [
            {"path": r.path, "total": r.total, "open": r.open, "inclusion": r.inclusion.tolist()} for r in records
        ]
        print(json.dumps({"bayesian": True, "n": model.n, "layers": layers}))
        return
    print(model)
    for r in records:
        print(f"layer {r.path or '(net)'}: {r.open} of {r.total} nodes open")


def _saved(args: argparse.Namespace) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The network in a file, and rows of zeros that fit it."""
    import torch

    from nodeslab.io import example_for, load

    net = None if args.net is None else _of_ones_own(args.net)
    model = load(args.file, net)
    if args.shape is not None:
        if min(args.shape) < 1:
            raise ValueError(f"--shape must be whole numbers from 1, got {' '.join(map(str, args.shape))}.")
        return model, (torch.zeros(2, *args.shape, dtype=next(model.parameters()).dtype),)
    example = example_for(args.file, model)
    if example is None:
        raise ValueError(f"{args.file} does not say what its inputs look like; give --shape, such as --shape 1 28 28.")
    return model, example


def _of_ones_own(name: str) -> nn.Module:
    """An instance of a class that the user names, from a module beside them or an installed one."""
    import importlib

    from torch import nn

    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise ValueError(f"--net must be MODULE:CLASS, such as networks:Net, got {name!r}.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        net = getattr(importlib.import_module(module), attribute)()
    except Exception as e:  # the user's own code: anything may come out
        raise ValueError(f"--net {name} cannot be made: {e}.") from e
    finally:
        sys.path.pop(0)
    if not isinstance(net, nn.Module):
        raise ValueError(f"--net {name} gives a {type(net).__name__}, not a torch.nn.Module.")
    return net


def _shrink(args: argparse.Namespace) -> None:
    import warnings

    from nodeslab.costs import cost
    from nodeslab.io import save
    from nodeslab.shrinking import shrink, shrink_plan

    model, example = _saved(args)
    out = args.out or args.file.with_name(f"{args.file.stem}-small{args.file.suffix}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        plan = shrink_plan(model, example, bayesian=args.bayesian)
        small = shrink(model, example, bayesian=args.bayesian)
    before, after = cost(model, example), cost(small, example)
    save(small, out, example)
    for word in sorted({str(w.message) for w in caught}):
        print(word, file=sys.stderr)
    if args.json:
        layers = [asdict(p) for p in plan.layers]
        sizes = {name: [getattr(before, f"{name}_dense"), getattr(after, name)] for name in ("weights", "flops")}
        print(json.dumps({"out": str(out), "bayesian": args.bayesian, **sizes, "layers": layers}))
        return
    print(plan)
    print(
        f"wrote {out}: {after.weights:,} of {before.weights_dense:,} weights, "
        f"{after.flops:,} of {before.flops_dense:,} multiplications"
    )


def _export(args: argparse.Namespace) -> None:
    from nodeslab.exporting import export

    wanted = {".onnx": args.onnx, ".pt2": args.pt2}
    if all(out is None for out in wanted.values()):
        raise ValueError("say what to write: --onnx, --pt2, or both.")
    model, example = _saved(args)
    written = []
    for suffix, out in wanted.items():
        if out is not None:
            target = args.file.with_suffix(suffix) if out == Path() else out
            if target.suffix != suffix:
                raise ValueError(f"the file for --{suffix[1:]} must end in {suffix}, got {target.name!r}.")
            written.append(str(export(model, example, target, draws=args.draws, seed=args.seed)))
    print(json.dumps({"out": written}) if args.json else "\n".join(f"wrote {name}" for name in written))


def _bench(args: argparse.Namespace) -> None:
    if args.rounds is not None and args.rounds < 1:
        raise ValueError(f"--rounds must be at least 1, got {args.rounds}.")
    from nodeslab.bench.command import run

    run(args)


def _data(args: argparse.Namespace) -> None:
    from nodeslab import datasets

    for name in args.names:
        if args.base is not None or datasets.holding(name, read=False).where is None:
            datasets.fetch(name, args.base)
    found = [datasets.holding(name) for name in args.names or datasets.NAMES]
    print(json.dumps([asdict(h) for h in found]) if args.json else "\n".join(map(str, found)))


def _fit(args: argparse.Namespace) -> None:
    if (args.out.exists() and not args.out.is_dir()) or any(p.is_file() for p in args.out.parents):
        raise ValueError(f"--out {args.out} is not a folder, and cannot become one.")
    from nodeslab.tabular import Choices, fit_file

    choices = Choices(args.model, args.task, tuple(args.hidden), args.epochs, args.batch_size, args.lr, args.seed)
    fit_file(args.file, args.target, args.out, choices, args.json)


def _reproduce(args: argparse.Namespace) -> None:
    from nodeslab.checks import whole
    from nodeslab.paper.running import reproduce

    for name in ("seeds", "workers"):
        if getattr(args, name) is not None:
            whole(f"--{name}", getattr(args, name))
    outcomes = reproduce(
        args.names, args.out, quick=args.quick, device=args.device, seeds=args.seeds, workers=args.workers
    )
    for outcome in outcomes:
        print(outcome, flush=True)


def _report(args: argparse.Namespace) -> None:
    from nodeslab.paper.reporting import report

    print("\n".join([*report(args.records, args.out), f"wrote {args.out / 'index.html'}"]))


def _demo(args: argparse.Namespace) -> None:
    if (args.out.exists() and not args.out.is_dir()) or any(p.is_file() for p in args.out.parents):
        raise ValueError(f"--out {args.out} is not a folder, and cannot become one.")
    from nodeslab import demo

    demo.run(args.out)


COMMANDS = {
    "demo": _demo,
    "theory": _theory,
    "show": _show,
    "shrink": _shrink,
    "export": _export,
    "data": _data,
    "fit": _fit,
    "reproduce": _reproduce,
    "report": _report,
    "bench": _bench,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 when it worked, 1 with one sentence on stderr when not, 2 for a wrong command line."""
    args = _parser().parse_args(argv)
    run = COMMANDS[args.command]
    try:
        run(args)
    except KeyboardInterrupt:
        print(f"nodeslab {args.command}: stopped.", file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError, ArithmeticError) as e:
        print(f"nodeslab {args.command}: {e}", file=sys.stderr)
        return 1
    return 0
