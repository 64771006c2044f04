"""The training loop: its objective, its data, its records, its stops."""

from __future__ import annotations

import os
import random
import signal
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import nodeslab as ns
from nodeslab import sealed
from nodeslab.sources import Arrays

X = torch.randn(50, 3, generator=torch.Generator().manual_seed(1))
Y = torch.sin(X[:, 0]) + 0.1 * X[:, 1]
LABELS = (X[:, 0] > 0).long() + (X[:, 1] > 0.5).long()
QUIET: dict[str, Any] = {"progress": False}


def _model(outputs: int = 1, prior: ns.Prior | None = None, n: int = 50) -> ns.Bayesian:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, outputs))
    return ns.bayesian(net, prior or ns.ssig(), n=n)


def _bits(model: ns.Bayesian) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def _same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


# ---- the objective -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [50, 20, 7])
@pytest.mark.parametrize("samples", [1, 2])
def test_an_epochs_gradients_add_up_to_the_elbos(batch_size: int, samples: int) -> None:
    """Sum over the epoch of the batches' gradients x batch_size = the gradient of sum nll + KL, whatever the batches,
    with a short last one. Parameters stand still (lr 0) and the draws do not vary (spread 0, gates fixed open)."""
    model = _model(prior=ns.Normal(1.0, rho=-60.0) * ns.Node()).double()
    model.set_nodes({"0": torch.ones(8, dtype=torch.bool)})
    added: list[Tensor] = []

    class Adder(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            grads = [p.grad.clone() * batch_size for g in self.param_groups for p in g["params"]]
            added[:] = grads if not added else [a + b for a, b in zip(added, grads, strict=True)]

    ns.fit(
        model,
        (X, Y),
        likelihood=ns.Gaussian(0.5),
        epochs=1,
        batch_size=batch_size,
        samples=samples,
        optimizer=lambda ps: Adder(ps, lr=1.0),
        **QUIET,
    )
    model.zero_grad()
    plain = torch.distributions.Normal(model(X.double()), 0.5)
    (-plain.log_prob(Y[:, None].double()).sum() + model.kl()).backward()
    for got, p in zip(added, (p for p in model.parameters() if p.requires_grad), strict=True):
        assert torch.allclose(got, p.grad, rtol=1e-9, atol=1e-9)


def test_accumulation_is_one_large_batch() -> None:
    """Two batches of 25 for each step equal a batch of 50, when nothing is random but the rows' order."""
    results = []
    for batch, accumulate in ((50, 1), (25, 2)):
        model = _model(prior=ns.Normal(1.0, rho=-60.0) * ns.Node()).double()
        model.set_nodes({"0": torch.ones(8, dtype=torch.bool)})
        ns.fit(
            model,
            (X, Y),
            likelihood=ns.Gaussian(1.0),
            epochs=5,
            batch_size=batch,
            accumulate=accumulate,
            seed=0,
            **QUIET,
        )
        results.append(_bits(model))
    assert all(torch.allclose(a, b, rtol=1e-9) for a, b in zip(*results, strict=True))


def test_elbo_of_a_record_is_what_it_says() -> None:
    model = _model(prior=ns.Normal(1.0, rho=-60.0) * ns.Node()).double()
    model.set_nodes({"0": torch.ones(8, dtype=torch.bool)})
    exact = torch.distributions.Normal(model(X.double()), 0.5).log_prob(Y[:, None].double()).sum() - model.kl()
    history = ns.fit(
        model, (X, Y), likelihood=ns.Gaussian(0.5), epochs=1, optimizer=lambda ps: torch.optim.SGD(ps, lr=0.0), **QUIET
    )
    record = history[0]
    assert record.elbo == pytest.approx(exact.item(), rel=1e-9)
    assert record.elbo == pytest.approx(-(50 * record.nll + record.kl), rel=1e-12)


def test_training_improves_the_elbo_and_closes_nodes() -> None:
    model = _model()
    history = ns.fit(model, (X, Y), likelihood=ns.Gaussian(0.3), epochs=400, batch_size=25, lr=2e-2, seed=0, **QUIET)
    assert history[-1].elbo > history[0].elbo + 100
    assert history[-1].open["0"] < 8
    assert history[-1].flops == 5 * history[-1].open["0"] + 1
    assert history[-1].flops_ratio == history[-1].flops / 41
    assert len(history.column("nll")) == 400


# ---- likelihoods and shapes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("likelihood", "y", "outputs"),
    [
        (ns.Gaussian(1.0), Y, 1),
        (ns.Gaussian(1.0), Y[:, None], 1),
        (ns.Gaussian("learn"), torch.stack([Y, 10 * Y], 1), 2),
        (ns.Gaussian(2.0), (10 * Y).round().long(), 1),
        (ns.Categorical(), LABELS, 3),
        (ns.Categorical(), LABELS.numpy().astype(np.int32), 3),
        (ns.Categorical(), LABELS[:, None], 3),
        (ns.Bernoulli(), LABELS > 0, 1),
        (ns.Bernoulli(), (LABELS > 0).numpy(), 1),
        (ns.Bernoulli(), torch.stack([LABELS > 0, LABELS > 1], 1).float(), 2),
    ],
)
def test_likelihoods_and_target_shapes(likelihood: Any, y: Any, outputs: int) -> None:
    model = _model(outputs)
    history = ns.fit(model, (X.numpy(), y), likelihood=likelihood, epochs=20, lr=1e-2, seed=0, **QUIET)
    assert history[-1].elbo > history[0].elbo
    p = ns.predict(model, X, draws=5)
    assert p.mean.shape == (50, outputs) == model(X).shape


def test_flat_outputs() -> None:
    model = ns.bayesian(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0)), ns.ssig(), n=50)
    ns.fit(model, (X, Y[:, None]), likelihood=ns.Gaussian(1.0), epochs=2, seed=0, **QUIET)
    assert ns.predict(model, X).mean.shape == (50,)


@pytest.mark.parametrize(
    ("likelihood", "y", "outputs"),
    [(ns.Gaussian(0.7), Y, 1), (ns.Categorical(), LABELS, 3), (ns.Bernoulli(), LABELS > 0, 1)],
)
def test_nll_equals_torch_distributions(likelihood: Any, y: Tensor, outputs: int) -> None:
    f = torch.randn(50, outputs)
    target = likelihood.targets(y.long() if y.dtype == torch.bool else y, f)
    if outputs == 3:
        exact = torch.distributions.Categorical(logits=f).log_prob(y)
    elif y.dtype == torch.bool:
        exact = torch.distributions.Bernoulli(logits=f[:, 0]).log_prob(y.float())
    else:
        exact = torch.distributions.Normal(f[:, 0], 0.7).log_prob(y)
    assert likelihood.nll(f, target, None).item() == pytest.approx(-exact.sum().item(), rel=1e-5)


def test_learnt_noise_finds_the_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 3, generator=generator)
    y = torch.stack(
        [x[:, 0] + 0.3 * torch.randn(2000, generator=generator), 2 * torch.randn(2000, generator=generator)], 1
    )
    model = _model(2, ns.vbnn(), n=2000)
    ns.fit(model, (x, y), likelihood=ns.Gaussian("learn"), epochs=60, lr=1e-2, seed=0, **QUIET)
    assert model.noise is not None
    assert model.noise.sigma().tolist() == pytest.approx([0.3, 2.0], rel=0.1)


# ---- data ----------------------------------------------------------------------------------------------------------


def test_loaders_and_arrays_agree() -> None:
    """A DataLoader's epochs are as good as the arrays': the same rows, the same objective, the same end."""
    loader = DataLoader(TensorDataset(X, Y), batch_size=20, shuffle=True)
    late = []
    for data in (loader, (X, Y)):
        model = _model(prior=ns.vbnn())
        history = ns.fit(model, data, likelihood=ns.Gaussian(0.3), epochs=300, batch_size=20, lr=1e-2, seed=0, **QUIET)
        late.append(sum(history.column("elbo")[-50:]) / 50)
    assert late[0] == pytest.approx(late[1], abs=4)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.out(torch.tanh(self.a(x) + self.b(z)))


def test_several_inputs() -> None:
    model = ns.bayesian(Pair(), ns.ssig(), n=50)
    z = X[:, :2] ** 2
    ns.fit(model, ((X, z), Y), likelihood=ns.Gaussian(1.0), epochs=2, seed=0, **QUIET)
    loader = DataLoader([((x, v), y) for x, v, y in zip(X, z, Y, strict=True)], batch_size=10)
    ns.fit(model, loader, likelihood=ns.Gaussian(1.0), epochs=2, seed=0, **QUIET)
    assert ns.predict(model, (X, z)).mean.shape == (50, 1)


def test_embeddings_left_plain_take_integers() -> None:
    net = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 1))
    model = ns.bayesian(net, {"0": None, "*": ns.ssig()}, n=50)
    codes = torch.randint(0, 5, (50, 2))
    history = ns.fit(model, (codes, Y), likelihood=ns.Gaussian(1.0), epochs=2, seed=0, **QUIET)
    assert history[-1].flops_ratio == 1.0


def test_other_rows_than_n_are_noticed() -> None:
    with pytest.warns(UserWarning, match="50 rows, but the model was built for n=500"):
        ns.fit(_model(n=500), (X, Y), likelihood=ns.Gaussian(1.0), epochs=1, **QUIET)


def test_batchnorm_and_dropout_train() -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
    model = ns.bayesian(net, ns.ssig(), n=50)
    model.eval()
    ns.fit(model, (X, Y), likelihood=ns.Gaussian(1.0), epochs=3, seed=0, **QUIET)
    assert not model.training
    assert model.net[1].running_mean.abs().sum() > 0
    assert torch.equal(ns.predict(model, X, seed=1).mean, ns.predict(model, X, seed=1).mean)


# ---- seeds, schedules, stops ---------------------------------------------------------------------------------------


def test_same_seed_same_bits() -> None:
    runs = []
    for seed in (3, 3, 4):
        model = _model()
        state = torch.get_rng_state()
        history = ns.fit(model, (X, Y), likelihood=ns.Gaussian(1.0), epochs=5, batch_size=20, seed=seed, **QUIET)
        assert torch.equal(torch.get_rng_state(), state)  # torch's own generator is left as it was
        assert history.seed == seed
        runs.append(_bits(model))
    assert _same(runs[0], runs[1])
    assert not _same(runs[0], runs[2])


def test_ramp() -> None:
    ramp = ns.Ramp(0.03, 1.0, 0.2, 0.6, log=True)
    assert ramp(0.0) == ramp(0.2) == pytest.approx(0.03)
    assert ramp(0.4) == pytest.approx(0.03**0.5)
    assert ramp(0.6) == ramp(1.0) == pytest.approx(1.0)
    assert ns.Ramp(1.0, 0.0 + 0.5)(0.5) == pytest.approx(0.75)


def test_schedules_reach_the_optimizer_and_the_data_term() -> None:
    model = _model()
    history = ns.fit(
        model,
        (X, Y),
        likelihood=ns.Gaussian(1.0),
        epochs=4,
        lr=0.1,
        lr_schedule=ns.Ramp(1.0, 0.2, 0.5),
        seed=0,
        **QUIET,
    )
    assert history.column("lr") == pytest.approx([0.1, 0.1, 0.1, 0.06])
    silent = _model()
    ns.fit(silent, (X, Y), likelihood=ns.Gaussian(1.0), epochs=1, likelihood_schedule=lambda t: 1e-12, seed=0, **QUIET)
    spread = next(silent._posteriors()).spread("weight")
    assert (spread > 0.00247).all()  # only the prior pulls


def test_stops_when_the_elbo_stands_still() -> None:
    history = ns.fit(_model(), (X, Y), likelihood=ns.Gaussian(1.0), epochs=1000, epsilon=1e6, window=5, seed=0, **QUIET)
    assert history.stopped == "converged"
    assert len(history) == 10


def test_callback_sees_every_record_and_can_stop() -> None:
    seen: list[int] = []

    def stop(model: ns.Bayesian, record: ns.Record) -> bool:
        seen.append(record.epoch)
        return record.epoch == 3

    history = ns.fit(_model(), (X, Y), likelihood=ns.Gaussian(1.0), epochs=10, callback=stop, seed=0, **QUIET)
    assert seen == [1, 2, 3]
    assert history.stopped == "callback"


def test_validation_metrics_do_not_disturb_the_fit() -> None:
    plain, watched = _model(), _model()
    ns.fit(plain, (X, Y), likelihood=ns.Gaussian(1.0), epochs=3, seed=0, **QUIET)
    history = ns.fit(watched, (X, Y), likelihood=ns.Gaussian(1.0), epochs=3, seed=0, validation=(X[:9], Y[:9]), **QUIET)
    assert _same(_bits(plain), _bits(watched))
    assert set(history[-1].validation) == {"rmse", "nll", "coverage90"}
    labels = ns.fit(
        _model(3), (X, LABELS), likelihood=ns.Categorical(), epochs=1, validation=(X, LABELS), seed=0, **QUIET
    )
    assert set(labels[-1].validation) == {"accuracy", "nll", "ece"}


def test_amp_is_off_by_default_and_works() -> None:
    history = ns.fit(_model(), (X, Y), likelihood=ns.Gaussian(1.0), epochs=2, amp=True, seed=0, **QUIET)
    assert np.isfinite(history[-1].elbo)


def test_gradients_of_a_callers_own_are_no_part_of_the_fit() -> None:
    clean, stale = _model(), _model()
    stale.kl().backward()
    for model in (clean, stale):
        ns.fit(model, (X, Y), likelihood=ns.Gaussian(1.0), epochs=2, seed=0, **QUIET)
    assert _same(_bits(clean), _bits(stale))


def test_a_break_in_the_last_step_is_noticed() -> None:
    with pytest.raises(FloatingPointError, match=r"after epoch 1, step 1.*Layer"):
        ns.fit(_model(), (X, Y), likelihood=ns.Gaussian(1.0), epochs=1, batch_size=50, lr=1e38, **QUIET)


def test_bfloat16(tmp_path: Path) -> None:
    model = _model().to(torch.bfloat16)
    ns.fit(model, (X, Y), likelihood=ns.Gaussian(1.0), epochs=2, checkpoint=tmp_path / "c", seed=0, **QUIET)
    p = ns.predict(model, X)
    assert p.quantile(0.5).dtype == torch.bfloat16
    gate = (
        next(
            ns.bayesian(
                nn.Sequential(nn.Linear(1, 5000), nn.ReLU(), nn.Linear(5000, 1)),
                ns.Normal() * ns.Node(start=0.999999),
                n=9,
            )._posteriors()
        )
        .switches()["node"]
        .to(torch.bfloat16)
    )
    assert sum(int((gate.draw() == 0).sum()) for _ in range(20)) <= 3  # of 100,000 at 1e-6, were the logit exact


def test_clip() -> None:
    norms: list[float] = []

    class Watch(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            grads = torch.cat([p.grad.reshape(-1) for g in self.param_groups for p in g["params"]])
            norms.append(grads.norm().item())

    ns.fit(
        _model(),
        (X, 100 * Y),
        likelihood=ns.Gaussian(1.0),
        epochs=1,
        clip=0.5,
        optimizer=lambda ps: Watch(ps, lr=0),
        **QUIET,
    )
    assert max(norms) <= 0.5001


def test_nan_stops_at_once_and_names_the_layer() -> None:
    model = _model()
    with torch.no_grad():
        model.net[2].bias.fill_(float("inf"))
    with pytest.raises(FloatingPointError, match=r"epoch 1, step 1.*'2' \(Linear\).*smaller lr"):
        ns.fit(model, (X, Y), likelihood=ns.Gaussian(1.0), epochs=3, **QUIET)
    with pytest.raises(FloatingPointError, match="lr"):
        ns.fit(_model(), (X, Y), likelihood=ns.Gaussian(1e-3), epochs=200, lr=1e30, **QUIET)


def test_progress_bar_only_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    ns.fit(_model(), (X, Y), likelihood=ns.Gaussian(1.0), epochs=2)
    assert capsys.readouterr().err == ""
    ns.fit(_model(), (X, Y), likelihood=ns.Gaussian(1.0), epochs=2, progress=True)
    assert "elbo" in capsys.readouterr().err


# ---- checkpoints ---------------------------------------------------------------------------------------------------

COMMON: dict[str, Any] = {"likelihood": ns.Gaussian("learn"), "batch_size": 20, "lr": 1e-2, "seed": 5, **QUIET}


class _Flips(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Rows whose signs flip at random, from torch's own generator: data that differ in every epoch."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        flips = [torch.rand(()).item(), np.random.rand(), random.random()]
        return X[i] * torch.tensor([1.0 if f < 0.5 else -1.0 for f in flips]), Y[i]


def _data(kind: str) -> Any:
    """Arrays, a loader that draws from the global generators, and one with a generator of its own."""
    np.random.seed(0)
    random.seed(0)
    if kind == "arrays":
        return X, Y
    own = torch.Generator().manual_seed(3) if kind == "own generator" else None
    return DataLoader(_Flips(), batch_size=20, shuffle=True, generator=own)


@pytest.mark.parametrize("kind", ["arrays", "loader", "own generator"])
@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"samples": 2}])
@pytest.mark.parametrize("at", [1, 4, 6, 11])
def test_stopped_anywhere_and_resumed(kind: str, options: dict[str, Any], at: int, tmp_path: Path) -> None:
    """SIGTERM after any step, in the middle of an epoch too: the resumed fit ends with the same bits."""
    whole = _model()
    reference = ns.fit(whole, _data(kind), epochs=4, **options, **COMMON)

    steps = [0]

    def count(*_: Any) -> None:
        steps[0] += 1
        if steps[0] == min(at, 12 // options.get("accumulate", 1) - 1):
            os.kill(os.getpid(), signal.SIGTERM)

    def dying(ps: list[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = torch.optim.Adam(ps, lr=1e-2, fused=True)
        optimizer.register_step_post_hook(count)
        return optimizer

    file = tmp_path / "fit.checkpoint"
    with pytest.raises(SystemExit) as stop:
        ns.fit(
            _model(),
            _data(kind),
            epochs=4,
            checkpoint=file,
            optimizer=dying,
            **options,
            **COMMON,
        )
    assert stop.value.code == 128 + signal.SIGTERM
    resumed = _model()
    history = ns.fit(resumed, _data(kind), epochs=4, checkpoint=file, **options, **COMMON)
    assert _same(_bits(whole), _bits(resumed))
    assert history.column("elbo") == reference.column("elbo")
    again = ns.fit(resumed, _data(kind), epochs=4, checkpoint=file, **options, **COMMON)
    assert again.column("elbo") == history.column("elbo")


def test_ctrl_c_saves_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c"
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        ns.fit(_model(), (X, Y), epochs=10_000_000, checkpoint=file, **COMMON)
    said = capsys.readouterr().err
    assert "stopped by SIGINT" in said
    assert str(file) in said
    assert sealed.read(file, "checkpoint")[0]["epoch"] > 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_more_epochs_go_on(tmp_path: Path) -> None:
    whole, parts = _model(), _model()
    ns.fit(whole, (X, Y), epochs=6, **COMMON)
    for epochs in (2, 6):
        history = ns.fit(parts, (X, Y), epochs=epochs, checkpoint=tmp_path / "c", **COMMON)
    assert len(history) == 6
    assert _same(_bits(whole), _bits(parts))


def test_a_checkpoint_of_another_fit_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "c"
    ns.fit(_model(), (X, Y), epochs=1, checkpoint=file, **COMMON)
    for changed, data, model, word in (
        ({"lr": 1e-3}, (X, Y), _model(), "lr"),
        ({"seed": 6}, (X, Y), _model(), "seed"),
        ({}, (X, 2 * Y), _model(), "data"),
        ({}, (X, Y), _model(prior=ns.vbnn()), "plan"),
        ({}, (X, Y), _model(prior=ns.Normal(1.0) * ns.Node(temperature=0.1)), "plan"),
        ({"optimizer": lambda ps: torch.optim.SGD(ps, lr=1e-2)}, (X, Y), _model(), "optimizer"),
        (
            {},
            (X, Y),
            ns.bayesian(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)), ns.ssig(), n=50),
            "network",
        ),
    ):
        with pytest.raises(ValueError, match=f"belongs to another fit: {word}"):
            ns.fit(model, data, epochs=1, checkpoint=file, **{**COMMON, **changed})


def test_batches_keep_the_memory_format() -> None:
    images = torch.randn(10, 3, 4, 5).to(memory_format=torch.channels_last)
    batches = list(Arrays((images, X[:10]), Y[:10], 4).epoch())
    assert [len(y) for _, y in batches] == [4, 4, 2]
    assert all(x.is_contiguous(memory_format=torch.channels_last) for (x, _), _ in batches)


def test_a_fit_begun_on_another_kind_of_device_goes_on_here(tmp_path: Path) -> None:
    """What a checkpoint from a GPU has more is left out: its generators, and how Adam took its steps there."""
    file, whole = tmp_path / "c", _model()
    ns.fit(_model(), (X, Y), epochs=2, checkpoint=file, **COMMON)
    meta, tensors = sealed.read(file, "checkpoint")
    meta["device"] = "cuda"
    for group in meta["optimizer"]["groups"]:
        group |= {"capturable": True, "foreach": None}
        del group["lr"]
    tensors |= {f"random/{when}/cuda0": torch.zeros(16, dtype=torch.uint8) for when in ("epoch", "now")}
    sealed.write(file, "checkpoint", meta, tensors)
    model = _model()
    with pytest.warns(UserWarning, match="was begun on cuda and goes on on cpu"):
        history = ns.fit(model, (X, Y), epochs=4, checkpoint=file, **COMMON)
    ns.fit(whole, (X, Y), epochs=4, **COMMON)
    assert len(history) == 4
    assert _same(_bits(model), _bits(whole))


def test_a_damaged_checkpoint_falls_back_one_generation(tmp_path: Path) -> None:
    file = tmp_path / "c"
    whole, model = _model(), _model()
    ns.fit(whole, (X, Y), epochs=5, **COMMON)
    ns.fit(model, (X, Y), epochs=3, checkpoint=file, checkpoint_seconds=0, **COMMON)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
    resumed = _model()
    with pytest.warns(UserWarning, match="generation before"):
        ns.fit(resumed, (X, Y), epochs=5, checkpoint=file, checkpoint_seconds=1e9, **COMMON)
    assert _same(_bits(whole), _bits(resumed))
    for path in (file, sealed.previous_of(file)):
        path.write_bytes(b"nodeslab 1 checkpoint 00\n")
    with pytest.warns(UserWarning, match="generation before"), pytest.raises(ValueError, match="damaged"):
        ns.fit(_model(), (X, Y), epochs=5, checkpoint=file, **COMMON)


def test_checkpoints_are_not_written_more_often_than_asked(tmp_path: Path) -> None:
    file = tmp_path / "c"
    written: list[float] = []
    ns.fit(
        _model(),
        (X, Y),
        epochs=20,
        checkpoint=file,
        checkpoint_seconds=1e9,
        callback=lambda m, r: written.append(file.exists()),
        **COMMON,
    )
    assert not any(written)
    assert file.exists()


def test_no_signal_handler_without_a_checkpoint() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[Any] = []
    with warnings.catch_warnings():
        ns.fit(
            _model(),
            (X, Y),
            likelihood=ns.Gaussian(1.0),
            epochs=1,
            callback=lambda m, r: seen.append(signal.getsignal(signal.SIGTERM)),
            **QUIET,
        )
    assert seen == [before]


def test_a_signal_during_the_last_save_is_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sealed.write

    def write(*args: Any, **kwargs: Any) -> Path:
        os.kill(os.getpid(), signal.SIGTERM)
        monkeypatch.setattr(sealed, "write", real)
        return real(*args, **kwargs)

    monkeypatch.setattr(sealed, "write", write)
    with pytest.raises(SystemExit) as stop:
        ns.fit(_model(), (X, Y), likelihood=ns.Gaussian(1.0), epochs=2, seed=0, checkpoint=tmp_path / "c", **QUIET)
    assert stop.value.code == 128 + signal.SIGTERM


def test_a_sampler_within_a_batch_sampler_resumes(tmp_path: Path) -> None:
    def run(epochs: tuple[int, ...]) -> list[Tensor]:
        for total in epochs:
            model = _model()
            sampler = RandomSampler(range(50), generator=torch.Generator().manual_seed(5))
            loader = DataLoader(TensorDataset(X, Y), batch_sampler=BatchSampler(sampler, 16, drop_last=False))
            file = tmp_path / f"c{len(epochs)}"
            ns.fit(model, loader, likelihood=ns.Gaussian(1.0), epochs=total, seed=1, checkpoint=file, **QUIET)
        return _bits(model)

    assert _same(run((5,)), run((2, 5)))


def test_a_forward_that_writes_into_its_input() -> None:
    """Every draw, and the caller, see the data as they were."""
    net = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    model = ns.bayesian(net, ns.ssig(), n=50)
    before = X.clone()
    ns.fit(model, (X, Y), likelihood=ns.Gaussian(1.0), epochs=2, seed=0, samples=2, **QUIET)
    ns.fit(model, DataLoader(TensorDataset(X, Y), batch_size=50), likelihood=ns.Gaussian(1.0), epochs=1, seed=0)
    ns.predict(model, X, draws=2)
    assert torch.equal(X, before)


def test_numpys_seed_goes_into_a_checkpoint(tmp_path: Path) -> None:
    history = ns.fit(
        _model(), (X, Y), likelihood=ns.Gaussian(1.0), epochs=1, seed=np.int64(3), checkpoint=tmp_path / "c", **QUIET
    )
    assert history.seed == 3


def test_a_fit_with_other_fixed_gates_is_another_fit(tmp_path: Path) -> None:
    model = _model()
    model.set_nodes({"0": [True] * 8})
    ns.fit(model, (X, Y), likelihood=ns.Gaussian(1.0), epochs=1, seed=0, checkpoint=tmp_path / "c", **QUIET)
    with pytest.raises(ValueError, match="belongs to another fit: frozen differ"):
        ns.fit(_model(), (X, Y), likelihood=ns.Gaussian(1.0), epochs=2, seed=0, checkpoint=tmp_path / "c", **QUIET)


def test_autocast_leaves_the_targets_alone() -> None:
    y = 1000 + Y
    nlls = []
    for data in ((X, y), DataLoader(TensorDataset(X, y), batch_size=50)):
        model = _model(prior=ns.vbnn())
        history = ns.fit(model, data, likelihood=ns.Gaussian(1.0), epochs=1, batch_size=50, seed=0, amp=True, **QUIET)
        nlls.append(history[0].nll)
    assert nlls[0] == pytest.approx(nlls[1], rel=1e-5)


def test_clipping_is_of_what_is_trained() -> None:
    """A parameter outside the optimizer neither counts in the norm nor keeps a gradient."""
    model = _model()
    head = list(model.net[2].parameters())
    ns.fit(
        model,
        (X, 100 * Y),
        likelihood=ns.Gaussian(1.0),
        epochs=1,
        seed=0,
        clip=1.0,
        optimizer=lambda parameters: torch.optim.Adam(head, lr=1e-3),
        **QUIET,
    )
    assert all(p.grad is None for p in model.parameters())


def test_compiled_it_is_the_same_fit() -> None:
    """The same draws and batches: the same records, to float error."""
    fits = []
    for compile in (False, True):
        model = _model()
        history = ns.fit(
            model,
            (X, Y),
            likelihood=ns.Gaussian(0.5),
            epochs=4,
            batch_size=25,
            lr=1e-2,
            seed=0,
            compile=compile,
            **QUIET,
        )
        fits.append((model, history))
    (eager, a), (compiled, b) = fits
    assert a.column("elbo") == pytest.approx(b.column("elbo"), rel=1e-4)
    for p, q in zip(eager.parameters(), compiled.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=0, atol=1e-4)
