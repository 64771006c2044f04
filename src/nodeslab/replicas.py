"""Many independent fits of one small network as one batched run: stacked parameters, a draw for each, one step for all.

A replica has its own data, seed, noise and gates, and takes the same steps as its lone fit: its rows are dealt out, and
its draws are made, from its own generator. The compiled kernel draws all of them in one call; what it does not serve
(gates on edges, horseshoes, other types than float32, networks with norms or dropout) is fitted one after the other.
"""

from __future__ import annotations

import ctypes
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call, vmap
from tqdm import tqdm

from nodeslab.fused import point_gate
from nodeslab.kernel import Kernel, LayerStruct, TensorStruct, kernel
from nodeslab.likelihoods import LOG_2PI, Gaussian, Likelihood, Noise
from nodeslab.model import Bayesian, is_guard
from nodeslab.parallel import Ranks
from nodeslab.passes import chain_of
from nodeslab.prediction import inputs_for, isolated_seed
from nodeslab.sources import Arrays, source_for
from nodeslab.training import History, Schedule, _Options, _Run, _scheduled, chosen_likelihood, fit, rated

__all__ = ["fit_replicas"]


class _Draws(torch.autograd.Function):
    """The weights of all replicas and the sum of their KL, as `fused._FusedDraw` has them for one."""

    @staticmethod
    def forward(ctx: Any, stack: _Stack, seeds: NDArray[Any], *inputs: Tensor) -> tuple[Tensor, ...]:
        stack.seeds[:] = seeds[:, None]
        total = stack.kernel.draw(stack.layers, stack.count)
        ctx.stack = stack
        ctx.save_for_backward(*inputs)
        return inputs[0].new_full((), total), *(weight.detach() for weight in stack.weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        stack: _Stack = ctx.stack
        read = [grad.contiguous() for grad in grads[1:]]
        for pointers, grad in zip(stack.grads, read, strict=True):
            pointers[:] = grad.data_ptr() + stack.order * (4 * grad[0].numel())
        stack.kernel.back(stack.layers, float(grads[0]), stack.count)
        del read  # alive until here
        return None, None, *(t.detach() for t in stack.gradients)


class _Stack:
    """The parameters of some replicas side by side, which their models' own parameters are views of."""

    def __init__(self, built: Kernel, models: Sequence[Bayesian]) -> None:
        self.kernel, self.models = built, list(models)
        self.parameters: dict[str, nn.Parameter] = {}
        own = [dict(m.named_parameters()) for m in models]
        for name, first in own[0].items():
            together = torch.stack([named[name].detach() for named in own])
            self.parameters[name] = nn.Parameter(together, requires_grad=first.requires_grad)
            for named, view in zip(own, together, strict=True):
                named[name].data = view
        self.layers = (LayerStruct * (len(models) * len(models[0].posteriors)))()
        self.inputs: list[nn.Parameter] = []
        self.gradients: list[Tensor] = []
        self.weights: list[Tensor] = []
        self.names: list[str] = []  # of the weights, in the network
        self.grads: list[NDArray[Any]] = []  # of each weight: where its structs say where the gradients are
        self.order = np.arange(len(models))
        self.seeds, self.totals = self._column("seed", np.uint64), self._column("total", np.float64)
        self.count = 0
        self._kept: list[Tensor] = []
        per = len(models[0].posteriors)
        for i, posterior in enumerate(models[0]._posteriors()):
            structs = [self.layers[r * per + i] for r in range(len(models))]
            nodes = posterior.geometry.nodes
            for layer in structs:
                layer.nodes, layer.tensors, layer.sigma = nodes, len(posterior.names), posterior.prior.slab.sigma
                layer.gates = self._memory(6 * nodes)
            for k, name in enumerate(posterior.names):
                path = f"{posterior.path}.{name}".lstrip(".")
                parts = [layer.part[k] for layer in structs]
                mean = self.parameters[f"net.{path}"]
                self.names.append(path)
                for part in parts:
                    part.rows, part.cols, part.number = nodes, mean[0].numel() // nodes, len(self.weights)
                    part.divergence, part.along = self._memory(nodes), self._memory(nodes)
                self._point(parts, "mean", mean)
                self._point(parts, "rho", self.parameters[f"posteriors.{i}.rho_{name}"])
                self.weights.append(torch.empty_like(mean, requires_grad=False))
                for part, each in zip(parts, self.weights[-1], strict=True):
                    part.weight = each.data_ptr()
                offset = LayerStruct.part.offset + k * ctypes.sizeof(TensorStruct) + TensorStruct.grad.offset
                self.grads.append(self._at(offset, np.uint64)[:, i])
                self.count += mean.numel()
            gate = posterior.switches().get("node")
            if gate is not None:
                for layer, model in zip(structs, models, strict=True):
                    point_gate(layer, list(model._posteriors())[i].switches()["node"])
                self._point(structs, "logit", self.parameters[f"posteriors.{i}.gates.node.logit"])

    def _column(self, name: str, kind: Any) -> NDArray[Any]:
        """A field of all structs, (replicas, layers), to be read and written at once."""
        return self._at(getattr(LayerStruct, name).offset, kind)

    def _at(self, offset: int, kind: Any) -> NDArray[Any]:
        size, per = ctypes.sizeof(LayerStruct), len(self.models[0].posteriors)
        shape = (len(self.models), per)
        view: NDArray[Any] = np.ndarray(shape, kind, memoryview(self.layers), offset, (size * per, size))
        return view

    def _memory(self, numbers: int) -> int:
        self._kept.append(torch.empty(numbers))
        return self._kept[-1].data_ptr()

    def _point(self, structs: Sequence[Any], name: str, together: nn.Parameter) -> None:
        """Where a parameter and its gradient are, in each replica."""
        gradient = torch.empty_like(together, requires_grad=False)
        self.inputs.append(together)
        self.gradients.append(gradient)
        for struct, value, room in zip(structs, together.detach(), gradient, strict=True):
            setattr(struct, name, value.data_ptr())
            setattr(struct, "d_" + name, room.data_ptr())

    def draw(self, seeds: NDArray[Any]) -> tuple[dict[str, Tensor], Tensor]:
        """A draw of every replica's weights from its seed, by name and stacked, and the sum of the KL."""
        total, *drawn = _Draws.apply(self, seeds, *self.inputs)  # type: ignore[no-untyped-call]
        return dict(zip(self.names, drawn, strict=True)), total

    def kl(self) -> list[float]:
        """The KL of each replica, of the last draw."""
        return [float(v) for v in self.totals.sum(1)]

    def release(self) -> None:
        """Every model's parameters in memory of their own again."""
        for model in self.models:
            for p in model.parameters():
                p.data = p.data.clone()


class _Sigma(Noise):
    """A learnt noise whose number is a function's argument."""

    def __init__(self, log_sigma: Tensor) -> None:
        nn.Module.__init__(self)
        self.held = log_sigma

    def sigma(self) -> Tensor:
        return torch.exp(self.held)


def fit_replicas(
    models: Sequence[Bayesian],
    data: Sequence[tuple[Any, Any]],
    *,
    likelihood: Likelihood | None = None,
    epochs: int = 100,
    batch_size: int = 128,
    lr: float = 1e-3,
    seeds: Sequence[int] | None = None,
    epsilon: float | None = None,
    window: int = 10,
    lr_schedule: Schedule | None = None,
    likelihood_schedule: Schedule | None = None,
    gate_rate: float = 1.0,
    spread_rate: float = 1.0,
    allow_constant: bool = False,
    progress: bool | None = None,
) -> list[History]:
    """For each replica what `ns.fit(model, (X, y), ..., seed=seed)` does, to float error, all of them in one run.

    models: of one network and one prior, each to be fitted in place. data: (X, y) of each. seeds: one of each.
    Replicas with as many rows run together; the other arguments are those of `ns.fit`, the same for all.
    """
    models, pairs = list(models), list(data)
    if not models:
        raise ValueError("models is empty; give one model for each replica.")
    for i, model in enumerate(models):
        if not isinstance(model, Bayesian):
            raise TypeError(f"models[{i}] must come from ns.bayesian, got {type(model).__name__}.")
    if len({id(m) for m in models}) < len(models):
        raise ValueError("The same model is given twice; every replica is fitted in place, so each needs a copy.")
    given = [None] * len(models) if seeds is None else list(seeds)
    for name, count in (("data", len(pairs)), ("seeds", len(given))):
        if count != len(models):
            raise ValueError(f"{name} has {count} entries for {len(models)} models; give one for each replica.")
    settings: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr,
        "epsilon": epsilon,
        "window": window,
        "lr_schedule": lr_schedule,
        "likelihood_schedule": likelihood_schedule,
        "gate_rate": gate_rate,
        "spread_rate": spread_rate,
        "progress": progress,
    }
    histories: list[History | None] = [None] * len(models)
    groups: dict[Any, list[int]] = {}
    runs: dict[int, _Run] = {}
    for i, (model, pair, seed) in enumerate(zip(models, pairs, given, strict=True)):
        if not _batches(model, pair):
            more: dict[str, Any] = {"likelihood": likelihood, "seed": seed, "allow_constant": allow_constant}
            histories[i] = fit(model, pair, **settings, **more)
            continue
        options = _Options(likelihood=chosen_likelihood(model, likelihood), seed=seed, **settings)
        source = source_for(model, pair, options.batch_size, allow_constant)
        runs[i] = _Run(model, source, options, None, Ranks(0, 1, torch.device("cpu")))
        assert isinstance(source, Arrays)
        shapes = [(n, p.shape, p.requires_grad) for n, p in model.named_parameters()]
        priors = [(repr(p.prior), p.output) for p in model._posteriors()]
        key = (repr(model.net), str(shapes), str(priors), model.n, *(x.shape for x in (*source.inputs, source.y)))
        groups.setdefault((key, repr(options.likelihood)), []).append(i)
    bar = tqdm(
        total=epochs * len(groups), unit="epoch", disable=None if progress is None else not progress, leave=False,
        file=sys.stderr,
    )  # fmt: skip
    with bar, torch.enable_grad():
        for members in groups.values():
            _together([runs[i] for i in members], bar)
            for i in members:
                histories[i] = runs[i].history
    return [h for h in histories if h is not None]


def _batches(model: Bayesian, pair: Any) -> bool:
    """True for what can be fitted together."""
    if kernel() is None or not isinstance(pair, (tuple, list)) or any(isinstance(part, np.memmap) for part in pair):
        return False
    means = model._means()
    if not all(t.is_contiguous() for m in means for t in m.values()):  # the kernel's noise goes by the layout
        return False
    inside = {id(t) for m in means for t in m.values()}
    others = any(id(p) not in inside for p in model.net.parameters()) or next(model.net.buffers(), None) is not None
    random = any(isinstance(m, nn.modules.dropout._DropoutNd) for m in model.net.modules())
    drawn = all(p.fusible(m) and p.scale is None for p, m in zip(model._posteriors(), means, strict=True))
    return drawn and not others and not random and (chain_of(model.net) is not None or _maps(model, pair))


def _maps(model: Bayesian, pair: Any) -> bool:
    """True where the forward runs over stacked weights: no randomness of its own, no choices that depend on data."""
    tensors = {f"{p.path}.{n}".lstrip("."): t for p, m in zip(model._posteriors(), model._means(), strict=True)
               for n, t in m.items()}  # fmt: skip
    net = model.open_mean({}).train()
    try:
        inputs = inputs_for(model, pair[0])
        weights = {name: torch.stack([t.detach()] * 2) for name, t in tensors.items()}
        with torch.no_grad():
            vmap(lambda w, *x: functional_call(net, w, x))(weights, *(torch.stack([x[:2].clone()] * 2) for x in inputs))
    except Exception:  # the lone fit says what is wrong, if anything is
        return False
    return True


def _together(runs: list[_Run], bar: Any) -> None:
    """Fit some replicas of equal shape, to the end of the last of them."""
    built = kernel()
    assert built is not None
    options = runs[0].options
    generators = []
    for run in runs:
        with isolated_seed(run.options.seed) as seed:
            run.history.seed = seed
        generators.append(torch.Generator().manual_seed(seed))
    active = list(range(len(runs)))
    stack = _Stack(built, [run.model for run in runs])
    optimizer = _optimizer(stack, options)
    inputs, y = _data(runs, active)
    for epoch in range(options.epochs):
        if not active:
            break
        share = epoch / options.epochs
        for group, base in zip(optimizer.param_groups, [g["base"] for g in optimizer.param_groups], strict=True):
            group["lr"] = base * _scheduled("lr_schedule", options.lr_schedule, share)
        weight = _scheduled("likelihood_schedule", options.likelihood_schedule, share)
        begun = time.perf_counter()
        sums = _epoch([runs[i] for i in active], stack, optimizer, [generators[i] for i in active], inputs, y, weight)
        seconds = (time.perf_counter() - begun) / len(active)
        finished = []
        for k, i in enumerate(active):
            run = runs[i]
            run.sums, run.epoch, run.epoch_seconds = sums[k], epoch, seconds
            run.optimizer = optimizer
            run.history.records.append(run._record())
            if run._converged():
                run.history.stopped = "converged"
                finished.append(k)
        bar.update()
        if finished:
            keep = [k for k in range(len(active)) if k not in finished]
            active = [active[k] for k in keep]
            stack.release()
            if active:
                before, stack = stack, _Stack(built, [runs[i].model for i in active])
                optimizer = _optimizer(stack, options, before, optimizer, keep)
                inputs, y = _data(runs, active)
    stack.release()


def _data(runs: list[_Run], active: list[int]) -> tuple[tuple[Tensor, ...], Tensor]:
    """The data of the replicas that go on, stacked."""
    sources = [runs[i].source for i in active]
    several = [s.inputs for s in sources if isinstance(s, Arrays)]
    y = torch.stack([s.y for s in sources if isinstance(s, Arrays)])
    return tuple(torch.stack(xs) for xs in zip(*several, strict=True)), y


def _optimizer(
    stack: _Stack,
    options: _Options,
    before: _Stack | None = None,
    old: torch.optim.Optimizer | None = None,
    keep: list[int] | None = None,
) -> torch.optim.Optimizer:
    """Adam over the stacked parameters, as `fit` makes it for one; with the state of the replicas that go on."""
    trained = [(n, p) for n, p in stack.parameters.items() if p.requires_grad]
    made = torch.optim.Adam(rated(trained, options), lr=options.lr, fused=True)
    for group in made.param_groups:
        group["base"] = group["lr"]
    if before is not None and old is not None:
        for name, p in trained:
            state = old.state[before.parameters[name]]
            made.state[p] = {k: v[keep].clone() if v.dim() else v.clone() for k, v in state.items()}
    return made


def _losses(likelihood: Likelihood, out: Tensor, y: Tensor, log_sigma: Tensor | None) -> tuple[Tensor, Tensor]:
    """-log p of all rows up to a constant, with gradients, and -log p of each replica's."""
    if isinstance(likelihood, Gaussian) and not isinstance(likelihood.sigma, str):
        gap, scale = out - y, 0.5 / likelihood.sigma**2
        constant = y[0].numel() * (math.log(likelihood.sigma) + 0.5 * LOG_2PI)
        flat = gap.reshape(-1)
        return torch.dot(flat, flat) * scale, gap.detach().square().flatten(1).sum(1) * scale + constant

    def nll(one: Tensor, target: Tensor, sigma: Tensor | None) -> Tensor:
        return likelihood.nll(one, target, None if sigma is None else _Sigma(sigma))

    each = vmap(nll, in_dims=(0, 0, None if log_sigma is None else 0))(out, y, log_sigma)
    return each.sum(), each.detach()


def _through(chain: list[tuple[str, nn.Module]], weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """(replicas, rows, inputs) through a chain whose weights are stacked."""
    for name, layer in chain:
        if not isinstance(layer, nn.Linear):
            x = layer(x)
            continue
        weight, bias = weights[f"{name}.weight"].transpose(1, 2), weights.get(f"{name}.bias")
        x = torch.bmm(x, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight)
    return x


def _epoch(
    runs: list[_Run],
    stack: _Stack,
    optimizer: torch.optim.Optimizer,
    generators: list[torch.Generator],
    inputs: tuple[Tensor, ...],
    y: Tensor,
    weight: float,
) -> list[list[float]]:
    """One epoch of all replicas; returns the sums of each: nll, rows x kl, rows."""
    options, net, n = runs[0].options, runs[0].model.net, runs[0].model.n
    rows = y.shape[1]
    orders = torch.stack([torch.randperm(rows, generator=g) for g in generators])
    steps = -(-rows // options.batch_size)  # as many numbers at once are as many numbers one by one
    seeds = torch.stack([torch.randint(2**62, (steps,), generator=g) for g in generators]).numpy()
    each = torch.arange(len(runs))[:, None]
    inputs, y = tuple(x[each, orders] for x in inputs), y[each, orders]
    log_sigma = stack.parameters.get("noise.log_sigma")
    sums = [[0.0, 0.0, 0.0] for _ in runs]

    chain = chain_of(net)

    def call(weights: dict[str, Tensor], *x: Tensor) -> Tensor:
        out: Tensor = functional_call(net, weights, x)
        return out

    modes = [(m, m.training) for m in net.modules()]
    net.train()
    hooks = [(m, dict(m._forward_pre_hooks)) for m in net.modules()]
    for m, before in hooks:  # the guards: these weights are drawn, though no layer holds them
        for key in [k for k, hook in before.items() if is_guard(hook)]:
            del m._forward_pre_hooks[key]
    try:
        for i in range(0, rows, options.batch_size):
            xs, ys = tuple(x[:, i : i + options.batch_size] for x in inputs), y[:, i : i + options.batch_size]
            weights, total = stack.draw(seeds[:, i // options.batch_size])
            out = vmap(call)(weights, *xs) if chain is None else _through(chain, weights, xs[0])
            together, losses = _losses(runs[0].likelihood, out, ys, log_sigma)
            count = ys.shape[1]
            loss = together * (weight / options.batch_size) + total * (count / n / options.batch_size)
            values, divergences = losses.tolist(), stack.kl()
            for k, (value, divergence) in enumerate(zip(values, divergences, strict=True)):
                if not (math.isfinite(value) and math.isfinite(divergence)):
                    what = "likelihood" if not math.isfinite(value) else "KL"
                    raise FloatingPointError(
                        f"Training stopped at epoch {len(runs[k].history) + 1}: the {what} of a replica (seed "
                        f"{runs[k].history.seed}) is not finite. {runs[k]._broken_parameter() or ''} {runs[k]._try()}"
                    )
                sums[k][0] += value
                sums[k][1] += divergence * count
                sums[k][2] += count
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    finally:
        for m, before in hooks:
            m._forward_pre_hooks.clear()
            m._forward_pre_hooks.update(before)
        for m, mode in modes:
            m.training = mode
    if not all(bool(torch.isfinite(p).all()) for p in stack.parameters.values()):
        for run in runs:
            run._stop_if_broken()
    return sums
