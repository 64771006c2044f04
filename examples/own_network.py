"""A network of one's own, with two inputs and a branch, in a training loop of one's own."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nodeslab as ns

EPOCHS, SIGMA = 60, 0.1  # a real run: some hundreds of epochs


class Net(nn.Module):
    """Signals and facts come in apart, and meet."""

    def __init__(self) -> None:
        super().__init__()
        self.signal = nn.Sequential(nn.Conv1d(1, 8, 5), nn.Tanh(), nn.Conv1d(8, 16, 5), nn.Tanh())
        self.facts = nn.Linear(3, 16)
        self.mixed = nn.Linear(32, 16)
        self.head = nn.Linear(48, 1)

    def forward(self, signal: Tensor, facts: Tensor) -> Tensor:
        h = torch.cat([self.signal(signal).square().mean(2), torch.tanh(self.facts(facts))], 1)
        return self.head(torch.cat([h, torch.tanh(self.mixed(h))], 1))


def rows(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Waves, of which y is the frequency, and three facts, of which the first moves y."""
    frequency, facts = torch.rand(n, 1), torch.randn(n, 3)
    wave = torch.sin((0.4 + frequency) * torch.arange(40.0)) + 0.1 * torch.randn(n, 40)
    y = 3 * frequency + 0.5 * facts[:, :1]
    return wave[:, None], facts, (y - 1.5) + SIGMA * torch.randn(n, 1)


def main() -> None:
    torch.manual_seed(0)
    signal, facts, y = rows(1000)
    model = ns.bayesian(Net(), ns.Normal(1.0, rho=-3.0) * ns.Node(), n=len(y))
    print(model)
    gates = [p for name, p in model.named_parameters() if name.endswith("logit")]
    others = [p for name, p in model.named_parameters() if not name.endswith("logit")]
    optimizer = torch.optim.Adam([{"params": others, "lr": 5e-3}, {"params": gates, "lr": 3e-2}])
    for epoch in range(EPOCHS):
        for batch in torch.randperm(len(y)).split(50):
            with model.drawn() as net:  # one draw, through forward and backward
                error = F.mse_loss(net(signal[batch], facts[batch]), y[batch], reduction="sum")
                nll = error / (2 * SIGMA**2)  # -log p of the batch's rows, up to a constant
                loss = (nll + model.kl() * len(batch) / model.n) / len(batch)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if (epoch + 1) % 20 == 0:
            opened = ", ".join(f"{r.path} {r.open}/{r.total}" for r in model.nodes())
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}; open: {opened}")

    signal, facts, y = rows(500)
    p = ns.predict(model, (signal, facts), draws=30, seed=0, likelihood=ns.Gaussian(SIGMA))
    low, high = p.interval(0.9)
    print(f"RMSE {ns.metrics.rmse(p.mean, y):.3f} where the noise is {SIGMA} and the spread of y {y.std().item():.2f}")
    print(f"90 % intervals hold {ns.metrics.coverage(low, high, y):.0%}")
    print(ns.shrink_plan(model, (signal[:2], facts[:2])))


if __name__ == "__main__":
    main()
