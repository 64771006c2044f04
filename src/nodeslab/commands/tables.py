"""`nodeslab fit`, `predict` and `report DIR`: from a table in a file to predictions and a page."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from nodeslab.commands.parser import UsageError

__all__ = ["fit", "predict", "report"]


def fit(args: argparse.Namespace) -> None:
    from nodeslab.parallel import join
    from nodeslab.recipe import Recipe
    from nodeslab.tabular import Ask, fit_plan, plan, state

    names = ("model", "hidden", "activation", "epochs", "batch_size", "lr", "seed")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if "hidden" in given:
        given["hidden"] = tuple(given["hidden"])
    ask = Ask(args.file, args.target, Recipe(**given), args.task, tuple(args.drop), tuple(args.categories))
    facts = ask.facts()
    ranks = join()
    found = ranks.from_first(lambda: state(args.out, facts))
    if found == "finished":
        if ranks.first:
            _again(args)
        ranks.leave()
        return
    planned = plan(ask)
    if ranks.first:
        for leak in planned.findings.leaks:
            print(f"nodeslab fit: WARNING: {leak}", file=sys.stderr)
        if not args.json:
            print(planned, flush=True)
            if found == "begun":
                print(f"Going on with the fit in {args.out}.", flush=True)
    result = fit_plan(planned, args.out, facts)
    if ranks.first:
        _print_result(args, result, False)


def _again(args: argparse.Namespace) -> None:
    """The same fit, finished: nothing is done."""
    from nodeslab.folder import Folder

    result = Folder(args.out).results()
    if not args.json:
        print(f"{args.out} holds this fit already, finished; nothing was done.")
    _print_result(args, result, True)


def _print_result(args: argparse.Namespace, result: dict[str, Any], before: bool) -> None:
    if args.json:
        shown = {name: value for name, value in result.items() if name != "history"}
        print(json.dumps({"out": str(args.out), "finished_before": before, **shown}))
        return
    for node in result["nodes"]:
        print(f"layer {node['path']}: {node['open']} of {node['total']} nodes open")
    print(f"test: {figures(result['test'])}")
    if not before:
        print(
            f"wrote {args.out} after {result['seconds']:.0f} s of training; next: nodeslab report {args.out}, "
            f"nodeslab predict {args.out} FILE"
        )


def figures(values: dict[str, float]) -> str:
    """Figures in a line."""
    return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in values.items())


def predict(args: argparse.Namespace) -> None:
    from nodeslab.folder import Folder

    out: Path | None = args.out
    if out is not None:
        _refuse_out(out, args.file)
    folder = Folder(args.folder)
    made = folder.made()
    from nodeslab.table import read_table
    from nodeslab.tabular import answer, print_csv, write_answer

    table = read_table(args.file)
    said = answer(folder.load(made, args.small), made, table, args.interval, args.draws)
    for note in said.notes:
        print(f"nodeslab predict: {note}", file=sys.stderr)
    facts: dict[str, Any] = {"rows": table.rows, "notes": list(said.notes), "score": said.score}
    if out is not None:
        write_answer(said.columns, out)
        score = f"; {figures(said.score)}" if said.score else ""
        facts = {"out": str(out), **facts}
        print(json.dumps(facts) if args.json else f"wrote {out}: {table.rows} rows{score}")
    elif args.json:
        print(json.dumps({**facts, "columns": said.columns}))
    else:
        print_csv(said.columns, sys.stdout)


def _refuse_out(out: Path, file: Path) -> None:
    if out.suffix.lower() not in (".csv", ".parquet"):
        raise UsageError(f"--out must end in .csv or .parquet, got {out.name!r}.")
    if out.is_dir():
        raise ValueError(f"--out {out} is a folder; name a file.")
    if not out.parent.is_dir():
        raise ValueError(f"Cannot write {out}: the folder {out.parent} does not exist; make it first.")
    if out.exists() and file.exists() and out.samefile(file):
        raise ValueError(f"--out {out} would overwrite the rows that are to be predicted; name another file.")


def report(args: argparse.Namespace) -> None:
    if args.folder is not None and args.records is not None:
        raise UsageError("give the folder of a fit, or --records, not both.")
    if args.folder is None:
        _report_of_records(args, args.records or Path("results"), args.out or Path("report"))
        return
    from nodeslab.folder import Folder

    folder = Folder(args.folder)
    out: Path = args.out or folder.path / "report.html"
    if out.suffix.lower() != ".html":
        raise UsageError(f"--out must end in .html for a fit, got {out.name!r}.")
    if out.is_dir() or not out.parent.is_dir():
        raise ValueError(f"Cannot write {out}: it must be a file in a folder that exists.")
    made = folder.made()
    result, history = folder.results(), folder.history()
    X, y = folder.test_rows()
    model = folder.load(made)
    from nodeslab.page import write_page

    regression = made.task == "regression"
    settings = {"file": result["file"], "training rows": result["rows"]["train"], **result["recipe"]}
    write_page(
        out,
        model,
        history,
        title=f"{result['target']} from {result['file']}",
        settings=settings,
        X=X,
        y=y,
        unit_scale=(made.center, made.scale) if regression else None,
        target=made.target,
        features=made.encoded,
        classes=None if regression else [c if isinstance(c, str) else f"{c:g}" for c in made.classes],
        notes=[*result["leaks"], *result["notes"]],
    )
    print(json.dumps({"out": str(out)}) if args.json else f"wrote {out}")


def _report_of_records(args: argparse.Namespace, records: Path, out: Path) -> None:
    from nodeslab.paper.reporting import report as write

    said = write(records, out)
    page = out / "index.html"
    print(json.dumps({"out": str(page), "experiments": said}) if args.json else "\n".join([*said, f"wrote {page}"]))
