"""A scikit-learn pipeline with cross-validation: points, intervals, and what was kept."""

from __future__ import annotations

import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import nodeslab as ns
from nodeslab import datasets

EPOCHS = 100  # None, the default, goes by the number of rows and ends early once the ELBO stands still
AGE = 7  # the column


def main() -> None:
    table = datasets.concrete()
    X, X_test, y, y_test = train_test_split(table.X, table.y, test_size=0.1, random_state=0)
    logs = make_column_transformer((FunctionTransformer(np.log1p), [AGE]), remainder="passthrough")
    network = ns.SpikeSlabRegressor(hidden=(50,), activation="sigmoid", epochs=EPOCHS, random_state=0)
    pipeline = make_pipeline(logs, network)

    scores = cross_val_score(pipeline, X, y, cv=3)
    print(f"R2 of three folds: {', '.join(f'{s:.2f}' for s in scores)}")

    pipeline.fit(X, y)
    model = pipeline[-1]
    low, high = model.predict_interval(pipeline[:-1].transform(X_test), level=0.9)
    print(f"R2 of the test rows: {pipeline.score(X_test, y_test):.2f}")
    print(f"90 % intervals hold {np.mean((low <= y_test) & (y_test <= high)):.0%} of them")
    print(model.nodes_, f"{model.flops_ratio_:.0%} of the multiplications are left")
    print(model.network_)


if __name__ == "__main__":
    main()
