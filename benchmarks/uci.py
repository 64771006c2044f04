"""Concrete and Wine over their fixed splits: the paper's settings, one row of figures for each model.

    NODESLAB_DATA=... python benchmarks/uci.py [--splits 20] [--backend dask] [--workers 2] [--json]

A network of 50 sigmoid nodes, means from U(-0.6, 0.6), standardised inputs and target, sigma_e = 1 on the standardised
target, Adam at 1e-3, batches of 128, 500 epochs, 30 draws. Concrete ships with the package; Wine needs NODESLAB_DATA.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from functools import partial
from typing import Any

import torch
from torch import nn

import nodeslab as ns
from nodeslab import datasets

MODELS = {"VBNN": ns.vbnn(), "SS-IG": ns.ssig()}


def one(name: str, model_name: str, index: int, epochs: int = 500) -> tuple[float, float]:
    """Test RMSE in the target's own units and the share of nodes left, for one split; the split's index is the seed."""
    table = datasets.concrete() if name == "concrete" else datasets.uci(name)
    data = datasets.split(table, index)
    torch.manual_seed(index)
    net = nn.Sequential(nn.Linear(data.X.shape[1], 50), nn.Sigmoid(), nn.Linear(50, 1))
    model = ns.bayesian(net, MODELS[model_name], n=len(data.y), init="uniform")
    ns.fit(
        model,
        (data.X, data.y),
        likelihood=ns.Gaussian(1.0),
        epochs=epochs,
        batch_size=128,
        lr=1e-3,
        seed=index,
        progress=False,
    )
    p = ns.predict(model, data.X_test, draws=30, seed=0)
    rmse = ns.metrics.rmse(data.original(p.mean), data.original(data.y_test))
    records = model.nodes()
    return rmse, records[0].sparsity if records else 1.0


def summary(name: str, model_name: str, splits: int, backend: str, workers: int | None) -> dict[str, Any]:
    """Mean and standard deviation over splits."""
    begun = time.perf_counter()
    runs = ns.repeat(partial(one, name, model_name), range(splits), backend=backend, workers=workers)
    rmse, nodes = zip(*runs, strict=True)
    return {
        "data": name,
        "model": model_name,
        "splits": splits,
        "rmse": round(statistics.mean(rmse), 4),
        "rmse_sd": round(statistics.stdev(rmse), 4),
        "nodes": round(statistics.mean(nodes), 4),
        "nodes_sd": round(statistics.stdev(nodes), 4),
        "seconds": round(time.perf_counter() - begun, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--backend", choices=["processes", "dask", "ray", "serial"], default="processes")
    parser.add_argument("--workers", type=int, help="how many at a time (default: one for each core)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for name, model_name in (("concrete", "VBNN"), ("concrete", "SS-IG"), ("wine", "SS-IG")):
        row = summary(name, model_name, args.splits, args.backend, args.workers)
        rows.append(row)
        if not args.json:
            print(
                f"{name:<10}{model_name:<7} RMSE {row['rmse']:.3f} ± {row['rmse_sd']:.3f}   "
                f"nodes {row['nodes']:.1%} ± {row['nodes_sd']:.1%}   {row['seconds']:.0f} s",
                flush=True,
            )
    if args.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
