"""Predictions: many draws become a mean, a spread, quantiles, and for classes entropy and mutual information."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nodeslab.checks import probability, whole
from nodeslab.data import as_inputs, as_targets, same_rows
from nodeslab.graph import run
from nodeslab.layers import takes_integers
from nodeslab.likelihoods import LOG_2PI, Bernoulli, Categorical, Gaussian, Likelihood
from nodeslab.model import Bayesian, cuda_devices
from nodeslab.passes import passes

__all__ = ["ClassPrediction", "Prediction", "RegressionPrediction", "isolated_seed", "predict"]


class Prediction(ABC):
    """What is known about y for each row. mean and std have the network's output shape."""

    mean: Tensor
    std: Tensor

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.mean)} rows, outputs of shape {tuple(self.mean.shape[1:])})"

    @abstractmethod
    def quantile(self, q: float) -> Tensor:
        """The q-quantile of y for each row."""

    @abstractmethod
    def log_density(self, y: Any) -> Tensor:
        """log p(y) under the mixture of all draws, for each value of y."""

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval that holds y with probability `level`: (low, high)."""
        level = probability("level", level)
        return self.quantile((1.0 - level) / 2.0), self.quantile((1.0 + level) / 2.0)


@dataclass(frozen=True, eq=False, repr=False)
class RegressionPrediction(Prediction):
    """y = f(x) + noise: `draws` holds f for each draw, (draws, n, ...); `noise` is sigma_e (0: f itself)."""

    draws: Tensor
    noise: Tensor

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """E[y]: the mean over draws."""
        return self.draws.mean(0)

    @property
    def model_std(self) -> Tensor:
        """The standard deviation of f over draws: what more data would reduce."""
        if len(self.draws) == 1:
            return torch.zeros_like(self.draws[0])
        return self.draws.std(0)

    @property
    def noise_std(self) -> Tensor:
        """sigma_e, the noise that no data reduce."""
        return self.noise.expand_as(self.draws[0]).clone()

    @property
    def std(self) -> Tensor:  # type: ignore[override]
        """sqrt(model_std^2 + noise_std^2), the standard deviation of y."""
        return torch.sqrt(self.model_std.square() + self.noise.square())

    def quantile(self, q: float) -> Tensor:
        """The q-quantile of the mixture (1/S) sum_s N(f_s, sigma_e^2), by bisection to the type's precision."""
        q = probability("q", q)
        if not bool((self.noise > 0).all()):
            exact = torch.promote_types(self.draws.dtype, torch.float32)
            return torch.quantile(self.draws.to(exact), q, dim=0).to(self.draws.dtype)
        flat = self.draws.reshape(len(self.draws), -1)
        noise = self.noise.expand_as(self.draws[0]).reshape(-1)
        rows = max(1, 4_000_000 // len(flat))
        parts = [
            _mixture_quantile(flat[:, i : i + rows], noise[i : i + rows], q) for i in range(0, flat.shape[1], rows)
        ]
        return torch.cat(parts).reshape(self.draws.shape[1:])

    def log_density(self, y: Any) -> Tensor:
        values = Gaussian().targets(as_targets(y), self.draws[0])
        same_rows(self.draws[0], values, ("The prediction", "y"))
        if not bool((self.noise > 0).all()):
            raise ValueError(
                "There is no noise to give y a density: predict with a likelihood, such as ns.Gaussian(1.0)."
            )
        each = -0.5 * ((values - self.draws) / self.noise).square() - torch.log(self.noise) - 0.5 * LOG_2PI
        return torch.logsumexp(each, 0) - math.log(len(self.draws))


def _mixture_quantile(f: Tensor, noise: Tensor, q: float) -> Tensor:
    """Between the smallest and the largest component's quantile lies the mixture's."""
    f, s = f.double(), noise.double()
    reach = s * float(torch.special.ndtri(torch.tensor(q, dtype=torch.float64)))
    low, high = f.amin(0) + reach, f.amax(0) + reach
    for _ in range(60):
        middle = 0.5 * (low + high)
        below = torch.special.ndtr((middle - f) / s).mean(0) < q
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (0.5 * (low + high)).to(noise.dtype)


@dataclass(frozen=True, eq=False, repr=False)
class ClassPrediction(Prediction):
    """Class probabilities: `mean` over draws, and `std` over draws; `expected_entropy` is the draws' mean entropy."""

    mean: Tensor
    std: Tensor
    expected_entropy: Tensor
    binary: bool

    @property
    def probabilities(self) -> Tensor:
        """p(y = k | x), the mean over draws."""
        return self.mean

    @property
    def labels(self) -> Tensor:
        """The most probable class of each row."""
        return (self.mean > 0.5).long() if self.binary else self.mean.argmax(1)

    @property
    def entropy(self) -> Tensor:
        """H[mean over draws of p], all the uncertainty about the label, in nats."""
        return _entropy(self.mean, self.binary)

    @property
    def mutual_information(self) -> Tensor:
        """H[mean p] - mean H[p], the part that comes from not knowing the weights."""
        return (self.entropy - self.expected_entropy).clamp_min(0.0)

    def quantile(self, q: float) -> Tensor:
        raise ValueError("A class label has no quantile; see p.probabilities, p.entropy and p.mutual_information.")

    def log_density(self, y: Any) -> Tensor:
        labels = (Bernoulli() if self.binary else Categorical()).targets(as_targets(y), self.mean)
        same_rows(self.mean, labels, ("The prediction", "y"))
        tiny = torch.finfo(self.mean.dtype).tiny
        if self.binary:
            p = torch.where(labels == 1, self.mean, 1.0 - self.mean)
        else:
            p = self.mean.gather(1, labels.reshape(len(labels), 1, *self.mean.shape[2:])).squeeze(1)
        return torch.log(p.clamp_min(tiny))


def _entropy(p: Tensor, binary: bool) -> Tensor:
    if binary:
        both: Tensor = torch.special.entr(p) + torch.special.entr(1.0 - p)
        return both
    each: Tensor = torch.special.entr(p)
    return each.sum(1)


@contextmanager
def isolated_seed(seed: int | None) -> Iterator[int]:
    """Torch's generators start from `seed` within the block (None: a fresh seed), and are put back after it."""
    chosen = int(torch.randint(2**31 - 1, ()).item()) if seed is None else whole("seed", seed, least=0)
    if chosen >= 2**63:
        raise ValueError(f"seed must be below 2**63, got {seed}.")
    with torch.random.fork_rng(devices=cuda_devices()):
        torch.manual_seed(chosen)
        yield chosen


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Dropout off and running averages still, for the length of the block; every module's own mode comes back."""
    modes = [(m, m.training) for m in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def inputs_for(model: Bayesian, X: Any, name: str = "X") -> tuple[Tensor, ...]:
    """X (or a tuple of several inputs) as checked tensors of the model's type."""
    dtype = next(model.posteriors.parameters()).dtype
    keep = takes_integers(model.net)
    several = X if isinstance(X, tuple) else (X,)
    if not several:
        raise ValueError(f"{name} is an empty tuple; pass an array, or a tuple of one array for each input.")
    out = tuple(as_inputs(x, dtype, name if len(several) == 1 else f"{name}[{i}]", keep) for i, x in enumerate(several))
    for i, x in enumerate(out[1:], 1):
        if len(x) != len(out[0]):
            raise ValueError(f"{name}[{i}] has {len(x)} rows and {name}[0] has {len(out[0])}; they must be the same.")
    return out


def try_forward(model: Bayesian, inputs: tuple[Tensor, ...], name: str = "X") -> Tensor:
    """The output for the first rows, or a sentence that names the layer which the data do not fit."""
    device = next(model.posteriors.parameters()).device
    few = tuple(x[:2].to(device, copy=True) for x in inputs)
    with torch.no_grad(), evaluating(model), isolated_seed(0):
        out = run(model.net, few, name, call=model)
    if not isinstance(out, Tensor):
        raise TypeError(f"The network must return one tensor, got {type(out).__name__}; wrap it so that it does.")
    if out.dim() == 0 or len(out) != len(few[0]):
        raise ValueError(
            f"The network gives an output of shape {tuple(out.shape)} for {len(few[0])} rows; "
            "it must give one row for each."
        )
    return out


def changes_input(model: Bayesian, inputs: tuple[Tensor, ...]) -> bool:
    """True where the network's forward writes into its input: then it must be given a copy."""
    device = next(model.posteriors.parameters()).device
    few = tuple(x[:2].to(device, copy=True) for x in inputs)
    before = [x._version for x in few]
    with torch.no_grad(), evaluating(model), isolated_seed(0):
        model(*few)
    return [x._version for x in few] != before


@torch.no_grad()
def predict(
    model: Bayesian,
    X: Any,
    *,
    draws: int = 30,
    seed: int | None = 0,
    batch_size: int = 4096,
    likelihood: Likelihood | None = None,
) -> Prediction:
    """The posterior predictive distribution of y at X, from `draws` Monte Carlo draws of the weights.

    Each draw is one network that sees all rows, so a result does not depend on batch_size, which bounds the memory.
    The same seed gives the same numbers. The likelihood is the one that the model was fitted with, unless given;
    without either, the prediction is of the outputs themselves.
    """
    if not isinstance(model, Bayesian):
        raise TypeError(f"model must come from ns.bayesian, got {type(model).__name__}.")
    draws, batch_size = whole("draws", draws), whole("batch_size", batch_size)
    if any(p.is_meta for p in model.parameters()):
        raise ValueError("The model is on the meta device, which holds no numbers; load its weights first.")
    inputs = inputs_for(model, X)
    like = try_forward(model, inputs)
    chosen = model.likelihood if likelihood is None else likelihood
    if chosen is not None and not isinstance(chosen, Likelihood):
        raise TypeError(f"likelihood must be such as ns.Gaussian(1.0), got {type(chosen).__name__}.")
    if chosen is not None:
        chosen.outputs(like)
    device = next(model.posteriors.parameters()).device
    with evaluating(model), isolated_seed(seed):
        outputs = _outputs(model, inputs, draws, batch_size, device, like)
        if isinstance(chosen, (Categorical, Bernoulli)):
            return _classes(outputs, draws, isinstance(chosen, Bernoulli))
        stacked = torch.stack(list(outputs))
    noise = torch.zeros((), dtype=stacked.dtype)
    if isinstance(chosen, Gaussian):
        noise = chosen.scale(stacked, model.noise if chosen.learns else None).detach().to(stacked)
    return RegressionPrediction(stacked, noise)


def _outputs(
    model: Bayesian, inputs: tuple[Tensor, ...], draws: int, batch_size: int, device: torch.device, like: Tensor
) -> Iterator[Tensor]:
    """The outputs for all rows on the CPU, one draw after the other; `like` has their shape, rows aside."""
    rows, shape = len(inputs[0]), like.shape[1:]
    changed = changes_input(model, inputs)

    def part(net: Callable[..., Any], i: int) -> Tensor:
        few = tuple(x[i : i + batch_size] for x in inputs)
        try:
            out: Tensor = net(*(x.to(device, copy=changed) for x in few))
        except (IndexError, ValueError, RuntimeError) as e:
            if isinstance(e, torch.OutOfMemoryError):
                raise
            raise ValueError(
                f"The network cannot take rows {i} to {i + len(few[0]) - 1} of X. Its own words: {e}"
            ) from e
        return out.cpu().reshape(len(few[0]), *shape)  # a network that squeezes loses the axis of a single row

    small = passes(model, inputs, draws)
    for _ in range(draws):
        with model.drawn() as net:
            run_draw = small(net)
            parts = [part(run_draw, i) for i in range(0, rows, batch_size)]
        yield torch.cat(parts)


def _classes(outputs: Iterator[Tensor], draws: int, binary: bool) -> ClassPrediction:
    """Running sums over draws: memory does not grow with them. The variance is Welford's."""
    mean = squares = entropy = None
    for i, logits in enumerate(outputs, 1):
        p = torch.sigmoid(logits) if binary else torch.softmax(logits, 1)
        h = _entropy(p, binary)
        if mean is None or squares is None or entropy is None:
            mean, squares, entropy = p.clone(), torch.zeros_like(p), h.clone()
            continue
        delta = p - mean
        mean += delta / i
        squares += delta * (p - mean)
        entropy += (h - entropy) / i
    assert mean is not None
    assert squares is not None
    assert entropy is not None
    return ClassPrediction(mean, torch.sqrt(squares / max(draws - 1, 1)), entropy, binary)
