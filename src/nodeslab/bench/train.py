"""A whole fit of the paper's MLP on MNIST: SS-IG that shrinks while it trains, against the plain network's epochs and
the authors' way, an epoch of each in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from nodeslab.bench import machine, mlp, spread
from nodeslab.bench.authors import authors_step, converted
from nodeslab.bench.digits import Digits, digits
from nodeslab.checks import whole
from nodeslab.likelihoods import Categorical
from nodeslab.model import Bayesian, bayesian
from nodeslab.prediction import isolated_seed, predict
from nodeslab.sources import Arrays, Batch
from nodeslab.spec import ssig
from nodeslab.theory import authors_image_priors
from nodeslab.training import Ramp, Record, fit

__all__ = ["bayesian_accuracy", "fit_mlp", "fresh", "spread_of", "train"]

BATCH, RATE = 1024, 1e-3
#: With the paper's settings all gates fall together and no node closes by itself (docs/design.md): gates with a rate of
#: their own, and a likelihood that outweighs the slabs' KL, decide within some ten epochs which nodes stay.
GATE_RATE, WEIGHT = 15.0, Ramp(30.0, 30.0)
DECAY = Ramp(1.0, 0.05, 0.7, 1.0)
Epoch = Callable[[], None]


def fresh(seed: int, n: int) -> Bayesian:
    """784-400-400-10 with swish, the authors' priors, means from Kaiming uniform."""
    with isolated_seed(seed):
        return bayesian(mlp(), ssig(prior=authors_image_priors("mlp")), n=n, init="kaiming")


def train(epochs: int = 100, seeds: int = 3, data: Digits | None = None, batch_size: int = BATCH) -> dict[str, Any]:
    """The first seed is timed beside its rivals; the others are only for the spread of accuracy and open nodes, which
    is compared with that of fits without compaction where there are several."""
    whole("epochs", epochs)
    whole("seeds", seeds)
    data = digits() if data is None else data
    result: dict[str, Any] = {"bench": "train", "epochs": epochs, "seeds": seeds, "rows": len(data.y), **machine()}
    outcomes: dict[bool, list[tuple[float, int]]] = {True: [], False: []}
    for compact in (True, False)[: min(seeds, 2)]:
        model = fresh(0, len(data.y))
        net = model.mean()
        rivals = {"plain": _plain_epoch(net, data, batch_size)}
        if compact:
            rivals["authors' layers"] = _authors_epoch(data, batch_size)
        name = f"784-400-400-10, {epochs} epochs, {'compact' if compact else 'not compact'}"
        case, left = _beside(model, data, epochs, batch_size, compact, rivals)
        case["plain"]["accuracy"] = _accuracy(net, data)
        result[name] = case
        outcomes[compact].append((bayesian_accuracy(model, data), left))
        case["ss-ig"] |= {"accuracy": outcomes[compact][0][0], "open": left}
    for seed in range(1, seeds):
        for compact in (True, False):
            model = fresh(seed, len(data.y))
            left = fit_mlp(model, data, epochs, batch_size, compact, seed)
            outcomes[compact].append((bayesian_accuracy(model, data), left))
    if seeds > 1:
        result["accuracy and open nodes"] = _compared(outcomes)
    return result


def fit_mlp(
    model: Bayesian,
    data: Digits,
    epochs: int,
    batch_size: int,
    compact: bool,
    seed: int,
    callback: Callable[[Bayesian, Record], object] | None = None,
    amp: bool = False,
) -> int:
    """The fit under test; the number of nodes that are left."""
    history = fit(
        model,
        (data.X, data.y),
        likelihood=Categorical(),
        epochs=epochs,
        batch_size=batch_size,
        lr=RATE,
        seed=seed,
        gate_rate=GATE_RATE,
        likelihood_schedule=WEIGHT,
        lr_schedule=DECAY,
        compact=compact,
        amp=amp,
        callback=callback,
        progress=False,
    )
    return sum(history[-1].open.values())


def _beside(
    model: Bayesian, data: Digits, epochs: int, batch_size: int, compact: bool, rivals: dict[str, Epoch]
) -> tuple[dict[str, Any], int]:
    """The fit, with an epoch of every rival after each of its own. Its time is all that passes between two calls of
    its callback: steps, records and cuts."""
    times: dict[str, list[float]] = {"ss-ig": [], **{name: [] for name in rivals}}
    resumed = time.perf_counter()
    states = {name: torch.Generator().manual_seed(i).get_state() for i, name in enumerate(rivals)}

    def turn(_: Bayesian, record: Record) -> None:
        nonlocal resumed
        times["ss-ig"].append(time.perf_counter() - resumed)
        own = torch.get_rng_state()  # the fit draws the same numbers as it would alone
        for name, run in rivals.items():
            torch.set_rng_state(states[name])
            begun = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - begun)
            states[name] = torch.get_rng_state()
        torch.set_rng_state(own)
        resumed = time.perf_counter()

    left = fit_mlp(model, data, epochs, batch_size, compact, 0, turn)
    return totals(times), left


def totals(times: dict[str, list[float]]) -> dict[str, Any]:
    """Seconds of all epochs, as a ratio to the plain network's and the authors', with quartiles over the epochs."""
    out: dict[str, Any] = {}
    for name, values in times.items():
        low, high = spread([v / b for v, b in zip(values, times["plain"], strict=True)])
        out[name] = {
            "seconds": round(sum(values), 2),
            "ratio": round(sum(values) / sum(times["plain"]), 4),
            "ratio_quartiles": [low, high],
        }
        if "authors' layers" in times:
            out[name]["of_authors"] = round(sum(values) / sum(times["authors' layers"]), 4)
        out[name]["epoch_ms"] = [round(1e3 * v, 1) for v in values[:: max(1, len(values) // 50)]]
    return out


def _batches(data: Digits, batch_size: int) -> Iterator[Batch]:
    """As in `fit`."""
    return Arrays((data.X,), data.y, batch_size).epoch()


def _plain_epoch(net: torch.nn.Module, data: Digits, batch_size: int) -> Epoch:
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE, fused=True)

    def run() -> None:
        for (X,), y in _batches(data, batch_size):
            F.cross_entropy(net(X), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return run


def _authors_epoch(data: Digits, batch_size: int) -> Epoch:
    with isolated_seed(0):
        net = converted(mlp(), tuple(authors_image_priors("mlp")))
    step = authors_step(net, len(data.y), torch.optim.Adam(net.parameters(), lr=RATE))

    def run() -> None:
        for (X,), y in _batches(data, batch_size):
            step(X, y)

    return run


@torch.no_grad()
def _accuracy(net: torch.nn.Module, data: Digits) -> float:
    return round(float((net(data.X_test).argmax(1) == data.y_test).float().mean()), 4)


def bayesian_accuracy(model: Bayesian, data: Digits) -> float:
    prediction = predict(model, data.X_test, draws=30, seed=0)
    return round(float((prediction.mean.argmax(1) == data.y_test).float().mean()), 4)


def _compared(outcomes: dict[bool, list[tuple[float, int]]]) -> dict[str, Any]:
    """Means and standard deviations over seeds, and how far compact is from not compact as a share of both spreads."""
    out: dict[str, Any] = {}
    for compact, values in outcomes.items():
        out["compact" if compact else "not compact"] = spread_of(values)
    for i, name in enumerate(("accuracy", "open")) if len(outcomes[True]) > 1 else ():
        a, b = ([v[i] for v in outcomes[c]] for c in (True, False))
        spreads = statistics.stdev(a) + statistics.stdev(b)
        apart = abs(statistics.mean(a) - statistics.mean(b))
        out["compact"][f"{name}_apart"] = round(apart / spreads, 3) if spreads > 0 else float(apart > 0) * 99.0
    return out


def spread_of(outcomes: Sequence[tuple[float, int]]) -> dict[str, Any]:
    """Mean and standard deviation, over seeds, of accuracies and open nodes."""
    out: dict[str, Any] = {}
    for name, values, places in zip(("accuracy", "open"), zip(*outcomes, strict=True), (4, 1), strict=True):
        out[name] = round(statistics.mean(values), places)
        out[f"{name}_sd"] = round(statistics.stdev(values), 4) if len(values) > 1 else None
    return out
