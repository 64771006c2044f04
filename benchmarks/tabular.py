"""The estimators without tuning, against scikit-learn's MLPRegressor; and MNIST. Reads NODESLAB_DATA or fetches.

    python benchmarks/tabular.py                  # five UCI sets, the first 5 splits of each; about 20 minutes
    python benchmarks/tabular.py --mnist          # the classifier on 60,000 images
    python benchmarks/tabular.py concrete wine --splits 2

MLPRegressor: the same widths, inputs and target standardised too, defaults but for early_stopping=True.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from statistics import fmean, stdev
from typing import Any

import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import nodeslab as ns
from nodeslab import datasets

UCI = ("concrete", "wine", "power", "kin8nm", "protein")
WIDTHS = (50, 50)


def one(name: str, number: int) -> dict[str, float]:
    """One split: errors in the target's units, coverage of 90 % intervals, nodes left, seconds."""
    data = datasets.split(datasets.uci(name), number)
    X, y, X_test, y_test = data.X, data.original(data.y), data.X_test, data.original(data.y_test)
    begun = time.perf_counter()
    ours = ns.SpikeSlabRegressor(hidden=WIDTHS, random_state=number).fit(X, y)
    seconds = time.perf_counter() - begun
    low, high = ours.predict_interval(X_test, 0.9)
    begun = time.perf_counter()
    rival = TransformedTargetRegressor(
        make_pipeline(
            StandardScaler(), MLPRegressor(hidden_layer_sizes=WIDTHS, early_stopping=True, random_state=number)
        ),
        transformer=StandardScaler(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rival.fit(X, y)
    return {
        "rmse": float(np.sqrt(np.mean((ours.predict(X_test) - y_test) ** 2))),
        "mlp_rmse": float(np.sqrt(np.mean((rival.predict(X_test) - y_test) ** 2))),
        "coverage": float(np.mean((low <= y_test) & (y_test <= high))),
        "nodes": sum(r.open for r in ours.nodes_) / sum(r.total for r in ours.nodes_),
        "epochs": float(ours.n_iter_),
        "seconds": seconds,
        "mlp_seconds": time.perf_counter() - begun,
    }


def mnist() -> dict[str, float]:
    """60,000 images as they are, 784-400-400-10: accuracy, multiplications left, seconds of the fit."""
    data = datasets.mnist()
    X, X_test = (images.reshape(len(images), -1) / 255.0 for images in (data.X, data.X_test))
    begun = time.perf_counter()
    fitted = ns.SpikeSlabClassifier(hidden=(400, 400), random_state=0).fit(X, data.y)
    seconds = time.perf_counter() - begun
    return {
        "accuracy": float(fitted.score(X_test, data.y_test)),
        "flops_ratio": fitted.flops_ratio_,
        "epochs": float(fitted.n_iter_),
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=UCI, help=f"of {', '.join(UCI)}")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--mnist", action="store_true", help="the classifier on MNIST instead")
    args = parser.parse_args()
    if args.mnist:
        print(json.dumps(mnist()))
        return
    for name in args.names:
        found: dict[str, Any] = {}
        for number in range(args.splits):
            for key, value in one(name, number).items():
                found.setdefault(key, []).append(value)
        words = [f"{k} {fmean(v):.4g}" + (f" ± {stdev(v):.2g}" if len(v) > 1 else "") for k, v in found.items()]
        print(f"{name}: {', '.join(words)}", flush=True)


if __name__ == "__main__":
    main()
