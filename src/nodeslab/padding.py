"""Channels in blocks, as onnxruntime's convolutions want them, for the ONNX graph of a shrunk network.

Its fast convolutions keep channels in blocks of 16 (of 8 without AVX-512) and refuse inputs whose number is not a
multiple of 4; what is left after shrinking may be any number. So channels of zero weights are added, up to the next
block, where such a number is read by a convolution. The file does not grow by them: it holds a Pad for each weight,
which a runtime works out once, when it loads the file.
"""

from __future__ import annotations

from typing import Any

__all__ = ["pad_channels"]

BLOCK = 16
REFUSED = 4  # numbers of channels that are no multiple of it
FEW = 8  # fewer than these are read without blocks

#: Operations on each channel by itself, finite where its input is.
# fmt: off
CHANNELWISE = frozenset((
    "Add", "AveragePool", "BatchNormalization", "Clip", "Elu", "Gelu", "GlobalAveragePool", "GlobalMaxPool",
    "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Max", "MaxPool", "Min", "Mish", "Mul", "Relu", "Selu",
    "Sigmoid", "Softplus", "Softsign", "Sub", "Swish", "Tanh",
))
# fmt: on
Width = tuple[int, int, int]  # how many channels, values per channel along axis 1, axes


def pad_channels(model: Any) -> None:
    """Add channels of zeros to an onnx.ModelProto, in place, where that makes its convolutions faster."""
    graph = model.graph
    if any(a.HasField("g") or a.graphs for node in graph.node for a in node.attribute):
        return  # a graph within the graph may read any value
    found = _Channels(graph)
    more = found.more()
    pads = _Pads(graph)
    for node in graph.node if more else ():
        first, out = node.input[0], node.output[0]
        inside, outside = more.get(first, 0), more.get(out, 0)
        if node.op_type == "Conv" and (inside or outside):
            groups = [a for a in node.attribute if a.name == "group" and a.i > 1]
            for a in groups:  # each channel by itself
                a.i, inside = a.i + outside, 0
            pads.pad(node, 1, [0, 0, 0, 0, outside, inside, 0, 0])
            pads.pad(node, 2, [0, outside])
        elif node.op_type == "BatchNormalization" and inside:
            for i in range(1, 5):
                pads.pad(node, i, [0, inside])
        elif node.op_type == "Reshape" and inside:
            rows, columns = found.numbers(node.input[1])
            node.input[1] = pads.constant([rows, columns + inside * found.width[out][1]])
        elif node.op_type == "Gemm" and inside:
            pads.pad(node, 1, [0, 0, 0, inside * found.width[first][1]])
    pads.finish()


class _Channels:
    """Which values have channels, and which of them belong together: all gain the same, or none does."""

    def __init__(self, graph: Any) -> None:
        self.weights = {t.name: t for t in graph.initializer}
        self.width: dict[str, Width] = {}
        self.parent: dict[str, str] = {}
        self.read: set[str] = set()  # by a convolution
        self.blocked = {v.name for v in graph.output}
        for node in graph.node:
            if not (len(node.output) == 1 and node.domain == "" and self._follow(node)):
                self.blocked |= {*node.input, *node.output}

    def more(self) -> dict[str, int]:
        """How many channels each value gains, where it does."""
        roots = {self._find(v) for v in self.read} - {self._find(v) for v in self.blocked}
        chosen = {v: w[0] for v, w in self.width.items() if self._find(v) in roots}
        return {v: -n % BLOCK for v, n in chosen.items() if n >= FEW and n % REFUSED}

    def numbers(self, name: str) -> list[int]:
        """A constant's integers; none where it is not one."""
        from onnx import numpy_helper

        return numpy_helper.to_array(self.weights[name]).ravel().tolist() if name in self.weights else []

    def _find(self, value: str) -> str:
        while (up := self.parent.get(value, value)) != value:
            value = up
        return value

    def _tie(self, values: list[str], out: str, width: Width) -> bool:
        self.width[out] = width
        for value in values:
            self.parent[self._find(value)] = self._find(out)
        return True

    def _follow(self, node: Any) -> bool:
        """Note what a node does to channels; False where they must stay as they are."""
        inputs, out = [v for v in node.input if v], node.output[0]
        options = {a.name: a.i for a in node.attribute}
        dims = {v: list(self.weights[v].dims) for v in inputs if v in self.weights}
        width = self.width.get(inputs[0]) if inputs else None
        if node.op_type == "Conv" and len(dims) == len(inputs) - 1 and len(dims.get(inputs[1], [])) == 4:
            rows, columns = dims[inputs[1]][:2]
            self.read.add(inputs[0])
            self.width[out] = (rows, 1, 4)
            if options.get("group", 1) == 1:
                return True
            return width == (rows, 1, 4) and columns == 1 and self._tie(inputs[:1], out, (rows, 1, 4))
        channels = [v for v in inputs if v in self.width]
        if not channels:
            return True
        if node.op_type in CHANNELWISE:
            width = self.width[channels[0]]
            allowed = [[width[0]]] if node.op_type == "BatchNormalization" else [[], [1]]
            same = all(self.width[v] == width if v in self.width else dims.get(v) in allowed for v in inputs)
            return same and self._tie(channels, out, width)
        if width is None or len(channels) > 1:
            return False
        n, each, axes = width
        if node.op_type == "ReduceMean" and axes == 4 and len(inputs) == 2:
            kept = 4 if options.get("keepdims", 1) else 2
            return {a % 4 for a in self.numbers(inputs[1])} == {2, 3} and self._tie(channels, out, (n, 1, kept))
        if node.op_type == "Reshape" and axes == 4 and len(shape := self.numbers(inputs[1])) == 2:
            return shape[1] > 0 and shape[1] % n == 0 and self._tie(channels, out, (n, shape[1] // n, 2))
        if node.op_type == "Gemm" and len(dims) == len(inputs) - 1:
            turned = (options.get("transA", 0), options.get("transB", 0)) == (0, 1)
            return turned and dims[inputs[1]][1] == n * each
        return False


class _Pads:
    """The Pad nodes, each made once."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.made: dict[tuple[str, tuple[int, ...]], Any] = {}
        self.constants: dict[tuple[int, ...], str] = {}

    def constant(self, numbers: list[int]) -> str:
        import numpy as np
        from onnx import numpy_helper

        name = self.constants.setdefault(tuple(numbers), f"pad_{len(self.constants)}")
        if all(t.name != name for t in self.graph.initializer):
            self.graph.initializer.append(numpy_helper.from_array(np.array(numbers, dtype=np.int64), name))
        return name

    def pad(self, node: Any, index: int, pads: list[int]) -> None:
        """Let an input of a node be padded by zeros."""
        from onnx import helper

        if index >= len(node.input) or not node.input[index] or not any(pads):
            return
        key = (node.input[index], tuple(pads))
        if key not in self.made:
            out = f"{key[0]}.padded{len(self.made)}"
            self.made[key] = helper.make_node("Pad", [key[0], self.constant(pads)], [out])
        node.input[index] = self.made[key].output[0]

    def finish(self) -> None:
        """Put them before everything else."""
        nodes = [*self.made.values(), *self.graph.node]
        if self.made:
            del self.graph.node[:]
            self.graph.node.extend(nodes)
