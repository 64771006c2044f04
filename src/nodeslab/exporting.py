"""Out of Python's hands: torch.export and ONNX files of a plain network, or of an ensemble of frozen draws."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nodeslab.blocks import in_blocks
from nodeslab.checks import whole
from nodeslab.graph import run, trace
from nodeslab.likelihoods import Bernoulli, Categorical, Gaussian
from nodeslab.model import Bayesian, copy_network, is_guard
from nodeslab.prediction import evaluating, isolated_seed

__all__ = ["Ensemble", "ensemble", "export"]

SMALL = 64  # numbers in a constant
WINDOWED = ("Conv", "ConvTranspose", "MaxPool", "AveragePool")
DEFAULTS = {"pads": 0, "strides": 1, "dilations": 1, "output_padding": 0}  # which ONNX's own schema does not hold


class Ensemble(nn.Module):
    """Several draws of a model, frozen, in one network that returns what `ns.predict` computes from them.

    Regression: mean and standard deviation. Classes: probabilities, entropy and mutual information.
    """

    noise: Tensor

    def __init__(self, nets: list[nn.Module], kind: str, noise: Tensor) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)
        self.kind = kind
        self.register_buffer("noise", noise)

    @property
    def output_names(self) -> list[str]:
        stem = ["probabilities", "predictive_entropy", "mutual_information"]
        return ["predictive_mean", "predictive_std"] if self.kind == "regression" else stem

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs = torch.stack([net(*inputs) for net in self.nets])
        if self.kind == "regression":
            mean = outputs.mean(0)
            spread = (outputs - mean).square().sum(0) / max(len(self.nets) - 1, 1)
            return mean, torch.sqrt(spread + self.noise.square())
        p = torch.sigmoid(outputs) if self.kind == "binary" else torch.softmax(outputs, 2)
        mean = p.mean(0)
        entropy, each = self._entropy(mean), self._entropy(p).mean(0)
        return mean, entropy, (entropy - each).clamp_min(0.0)

    def _entropy(self, p: Tensor) -> Tensor:
        tiny = torch.finfo(p.dtype).tiny
        if self.kind == "binary":
            q = 1.0 - p
            return -(p * torch.log(p.clamp_min(tiny)) + q * torch.log(q.clamp_min(tiny)))
        return -(p * torch.log(p.clamp_min(tiny))).sum(-1 if p.dim() < 4 else p.dim() - 3)


@torch.no_grad()
def ensemble(model: Bayesian, draws: int, seed: int = 0) -> Ensemble:
    """The draws that `ns.predict(model, X, draws=draws, seed=seed)` takes, as one plain network."""
    nets = []
    with evaluating(model), isolated_seed(seed):
        for _ in range(draws):
            weights = {}
            with model.drawn():
                for posterior, layer in zip(model._posteriors(), model._layers, strict=True):
                    weights[posterior.path] = {n: layer._parameters[n].clone() for n in posterior.names}  # type: ignore[union-attr]
            net = model.mean().eval()
            for path, tensors in weights.items():
                for name, value in tensors.items():
                    net.get_submodule(path)._parameters[name].copy_(value)  # type: ignore[union-attr]
            nets.append(net)
    chosen = model.likelihood
    kind = "classes" if isinstance(chosen, Categorical) else "binary" if isinstance(chosen, Bernoulli) else "regression"
    like = next(model.posteriors.parameters())
    noise = torch.zeros((), dtype=like.dtype)
    if isinstance(chosen, Gaussian):
        noise = chosen.scale(like, model.noise if chosen.learns else None).detach().clone()
    return Ensemble(nets, kind, noise).eval()


def export(
    model: nn.Module,
    example: Any,
    path: str | os.PathLike[str],
    *,
    draws: int | None = None,
    seed: int = 0,
) -> Path:
    """Write a network to one file that runs without nodeslab: `.pt2` (torch.export) or `.onnx`, any batch size.

    A plain network, such as `ns.shrink(model, example)`, is exported as it is. A Bayesian model needs `draws`: that
    many of its draws, frozen, in one graph that returns mean and std, or probabilities, entropy and mutual information.
    """
    target = Path(path)
    if target.suffix not in (".onnx", ".pt2"):
        raise ValueError(f"The file must end in .onnx or .pt2, got {target.name!r}.")
    if not target.parent.is_dir():
        raise ValueError(f"Cannot write {target}: the folder {target.parent} does not exist; make it first.")
    if isinstance(model, Bayesian):
        if draws is None:
            raise ValueError(
                "An exported graph cannot sample. Export an ensemble of frozen draws with draws=16, or the plain "
                "network ns.shrink(model, example)."
            )
        net: nn.Module = ensemble(model, whole("draws", draws), whole("seed", seed, least=0))
    elif any(is_guard(h) for m in model.modules() for h in m._forward_pre_hooks.values()):
        raise ValueError(
            "This is a Bayesian model's inner network; export ns.shrink(model, example) or the model itself."
        )
    elif draws is not None:
        raise ValueError("draws= is for a model from ns.bayesian; this network has no posterior to draw from.")
    else:
        net = model
    several = example if isinstance(example, tuple) else (example,)
    like = next((p for p in net.parameters() if p.is_floating_point()), torch.zeros(()))
    inputs = tuple(_two_rows(torch.as_tensor(x), like) for x in several)
    aside = target.with_name(f".{target.stem}.partial{target.suffix}")
    with evaluating(net), torch.no_grad():
        run(net, inputs, "an example")
        try:
            _write(net, inputs, aside)
            os.replace(aside, target)
        finally:
            aside.unlink(missing_ok=True)
    return target


def _two_rows(x: Tensor, like: Tensor) -> Tensor:
    """Two rows: with one, a batch axis would be taken for a constant."""
    x = x.detach().to(like.device)
    x = x.to(like.dtype) if x.is_floating_point() else x
    return torch.cat([x[:1], x[:1]])


def _write(net: nn.Module, inputs: tuple[Tensor, ...], path: Path) -> None:
    batch = torch.export.Dim("batch")
    if path.suffix == ".pt2":
        torch.export.save(_program(net, inputs, batch), path)
        return
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f'ONNX export needs {" and ".join(missing)}: pip install "nodeslab[onnx]".')
    if isinstance(net, Ensemble):
        arranged: nn.Module = Ensemble([in_blocks(n, inputs) for n in net.nets], net.kind, net.noise)
    else:
        arranged = in_blocks(net, inputs)
    program = _program(arranged, inputs, batch)
    names = net.output_names if isinstance(net, Ensemble) else ["output"]
    try:
        with warnings.catch_warnings(), _no_word_of_torchvision():
            warnings.simplefilter("ignore")
            made = torch.onnx.export(
                program,
                input_names=[f"input{i}" if len(inputs) > 1 else "input" for i in range(len(inputs))],
                output_names=names,
                dynamo=True,
                optimize=False,
                verbose=False,
            )
            assert made is not None
            # weights that `in_blocks` cuts and pads are to be worked out by the runtime, not stored: fold small ones
            importlib.import_module("onnxscript.optimizer").optimize(
                made.model, input_size_limit=SMALL, output_size_limit=SMALL
            )
            made.save(str(path), external_data=False)
    except Exception as e:
        raise ValueError(
            f"{type(net).__name__} has an operation that ONNX, or torch's exporter, does not know: "
            f"{str(e).strip().splitlines()[0] if str(e).strip() else e!r}. Export it as .pt2, or write it differently."
        ) from e
    _finish(path)


@contextmanager
def _no_word_of_torchvision() -> Iterator[None]:
    """The exporter logs four lines at each export where torchvision is not installed."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _finish(path: Path) -> None:
    """Take out what the exporter notes about the Python source, which can be as large as the weights."""
    import onnx

    model = onnx.load(path)
    for part in (model, model.graph, *model.graph.node, *model.graph.input, *model.graph.output):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    del model.graph.value_info[:]
    _shorten(model)
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


def _shorten(model: Any) -> None:
    """Short names for what is neither an input, an output nor a weight, and no attributes that repeat a default."""
    import onnx

    graph = model.graph
    version = next(o.version for o in model.opset_import if o.domain == "")
    kept = {v.name for v in [*graph.input, *graph.output]} | {t.name for t in graph.initializer if "." in t.name}
    short: dict[str, str] = {"": ""}

    def rename(name: str) -> str:
        return name if name in kept else short.setdefault(name, f"v{len(short)}")

    for tensor in graph.initializer:
        tensor.name = rename(tensor.name)
    constants = {t.name: onnx.numpy_helper.to_array(t).tolist() for t in graph.initializer if len(t.dims) == 1}
    for node in graph.node:
        if any(a.HasField("g") or a.graphs for a in node.attribute):  # a graph within the graph may read any value
            kept |= {name for inner in node.attribute for part in inner.g.node for name in part.input}
    for node in graph.node:
        node.name = ""
        node.input[:], node.output[:] = map(rename, list(node.input)), map(rename, list(node.output))
        if node.domain == "":
            known = onnx.defs.get_schema(node.op_type, version).attributes
            for a in list(node.attribute):
                if node.op_type in WINDOWED and a.name in DEFAULTS:
                    default = [DEFAULTS[a.name]] * len(a.ints)
                elif node.op_type in WINDOWED[:2] and a.name == "kernel_shape":  # the weight's
                    default = list(a.ints)
                elif a.name == "allowzero" and 0 not in constants.get(node.input[1], [0]):
                    default = a.i
                else:
                    default = onnx.helper.get_attribute_value(known[a.name].default_value)
                if default is not None and onnx.helper.get_attribute_value(a) == default:
                    node.attribute.remove(a)


def _program(net: nn.Module, inputs: tuple[Tensor, ...], batch: Any) -> torch.export.ExportedProgram:
    dynamic = tuple({0: batch} for _ in inputs)
    shapes = (dynamic,) if isinstance(net, Ensemble) else dynamic
    try:
        return torch.export.export(net, inputs, dynamic_shapes=shapes)
    except Exception as e:
        first = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        trace(copy_network(net))  # names the layer, where it is one's forward that has no graph
        raise ValueError(
            f"{type(net).__name__} cannot be exported with a batch size of its own: {first}. Control flow on data and "
            "sizes written as numbers are what stops it."
        ) from e
