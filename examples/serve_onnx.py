"""From a fit to a file that onnxruntime serves, with the standard deviation of every answer."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import nn

import nodeslab as ns
from nodeslab import datasets

FILE, DRAWS = Path("concrete.onnx"), 8


def main() -> None:
    data = datasets.split(datasets.concrete(), 0)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 50), nn.Sigmoid(), nn.Linear(50, 1))
    model = ns.bayesian(net, ns.ssig(), n=len(data.X), init="uniform")
    ns.fit(model, (data.X, data.y), likelihood=ns.Gaussian("learn"), epochs=150, lr=3e-3, gate_rate=5.0, seed=0)

    example = torch.zeros(2, 8)
    small = ns.shrink(model, example, bayesian=True)
    ns.export(small, example, FILE, draws=DRAWS)
    print(f"{model.nodes()[0].open} of 50 nodes; {FILE} has {FILE.stat().st_size:,} bytes")

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(FILE), options)
    rows = data.X_test.astype(np.float32)
    mean, std = session.run(None, {"input": rows})
    p = ns.predict(small, data.X_test, draws=DRAWS, seed=0)
    print(f"largest difference to ns.predict: {np.abs(mean - p.mean.numpy()).max():.1e}")
    for m, s in zip(data.original(mean[:3, 0]), std[:3, 0] * data.y_scale, strict=True):
        print(f"  {m:5.1f} ± {s:.1f} MPa")

    begun, times = time.perf_counter(), 200
    for _ in range(times):
        session.run(None, {"input": rows[:1]})
    print(f"{1e6 * (time.perf_counter() - begun) / times:.0f} microseconds for one row")


if __name__ == "__main__":
    main()
