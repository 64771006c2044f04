"""A table in a CSV file: fit, intervals in the target's units, a small network. `nodeslab fit` does it all at once."""

from __future__ import annotations

import csv
from importlib import resources

import numpy as np
import torch
from torch import nn

import nodeslab as ns

EPOCHS = 200  # a real run: 2000 and more, with gate_rate=1


def main() -> None:
    text = resources.files("nodeslab.datasets").joinpath("concrete.csv").read_text()
    names, *lines = csv.reader(text.splitlines())
    table = np.array(lines, dtype=float)
    X, y = table[:, :-1], table[:, -1]

    order = np.random.default_rng(0).permutation(len(y))
    test, train = order[:100], order[100:]
    center, scale = X[train].mean(0), X[train].std(0)
    middle, spread = y[train].mean(), y[train].std()
    inputs, target = (X - center) / scale, (y - middle) / spread  # the prior's scale is 1

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(X.shape[1], 50), nn.Sigmoid(), nn.Linear(50, 1))
    model = ns.bayesian(net, ns.ssig(), n=len(train), init="uniform")
    history = ns.fit(
        model,
        (inputs[train], target[train]),
        likelihood=ns.Gaussian("learn"),
        epochs=EPOCHS,
        lr=3e-3,
        lr_schedule=ns.Ramp(1.0, 0.05, 0.6, 1.0, log=True),
        gate_rate=5.0,
        seed=0,
    )
    print(history)

    p = ns.predict(model, inputs[test], draws=100, seed=0)
    mean, (low, high) = p.mean[:, 0].numpy(), (v[:, 0].numpy() for v in p.interval(0.9))
    in_units = {name: v * spread + middle for name, v in (("mean", mean), ("low", low), ("high", high))}
    print(f"{names[-1]}: RMSE {ns.metrics.rmse(in_units['mean'], y[test]):.2f}")
    print(f"90 % intervals hold {ns.metrics.coverage(in_units['low'], in_units['high'], y[test]):.0%}")

    small = ns.shrink(model, torch.zeros(2, X.shape[1]))
    print(small)


if __name__ == "__main__":
    main()
