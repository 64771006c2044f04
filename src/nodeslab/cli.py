"""The `nodeslab` command. Torch is imported by the commands that need it, not by `--help`."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from nodeslab import __version__

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

    bench = commands.add_parser("bench", help="measure speed")
    bench.add_argument("what", choices=["step"], help="step: one training step against the plain network's")
    bench.add_argument("--rounds", type=int, default=60, help="how often each is timed (default: 60)")
    bench.add_argument("--json", action="store_true", help="print JSON")
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


def _bench(args: argparse.Namespace) -> None:
    if args.rounds < 2:
        raise ValueError(f"--rounds must be at least 2, got {args.rounds}.")
    from nodeslab import bench

    result = bench.step(args.rounds)
    if args.json:
        print(json.dumps(result, indent=1))
        return
    for name, rows in result.items():
        if not isinstance(rows, dict):
            continue
        print(name)
        for label, row in rows.items():
            low, high = row["ratio_quartiles"]
            print(
                f"  {label:<24}{row['ms']:>9.2f} ms   {row['ratio']:.3f} of plain (quartiles {low:.3f} to {high:.3f})"
            )


def _demo(args: argparse.Namespace) -> None:
    if (args.out.exists() and not args.out.is_dir()) or any(p.is_file() for p in args.out.parents):
        raise ValueError(f"--out {args.out} is not a folder, and cannot become one.")
    from nodeslab import demo

    demo.run(args.out)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 when it worked, 1 with one sentence on stderr when not, 2 for a wrong command line."""
    args = _parser().parse_args(argv)
    run = {"demo": _demo, "theory": _theory, "show": _show, "bench": _bench}[args.command]
    try:
        run(args)
    except (ValueError, TypeError, OSError, ArithmeticError) as e:
        print(f"nodeslab {args.command}: {e}", file=sys.stderr)
        return 1
    return 0
