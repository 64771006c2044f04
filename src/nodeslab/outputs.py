"""Which layers feed the network's output: there no node is selected (gamma_L = lambda_L = 1)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from nodeslab.graph import trace

__all__ = ["output_layers"]


def output_layers(net: nn.Module, paths: Sequence[str]) -> tuple[set[str], bool]:
    """The paths among `paths` that reach the output with no other of them between; True if the graph was seen.

    A forward that cannot be traced (control flow on data) is taken to end in the last layer of the module order.
    The trace runs the user's forward on stand-ins, which it may keep: give a copy that is thrown away.
    """
    if list(paths) == [""]:
        return {""}, True
    try:
        graph = trace(net, [net.get_submodule(p) for p in paths])
    except ValueError:
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


def _named(net: nn.Module, paths: Sequence[str]) -> list[tuple[str, nn.Module]]:
    """Every name of the layers at `paths`; a shared layer has several."""
    layers = [net.get_submodule(p) for p in paths]
    return [(name, m) for name, m in net.named_modules(remove_duplicate=False) if any(m is layer for layer in layers)]
