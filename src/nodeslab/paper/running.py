"""A row becomes records: fits, measures, writes; goes on after a kill, and skips what is done."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass, fields
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nodeslab
from nodeslab.bench import cpu
from nodeslab.incoming import incoming_weights
from nodeslab.kernel import kernel
from nodeslab.model import Bayesian
from nodeslab.paper import records
from nodeslab.paper.cases import Case, Flipped, case_for, missing
from nodeslab.paper.measures import Measure, rounded
from nodeslab.paper.networks import likelihood_of, model_of
from nodeslab.paper.rows import Row, rows_of
from nodeslab.replicas import fit_replicas
from nodeslab.sweeps import repeat
from nodeslab.training import History, Ramp, Record, Schedule, fit

__all__ = ["Outcome", "reproduce", "run_one"]


@dataclass(frozen=True)
class Outcome:
    """How many runs of a row were made now, how many were there already, and why it was not run."""

    row: Row
    made: int
    there: int
    reason: str | None = None

    def __str__(self) -> str:
        if self.reason is not None:
            return f"{self.row.name}: not run, {self.reason}"
        return f"{self.row.name}: {self.made} made, {self.there} there already"


def reproduce(
    names: Iterable[str],
    out: Path,
    *,
    quick: bool = False,
    device: str = "cpu",
    seeds: int | None = None,
    workers: int | None = None,
    backend: str = "processes",
) -> Iterator[Outcome]:
    """Make every record of some experiments that is not in the folder yet; one outcome for each row, as it is done.

    quick: the small versions, with no data set fetched for them. workers: how many runs at a time, where several
    seeds cannot train as one batched run; backend: where, as for `ns.repeat`.
    """
    if device != "cpu" and not torch.cuda.is_available():
        raise ValueError(f'device is "{device}", but torch sees no such device here; leave it out to run on the CPU.')
    for row in rows_of(names, quick, seeds):
        todo = [seed for seed in range(row.seeds) if not _is_done(out, row, seed)]
        there = row.seeds - len(todo)
        reason = missing(row) if quick and todo else None
        if todo and reason is None:
            try:
                case_for(row, 0)
            except (OSError, ValueError) as e:
                reason = str(e)
        if reason is not None:
            yield Outcome(row, 0, there, reason)
            continue
        if len(todo) > 1 and _batches(row, device):
            _run_together(row, todo, out)
        elif len(todo) == 1:  # all of torch's threads for the one that there is
            run_one(row, out, device, todo[0])
        elif todo:
            where = "serial" if workers == 1 or device != "cpu" else backend
            repeat(partial(run_one, row, out, device), todo, backend=where, workers=workers)
        yield Outcome(row, len(todo), there)


def _is_done(out: Path, row: Row, seed: int) -> bool:
    """True where the record is there, whole, and of these settings."""
    path = records.path_of(out, row.name, seed, row.quick)
    if not path.exists():
        return False
    found, wanted = records.read(path)["row"], row.settings()
    # a setting that is younger than the record was at its default
    defaults = {f.name: f.default for f in fields(Row) if f.default is not MISSING}
    changed = [key for key in wanted if found.get(key, defaults.get(key)) != wanted[key]]
    if changed:
        raise ValueError(
            f"{path} was made with another {changed[0]} ({found.get(changed[0])!r} instead of "
            f"{wanted[changed[0]]!r}); move it away, or give another --out."
        )
    return True


def _batches(row: Row, device: str) -> bool:
    """True for rows whose seeds train as one batched run: small networks with gates on nodes, or none."""
    regression = row.data not in ("mnist", "fashion-mnist")
    return (
        device == "cpu" and regression and row.model in ("ss-ig", "vbnn") and not row.compact and kernel() is not None
    )


# ---- one run ---------------------------------------------------------------------------------------------------------


def run_one(row: Row, out: Path, device: str, seed: int) -> None:
    """One run, from its last checkpoint if there is one; the checkpoint goes when the record is there."""
    began, begun = datetime.now(timezone.utc), time.perf_counter()
    path = records.path_of(out, row.name, seed, row.quick)
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint, measured = path.with_name(f".{path.stem}.checkpoint"), path.with_name(f".{path.stem}.measured")
    case = case_for(row, seed)
    model = model_of(row, case, seed).to(device)
    measure = Measure(row, case, model)
    # one line for each measured epoch, written before the checkpoint that follows it: after a kill none is missing
    curve = _measured_before(measured) if checkpoint.exists() else {}

    def look(_: Bayesian, record: Record) -> None:
        if row.measured(record.epoch):
            curve[record.epoch] = {**measure.at(record.epoch), "elbo": record.elbo}
            with measured.open("a", encoding="utf-8") as f:
                f.write(json.dumps(curve[record.epoch]) + "\n")

    if not checkpoint.exists():
        measured.unlink(missing_ok=True)
    history = fit(
        model,
        _data(row, case, device),
        likelihood=likelihood_of(row, case),
        epochs=row.epochs,
        batch_size=row.batch_size,
        lr=row.lr,
        seed=seed,
        lr_schedule=_ramp(row.lr_schedule),
        likelihood_schedule=_ramp(row.likelihood_schedule),
        gate_rate=row.gate_rate,
        spread_rate=row.spread_rate,
        compact=row.compact,
        graph=device != "cpu",
        checkpoint=checkpoint,
        callback=look,
        progress=None,
    )
    _write(path, row, seed, measure, history, curve, device, began, time.perf_counter() - begun, 1)
    for left in (checkpoint, checkpoint.with_name(checkpoint.name + ".previous"), measured):
        left.unlink(missing_ok=True)


def _measured_before(path: Path) -> dict[int, dict[str, float]]:
    """The epochs that an earlier process measured; a line that it was killed in is measured again."""
    found: dict[int, dict[str, float]] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            figures = json.loads(line)
        except ValueError:
            continue
        found[int(figures["epoch"])] = figures
    return found


def _data(row: Row, case: Case, device: str) -> Any:
    if not row.flips:
        return case.X, case.y
    return Flipped(case.X.to(device), case.y, row.batch_size, tuple(case.X.shape[1:]))


def _ramp(arguments: tuple[Any, ...] | None) -> Ramp | None:
    return None if arguments is None else Ramp(*arguments)


# ---- all seeds of a row as one batched run ---------------------------------------------------------------------------


@dataclass(eq=False)
class _Clock:
    """A schedule that also measures: `fit_replicas` asks it for a factor when an epoch begins, that is, at the end of
    the one before, when every model holds its own parameters."""

    schedule: Schedule | None
    epochs: int
    look: Callable[[int], None]

    def __call__(self, share: float) -> float:
        self.look(round(share * self.epochs))
        return 1.0 if self.schedule is None else self.schedule(share)


def _run_together(row: Row, seeds: list[int], out: Path) -> None:
    """All seeds at once; their records are written when the run ends, and a killed one starts again."""
    began, begun = datetime.now(timezone.utc), time.perf_counter()
    cases = [case_for(row, seed) for seed in seeds]
    models = [model_of(row, case, seed) for case, seed in zip(cases, seeds, strict=True)]
    measures = [Measure(row, case, model) for case, model in zip(cases, models, strict=True)]
    curves: list[dict[int, dict[str, float]]] = [{} for _ in seeds]

    last = 0

    def look(epoch: int) -> None:
        nonlocal last
        if epoch < last:  # one after the other: the models would be measured before they are trained
            raise ValueError(f"{row.name}: its seeds did not train as one run; run it with --seeds 1, 2, ... instead.")
        last = epoch
        if epoch > 0 and row.measured(epoch):
            for measure, curve in zip(measures, curves, strict=True):
                if epoch not in curve:
                    curve[epoch] = measure.at(epoch)

    histories = fit_replicas(
        models,
        [(case.X, case.y) for case in cases],
        likelihood=likelihood_of(row, cases[0]),
        epochs=row.epochs,
        batch_size=row.batch_size,
        lr=row.lr,
        seeds=seeds,
        lr_schedule=_ramp(row.lr_schedule),
        likelihood_schedule=_Clock(_ramp(row.likelihood_schedule), row.epochs, look),
        gate_rate=row.gate_rate,
        spread_rate=row.spread_rate,
    )
    look(row.epochs)
    seconds = time.perf_counter() - begun
    for i, seed in enumerate(seeds):
        path = records.path_of(out, row.name, seed, row.quick)
        for record in histories[i]:
            if record.epoch in curves[i]:
                curves[i][record.epoch]["elbo"] = record.elbo
        _write(path, row, seed, measures[i], histories[i], curves[i], "cpu", began, seconds / len(seeds), len(seeds))


# ---- the record ------------------------------------------------------------------------------------------------------


def _write(
    path: Path,
    row: Row,
    seed: int,
    measure: Measure,
    history: History,
    curve: dict[int, dict[str, float]],
    device: str,
    began: datetime,
    seconds: float,
    together: int,
) -> None:
    """together: how many runs shared the time."""
    epochs = sorted(curve)
    case = measure.case
    record: dict[str, Any] = {
        "format": 1,
        "experiment": row.experiment,
        "name": row.name,
        "seed": seed,
        "row": row.settings(),
        "data": {"name": row.data, "sha256": case.sha256, "train": len(case.y), "test": len(case.y_test)},
        "nodes": measure.nodes,
        "final": measure.final() | {"fit_seconds": rounded(sum(history.column("seconds")))},
        "curve": {key: [rounded(curve[e][key]) for e in epochs] for key in curve[epochs[0]]},
        "began": began.isoformat(timespec="seconds"),
        "wall_seconds": rounded(seconds),
        "together": together,
        "environment": environment(device),
    }
    if row.keep_weights:
        record["weights"] = [[float(f"{v:.4g}") for v in node] for node in incoming_weights(measure.model).tolist()]
    records.write(path, record)


def environment(device: str) -> dict[str, Any]:
    """What a run's numbers and times depend on beside its settings."""
    return {
        "nodeslab": nodeslab.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "cpu": cpu(),
        "device": torch.cuda.get_device_name() if device != "cpu" else "cpu",
        "threads": torch.get_num_threads(),
        "kernel": kernel() is not None,
        "commit": _commit(),
    }


def _commit() -> str | None:
    """The commit of the checkout that the package runs from, with "+" where files differ from it; where there is no
    checkout, what NODESLAB_COMMIT says, or None."""
    command = ["git", "-C", os.fspath(Path(__file__).parent), "describe", "--always", "--abbrev=40", "--exclude=*"]
    try:
        found = subprocess.run([*command, "--dirty=+"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("NODESLAB_COMMIT")
    return found.stdout.strip() or None
