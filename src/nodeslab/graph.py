"""Running and tracing a network, so that an error names the layer in which it happened."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

__all__ = ["run", "shapes", "trace"]


def shapes(inputs: Sequence[Tensor]) -> str:
    """The inputs' shapes, for a sentence."""
    return ", ".join(str(tuple(x.shape)) for x in inputs)


def run(net: nn.Module, inputs: Sequence[Tensor], name: str, call: Callable[..., Any] | None = None) -> Any:
    """net(*inputs), or a sentence that names the layer which they do not fit.

    name: what the inputs are called. call: what is run instead of `net`, when its layers run inside.
    """
    running: list[tuple[str, nn.Module, str]] = []

    def note(path: str, module: nn.Module, args: tuple[Any, ...]) -> None:
        shape = str(tuple(args[0].shape)) if args and isinstance(args[0], Tensor) else "?"
        running.append((path, module, shape))

    handles = [
        m.register_forward_pre_hook(lambda m, args, path=path: note(path, m, args))
        for path, m in net.named_modules()
        if not list(m.children())
    ]
    try:
        return (call or net)(*inputs)
    except Exception as e:  # the user's own forward: anything may come out
        if isinstance(e, torch.OutOfMemoryError):
            raise
        where = ""
        if running:
            path, layer, shape = running[-1]
            where = f" layer '{path}' ({layer}) got an input of shape {shape}."
        raise ValueError(f"The network cannot take {name} of shape {shapes(inputs)}:{where} Its own words: {e}") from e
    finally:
        for handle in handles:
            handle.remove()


class _Tracer(torch.fx.Tracer):
    """Notes in which module it is; looks into torch's own composite modules too, when one of `layers` is inside."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = layers
        self.inside: list[str] = []

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        within = any(part is layer for part in m.modules() for layer in self.layers if part is not m)
        return super().is_leaf_module(m, module_qualified_name) and not within

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self.inside.append(self.path_of_module(m))
        out = super().call_module(m, forward, args, kwargs)
        self.inside.pop()  # after an error it stays, and says where
        return out


def trace(net: nn.Module, layers: Sequence[nn.Module] = ()) -> torch.fx.Graph:
    """The graph of a network's forward, or a sentence that names the module which has none.

    The trace runs the user's forward on stand-ins, which it may keep: give a copy that is thrown away.
    """
    if not all(type(m).__module__.startswith("torch.nn.") for m in net.modules()):
        # A forward may import it (activation checkpointing does), and it must not see the math functions that a trace
        # puts in the place of Python's: torch.compile would not know them in this process any more.
        importlib.import_module("torch._dynamo")
    tracer = _Tracer(layers)
    try:
        return tracer.trace(net)
    except Exception as e:
        path = tracer.inside[-1] if tracer.inside else ""
        kind = type(net.get_submodule(path)).__name__
        where = f"layer '{path}' ({kind})" if path else kind
        raise ValueError(
            f"The forward of {where} cannot be traced ({str(e).strip().splitlines()[0] if str(e).strip() else e!r}): "
            "there is no graph without control flow on data. Write the choice with torch.where, or leave it outside "
            "the network."
        ) from e
