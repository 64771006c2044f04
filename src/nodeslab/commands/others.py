"""`nodeslab theory`, `reproduce`, `bench`, `data` and `demo`."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict

from nodeslab.commands.parser import UsageError

__all__ = ["bench", "data", "demo", "reproduce", "theory"]


def theory(args: argparse.Namespace) -> None:
    from nodeslab import theory as formulas

    if args.authors:
        priors = formulas.authors_image_priors(args.authors, 60_000 if args.n is None else args.n)
        if args.json:
            print(json.dumps({"network": args.authors, "lambda": list(priors), "C": list(priors.C)}))
        else:
            print(
                f"The authors' {args.authors}: lambda = {', '.join(f'{v:.4g}' for v in priors)} (C = {priors.C[0]:g})"
            )
        return
    if args.widths is None or args.n is None:
        raise UsageError("theory needs --widths and --n, such as: nodeslab theory --widths 784 400 400 10 --n 60000")
    C = args.C if args.C is None or len(args.C) > 1 else args.C[0]
    rows = formulas.table(args.widths, args.n, C)
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
    from matplotlib.figure import Figure

    from nodeslab import theory as formulas
    from nodeslab.folder import aside

    out = args.plot
    if out.suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--plot must end in .png, .svg or .pdf, got {out.name!r}.")
    if not out.parent.is_dir():
        raise ValueError(f"Cannot write {out}: the folder {out.parent} does not exist; make it first.")
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    formulas.plot(args.widths, args.n, figure.subplots(), C)
    aside(out, lambda partial: figure.savefig(partial, dpi=150))
    print(f"wrote {out}", file=sys.stderr)


def reproduce(args: argparse.Namespace) -> None:
    from nodeslab.paper.running import reproduce as run

    outcomes = run(
        args.names,
        args.out,
        quick=args.quick,
        device=args.device,
        seeds=args.seeds,
        workers=args.workers,
        backend=args.backend,
    )
    said = []
    for outcome in outcomes:
        said.append({"name": outcome.row.name, **{k: getattr(outcome, k) for k in ("made", "there", "reason")}})
        if not args.json:
            print(outcome, flush=True)
    if args.json:
        print(json.dumps({"out": str(args.out), "rows": said}))


def bench(args: argparse.Namespace) -> None:
    from nodeslab.bench.command import run

    run(args)


def data(args: argparse.Namespace) -> None:
    from nodeslab import datasets

    for name in args.names:
        if args.base is not None or datasets.holding(name, read=False).where is None:
            datasets.fetch(name, args.base)
    found = [datasets.holding(name) for name in args.names or datasets.NAMES]
    print(json.dumps([asdict(h) for h in found]) if args.json else "\n".join(map(str, found)))


def demo(args: argparse.Namespace) -> None:
    if (args.out.exists() and not args.out.is_dir()) or any(p.is_file() for p in args.out.parents):
        raise ValueError(f"--out {args.out} is not a folder, and cannot become one.")
    from nodeslab import demo as shown

    if not args.json:
        shown.run(args.out)
        return
    with contextlib.redirect_stdout(io.StringIO()):
        figures = shown.run(args.out)
    print(json.dumps({"out": str(args.out), **figures}))
