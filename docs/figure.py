"""Draws docs/concrete.png, the README's picture: python docs/figure.py (needs matplotlib)."""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure

import nodeslab as ns
from nodeslab import datasets, demo

EPOCHS, HIDDEN = 2000, 50
FILE = Path(__file__).with_name("concrete.png")


def main(file: Path = FILE, epochs: int = EPOCHS) -> None:
    data = datasets.split(datasets.concrete(), 0)
    model = demo.build(data, HIDDEN)
    history = demo.train(model, data, epochs, validate=True)
    X_test = torch.tensor(data.X_test, dtype=torch.float32)
    dense = ns.metrics.rmse(demo.dense(data, HIDDEN, epochs)(X_test).detach(), data.y_test) * data.y_scale
    p = ns.predict(model, data.X_test, draws=100, seed=0)
    low, high = (data.original(v[:, 0]) for v in p.interval(0.9))
    mean, truth = data.original(p.mean[:, 0]), data.original(data.y_test)

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    epoch = history.column("epoch")
    left.plot(epoch, [r.open["0"] for r in history], color="C0")
    left.set(xlabel="epoch", ylim=(0, HIDDEN * 1.04))
    left.set_ylabel("open nodes", color="C0")
    error = left.twinx()
    error.plot(epoch, [r.validation["rmse"] * data.y_scale for r in history], color="C1", label="SS-IG")
    error.axhline(dense, color="C1", linestyle=":", label=f"dense network: {dense:.1f} MPa")
    error.set_ylabel("test RMSE, MPa", color="C1")
    error.set_ylim(4, 18)
    error.legend(loc="upper right", frameon=False)
    left.set_title(f"{history[-1].open['0']} of {HIDDEN} nodes are kept")
    inside = (low <= truth) & (truth <= high)
    for mask, colour, label in ((inside, "C0", "truth inside the interval"), (~inside, "C3", "outside")):
        right.errorbar(
            truth[mask],
            mean[mask],
            yerr=[(mean - low)[mask], (high - mean)[mask]],
            fmt="o",
            markersize=3,
            linewidth=0.8,
            color=colour,
            label=label,
        )
    right.plot([0, 85], [0, 85], color="0.6", linewidth=0.8)
    right.set(xlabel="truth, MPa", ylabel="prediction, MPa", xlim=(0, 85))
    right.set_title(f"90 % intervals hold {inside.mean():.0%} of the test rows")
    right.legend(loc="upper left", frameon=False)
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    main()
