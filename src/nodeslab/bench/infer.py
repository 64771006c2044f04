"""Dense against shrunk networks at work: speed beside the share of multiplications, file sizes, peak memory."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nodeslab.bench import interleaved, lenet, machine, mlp, one_thread
from nodeslab.costs import cost
from nodeslab.exporting import export
from nodeslab.model import bayesian
from nodeslab.shrinking import shrink
from nodeslab.spec import ssig

__all__ = ["infer"]

#: The paper's networks, with the nodes that its authors were left with.
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, ...]]] = {
    "mlp 784-400-400-10 to 68-40": (mlp, (784,), (68, 40)),
    "lenet-caffe 20-50-800-500 to 17-5-17-20": (lenet, (1, 28, 28), (17, 5, 17, 20)),
}
BATCHES = (1, 64, 1024)

#: Run alone, so that the peak is this file's: what is loaded before the first reading does not count. (getrusage would
#: give the parent's peak where that is higher.)
MEMORY = """
import re, sys
import numpy
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
file, shape = sys.argv[1], tuple(map(int, sys.argv[2:]))
x = numpy.zeros(shape, "float32")
if file.endswith(".onnx"):
    import onnxruntime
    before = peak()
    onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"]).run(None, {"input": x})
else:
    import torch
    program = torch.export.load(file).module()
    before = peak()
    with torch.no_grad():
        program(torch.from_numpy(x))
print(peak() - before)
"""


def _session(file: Path, x: Tensor) -> Callable[[], object]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    feed = {"input": x.numpy()}
    return lambda: session.run(None, feed)


def _eager(net: nn.Module, x: Tensor) -> Callable[[], object]:
    def run() -> None:
        with torch.inference_mode():
            net(x)

    return run


def _peak(file: Path, shape: tuple[int, ...]) -> float | None:
    """MiB above what the runtime itself needs, for one batch in a process of its own (Linux)."""
    if sys.platform != "linux":
        return None
    command = [sys.executable, "-c", MEMORY, str(file), *map(str, shape)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return round(int(said) / 1024, 1)


@one_thread()
def infer(rounds: int = 40) -> dict[str, Any]:
    """Both networks at batch 1, 64 and 1024, eager and in onnxruntime, on one thread; `reached` is the speed-up as a
    share of the ideal one, 1 / FLOPs ratio."""
    result: dict[str, Any] = {"bench": "infer", **machine()}
    for name, (make, shape, left) in CASES.items():
        torch.manual_seed(0)
        model = bayesian(make(), ssig(), n=60_000).eval()
        model.set_nodes({r.path: torch.arange(r.total) < k for r, k in zip(model.nodes(), left, strict=True)})
        example = torch.rand(2, *shape)
        counted = cost(model, example)
        nets = {"dense": model.mean().eval(), "shrunk": shrink(model, example).eval()}
        case: dict[str, Any] = {"flops_ratio": round(counted.flops_ratio, 4)}
        with tempfile.TemporaryDirectory() as folder:
            files = {n: export(net, example, Path(folder) / f"{n}.onnx") for n, net in nets.items()}
            programs = {n: export(net, example, Path(folder) / f"{n}.pt2") for n, net in nets.items()}
            for batch in BATCHES:
                x = torch.rand(batch, *shape)
                runs = {f"eager {n}": _eager(net, x) for n, net in nets.items()}
                runs |= {f"onnxruntime {n}": _session(file, x) for n, file in files.items()}
                times = interleaved(runs, rounds, repeat=max(1, 1024 // batch))  # 1024 rows a reading
                median = {n: statistics.median(t) for n, t in times.items()}
                case[f"batch {batch}"] = {
                    where: {
                        "dense_ms": round(1e3 * median[f"{where} dense"], 4),
                        "shrunk_ms": round(1e3 * median[f"{where} shrunk"], 4),
                        "speedup": round(median[f"{where} dense"] / median[f"{where} shrunk"], 2),
                        "reached": round(median[f"{where} dense"] / median[f"{where} shrunk"] * counted.flops_ratio, 3),
                    }
                    for where in ("eager", "onnxruntime")
                }
            case["files"] = {
                n: {
                    "onnx_bytes": files[n].stat().st_size,
                    "over_weights": round(files[n].stat().st_size / (4 * sum(p.numel() for p in net.parameters())), 3),
                    "onnxruntime_peak_mib": _peak(files[n], (1024, *shape)),
                    "torch_peak_mib": _peak(programs[n], (1024, *shape)),
                }
                for n, net in nets.items()
            }
        result[name] = case
    return result
