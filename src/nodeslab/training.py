"""The training loop (algorithm 1): Adam on -ELBO, from arrays or any DataLoader, stoppable and resumable to the bit."""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from tqdm import tqdm

from nodeslab import sealed
from nodeslab.checks import flag, number, whole
from nodeslab.compaction import Compact, Compaction, as_compact
from nodeslab.costs import Probe, edges_of
from nodeslab.data import as_targets, same_rows
from nodeslab.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Noise
from nodeslab.model import Bayesian, row_of
from nodeslab.parallel import Ranks, join
from nodeslab.posterior import Posterior
from nodeslab.prediction import changes_input, inputs_for, isolated_seed, predict, try_forward
from nodeslab.replay import Replay
from nodeslab.sources import Arrays, Batch, Loader, Randomness, Source, source_for
from nodeslab.streamed import Streamed

__all__ = ["History", "Ramp", "Record", "fit"]


@dataclass(frozen=True)
class Ramp:
    """A schedule: `start` until the share `begin` of the epochs, then to `end` at the share `until`, then `end`.

    log=True goes in equal factors instead of equal steps. A likelihood weight that sharpens from 0.03 to 1 between
    20 and 60 % of the epochs is `Ramp(0.03, 1.0, 0.2, 0.6, log=True)`.
    """

    start: float
    end: float
    begin: float = 0.0
    until: float = 1.0
    log: bool = False

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            object.__setattr__(self, name, number(f"Ramp: {name}", getattr(self, name), 0.0))
        for name in ("begin", "until"):
            object.__setattr__(self, name, number(f"Ramp: {name}", getattr(self, name), 0.0, least=True))
        if not 0.0 <= self.begin < self.until <= 1.0:
            raise ValueError(f"Ramp: 0 <= begin < until <= 1 is needed, got begin={self.begin}, until={self.until}.")

    def __call__(self, t: float) -> float:
        """The value after the share t of all epochs."""
        share = min(max((t - self.begin) / (self.until - self.begin), 0.0), 1.0)
        if self.log:
            return float(self.start * (self.end / self.start) ** share)
        return self.start + (self.end - self.start) * share


Schedule = Callable[[float], float]


@dataclass(frozen=True)
class Record:
    """One epoch. elbo = -(n nll + kl) in nats, with nll the mean over rows and draws during the epoch."""

    epoch: int
    elbo: float
    nll: float
    kl: float
    open: dict[str, int]
    flops: int
    flops_ratio: float
    seconds: float
    lr: float
    validation: dict[str, float] = field(default_factory=dict)


@dataclass
class History(Sequence[Record]):
    """The records of a fit, one for each epoch, and how it ended: "epochs", "converged" or "callback"."""

    records: list[Record] = field(default_factory=list)
    seed: int = 0
    stopped: str = "epochs"

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, i: int) -> Record: ...
    @overload
    def __getitem__(self, i: slice) -> list[Record]: ...
    def __getitem__(self, i: int | slice) -> Record | list[Record]:
        return self.records[i]

    def column(self, name: str) -> list[Any]:
        """One field of every record, such as "elbo"."""
        if self.records and name not in asdict(self.records[0]):
            raise ValueError(f"A record has no field {name!r}; it has {', '.join(asdict(self.records[0]))}.")
        return [getattr(r, name) for r in self.records]

    def __repr__(self) -> str:
        if not self.records:
            return "History(no epochs)"
        last = self.records[-1]
        return (
            f"History({len(self.records)} epochs, stopped: {self.stopped}, elbo {last.elbo:.6g}, nll {last.nll:.4g}, "
            f"open {sum(last.open.values())}, FLOPs ratio {last.flops_ratio:.3f})"
        )


# ---- leaving cleanly -----------------------------------------------------------------------------------------------


class _Signals:
    """Between enter and exit the first SIGTERM or Ctrl-C is noted, not obeyed; a second one is."""

    def __init__(self, active: bool) -> None:
        self.received: int | None = None
        self.active = active and threading.current_thread() is threading.main_thread()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        if self.active:
            for which in (signal.SIGTERM, signal.SIGINT):
                self._before[which] = signal.signal(which, self._note)
        return self

    def _note(self, which: int, frame: FrameType | None) -> None:
        self.received = which
        self._restore()

    def _restore(self) -> None:
        for which, handler in self._before.items():
            signal.signal(which, handler)

    def __exit__(self, *error: object) -> None:
        if self.active:
            self._restore()


# ---- the fit -------------------------------------------------------------------------------------------------------


def fit(
    model: Bayesian,
    data: Any,
    *,
    likelihood: Likelihood | None = None,
    epochs: int = 100,
    batch_size: int = 128,
    lr: float = 1e-3,
    seed: int | None = None,
    samples: int = 1,
    epsilon: float | None = None,
    window: int = 10,
    lr_schedule: Schedule | None = None,
    likelihood_schedule: Schedule | None = None,
    validation: tuple[Any, Any] | None = None,
    validation_draws: int = 10,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 30.0,
    callback: Callable[[Bayesian, Record], object] | None = None,
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None,
    accumulate: int = 1,
    clip: float | None = None,
    amp: bool = False,
    compile: bool = False,
    graph: bool = False,
    compact: bool | Compact = False,
    gate_rate: float = 1.0,
    spread_rate: float = 1.0,
    allow_constant: bool = False,
    progress: bool | None = None,
) -> History:
    """Maximise ELBO = E_q[log p(y | X, w)] - KL(q || p) over the model's parameters, in place (algorithm 1).

    Each batch adds sum_i [-log p(y_i | x_i, w) + KL / n] over its rows i, divided by batch_size: over an epoch the
    rows add up to -ELBO exactly, whatever the batch size, a short last batch or accumulation.

    Processes that `torchrun` started, or that initialised torch.distributed, fit together: each calls fit with the same
    model, arguments and all of the data, takes its share of every batch's rows, and ends with the same history. The
    draw is the same on all ranks, so that they equal one process to float error (dropout and batch norm aside: a rank
    drops and normalises its own rows, and running averages are rank 0's). Rank 0 writes the checkpoint.

    data: (X, y), kept in memory, rows first; ((X1, X2), y) for several inputs; any DataLoader of such pairs; or data
        larger than memory, dealt out in shuffled blocks: (X, y) with a numpy.memmap among them, or ns.Parquet.
    likelihood: ns.Gaussian(sigma or "learn"), ns.Categorical() or ns.Bernoulli().
    seed: the same seed on the same machine gives the same bits; torch's own generators are left as they were.
    samples: S, Monte Carlo draws for each step. accumulate: batches for each optimizer step.
    epsilon: stop when the ELBO, averaged over `window` epochs, changes by less than this many nats; not before a
        likelihood_schedule that is an ns.Ramp has come to its end.
    lr_schedule, likelihood_schedule: factors on lr and on the data term, functions of the share of epochs done,
        such as ns.Ramp(1.0, 0.05, 0.7, 1.0).
    validation: (X, y) whose metrics go into every record.
    checkpoint: a file to resume from, written every `checkpoint_seconds` (0: every epoch), at SIGTERM and Ctrl-C,
        and at the end; the generation before it is kept beside it. The same call again goes on where it stopped.
    callback: called with the model and each record; return True to stop.
    optimizer: parameters -> optimizer; Adam(lr) by default. clip: the largest gradient norm. amp: bfloat16 autocast.
    compile: run the network through torch.compile. The draws and the batches are those of the same seed without it, so
        the fit is the same to float error; the first batch waits for the compiler, and convolutions gain most.
    graph: record the step as a CUDA graph and replay it, several times as fast where launching is what takes time (all
        networks of the paper). Arrays are kept on the device. The network's Python runs while the step is recorded
        only, so its forward must do the same thing every time; NaN is noticed at the end of an epoch.
    compact: cut nodes that have closed for good out of the model at the end of an epoch, in place, so that each step
        costs less (`ns.Compact` says when); records and `model.nodes()` go on counting the original nodes. `model`
        stays the same object, `model.net` and `model.posteriors` do not. What cut nodes leave in the KL belongs to this
        fit: another fit of the same model, or a saved one, is of the smaller network alone.
    gate_rate, spread_rate: factors on lr for the gates' logits and for the spreads. Adam moves a gate by about its rate
        at each step: a faster one decides sooner which nodes stay, a faster spread makes a node cheaper to keep.
    allow_constant: accept constant columns in a narrow table.
    progress: a bar on stderr; by default only on a terminal.
    """
    if not isinstance(model, Bayesian):
        raise TypeError(f"model must come from ns.bayesian, got {type(model).__name__}; wrap the network first.")
    if model._held is not None:
        raise RuntimeError("A draw is held: call fit outside the `with model.drawn()` block.")
    if torch.is_inference_mode_enabled():
        raise RuntimeError("fit needs gradients: call it outside torch.inference_mode().")
    _refuse_meta(model)
    chosen = chosen_likelihood(model, likelihood)
    options = _Options(
        likelihood=chosen,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        seed=seed,
        samples=samples,
        epsilon=epsilon,
        window=window,
        lr_schedule=lr_schedule,
        likelihood_schedule=likelihood_schedule,
        validation_draws=validation_draws,
        checkpoint=None if checkpoint is None else _path(checkpoint),
        checkpoint_seconds=checkpoint_seconds,
        callback=callback,
        optimizer=optimizer,
        accumulate=accumulate,
        clip=clip,
        amp=amp,
        compile=compile,
        graph=graph,
        compact=as_compact(compact),
        gate_rate=gate_rate,
        spread_rate=spread_rate,
        progress=progress,
    )
    source = source_for(model, data, options.batch_size, flag("allow_constant", allow_constant))
    ranks = join(next(model.posteriors.parameters()).device)
    run = _Run(model, source, options, _validation(model, validation, chosen), ranks)
    with isolated_seed(seed) as first:
        run.history.seed = first
        run.meet()
        run.resume()
        was_training = model.training
        try:
            with torch.enable_grad():
                run.train()
        finally:
            model.train(was_training)
    return run.history


def chosen_likelihood(model: Bayesian, likelihood: object) -> Likelihood:
    """The one that is given, or the one that the model was fitted with."""
    chosen = model.likelihood if likelihood is None else likelihood
    if chosen is None:
        raise ValueError(
            'fit needs a likelihood: ns.Gaussian(1.0), ns.Gaussian("learn"), ns.Categorical(), ns.Bernoulli().'
        )
    if not isinstance(chosen, Likelihood):
        raise TypeError(f"likelihood must be such as ns.Gaussian(1.0), got {type(chosen).__name__}.")
    return chosen


def _path(value: Any) -> Path:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"checkpoint must be a path, got {value!r} of type {type(value).__name__}.")
    return Path(value)


def _refuse_meta(model: Bayesian) -> None:
    if any(p.is_meta for p in model.parameters()):
        raise ValueError(
            "The model is on the meta device, which holds no numbers; move it with to_empty and load weights."
        )


@dataclass(frozen=True)
class _Options:
    """The arguments of `fit`, checked."""

    likelihood: Likelihood
    epochs: int = 1
    batch_size: int = 128
    lr: float = 1e-3
    seed: int | None = None
    samples: int = 1
    epsilon: float | None = None
    window: int = 10
    lr_schedule: Schedule | None = None
    likelihood_schedule: Schedule | None = None
    validation_draws: int = 10
    checkpoint: Path | None = None
    checkpoint_seconds: float = 30.0
    callback: Callable[[Bayesian, Record], object] | None = None
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None
    accumulate: int = 1
    clip: float | None = None
    amp: bool = False
    compile: bool = False
    graph: bool = False
    compact: Compact | None = None
    gate_rate: float = 1.0
    spread_rate: float = 1.0
    progress: bool | None = None

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        for name in ("epochs", "batch_size", "samples", "window", "validation_draws", "accumulate"):
            put(name, whole(name, getattr(self, name)))
        for name in ("lr", "gate_rate", "spread_rate"):
            put(name, number(name, getattr(self, name), 0.0))
        if self.optimizer is not None and (self.gate_rate, self.spread_rate) != (1.0, 1.0):
            raise ValueError("gate_rate and spread_rate are for the default Adam; an optimizer of yours sets its own.")
        if self.seed is not None:
            put("seed", whole("seed", self.seed, least=0))
        put("checkpoint_seconds", number("checkpoint_seconds", self.checkpoint_seconds, 0.0, least=True))
        for name in ("epsilon", "clip"):
            if getattr(self, name) is not None:
                put(name, number(name, getattr(self, name), 0.0))
        put("amp", flag("amp", self.amp))
        put("compile", flag("compile", self.compile))
        put("graph", flag("graph", self.graph))
        if self.graph and (self.optimizer is not None or self.compile or self.samples * self.accumulate > 1):
            raise ValueError(
                "graph=True records one draw, one backward and the default Adam: leave out optimizer, compile, samples "
                "and accumulate, or graph."
            )
        if self.progress is not None:
            put("progress", flag("progress", self.progress))
        if self.checkpoint is not None and not self.checkpoint.name:
            raise ValueError(f"checkpoint must name a file, got {str(self.checkpoint)!r}.")
        for name in ("lr_schedule", "likelihood_schedule", "callback", "optimizer"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise TypeError(f"{name} must be a function, got {value!r} of type {type(value).__name__}.")

    def setting(self, source: Source, model: Bayesian, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """What must be the same when a fit is resumed, by name; more epochs may follow where no schedule spans them."""
        digest = hashlib.sha256()
        if isinstance(source, Arrays):
            for tensor in (*source.inputs, source.y):
                digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        elif isinstance(source, Streamed):
            digest.update(source.fingerprint())
        same: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("lr", "seed", "samples", "accumulate", "clip", "amp", "compile", "epsilon", "window")
        }
        same |= {"gate_rate": self.gate_rate, "spread_rate": self.spread_rate, "compact": repr(self.compact)}
        for name in ("lr_schedule", "likelihood_schedule"):
            schedule = getattr(self, name)
            same[name] = repr(schedule) if isinstance(schedule, Ramp) else schedule is not None
        scheduled = self.lr_schedule is not None or self.likelihood_schedule is not None
        plan = [[p.path, repr(p.prior), p.output, p.inclusion_prior] for p in model._posteriors()]
        same |= {
            "likelihood": repr(self.likelihood),
            "batch_size": source.batch_size,
            "epochs": self.epochs if scheduled else None,
            "data": digest.hexdigest(),
            "n": model.n,
            "plan": plan,
            "network": repr(model.net),
            "frozen": [name for name, p in model.named_parameters() if not p.requires_grad],
            "optimizer": f"{type(optimizer).__name__} {optimizer.defaults}",
        }
        return dict(json.loads(json.dumps(same)))


def _validation(model: Bayesian, pair: Any, likelihood: Likelihood) -> tuple[tuple[Tensor, ...], Tensor] | None:
    if pair is None:
        return None
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(f"validation must be a pair (X, y), got {type(pair).__name__}.")
    inputs, y = inputs_for(model, pair[0], "X of validation"), as_targets(pair[1], "y of validation")
    same_rows(inputs[0], y, ("X of validation", "y"))
    return inputs, likelihood.targets(y, try_forward(model, inputs, "X of validation"))


def _scheduled(name: str, schedule: Schedule | None, share: float) -> float:
    """The schedule's value, a positive number."""
    return 1.0 if schedule is None else number(f"{name}({share:g})", schedule(share), 0.0)


def _run(net: nn.Module, *inputs: Tensor) -> Any:
    return net(*inputs)


def rated(named: Iterable[tuple[str, nn.Parameter]], options: _Options) -> list[dict[str, Any]]:
    """Groups of parameters with their rates: gates and spreads have their own where that is asked for."""
    rates = {"means": 1.0, "gates": options.gate_rate, "spreads": options.spread_rate}
    groups: dict[str, list[nn.Parameter]] = {name: [] for name in rates}
    for name, p in named:
        leaf = name.rpartition(".")[2]
        kind = "gates" if leaf == "logit" else "spreads" if leaf.startswith("rho") else "means"
        groups["means" if rates[kind] == 1.0 else kind].append(p)
    return [{"params": ps, "lr": options.lr * rates[kind]} for kind, ps in groups.items() if ps]


class _Run:
    """One fit on its way: what a checkpoint holds is exactly this object's state."""

    def __init__(
        self,
        model: Bayesian,
        source: Source,
        options: _Options,
        validation: tuple[tuple[Tensor, ...], Tensor] | None,
        ranks: Ranks,
    ) -> None:
        self.model, self.source, self.options, self.validation = model, source, options, validation
        self.ranks, self.signals = ranks, _Signals(options.checkpoint is not None)
        self.received: int | None = None  # a signal that some rank has received, as of the last step
        self.likelihood = options.likelihood
        self.device = next(model.posteriors.parameters()).device
        if options.graph and (self.device.type != "cuda" or ranks.count > 1):
            raise ValueError(
                f"graph=True is for one process with its model on a CUDA device; this one is on {self.device}"
                f"{f' in {ranks.count} processes' if ranks.count > 1 else ''}. Leave it out, or move the model."
            )
        inputs, y = source.first()
        outputs = try_forward(model, inputs)
        model.row = row_of(inputs)
        # a forward that writes into its input would hand it changed to the next sample, or to the caller of a loader
        self.copies = changes_input(model, inputs)
        if source.rows is not None and source.rows != model.n:
            warnings.warn(
                f"The data have {source.rows} rows, but the model was built for n={model.n}: the KL is weighed by "
                f"1/{model.n} for each row. Build it with ns.bayesian(..., n={source.rows}) if these are all the data.",
                stacklevel=3,
            )
        self.like = outputs[:1].cpu()  # what targets are checked against
        if isinstance(source, Arrays):
            source.y = self.likelihood.targets(source.y, outputs)
            self._check_targets(source.y)
            if options.graph:
                source.inputs, source.y = tuple(x.to(self.device) for x in source.inputs), source.y.to(self.device)
        elif isinstance(source, Streamed):
            self._check_targets(source.survey(lambda y: self.likelihood.targets(y, outputs)))
        else:
            self.likelihood.targets(y, outputs)
        self._refuse_lonely_rows()
        self._set_likelihood(outputs)
        self.compaction: Compaction | None = None
        self.sums_there = torch.zeros(2, dtype=torch.float64, device=self.device)
        self.weight, self.weight_now = torch.ones((), device=self.device), 1.0
        self._set_optimizer(self._made_optimizer())
        self.base_lrs = [float(g["lr"]) for g in self.optimizer.param_groups]
        self.probe = Probe(model, inputs)
        self.begun = {
            p: kept for p, (_, kept) in model.origin.items()
        }  # what an earlier fit has left: the probe's nodes
        self.compaction = None if options.compact is None else Compaction(options.compact, model, inputs)
        self.history = History()
        self.epoch, self.step = 0, 0
        self.sums = [0.0, 0.0, 0.0]  # nll, rows x kl, rows: of the epoch under way
        self.epoch_seconds = 0.0
        self.finished = False
        self.epoch_start = Randomness.now(source)  # when the epoch under way began
        self.setting = {} if options.checkpoint is None else options.setting(source, model, self.optimizer)

    def _check_targets(self, y: Tensor) -> None:
        if isinstance(self.likelihood, (Bernoulli, Categorical)) and bool((y == y.reshape(-1)[0]).all()):
            raise ValueError(
                f"y holds one class only ({int(y.reshape(-1)[0])} in every row); a classifier needs at least two."
            )
        if isinstance(self.likelihood, Gaussian):
            flat = y.reshape(len(y), -1)
            constant = (flat == flat[:1]).all(0)
            if bool(constant.any()):
                column = int(torch.nonzero(constant)[0])
                raise ValueError(
                    f"y is constant{f' in column {column}' if flat.shape[1] > 1 else ''} ({float(flat[0, column]):g} "
                    "in every row): there is nothing to learn. Check the target column."
                )

    def _compiled(self) -> Callable[..., Any]:
        """The network through torch.compile, a function of its tensors: the drawn weights are others at each step."""
        shell = self.model.mean()

        def call(tensors: dict[str, Tensor], *inputs: Tensor) -> Any:
            return functional_call(shell, tensors, inputs)

        compiled = torch.compile(call, dynamic=False)

        def forward(net: nn.Module, *inputs: Tensor) -> Any:
            shell.train(net.training)
            with warnings.catch_warnings():
                warnings.filterwarnings(
                    "ignore", "The .grad attribute of a Tensor"
                )  # dynamo looks at it, of drawn weights
                return compiled({**dict(net.named_parameters()), **dict(net.named_buffers())}, *inputs)

        return forward

    def _made_optimizer(self) -> torch.optim.Optimizer:
        """Adam, with rates of their own for gates and spreads where that is asked for, or the caller's."""
        options, named = self.options, [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        named += self._remains()
        if not named:
            raise ValueError("Every parameter of the model is frozen; set requires_grad on some, or do not fit.")
        if options.optimizer is not None:
            made = options.optimizer([p for _, p in named])
            if not isinstance(made, torch.optim.Optimizer) or isinstance(made, torch.optim.LBFGS):
                kind = type(made).__name__
                raise TypeError(f"optimizer must make a torch optimizer that steps without a closure, got {kind}.")
            return made
        groups = rated(named, options)
        if options.graph:  # what is recorded reads its rate from the device
            groups = [{**g, "lr": torch.tensor(g["lr"], device=self.device)} for g in groups]
        return torch.optim.Adam(groups, lr=options.lr, fused=True, capturable=options.graph)

    def _remains(self) -> list[tuple[str, nn.Parameter]]:
        """What cut nodes have left behind to be trained on."""
        return [] if self.compaction is None else self.compaction.remains.named_parameters()

    def _set_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer, the memory for the draws that it follows, and how the network runs."""
        self.optimizer = optimizer
        self.parameters = [*self.model.parameters(), *(p for _, p in self._remains())]
        self.trained = [p for group in optimizer.param_groups for p in group["params"]]
        self.forward: Callable[..., Any] = self._compiled() if self.options.compile else _run
        self.replay = Replay(self._recordable_step, self.device) if self.options.graph else None
        self.workspace = self.model.workspace(keep_gradients=self.options.samples == self.options.accumulate == 1)

    def _refuse_lonely_rows(self) -> None:
        """A batch norm cannot train on one row."""
        source, n = self.source, self.source.rows
        if isinstance(source, Loader) or n is None:
            return
        sizes = (min(n, source.batch_size), n % source.batch_size)
        if not any(1 in self.ranks.shares(size) for size in sizes):
            return
        for path, m in self.model.net.named_modules():
            if isinstance(m, nn.modules.batchnorm._BatchNorm):
                raise ValueError(
                    f"With {n} rows and batch_size={source.batch_size} a batch, or a rank's share, has one row, on "
                    f"which layer '{path}' ({type(m).__name__}) cannot train; take another batch_size."
                )

    def _set_likelihood(self, outputs: Tensor) -> None:
        model, likelihood = self.model, self.likelihood
        if likelihood.learns:
            if model.noise is None or not (model.likelihood is not None and model.likelihood.learns):
                if isinstance(self.source, Arrays):
                    start = self.source.y.double().std(0).clamp_min(1e-6).to(outputs.dtype)
                elif isinstance(self.source, Streamed):
                    start = self.source.spread.clamp_min(1e-6).to(outputs.dtype)
                else:
                    start = torch.ones(outputs.shape[1:], dtype=outputs.dtype)
                model.noise = Noise(start.to(self.device))
        else:
            model.noise = None
        model.likelihood = likelihood

    # ---- training ------------------------------------------------------------------------------------------

    def meet(self) -> None:
        """Several ranks start from the same point, or say that they cannot."""
        if self.ranks.count > 1:
            setting = self.options.setting(self.source, self.model, self.optimizer)
            given = [setting, self.options.epochs, self.workspace.fused is None]
            self.ranks.same("model, data or arguments", given)
            self.ranks.same_parameters(self.model)
            self.ranks.same_randomness(self.source)
            self.history.seed = self.ranks.from_first(lambda: self.history.seed)

    def train(self) -> None:
        options = self.options
        bar = tqdm(
            total=options.epochs,
            initial=self.epoch,
            unit="epoch",
            disable=True if not self.ranks.first else None if options.progress is None else not options.progress,
            leave=False,
            file=sys.stderr,
        )
        saved = time.monotonic()
        with bar, self.signals:
            while self.epoch < options.epochs and not self.finished:
                self._train_epoch()
                record = self._record()
                self.history.records.append(record)
                bar.set_postfix_str(
                    f"elbo {record.elbo:.5g}, open {sum(record.open.values())}, FLOPs {record.flops_ratio:.3f}"
                )
                bar.update()
                self.epoch, self.step, self.sums, self.epoch_seconds = self.epoch + 1, 0, [0.0, 0.0, 0.0], 0.0
                said = None if options.callback is None else options.callback(self.model, record)
                if (
                    self.compaction is not None
                    and (cut := self.compaction.step(self.model, self.optimizer)) is not None
                ):
                    self._set_optimizer(cut)
                stop = int(isinstance(said, (bool, np.bool_)) and bool(said))
                stop, received = self.ranks.agree(stop, self.signals.received or 0)
                if stop:
                    self.history.stopped, self.finished = "callback", True
                elif self._converged():
                    self.history.stopped, self.finished = "converged", True
                last = self.finished or self.epoch == options.epochs
                if received:
                    self._leave(received)
                due = last or time.monotonic() - saved >= options.checkpoint_seconds
                if options.checkpoint is not None and due:
                    self.save()
                    saved = time.monotonic()
            (received,) = self.ranks.agree(self.signals.received or 0)
            if received:  # during the last save
                self._leave(received)

    def _train_epoch(self) -> None:
        options = self.options
        self.model.train()
        if self.step == 0:  # gradients of a caller's own are no part of this fit
            self.optimizer.zero_grad(set_to_none=True)
        share = self.epoch / options.epochs
        for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            lr = base * _scheduled("lr_schedule", options.lr_schedule, share)
            group["lr"] = group["lr"].fill_(lr) if isinstance(group["lr"], Tensor) else lr
        weight = _scheduled("likelihood_schedule", options.likelihood_schedule, share)
        begun = time.perf_counter() - self.epoch_seconds
        for inputs, y in self._batches():
            if self.replay is None:
                self._step(tuple(x.to(self.device) for x in inputs), y.to(self.device), weight)
            else:
                self._replay(inputs, y, weight)
            self.step += 1
            self.epoch_seconds = time.perf_counter() - begun
            if self.ranks.count == 1:
                self.received = self.signals.received
            # a half-accumulated step is spread over the ranks and in no single file: they finish it first
            if self.received is not None and (self.ranks.count == 1 or self.step % options.accumulate == 0):
                self._leave(self.received)
        if self.step == 0:
            raise ValueError("The DataLoader gave no batch in this epoch; it must be possible to go through it again.")
        if self.step % options.accumulate:
            self._update()
        self._collect()
        self.epoch_seconds = time.perf_counter() - begun
        self.ranks.same_buffers(self.model)
        self._stop_if_broken()

    def _stop_if_broken(self) -> None:
        broken = self._broken_parameter()
        if broken is not None:
            raise FloatingPointError(
                f"Training stopped after epoch {self.epoch + 1}, step {self.step}. {broken} {self._try()}"
            )

    def _batches(self) -> Iterator[Batch]:
        """The batches of this epoch that are still to be done. A broken-off epoch is dealt out again from the
        generator's state at its start, and goes on with the state in which it stopped."""
        if self.step == 0:
            self.epoch_start = Randomness.now(self.source)
            return self.source.epoch()
        now = Randomness.now(self.source)
        self.epoch_start.put_back(self.source)
        batches = self.source.epoch(self.step)
        now.put_back(self.source)
        return batches

    def _step(self, inputs: tuple[Tensor, ...], y: Tensor, weight: float) -> None:
        """Add the gradient of one batch; update the parameters once enough batches are in."""
        model, options, rows = self.model, self.options, len(y)
        inputs, y = self.ranks.share(inputs, y)
        scale = 1.0 / (self.source.batch_size * options.samples * options.accumulate)
        for _ in range(options.samples):
            with model.drawn(self.workspace) as net:
                nll = self._nll(net, inputs, y)
                divergence = self._divergence()
                loss = nll * (weight * scale) + divergence * (rows / model.n * scale / self.ranks.count)
                values = torch.stack([nll.detach(), divergence.detach()]).tolist()
                values[0], self.received = self.ranks.total(values[0], self.signals.received)
                if not all(map(math.isfinite, values)):
                    self._stop_at_nan(inputs, values)
                loss.backward()  # type: ignore[no-untyped-call]
            self.sums[0] += values[0] / options.samples
            self.sums[1] += values[1] * rows / options.samples
        self.sums[2] += rows
        if (self.step + 1) % options.accumulate == 0:
            self._update()

    # what a CUDA graph holds: everything that changes from step to step is a tensor on the device

    def _replay(self, inputs: tuple[Tensor, ...], y: Tensor, weight: float) -> None:
        if not isinstance(self.source, Arrays):
            y = self.likelihood.targets(y, self.like)
        assert self.replay is not None
        if self.weight_now != weight:
            self.weight.fill_(weight)
            self.weight_now = weight
        self.replay(y, *inputs)
        self.sums[2] += len(y)

    def _recordable_step(self, y: Tensor, *inputs: Tensor) -> None:
        """The gradient of one batch and the update, with the sums of the epoch kept on the device."""
        model, rows = self.model, len(y)
        scale = 1.0 / self.source.batch_size
        with model.drawn(self.workspace) as net:
            nll, divergence = self._nll(net, inputs, y), self._divergence()
            (nll * (self.weight * scale) + divergence * (rows / model.n * scale)).backward()  # type: ignore[no-untyped-call]
        self.sums_there += torch.stack([nll.detach().double(), divergence.detach().double() * rows])
        self._update()

    def _collect(self) -> None:
        """What has added up on the device since the last time."""
        if self.replay is None:
            return
        values = self.sums_there.tolist()
        self.sums_there.zero_()
        if not all(map(math.isfinite, values)):
            inputs, _ = self.source.first()
            self._stop_at_nan(tuple(x.to(self.device) for x in inputs), values)
        self.sums[0] += values[0]
        self.sums[1] += values[1]

    def _divergence(self) -> Tensor:
        """The KL of the draw that is held."""
        divergence = self.model.kl()
        return divergence if self.compaction is None else divergence + self.compaction.remains.kl(self.model)

    def _nll(self, net: nn.Module, inputs: tuple[Tensor, ...], y: Tensor) -> Tensor:
        """-log p of a batch's rows, of this rank's if there are several."""
        if len(y) == 0:  # fewer rows than ranks
            return torch.zeros((), dtype=self.model.kl().dtype, device=self.device)
        outputs = self._outputs(net, inputs)
        if self.options.amp:
            outputs = outputs.float()
        if not isinstance(self.source, Arrays) and self.replay is None:
            y = self.likelihood.targets(y, outputs)
        return self.likelihood.nll(outputs, y, self.model.noise)

    def _outputs(self, net: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
        try:
            with self.ranks.apart(), torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.amp):
                out: Tensor = self.forward(net, *(x.clone() if self.copies else x for x in inputs))
        except (IndexError, ValueError, RuntimeError) as e:
            if isinstance(e, torch.OutOfMemoryError):
                raise
            shapes = ", ".join(str(tuple(x.shape)) for x in inputs)
            raise ValueError(
                f"In epoch {self.epoch + 1}, step {self.step + 1}, the network cannot take a batch of shape "
                f"{shapes}. Its own words: {e}"
            ) from e
        return out

    def _update(self) -> None:
        self.ranks.sum_gradients(self.trained)
        if self.options.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.trained, self.options.clip)
        self.optimizer.step()
        for p in self.parameters:
            p.grad = None

    def _record(self) -> Record:
        nll_sum, kl_sum, rows = self.sums
        nll, divergence = nll_sum / rows, kl_sum / rows
        masks = {path: mask.cpu() for path, mask in self.model.original_masks().items()}
        seen = {path: mask[self.begun[path]] if path in self.begun else mask for path, mask in masks.items()}
        now = self.probe(seen, edges_of(self.model))
        if self.compaction is not None:
            divergence += self.compaction.kl
        validation: dict[str, float] = {}
        if self.validation is not None:
            inputs, y = self.validation
            prediction = predict(self.model, inputs, draws=self.options.validation_draws, seed=0)
            validation = self.likelihood.metrics(prediction, y)
        return Record(
            epoch=self.epoch + 1,
            elbo=-(self.model.n * nll + divergence),
            nll=nll,
            kl=divergence,
            open={path: int(mask.sum()) for path, mask in masks.items()},
            flops=now.flops,
            flops_ratio=now.flops_ratio,
            seconds=self.ranks.agree(self.epoch_seconds)[0],
            lr=float(self.optimizer.param_groups[0]["lr"]),
            validation=validation,
        )

    def _converged(self) -> bool:
        """Algorithm 1's stop: the change of the ELBO, averaged over two windows of epochs, is below epsilon."""
        epsilon, window = self.options.epsilon, self.options.window
        if epsilon is None or len(self.history) < 2 * window:
            return False
        ramp = self.options.likelihood_schedule
        if (
            isinstance(ramp, Ramp)
            and ramp.start != ramp.end
            and self.epoch - 2 * window < ramp.until * self.options.epochs
        ):
            return False  # what is maximised was still on its way
        elbo = [r.elbo for r in self.history.records[-2 * window :]]
        return abs(sum(elbo[window:]) - sum(elbo[:window])) / window < epsilon

    # ---- when something is wrong ---------------------------------------------------------------------------

    def _stop_at_nan(self, inputs: tuple[Tensor, ...], values: list[float]) -> None:
        what = next(n for n, v in zip(("likelihood", "KL"), values, strict=True) if not math.isfinite(v))
        raise FloatingPointError(
            f"Training stopped at epoch {self.epoch + 1}, step {self.step + 1}: the {what} is not finite. "
            f"{self._broken_parameter() or self._broken_output(inputs)} {self._try()}"
        )

    def _try(self) -> str:
        lr = self.optimizer.param_groups[0]["lr"]
        return f"Try a smaller lr (now {lr:g}), clip=1.0, or standardised inputs and targets."

    def _broken_parameter(self) -> str | None:
        """Where NaN or inf stands among the parameters."""
        # those of the posteriors first: while a draw is held, NaN in a spread shows in the drawn weights too
        for name, p in sorted(self.model.named_parameters(), key=lambda item: not item[0].startswith("posteriors.")):
            if not bool(torch.isfinite(p).all()):
                parts = name.split(".")
                if parts[0] == "posteriors":
                    posterior = self.model.posteriors[int(parts[1])]
                    assert isinstance(posterior, Posterior)
                    return f"Layer '{posterior.path}' has values that are not finite, in its {'.'.join(parts[2:])}."
                path = ".".join(parts[1:-1])
                kind = type(self.model.get_submodule(".".join(parts[:-1]))).__name__
                return f"Layer '{path}' ({kind}) has values that are not finite, in its {parts[-1]}."
        return None

    def _broken_output(self, inputs: tuple[Tensor, ...]) -> str:
        """The layer in whose output NaN or inf first shows."""
        found: list[str] = []

        def look(path: str, module: nn.Module, args: Any, out: Any) -> None:
            if isinstance(out, Tensor) and not found and not bool(torch.isfinite(out).all()):
                found.append(f"The first layer whose output is not finite is '{path}' ({type(module).__name__}).")

        handles = [
            m.register_forward_hook(lambda m, a, o, path=path: look(path, m, a, o))
            for path, m in self.model.net.named_modules()
            if not list(m.children())
        ]
        try:
            with torch.no_grad():
                self.model(*inputs)
        finally:
            for handle in handles:
                handle.remove()
        return found[0] if found else "Every layer's output is finite, so the likelihood itself overflows."

    # ---- checkpoints ---------------------------------------------------------------------------------------

    def _leave(self, which: int) -> None:
        """Save, say so in one line, and end as the signal asks."""
        self.save()
        self.ranks.wait()  # who ends first may bring a launcher to end the others, in their writing
        name = signal.Signals(which).name
        if self.ranks.first:
            print(
                f"nodeslab: stopped by {name} in epoch {self.epoch + 1} of {self.options.epochs}; "
                f"saved {self.options.checkpoint}. The same call goes on from there.",
                file=sys.stderr,
            )
        if which == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + which)

    def save(self) -> None:
        """Write everything that the rest of the fit depends on."""
        assert self.options.checkpoint is not None
        self._collect()
        self._stop_if_broken()  # rather than replace a good file
        if not self.ranks.first:
            return
        tensors = {f"model/{k}": v for k, v in self.model.state_dict().items()}
        if self.compaction is not None:
            tensors |= {f"remains/{k}": v for k, v in self.compaction.remains.tensors().items()}
        optimizer = self.optimizer.state_dict()
        numbers: dict[str, Any] = {}
        for index, state in optimizer["state"].items():
            for key, value in state.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer/{index}/{key}"] = value
                else:
                    numbers[f"{index}/{key}"] = value
        for i, p in enumerate(p for g in self.optimizer.param_groups for p in g["params"]):
            if p.grad is not None:  # a half-accumulated step
                tensors[f"gradient/{i}"] = p.grad
        now = Randomness.now(self.source)
        for when, randomness in (("epoch", self.epoch_start), ("now", now)):
            tensors |= {f"random/{when}/{name}": t for name, t in randomness.tensors.items()}
        meta = {
            "setting": self.setting,
            "device": self.device.type,
            "epoch": self.epoch,
            "step": self.step,
            "sums": self.sums,
            "epoch_seconds": self.epoch_seconds,
            "finished": self.finished,
            "stopped": self.history.stopped,
            "seed": self.history.seed,
            "random": [self.epoch_start.python, now.python],
            "records": [asdict(r) for r in self.history.records],
            "optimizer": {"numbers": numbers, "groups": _groups(optimizer["param_groups"])},
            "compaction": None if self.compaction is None else self.compaction.state(self.model),
        }
        names = {name: t.clone() for name, t in tensors.items()}  # shared tensors are written twice: no aliases
        sealed.write(self.options.checkpoint, "checkpoint", meta, names, keep_previous=True)

    def resume(self) -> None:
        """Take up the newest whole checkpoint, if there is one."""
        file = self.options.checkpoint
        if file is None:
            return
        found = self.ranks.from_first(lambda: _newest(file))
        if found is None:
            return
        meta, tensors = found
        if self.model.origin and meta["setting"]["network"] != self.setting["network"]:
            raise ValueError(
                f"Nodes of this model were cut out in training already, so it cannot go on from {file}: build it anew, "
                "as for the first call."
            )
        changed = [k for k in self.setting if meta["setting"].get(k) != self.setting[k]]
        if changed:
            raise ValueError(
                f"{file} belongs to another fit: {', '.join(changed)} differ. Give the same arguments, or another file."
            )
        if meta.get("device", self.device.type) != self.device.type:
            warnings.warn(
                f"{file} was begun on {meta['device']} and goes on on {self.device.type}: the rest is not to the bit "
                "what it would have been there.",
                stacklevel=3,
            )
        self._restore(meta, tensors)

    def _restore(self, meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        found = {k.removeprefix("model/"): v for k, v in tensors.items() if k.startswith("model/")}
        if self.compaction is not None:
            left = {k.removeprefix("remains/"): v for k, v in tensors.items() if k.startswith("remains/")}
            self.compaction.restore(self.model, meta["compaction"], found, left)
            self._set_optimizer(self._made_optimizer())
        self.model.load_state_dict(found)
        state: dict[int, dict[str, Any]] = {}
        for name, tensor in tensors.items():
            if name.startswith("optimizer/"):
                _, index, key = name.split("/")
                state.setdefault(int(index), {})[key] = tensor
        for name, value in meta["optimizer"]["numbers"].items():
            index, key = name.split("/")
            state.setdefault(int(index), {})[key] = value
        groups = self.optimizer.state_dict()["param_groups"]
        for group, saved in zip(groups, meta["optimizer"]["groups"], strict=True):
            # how a step is taken is the device's choice, and its rate is set anew in every epoch
            own = {"capturable", "fused", "foreach"} | ({"lr"} if isinstance(group["lr"], Tensor) else set())
            taken = {k: v for k, v in saved.items() if k not in own}
            group.update({k: tuple(v) if isinstance(v, list) and k != "params" else v for k, v in taken.items()})
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        for i, p in enumerate(p for g in self.optimizer.param_groups for p in g["params"]):
            if f"gradient/{i}" in tensors:
                p.grad = tensors[f"gradient/{i}"].to(p.device)
        self.epoch, self.step, self.sums = meta["epoch"], meta["step"], list(meta["sums"])
        self.epoch_seconds, self.finished = meta["epoch_seconds"], meta["finished"]
        self.history.stopped, self.history.seed = meta["stopped"], meta["seed"]
        self.history.records = [Record(**r) for r in meta["records"]]
        states = [
            {k.removeprefix(f"random/{when}/"): v for k, v in tensors.items() if k.startswith(f"random/{when}/")}
            for when in ("epoch", "now")
        ]
        self.epoch_start = Randomness(states[0], meta["random"][0])
        Randomness(states[1], meta["random"][1]).put_back(self.source)


def _newest(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """The newest whole generation of a checkpoint; None when there is none yet."""
    if not file.parent.is_dir():
        raise ValueError(f"Cannot write {file}: the folder {file.parent} does not exist; make it first.")
    generations = [path for path in (file, sealed.previous_of(file)) if path.exists()]
    for i, path in enumerate(generations):
        try:
            return sealed.read(path, "checkpoint")
        except ValueError as e:
            if i + 1 == len(generations):
                raise
            warnings.warn(f"{e} Going on from the generation before it.", stacklevel=5)
    return None


def _groups(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What JSON can hold of an optimizer's groups (all of it, for torch's own optimizers)."""
    return [
        {
            k: v
            for k, v in g.items()
            if k == "params" or v is None or isinstance(v, (bool, int, float, str, tuple, list))
        }
        for g in groups
    ]


def single_steps(
    model: Bayesian, batch: tuple[Tensor, Tensor], likelihood: Likelihood, amp: bool = False
) -> Callable[[], object]:
    """The step that `fit` takes, on the same batch at each call: for measuring it."""
    X, y = batch
    options = _Options(likelihood, batch_size=len(y), amp=amp, progress=False)
    source = Arrays((X,), y, len(y))
    source.rows = model.n
    run = _Run(model, source, options, None, Ranks(0, 1, X.device))
    return lambda: run._step((X,), source.y, 1.0)
