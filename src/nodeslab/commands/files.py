"""`nodeslab show`, `shrink` and `export`: of a fit's folder, or of a file that ns.save wrote."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodeslab.commands.parser import UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nodeslab.folder import Folder
    from nodeslab.preprocessing import Preprocessing

__all__ = ["export", "show", "shrink"]


def _folder(file: Path) -> Folder | None:
    """A finished fit's folder, or None where a file is named."""
    if not file.is_dir():
        return None
    from nodeslab.folder import Folder

    folder = Folder(file)
    folder.refuse_unfinished()
    return folder


def show(args: argparse.Namespace) -> None:
    from nodeslab.io import load
    from nodeslab.model import Bayesian

    folder = _folder(args.file)
    model = load(args.file if folder is None else folder.model)
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


def _saved(args: argparse.Namespace, file: Path) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The network in a file, and rows of zeros that fit it."""
    import torch

    from nodeslab.io import example_for, load

    net = None if args.net is None else _of_ones_own(args.net)
    model = load(file, net)
    if args.shape is not None:
        return model, (torch.zeros(2, *args.shape, dtype=next(model.parameters()).dtype),)
    example = example_for(file, model)
    if example is None:
        raise ValueError(f"{file} does not say what its inputs look like; give --shape, such as --shape 1 28 28.")
    return model, example


def _of_ones_own(name: str) -> nn.Module:
    """An instance of a class that the user names, from a module beside them or an installed one."""
    import importlib

    from torch import nn

    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise UsageError(f"--net must be MODULE:CLASS, such as networks:Net, got {name!r}.")
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


def _refuse_with_fit(args: argparse.Namespace) -> None:
    for name in ("shape", "net"):
        if getattr(args, name) is not None:
            raise UsageError(f"--{name} is for a saved model; the folder of a fit says it itself.")


def shrink(args: argparse.Namespace) -> None:
    import warnings

    from nodeslab.costs import cost
    from nodeslab.io import save
    from nodeslab.shrinking import shrink as cut
    from nodeslab.shrinking import shrink_plan

    folder = _folder(args.file)
    if folder is not None:
        _refuse_with_fit(args)
        kind = "plain" if args.plain else "small"
        file, out, bayesian = folder.model, args.out or folder.path / f"model-{kind}.nodeslab", not args.plain
    else:
        file, bayesian = args.file, args.bayesian
        out = args.out or file.with_name(f"{file.stem}-small{file.suffix}")
    model, example = _saved(args, file)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        plan = shrink_plan(model, example, bayesian=bayesian)
        small = cut(model, example, bayesian=bayesian)
    before, after = cost(model, example), cost(small, example)
    save(small, out, example)
    for word in sorted({str(w.message) for w in caught}):
        print(word, file=sys.stderr)
    if args.json:
        layers = [asdict(p) for p in plan.layers]
        sizes = {name: [getattr(before, f"{name}_dense"), getattr(after, name)] for name in ("weights", "flops")}
        print(json.dumps({"out": str(out), "bayesian": bayesian, **sizes, "layers": layers}))
        return
    print(plan)
    print(
        f"wrote {out}: {after.weights:,} of {before.weights_dense:,} weights, "
        f"{after.flops:,} of {before.flops_dense:,} multiplications"
    )


def export(args: argparse.Namespace) -> None:
    wanted = {suffix: out for suffix, out in ((".onnx", args.onnx), (".pt2", args.pt2)) if out is not None}
    if not wanted:
        raise UsageError("say what to write: --onnx, --pt2, or both.")
    for suffix, out in wanted.items():
        if out != Path() and out.suffix != suffix:
            raise UsageError(f"the file for --{suffix[1:]} must end in {suffix}, got {out.name!r}.")
    folder = _folder(args.file)
    if folder is not None:
        _refuse_with_fit(args)
        _export_fit(args, folder, wanted)
        return
    if args.small:
        raise UsageError("--small is for the folder of a fit; name the small file instead.")
    from nodeslab.exporting import export as write

    model, example = _saved(args, args.file)
    written = []
    for suffix, out in wanted.items():
        target = args.file.with_suffix(suffix) if out == Path() else out
        written.append(str(write(model, example, target, draws=args.draws, seed=args.seed)))
    print(json.dumps({"out": written}) if args.json else "\n".join(f"wrote {name}" for name in written))


def _export_fit(args: argparse.Namespace, folder: Folder, wanted: dict[str, Path]) -> None:
    """Frozen draws of a fit: those that `nodeslab predict` takes, so that the answers are the same."""
    from nodeslab.exporting import export as write
    from nodeslab.io import example_for
    from nodeslab.tabular import DRAWS

    made = folder.made()
    model = folder.load(made, args.small)
    source = folder.small if args.small else folder.model
    example = example_for(source, model)
    draws = DRAWS if args.draws is None else args.draws
    said: list[str] = []
    facts: dict[str, Any] = {"out": [], "draws": draws}
    for suffix, out in wanted.items():
        target = source.with_suffix(suffix) if out == Path() else out
        if not target.parent.is_dir():
            raise ValueError(f"Cannot write {target}: the folder {target.parent} does not exist; make it first.")
        aside = target.with_name(f".{target.stem}.raw{suffix}")
        try:
            write(model, example, aside, draws=draws, seed=args.seed)
            words = _raw(aside, made, facts) if suffix == ".onnx" else _encoded(target, made, facts)
            os.replace(aside, target)
        finally:
            aside.unlink(missing_ok=True)
        facts["out"].append(str(target))
        said += [f"wrote {target}", *words]
    print(json.dumps(facts) if args.json else "\n".join(said))


def _raw(file: Path, made: Preprocessing, facts: dict[str, Any]) -> list[str]:
    """The ONNX file takes rows as they are in the table."""
    from nodeslab.rawrows import take_raw_rows

    facts["onnx"] = take_raw_rows(file, made)
    lines = ["  It takes raw rows, with draws, scaling and levels inside, and answers in the target's units."]
    if made.numbers:
        lines.append(f"  numbers (float64, NaN is a gap): {', '.join(facts['onnx']['numbers'])}")
    if made.categories:
        lines.append(f"  categories (texts, '' is a gap): {', '.join(facts['onnx']['categories'])}")
    return [*lines, f"  outputs: {', '.join(facts['onnx']['outputs'])}"]


def _encoded(target: Path, made: Preprocessing, facts: dict[str, Any]) -> list[str]:
    """A torch.export file takes what the network takes; how to make it of a row is written beside it."""
    from nodeslab.folder import write_json

    beside = target.with_suffix(".encoding.json")
    write_json(beside, {**made.as_json(), "inputs": list(made.encoded)})
    facts["pt2"] = {"inputs": list(made.encoded), "encoding": str(beside)}
    return [
        f"  It takes encoded numbers, {len(made.encoded)} in a row, and answers in standardised units; {beside} says "
        "how to make them of a row and back."
    ]
