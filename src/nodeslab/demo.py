"""`nodeslab demo`: the main job on a data set that ships with the package."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import nn

import nodeslab as ns
from nodeslab import datasets

__all__ = ["build", "dense", "run", "train"]

BATCH, RATE = 128, 3e-3
DECAY = ns.Ramp(1.0, 0.05, 0.6, 1.0, log=True)  # of the rate, over the last 40 % of the epochs


def network(inputs: int, hidden: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Sigmoid(), nn.Linear(hidden, 1))


def dense(data: datasets.Standardised, hidden: int, epochs: int) -> nn.Module:
    """The same network without a prior, trained by the same optimiser for as long."""
    net = network(data.X.shape[1], hidden)
    X, y = torch.tensor(data.X, dtype=torch.float32), torch.tensor(data.y, dtype=torch.float32)[:, None]
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    for epoch in range(epochs):
        optimizer.param_groups[0]["lr"] = RATE * DECAY(epoch / epochs)
        order = torch.randperm(len(y))
        for i in range(0, len(y), BATCH):
            optimizer.zero_grad()
            rows = order[i : i + BATCH]
            nn.functional.mse_loss(net(X[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return net


def build(data: datasets.Standardised, hidden: int) -> ns.Bayesian:
    """SS-IG with means from U(-0.6, 0.6), the paper's start for regression."""
    return ns.bayesian(network(data.X.shape[1], hidden), ns.ssig(), n=len(data.y), init="uniform")


def train(model: ns.Bayesian, data: datasets.Standardised, epochs: int, validate: bool = False) -> ns.History:
    """The demo's fit: the noise learnt, the rate decaying at the end."""
    return ns.fit(
        model,
        (data.X, data.y),
        likelihood=ns.Gaussian("learn"),
        epochs=epochs,
        batch_size=BATCH,
        lr=RATE,
        lr_schedule=DECAY,
        seed=0,
        validation=(data.X_test, data.y_test) if validate else None,
    )


def run(out: Path, hidden: int = 50, epochs: int = 2000) -> dict[str, float]:
    """Train SS-IG on Concrete, say what came of it, and save the model in `out`."""
    begun = time.perf_counter()
    table = datasets.concrete()
    data = datasets.split(table, 0)
    print("Concrete: the strength of 1030 samples in MPa, from what they are made of and their age.")
    print(f"{len(data.y)} rows to train on, {len(data.y_test)} to test; an SS-IG network of {hidden} nodes.\n")

    model = build(data, hidden)
    print(model)
    history = train(model, data, epochs)
    seconds = sum(history.column("seconds"))
    p = ns.predict(model, data.X_test, draws=100, seed=0)
    mean, truth = data.original(p.mean), data.original(data.y_test)[:, None]
    rmse = ns.metrics.rmse(mean, truth)
    low, high = p.interval(0.9)
    covered = ns.metrics.coverage(low, high, data.y_test)
    X_test = torch.tensor(data.X_test, dtype=torch.float32)
    dense_rmse = ns.metrics.rmse(data.original(dense(data, hidden, epochs)(X_test).detach()), truth)

    record = model.nodes()[0]
    ratio = ns.cost(model, data.X_test).flops_ratio
    print(
        f"\nTrained:    {len(history)} epochs in {seconds:.0f} s, ELBO {history[0].elbo:.0f} -> {history[-1].elbo:.0f}"
    )
    print(f"Kept:       {record.open} of {record.total} nodes, {ratio:.0%} of the multiplications")
    print(f"Test RMSE:  {rmse:.2f} MPa; the dense network, trained as long, {dense_rmse:.2f} MPa")
    print(f"Intervals:  90 % intervals hold {covered:.0%} of the test rows. The first five, in MPa:")
    lows, highs = data.original(low), data.original(high)
    for i in range(5):
        missed = "" if lows[i, 0] <= truth[i, 0] <= highs[i, 0] else "  (missed)"
        print(
            f"            {mean[i, 0]:5.1f}  [{lows[i, 0]:5.1f}, {highs[i, 0]:5.1f}]   truth {truth[i, 0]:5.1f}{missed}"
        )
    out.mkdir(parents=True, exist_ok=True)
    path = ns.save(model, out / "concrete.nodeslab")
    print(f"Saved:      {path}  (`nodeslab show {path}`, or ns.load in Python)")
    print(f"Took:       {time.perf_counter() - begun:.0f} s in all")
    return {"rmse": rmse, "dense_rmse": dense_rmse, "coverage": covered, "open": record.open, "total": record.total}
