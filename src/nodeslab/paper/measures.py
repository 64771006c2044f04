"""What is measured on the way and at the end of a run: errors, sparsities, costs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nodeslab import metrics
from nodeslab.costs import Probe, edges_of
from nodeslab.model import Bayesian
from nodeslab.paper.cases import Case
from nodeslab.paper.rows import Row
from nodeslab.prediction import RegressionPrediction, isolated_seed, predict

__all__ = ["Measure"]

TRAIN_ROWS = 10_000  # training figures are of at most this many rows, the first
FIGURES = 6  # significant digits in a record


def rounded(value: float) -> float:
    return float(f"{value:.{FIGURES}g}")


@dataclass(eq=False)
class Measure:
    """The figures of one run; the costs are counted on the whole network, also after nodes were cut out."""

    row: Row
    case: Case
    model: Bayesian
    probe: Probe = field(init=False)
    nodes: dict[str, int] = field(init=False)
    parts: dict[str, tuple[Tensor, Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            self.probe = Probe(self.model, self.case.X[:1])
        hidden = [p for p in self.model._posteriors() if not p.output]
        self.nodes = {p.path: p.geometry.nodes for p in hidden}
        case, there = self.case, next(self.model.posteriors.parameters()).device  # the rows go there once
        train = case.X[:TRAIN_ROWS].to(there), case.y[:TRAIN_ROWS]
        self.parts = {"train": train, "test": (case.X_test.to(there), case.y_test)}

    def at(self, epoch: int) -> dict[str, float]:
        """One epoch: errors on training and test rows, and what is left of the network."""
        out: dict[str, float] = {"epoch": epoch}
        for part, (X, y) in self.parts.items():
            p = predict(self.model, X, draws=self.row.curve_draws, seed=epoch)
            out |= {f"{part}_{name}": value for name, value in self._errors(p, y).items()}
        return out | self.left(seed=epoch)

    def _errors(self, p: Any, y: Tensor) -> dict[str, float]:
        """RMSE in the target's own units, or accuracy; and -log p of a row, in those units too."""
        nll = -float(p.log_density(y).double().mean())
        if isinstance(p, RegressionPrediction):
            scale = torch.tensor(self.case.scale, dtype=torch.float64)
            target = y.reshape(p.mean.shape)
            return {"rmse": metrics.rmse(p.mean, target) * self.case.scale, "nll": nll + float(scale.log())}
        return {"accuracy": metrics.accuracy(p.mean, y), "nll": nll}

    def left(self, seed: int) -> dict[str, float]:
        """Node sparsities, compression and FLOPs ratio, of the mean network and as the mean over 10 draws.

        The mean network has the nodes whose inclusion is above 0.5. A draw has those with a nonzero incoming weight,
        which is what the paper's own records count.
        """
        model = self.model
        counted = {path: mask.cpu() for path, mask in model.original_masks().items() if path in self.nodes}
        out = self._shares("mean", counted, edges_of(model))
        sums: dict[str, float] = {}
        with isolated_seed(seed), torch.no_grad():
            for _ in range(10):
                for name, value in self._of_draw().items():
                    sums[name] = sums.get(name, 0.0) + value / 10
        return out | sums

    def _of_draw(self) -> dict[str, float]:
        model, masks, weights = self.model, {}, {}
        with model.drawn() as net:
            for posterior in model._posteriors():
                layer = net.get_submodule(posterior.path)
                drawn = [t.detach() for t in layer._parameters.values() if t is not None]
                nonzero = drawn[0].flatten(1) != 0
                weights[posterior.path] = sum(int((t != 0).sum()) for t in drawn)
                if posterior.path in self.nodes:
                    masks[posterior.path] = model._numbered(posterior.path, nonzero.any(1)).cpu()
        # after a cut a node's weights from nodes that are gone are still counted, as they are without one
        return self._shares("draws", masks, None if model.origin else weights)

    def _shares(self, of: str, masks: dict[str, Tensor], weights: dict[str, int] | None) -> dict[str, float]:
        cost = self.probe(masks, weights)
        shares = {f"nodes_{of}_{path}": 1.0 for path in self.nodes}
        shares |= {f"nodes_{of}_{path}": float(mask.float().mean()) for path, mask in masks.items()}
        return shares | {f"compression_{of}": cost.compression_ratio, f"flops_{of}": cost.flops_ratio}

    def final(self) -> dict[str, float]:
        """The figures of the tables: 30 draws on the test rows."""
        case = self.case
        p = predict(self.model, self.parts["test"][0], draws=self.row.draws, seed=0)
        errors = self._errors(p, case.y_test)
        out = {"test_log_likelihood": -errors.pop("nll"), **{f"test_{name}": v for name, v in errors.items()}}
        if isinstance(p, RegressionPrediction):
            low, high = p.interval(0.9)
            target = case.y_test.reshape(p.mean.shape)
            out |= {"coverage90": metrics.coverage(low, high, target)}
            out |= {"sigma": float(p.noise.reshape(-1)[0]) * case.scale}
        else:
            out |= {"ece": metrics.ece(p.mean, case.y_test)}
        if case.noise_rmse is not None:
            out |= {"noise_rmse_train": case.noise_rmse[0], "noise_rmse_test": case.noise_rmse[1]}
        return {name: rounded(value) for name, value in {**out, **self.left(seed=0)}.items()}
