"""`nodeslab demo`: the main job on a data set that ships with the package."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import nn

import nodeslab as ns
from nodeslab import datasets
from nodeslab.costs import cost

__all__ = ["run"]

EPOCHS, BATCH, RATE = 500, 128, 1e-3


def _dense(data: datasets.Standardised, hidden: int) -> nn.Module:
    """The same network trained without a prior, by the same optimiser for as long."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(data.X.shape[1], hidden), nn.Sigmoid(), nn.Linear(hidden, 1))
    X, y = torch.tensor(data.X, dtype=torch.float32), torch.tensor(data.y, dtype=torch.float32)[:, None]
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        order = torch.randperm(len(y))
        for i in range(0, len(y), BATCH):
            optimizer.zero_grad()
            rows = order[i : i + BATCH]
            nn.functional.mse_loss(net(X[rows]), y[rows]).backward()
            optimizer.step()
    return net


def run(out: Path, hidden: int = 50, epochs: int = EPOCHS) -> dict[str, float]:
    """Train SS-IG on Concrete, say what came of it, and save the model in `out`."""
    begun = time.perf_counter()
    table = datasets.concrete()
    data = datasets.split(table, 0)
    print(f"Concrete: {len(data.y)} rows to train on, {len(data.y_test)} to test; {table.target} in MPa.\n")

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, hidden), nn.Sigmoid(), nn.Linear(hidden, 1))
    model = ns.bayesian(net, ns.Normal(1.0) * ns.Node(), n=len(data.y))
    print(model)
    history = ns.fit(model, (data.X, data.y), likelihood=ns.Gaussian("learn"), epochs=epochs, batch_size=BATCH, seed=0)
    p = ns.predict(model, data.X_test, draws=100, seed=0)
    mean, truth = data.original(p.mean), data.original(data.y_test)[:, None]
    rmse = ns.metrics.rmse(mean, truth)
    low, high = p.interval(0.9)
    covered = ns.metrics.coverage(low, high, data.y_test[:, None])
    dense = data.original(_dense(data, hidden)(torch.tensor(data.X_test, dtype=torch.float32)).detach())
    dense_rmse = ns.metrics.rmse(dense, truth)

    record = model.nodes()[0]
    figures = cost(model, data.X_test)
    print(f"\nTrained {len(history)} epochs in {sum(history.column('seconds')):.0f} s; ELBO {history[-1].elbo:.0f}.")
    print(f"Kept:       {record.open} of {record.total} nodes, {figures.flops_ratio:.0%} of the multiplications")
    print(f"Test RMSE:  {rmse:.2f} MPa; the dense network: {dense_rmse:.2f} MPa")
    print(f"Intervals:  the 90 % intervals hold {covered:.0%} of the test rows; the first five:")
    lows, highs = data.original(low), data.original(high)
    for i in range(5):
        inside = "" if lows[i, 0] <= truth[i, 0] <= highs[i, 0] else "  (missed)"
        print(
            f"            {mean[i, 0]:6.1f}  [{lows[i, 0]:5.1f}, {highs[i, 0]:5.1f}]  truth {truth[i, 0]:5.1f}{inside}"
        )
    out.mkdir(parents=True, exist_ok=True)
    path = ns.save(model, out / "concrete.nodeslab")
    print(f"Saved:      {path}  (read it with ns.load)")
    print(f"Took {time.perf_counter() - begun:.0f} s in all.")
    return {"rmse": rmse, "dense_rmse": dense_rmse, "coverage": covered, "open": record.open, "total": record.total}
