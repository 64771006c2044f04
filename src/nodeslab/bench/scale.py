"""How the cost grows: rows on disk, in time and memory; the width of the network; the batch."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from nodeslab.bench import against, interleaved, machine, mlp, plain_step, spread
from nodeslab.checks import whole
from nodeslab.likelihoods import Categorical
from nodeslab.model import bayesian
from nodeslab.spec import ssig
from nodeslab.training import single_steps

__all__ = ["scale"]

ROWS = (10_000, 100_000, 1_000_000, 5_000_000)
WIDTHS = (100, 200, 400, 1000, 2000, 4000)
BATCHES = (32, 128, 512, 1024, 4096)
COLUMNS, HIDDEN, BATCH = 20, 50, 1024
REFERENCE = 100_000  # rows of the fit that is timed in the same process, in memory

#: A process of its own for each number of rows, so that the peak is its own. "Above the interpreter" is above what it
#: held after its imports and a small fit, before it opened the data. The clock is the fit's, by epochs; the reference
#: is fitted before and after.
CHILD = """
import json, re, sys
import numpy as np, torch
import nodeslab as ns

def status(key):
    return int(re.search(key + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

def fitted(X, y, epochs):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(X.shape[1], hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 1))
    model = ns.bayesian(net, ns.ssig(), n=len(y))
    options = dict(epochs=epochs, batch_size=batch, seed=0, progress=False)
    history = ns.fit(model, (X, y), likelihood=ns.Gaussian(1.0), **options)
    return [s / len(y) for s in history.column("seconds")]

folder, rows, columns, hidden, batch, reference, threads, sample = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(threads)
X = np.memmap(folder + "/X", np.float32, "r", shape=(rows, columns))
y = np.memmap(folder + "/y", np.float32, "r", shape=(rows,))
stream = np.random.RandomState(0)
small = stream.randn(reference, columns).astype("float32")
target = small[:, 0] + stream.randn(reference).astype("float32")
fitted(small[:2000], target[:2000], 1)
few = max(1, sample // reference)
before = fitted(small, target, few)
base = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # the peak starts again from here
each = fitted(X, y, max(1, sample // rows))
peak = status("VmHWM")
after = fitted(small, target, few)
print(json.dumps({"each": each, "reference": before + after, "peak": peak - base}))
"""


def scale(
    rounds: int = 7,
    rows: tuple[int, ...] = ROWS,
    widths: tuple[int, ...] = WIDTHS,
    batches: tuple[int, ...] = BATCHES,
    reference: int = REFERENCE,
    sample: int = 1_000_000,
) -> dict[str, Any]:
    """rows x 20 in files, widths of 784-w-w-10 at batch 1024, batches of 784-400-400-10, each against the plain one.

    sample: rows that a reading of the time goes through at least, in several epochs where the data have fewer.
    """
    whole("rounds", rounds)
    result: dict[str, Any] = {"bench": "scale", **machine()}
    if sys.platform == "linux":
        result[f"one epoch, rows x {COLUMNS} from a memmap"] = _growth(rows, reference, sample)
    result["step against plain, by width"] = {f"784-{w}-{w}-10": _step(mlp(width=w), 1024, rounds) for w in widths}
    result["step against plain, by batch"] = {f"batch {b}": _step(mlp(), b, rounds) for b in batches}
    return result


def _growth(rows: tuple[int, ...], reference: int, sample: int) -> dict[str, Any]:
    """Each number of rows: the median epoch's time a row over the reference's, and how far that is from the first's."""
    out: dict[str, Any] = {}
    first = None
    for count in rows:
        with tempfile.TemporaryDirectory() as folder:
            _write(Path(folder), count)
            numbers = (count, COLUMNS, HIDDEN, BATCH, reference, torch.get_num_threads(), sample)
            command = [sys.executable, "-c", CHILD, folder, *map(str, numbers)]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise RuntimeError(f"The fit of {count} rows from a file failed. Its own words: {ran.stderr[-500:]}")
        said = json.loads(ran.stdout)
        each, base = statistics.median(said["each"]), statistics.median(said["reference"])
        ratio = each / base
        first = ratio if first is None else first
        out[f"{count} rows"] = {
            "us_per_row": round(1e6 * each, 3),
            "epoch_seconds": round(each * count, 3),
            "ratio": round(ratio, 4),
            "ratio_quartiles": list(spread([each / r for r in said["reference"]])),
            "from_linear": round(abs(ratio / first - 1.0), 4),
            "peak_gib": round(said["peak"] / 1024, 3),
            "data_gib": round(count * (COLUMNS + 1) * 4 / 2**30, 3),
        }
    return out


def _write(folder: Path, rows: int, part: int = 250_000) -> None:
    """X and y = X[:, 0] + noise, written in parts."""
    stream = np.random.default_rng(0)
    with (folder / "X").open("wb") as X_file, (folder / "y").open("wb") as y_file:
        for start in range(0, rows, part):
            X = stream.standard_normal((min(part, rows - start), COLUMNS), dtype=np.float32)
            X.tofile(X_file)
            (X[:, 0] + stream.standard_normal(len(X), dtype=np.float32)).tofile(y_file)


def _step(net: nn.Module, batch: int, rounds: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn((batch, 784), generator=generator)
    y = torch.randint(0, 10, (batch,), generator=generator)
    y[:2] = torch.tensor([0, 1])  # more than one class, in any batch
    runs: dict[str, Callable[[], object]] = {
        "ss-ig": single_steps(bayesian(net, ssig(), n=60_000), (X, y), Categorical()),
        "plain": plain_step(net, X, y),
    }
    times = against(interleaved(runs, rounds, repeat=max(1, 256 // batch)), "plain")
    row: dict[str, Any] = times["ss-ig"]
    return {**row, "plain_ms": times["plain"]["ms"]}
