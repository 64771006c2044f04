"""p(y | f(x)): what the network's output means. Choices are frozen; a learnt noise is a module of the model."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nodeslab import metrics
from nodeslab.checks import number

if TYPE_CHECKING:
    from nodeslab.prediction import Prediction

__all__ = ["Bernoulli", "Categorical", "Gaussian", "Likelihood", "Noise", "Weighted"]

LOG_2PI = math.log(2.0 * math.pi)


class Noise(nn.Module):
    """sigma_e of a Gaussian likelihood, one for each output, learnt as a point by maximising the ELBO."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.log_sigma = nn.Parameter(torch.log(start))

    def sigma(self) -> Tensor:
        return torch.exp(self.log_sigma)


class Likelihood(ABC):
    """What turns outputs and targets into a log-likelihood."""

    def outputs(self, outputs: Tensor) -> None:  # noqa: B027
        """Refuse a network whose outputs this likelihood cannot take; by default it can take all."""

    @abstractmethod
    def targets(self, y: Tensor, outputs: Tensor) -> Tensor:
        """y in the shape and type that `nll` takes, checked against one batch of the network's outputs."""

    @abstractmethod
    def each(self, outputs: Tensor, y: Tensor, noise: Noise | None) -> Tensor:
        """-log p(y | outputs) of each value of y, rows first."""

    def nll(self, outputs: Tensor, y: Tensor, noise: Noise | None) -> Tensor:
        """-log p(y | outputs), summed over the rows."""
        return self.each(outputs, y, noise).sum()

    @abstractmethod
    def metrics(self, prediction: Prediction, y: Tensor) -> dict[str, float]:
        """Figures for a validation set."""

    @property
    def learns(self) -> bool:
        """True when there is a noise to learn."""
        return False


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """y ~ N(f(x), sigma_e^2). sigma: the noise's standard deviation, or "learn"."""

    sigma: float | str = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.sigma, str):
            if self.sigma != "learn":
                raise ValueError(f'Gaussian: sigma must be a positive number or "learn", got {self.sigma!r}.')
        else:
            object.__setattr__(self, "sigma", number('Gaussian: sigma (a number, or "learn")', self.sigma, 1e-15, 1e15))

    @property
    def learns(self) -> bool:
        return self.sigma == "learn"

    def scale(self, like: Tensor, noise: Noise | None) -> Tensor:
        """sigma_e as a tensor that broadcasts over the outputs."""
        if noise is not None:
            return noise.sigma()
        if isinstance(self.sigma, str):
            raise ValueError(
                'The noise of Gaussian("learn") is learnt by ns.fit; fit the model first, or give a number.'
            )
        return torch.tensor(float(self.sigma), dtype=like.dtype, device=like.device)

    def targets(self, y: Tensor, outputs: Tensor) -> Tensor:
        if y.is_complex():
            raise TypeError("y is complex; a Gaussian likelihood needs real targets.")
        values = y.to(outputs.dtype)
        if not bool(torch.isfinite(values).all()):
            raise ValueError(f"y holds NaN, or values that do not fit into {outputs.dtype}; standardise it.")
        wanted = outputs.shape[1:]
        if values.shape[1:] == wanted:
            return values
        if values.dim() == 1 and wanted == (1,):
            return values.unsqueeze(1)
        if values.dim() == 2 and values.shape[1] == 1 and wanted == ():
            return values.squeeze(1)
        raise ValueError(
            f"y has shape {tuple(y.shape)}, but the network gives {tuple(wanted) or 'one number'} for each row; "
            f"y must be {'(n,) or ' if wanted in ((1,), ()) else ''}(n, {', '.join(map(str, wanted)) or '1'})."
        )

    def nll(self, outputs: Tensor, y: Tensor, noise: Noise | None) -> Tensor:
        if noise is None and not isinstance(self.sigma, str):
            constant = y.numel() * (math.log(self.sigma) + 0.5 * LOG_2PI)
            return (outputs - y).square().sum() * (0.5 / self.sigma**2) + constant
        return self.each(outputs, y, noise).sum()

    def each(self, outputs: Tensor, y: Tensor, noise: Noise | None) -> Tensor:
        sigma = self.scale(outputs, noise)
        return ((outputs - y) / sigma).square() * 0.5 + torch.log(sigma) + 0.5 * LOG_2PI

    def metrics(self, prediction: Prediction, y: Tensor) -> dict[str, float]:
        low, high = prediction.interval(0.9)
        return {
            "rmse": metrics.rmse(prediction.mean, y),
            "nll": float(-prediction.log_density(y).mean()),
            "coverage90": metrics.coverage(low, high, y),
        }


@dataclass(frozen=True)
class Categorical(Likelihood):
    """y ~ Cat(softmax(f(x))): the network gives one logit for each class, labels are 0 ... K-1."""

    def outputs(self, outputs: Tensor) -> None:
        if outputs.dim() < 2 or outputs.shape[1] < 2:
            raise ValueError(
                f"Categorical needs one output for each class, but the network gives {tuple(outputs.shape[1:])} for "
                "each row. Give the last layer K >= 2 outputs, or use ns.Bernoulli() for one."
            )

    def targets(self, y: Tensor, outputs: Tensor) -> Tensor:
        self.outputs(outputs)
        if y.is_floating_point() or y.is_complex():
            raise TypeError(
                f"Labels must be integers 0 ... K-1, got y of type {y.dtype}; convert it with y.astype(int)."
            )
        wanted = outputs.shape[2:]
        labels = y.long()
        if labels.dim() == 2 and labels.shape[1] == 1 and wanted == ():
            labels = labels.squeeze(1)
        if labels.shape[1:] != wanted:
            raise ValueError(
                f"y has shape {tuple(y.shape)}; labels for this network have shape "
                f"(n{''.join(f', {w}' for w in wanted)})."
            )
        classes = outputs.shape[1]
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= classes:
            raise ValueError(
                f"y holds the label {low if low < 0 else high}, but the network has {classes} outputs: labels must be "
                f"0 ... {classes - 1}. Recode them with numpy.unique(y, return_inverse=True)[1]."
            )
        return labels

    def nll(self, outputs: Tensor, y: Tensor, noise: Noise | None) -> Tensor:
        return F.cross_entropy(outputs, y, reduction="sum")

    def each(self, outputs: Tensor, y: Tensor, noise: Noise | None) -> Tensor:
        return F.cross_entropy(outputs, y, reduction="none")

    def metrics(self, prediction: Prediction, y: Tensor) -> dict[str, float]:
        p = prediction.mean.movedim(1, -1)
        return _classification(p.reshape(-1, p.shape[-1]), y.reshape(-1))


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """y ~ Ber(sigmoid(f(x))): the network gives a logit for each yes-or-no target, y is 0 or 1."""

    def targets(self, y: Tensor, outputs: Tensor) -> Tensor:
        if y.is_complex() or not bool(((y == 0) | (y == 1)).all()):
            raise ValueError(
                "Bernoulli needs targets 0 and 1, got other values in y; recode them, or use ns.Categorical()."
            )
        return Gaussian().targets(y, outputs)

    def each(self, outputs: Tensor, y: Tensor, noise: Noise | None) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, y, reduction="none")

    def metrics(self, prediction: Prediction, y: Tensor) -> dict[str, float]:
        p = prediction.mean.reshape(-1)
        return _classification(torch.stack([1.0 - p, p], 1), y.reshape(-1).long())


@dataclass(frozen=True)
class Weighted(Likelihood):
    """sum_i w_i log p(y_i | x_i): a row of weight 2 is two equal rows, one of weight 0 is none.

    y has one column more than the targets of `base`, the last one: the weights. It is for a fit only; a model predicts
    with `base`. A noise that is learnt must stand in the model before the fit, started on the weighted targets.
    """

    base: Likelihood

    def outputs(self, outputs: Tensor) -> None:
        self.base.outputs(outputs)

    def targets(self, y: Tensor, outputs: Tensor) -> Tensor:
        if y.dim() != 2 or y.shape[1] < 2 or not y.is_floating_point():
            raise ValueError(
                f"y has shape {tuple(y.shape)} and type {y.dtype}; targets and a last column of weights, as real "
                "numbers, were expected."
            )
        values, weights = y[:, :-1], y[:, -1:]
        if not bool((torch.isfinite(weights) & (weights >= 0)).all()):
            raise ValueError("The weights in the last column of y must be finite and at least 0.")
        if isinstance(self.base, Categorical):
            values = values.long()
        checked = self.base.targets(values, outputs).reshape(len(y), -1)
        return torch.cat([checked.to(outputs.dtype), weights.to(outputs.dtype)], 1)

    def each(self, outputs: Tensor, y: Tensor, noise: Noise | None) -> Tensor:
        values = y[:, 0].long() if isinstance(self.base, Categorical) else y[:, :-1].reshape(outputs.shape)
        loss = self.base.each(outputs, values, noise)
        return loss.reshape(len(y), -1).sum(1) * y[:, -1]

    def metrics(self, prediction: Prediction, y: Tensor) -> dict[str, float]:
        raise ValueError("Weighted is for a fit; measure a prediction with the likelihood that it weighs.")

    @property
    def learns(self) -> bool:
        return self.base.learns


def _classification(p: Tensor, labels: Tensor) -> dict[str, float]:
    return {
        "accuracy": metrics.accuracy(p, labels),
        "nll": metrics.categorical_nll(p, labels),
        "ece": metrics.ece(p, labels),
    }
