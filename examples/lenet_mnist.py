"""LeNet-Caffe on some of MNIST, or on stripes where MNIST has not been fetched (`nodeslab data mnist`)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import nodeslab as ns
from nodeslab import datasets

ROWS, EPOCHS, BATCH = 2000, 3, 128  # a real run: 60,000, 1200 and 1024, `nodeslab reproduce lenet/mnist/ss-ig`


def images() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images to train on and to test, (n, 1, 28, 28) at the paper's scale, and their labels."""
    if datasets.holding("mnist", read=False).where:
        data = datasets.mnist()
        X, y = torch.from_numpy(data.X[:ROWS]), torch.from_numpy(data.y[:ROWS])
        X_test, y_test = torch.from_numpy(data.X_test[:500]), torch.from_numpy(data.y_test[:500])
    else:
        print("MNIST is not here: stripes at ten angles instead.")
        y, y_test = torch.arange(ROWS) % 10, torch.arange(500) % 10
        rows, columns = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
        angles = torch.arange(10)[:, None, None] / 3
        stripes = torch.sin(0.8 * (rows * torch.cos(angles) + columns * torch.sin(angles)))
        X, X_test = (63 + 50 * stripes[t] + 20 * torch.randn(len(t), 28, 28) for t in (y, y_test))
    return X.float()[:, None] / 126, y, X_test.float()[:, None] / 126, y_test


def network() -> nn.Sequential:
    net = nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.SiLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(20, 50, 5), nn.SiLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(800, 800), nn.SiLU(), nn.Linear(800, 500), nn.SiLU(), nn.Linear(500, 10)),
    )
    return net.to(memory_format=torch.channels_last)


def main() -> None:
    torch.manual_seed(0)
    X, y, X_test, y_test = images()
    # lambda_l = exp(-exponent) / k: a channel of a convolution must be worth hundreds of nats, a node ten
    priors = [math.exp(-exponent) / k for exponent, k in ((690, 20), (300, 50), (10, 800), (10, 500))]
    model = ns.bayesian(network(), ns.Normal(1.0, rho=-3.0) * ns.Node(priors), n=len(X), init="kaiming")
    history = ns.fit(
        model,
        (X, y),
        likelihood=ns.Categorical(),
        epochs=EPOCHS,
        batch_size=BATCH,
        gate_rate=15.0,
        likelihood_schedule=ns.Ramp(6.0, 6.0),
        lr_schedule=ns.Ramp(1.0, 0.05, 0.7, 1.0),
        compact=True,
        seed=0,
    )
    print(history)
    p = ns.predict(model, X_test, draws=10, seed=0)
    right, ece = ns.metrics.accuracy(p.probabilities, y_test), ns.metrics.ece(p.probabilities, y_test)
    print(f"accuracy {right:.3f}, ECE {ece:.3f}")
    print(ns.cost(model, X[:1]))


if __name__ == "__main__":
    main()
