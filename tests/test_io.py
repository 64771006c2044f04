"""Files: whole or refused, without pickle."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import nodeslab as ns
from nodeslab import architecture, sealed

NETS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Linear(3, 5), nn.LeakyReLU(0.3), nn.Dropout(0.1), nn.Linear(5, 2, bias=False)),
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(1, 4, (3, 2), stride=(2, 1), padding=1, padding_mode="reflect"),
        nn.BatchNorm2d(4, eps=1e-3, momentum=None),
        nn.PReLU(4),
        nn.AdaptiveAvgPool2d((2, None)),
        nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=True),
        nn.Flatten(),
        nn.Linear(192, 2),
    ),
    "nested": lambda: nn.Sequential(
        nn.Sequential(nn.Linear(3, 4), nn.LayerNorm((4,), elementwise_affine=False)), nn.GELU("tanh"), nn.Linear(4, 1)
    ),
    "transposed": lambda: nn.Sequential(
        nn.ConvTranspose1d(2, 4, 3, groups=2, output_padding=1, stride=2),
        nn.GroupNorm(2, 4),
        nn.Hardtanh(-2.0, 3.0),
        nn.Conv1d(4, 1, 1),
    ),
    "one layer": lambda: nn.Linear(3, 2),
}
SHAPES = {"mlp": (4, 3), "convolutions": (4, 1, 7, 5), "nested": (4, 3), "transposed": (4, 2, 5), "one layer": (4, 3)}


@pytest.mark.parametrize("kind", ["vbnn", "svbnn", "hsbnn", "ssig"])
@pytest.mark.parametrize("name", NETS)
def test_round_trip(name: str, kind: str, tmp_path: Path) -> None:
    """Loaded without its class, a model predicts the same and is the same in every state."""
    if name == "one layer" and kind == "ssig":
        pytest.skip("a single layer has nothing to select")
    model = ns.bayesian(NETS[name](), getattr(ns, kind)(), n=10)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    x = torch.randn(SHAPES[name])
    model(x)  # moves running averages
    loaded = ns.load(ns.save(model, tmp_path / "m"))
    assert isinstance(loaded, ns.Bayesian)
    assert repr(loaded) == repr(model)
    assert torch.equal(ns.predict(loaded, x).mean, ns.predict(model, x).mean)
    for (k, a), (j, b) in zip(model.state_dict().items(), loaded.state_dict().items(), strict=True):
        assert k == j
        assert torch.equal(a, b)
    assert torch.equal(ns.load(ns.save(model.mean(), tmp_path / "plain")).eval()(x), model.mean().eval()(x))


@pytest.mark.parametrize("likelihood", [ns.Gaussian("learn"), ns.Gaussian(0.3), ns.Bernoulli()])
def test_the_likelihood_is_kept(likelihood: ns.Gaussian, tmp_path: Path) -> None:
    X = torch.randn(40, 3)
    model = ns.bayesian(NETS["nested"](), ns.ssig(), n=40)
    ns.fit(model, (X, (X[:, 0] > 0).float()), likelihood=likelihood, epochs=2, seed=0)
    loaded = ns.load(ns.save(model, tmp_path / "m"))
    assert loaded.likelihood == likelihood
    a, b = ns.predict(model, X), ns.predict(loaded, X)
    assert torch.equal(a.mean, b.mean)
    assert torch.equal(a.std, b.std)
    history = ns.fit(loaded, (X, (X[:, 0] > 0).float()), epochs=1, seed=0)  # and it trains on
    assert len(history) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_types_are_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    model = ns.bayesian(NETS["mlp"](), ns.ssig(prior=1e-50), n=10).to(dtype)
    loaded = ns.load(ns.save(model, tmp_path / "m"))
    assert {p.dtype for p in loaded.parameters()} == {dtype}


class Own(nn.Module):
    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, width), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x)))


def test_a_class_of_ones_own(tmp_path: Path) -> None:
    model = ns.bayesian(Own(), ns.ssig(), n=10)
    file = ns.save(model, tmp_path / "m")
    with pytest.raises(ValueError, match=r"test_io\.Own.*ns\.load\(path, net="):
        ns.load(file)
    with pytest.raises(ValueError, match=r"does not fit this network: a\.bias is \(5,\) in the file and \(4,\)"):
        ns.load(file, Own(4))
    with pytest.raises(TypeError, match="must be an instance"):
        ns.load(file, Own)  # type: ignore[arg-type]
    other = Own()
    other.a = nn.Sequential(nn.Linear(3, 5))
    with pytest.raises(ValueError, match="does not fit this network"):
        ns.load(file, other)
    fresh = Own()
    before = fresh.a.weight.clone()
    loaded = ns.load(file, fresh)
    assert torch.equal(fresh.a.weight, before)
    x = torch.randn(4, 3)
    assert torch.equal(ns.predict(loaded, x).mean, ns.predict(model, x).mean)


def test_another_network_of_the_same_shapes_is_refused(tmp_path: Path) -> None:
    file = ns.save(ns.bayesian(NETS["mlp"](), ns.ssig(), n=10), tmp_path / "m")
    other = NETS["mlp"]()
    other[1] = nn.Tanh()
    with pytest.raises(ValueError, match=r"where it has `\(1\): LeakyReLU.*net has `\(1\): Tanh"):
        ns.load(file, other)


def test_what_a_constructor_does_not_say_is_not_described(tmp_path: Path) -> None:
    """A hook or a forward of its own changes what a network computes: then the network itself is asked for."""
    net = NETS["mlp"]()
    net[0].register_forward_hook(lambda m, i, o: 2 * o)
    with pytest.raises(ValueError, match="pass a fresh instance"):
        ns.load(ns.save(ns.bayesian(net, ns.ssig(), n=10), tmp_path / "m"))
    odd = nn.Sequential(nn.Linear(3, 4), nn.Sequential(), nn.ReLU(), nn.Linear(4, 1))
    odd[0].weight.requires_grad_(False)
    loaded = ns.load(
        ns.save(ns.bayesian(odd, ns.ssig(prior=ns.theory.inclusion_priors([3, 4, 1], 10)), n=10), tmp_path / "m")
    )
    assert not loaded.net[0].weight.requires_grad


def test_fixed_gates_and_learnt_noise_come_back(tmp_path: Path) -> None:
    model = ns.bayesian(NETS["mlp"](), ns.ssig(), n=10)
    model.set_nodes({"0": [1, 0, 1, 0, 1]})
    X = torch.randn(10, 3)
    ns.fit(model, (X, X[:, :2]), likelihood=ns.Gaussian("learn"), epochs=1, progress=False)
    loaded = ns.load(ns.save(model, tmp_path / "m"))
    fresh = ns.bayesian(NETS["mlp"](), ns.ssig(), n=10)
    fresh.load_state_dict(model.state_dict())
    for other in (loaded, fresh):
        ns.fit(
            other,
            (X, X[:, :2]),
            likelihood=ns.Gaussian("learn"),
            epochs=30,
            optimizer=lambda ps: torch.optim.AdamW(ps, lr=0.1, weight_decay=0.5),
            progress=False,
        )
        assert other.nodes()[0].inclusion.tolist() == [1, 0, 1, 0, 1]


def test_shared_layers(tmp_path: Path) -> None:
    layer = nn.Linear(3, 3)
    model = ns.bayesian(nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(3, 1)), ns.ssig(), n=10)
    loaded = ns.load(ns.save(model, tmp_path / "m"))
    assert loaded.net[0] is loaded.net[2]
    assert torch.equal(ns.predict(loaded, torch.ones(2, 3)).mean, ns.predict(model, torch.ones(2, 3)).mean)


def test_a_thousand_damaged_files(tmp_path: Path) -> None:
    """Flipped bits, cut ends, added bytes, exchanged blocks: all refused, in a sentence that names the file."""
    file = ns.save(ns.bayesian(NETS["mlp"](), ns.ssig(), n=10), tmp_path / "m")
    whole, chance = file.read_bytes(), random.Random(0)
    for i in range(1000):
        content = bytearray(whole)
        if i % 4 == 0:
            del content[chance.randrange(len(content)) :]
        elif i % 4 == 1:
            content += bytes(chance.randrange(256) for _ in range(chance.randrange(1, 9)))
        elif i % 4 == 2:
            a, b = sorted(chance.sample(range(len(content)), 2))
            content[a:b] = bytes(chance.randrange(256) for _ in range(b - a))
        else:
            for _ in range(chance.randrange(1, 4)):
                content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        if content == whole:
            continue
        file.write_bytes(content)
        with pytest.raises(ValueError, match=f"{file} "):
            ns.load(file)
    header = whole.index(b"\n") + 1
    for place in range(8 * header):  # every single bit of the first line
        content = bytearray(whole)
        content[place // 8] ^= 1 << place % 8
        file.write_bytes(content)
        with pytest.raises(ValueError, match=f"{file} "):
            ns.load(file)


def test_foreign_newer_and_wrong(tmp_path: Path) -> None:
    file = tmp_path / "m"
    for content, word in (
        (b"", "not a nodeslab file"),
        (b"PK\x03\x04pickle", "not a nodeslab file"),
        (b"nodeslab 2 model 00\nxx", "newer"),
        (b"nodeslab x model 00\nxx", "damaged"),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=word):
            ns.load(file)
    with pytest.raises(FileNotFoundError, match="no file"):
        ns.load(tmp_path / "absent")
    with pytest.raises(ValueError, match="is a folder"):
        ns.load(tmp_path)
    sealed.write(file, "checkpoint", {}, {"x": torch.ones(1)})
    with pytest.raises(ValueError, match="holds a checkpoint, not a model"):
        ns.load(file)
    sealed.write(file, "model", {"bayesian": True}, {"x": torch.ones(1)})
    with pytest.raises(ValueError, match="incomplete"):
        ns.load(file)


def test_nothing_but_torchs_own_layers_is_built() -> None:
    """A file cannot name a class outside torch.nn, nor hand one an object."""
    for name in ("Module.__init__", "os.system", "Linear2", "functional", "Parameter"):
        with pytest.raises(ValueError, match=r"torch\.nn does not have"):
            architecture.build({"type": name, "options": {}})
    with pytest.raises(ValueError, match="children"):
        architecture.build({"type": "Linear", "children": {}})


def test_save_says_what_is_wrong(tmp_path: Path) -> None:
    model = ns.bayesian(NETS["mlp"](), ns.ssig(), n=10)
    with pytest.raises(TypeError, match="save takes a model"):
        ns.save({"a": 1}, tmp_path / "m")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="does not exist"):
        ns.save(model, tmp_path / "nowhere" / "m")
    with pytest.raises(ValueError, match="is a folder"):
        ns.save(model, tmp_path)
    with pytest.raises(RuntimeError, match="A draw is held"), model.drawn():
        ns.save(model, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_overwriting_is_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash before the rename leaves the old file as it was."""
    file = ns.save(ns.bayesian(NETS["mlp"](), ns.ssig(), n=10), tmp_path / "m")
    before = file.read_bytes()
    monkeypatch.setattr("os.replace", lambda *a: (_ for _ in ()).throw(OSError("crash")))
    with pytest.raises(OSError, match="crash"):
        ns.save(ns.bayesian(NETS["mlp"](), ns.ssig(), n=10), file)
    assert file.read_bytes() == before
