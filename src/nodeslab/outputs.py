"""Which layers feed the network's output: there no node is selected (gamma_L = lambda_L = 1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch.fx
from torch import nn

__all__ = ["output_layers"]


def output_layers(net: nn.Module, paths: Sequence[str]) -> tuple[set[str], bool]:
    """The paths among `paths` that reach the output with no other of them between; True if the graph was seen.

    A forward that cannot be traced (control flow on data) is taken to end in the last layer of the module order.
    The trace runs the user's forward on stand-ins, which it may keep: give a copy that is thrown away.
    """
    if list(paths) == [""]:
        return {""}, True
    try:
        graph = _Tracer([net.get_submodule(p) for p in paths]).trace(net)
    except Exception:  # tracing runs the user's own forward on proxies: anything may come out
        return {paths[-1]}, False
    aliases = {name: next(p for p in paths if net.get_submodule(p) is m) for name, m in _named(net, paths)}
    found: set[str] = set()
    queue = [node for node in graph.nodes if node.op == "output"]
    seen = set(queue)
    while queue:
        node = queue.pop()
        here = {aliases[node.target]} if node.op == "call_module" and node.target in aliases else set()
        for source in node.all_input_nodes:  # a functional call on a layer's own weight
            if source.op == "get_attr" and str(source.target).rpartition(".")[0] in aliases:
                here.add(aliases[str(source.target).rpartition(".")[0]])
        if here:
            found |= here
            continue
        for source in node.all_input_nodes:
            if source not in seen:
                seen.add(source)
                queue.append(source)
    return (found, True) if found else ({paths[-1]}, False)


class _Tracer(torch.fx.Tracer):
    """Looks into torch's own composite modules too, when one of the layers is inside."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = layers

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        inside = any(part is layer for part in m.modules() for layer in self.layers if part is not m)
        return super().is_leaf_module(m, module_qualified_name) and not inside


def _named(net: nn.Module, paths: Sequence[str]) -> list[tuple[str, nn.Module]]:
    """Every name of the layers at `paths`; a shared layer has several."""
    layers = [net.get_submodule(p) for p in paths]
    return [(name, m) for name, m in net.named_modules(remove_duplicate=False) if any(m is layer for layer in layers)]
