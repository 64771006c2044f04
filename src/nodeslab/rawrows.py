"""An ONNX file that takes a table's rows as they are: gaps, scaling and levels inside the graph, answers in units.

The graph of `ns.export` reads standardised numbers. Before it come, in float64 as `nodeslab predict` computes it,

    numbers (rows, columns) -> (where(isnan, median, x) - center) / scale,    categories (rows, columns) -> 0 or 1

and after it the target's units, or the name of the most probable class.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from nodeslab.folder import aside
from nodeslab.preprocessing import Preprocessing

__all__ = ["take_raw_rows"]


def take_raw_rows(file: Path, made: Preprocessing) -> dict[str, list[str]]:
    """Rewrite an exported ONNX file so that it reads raw rows; the names of its inputs' columns and of its outputs."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.load(file)
    graph = model.graph
    nodes: list[Any] = []

    def constant(name: str, value: Any) -> str:
        if isinstance(value, list):  # texts
            tensor = helper.make_tensor(name, TensorProto.STRING, [len(value)], [v.encode() for v in value])
        else:
            tensor = numpy_helper.from_array(value, name)
        graph.initializer.append(tensor)
        return name

    def add(op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    entry = graph.input[0].name
    inputs: list[Any] = []
    parts: list[str] = []
    if made.numbers:
        inputs.append(helper.make_tensor_value_info("numbers", TensorProto.DOUBLE, ["rows", len(made.numbers)]))
        facts = {k: np.array([getattr(c, k) for c in made.numbers]) for k in ("fill", "center", "scale")}
        fill, center, scale = (constant(f"raw.{k}", v) for k, v in facts.items())
        full = add("Where", [add("IsNaN", ["numbers"], "raw.gaps"), fill, "numbers"], "raw.full")
        scaled = add("Div", [add("Sub", [full, center], "raw.centered"), scale], "raw.scaled")
        parts.append(add("Cast", [scaled], "raw.numbers", to=TensorProto.FLOAT))
    if made.categories:
        inputs.append(helper.make_tensor_value_info("categories", TensorProto.STRING, ["rows", len(made.categories)]))
    for j, c in enumerate(made.categories):
        own = add("Gather", ["categories", constant(f"raw.place{j}", np.array([j]))], f"raw.text{j}", axis=1)
        keys, codes = [level.encode() for level in c.levels], list(range(len(c.levels)))
        nodes.append(
            helper.make_node(
                "LabelEncoder",
                [own],
                [f"raw.code{j}"],
                domain="ai.onnx.ml",
                keys_strings=keys,
                values_int64s=codes,
                default_int64=len(codes),
            )
        )
        hot = add("Equal", [f"raw.code{j}", constant(f"raw.codes{j}", np.arange(c.width))], f"raw.hot{j}")
        parts.append(add("Cast", [hot], f"raw.level{j}", to=TensorProto.FLOAT))
    add("Concat", parts, entry, axis=1)
    before, nodes = nodes, []
    outputs = _after(made, graph, constant, add)
    body = list(graph.node)
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend([*before, *body, *nodes])
    graph.input.extend(inputs)
    graph.output.extend(outputs)
    if made.categories:
        model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    said = {
        "numbers": [c.name for c in made.numbers],
        "categories": [c.name for c in made.categories],
        "outputs": [o.name for o in outputs],
    }
    helper.set_model_props(model, {"nodeslab": json.dumps({**said, "target": made.target})})
    onnx.checker.check_model(model)
    content = model.SerializeToString()
    aside(file, lambda partial: partial.write_bytes(content))
    return said


def _after(made: Preprocessing, graph: Any, constant: Any, add: Any) -> list[Any]:
    """What the graph gives, in the target's units: prediction and std; or prediction, probabilities and the rest."""
    from onnx import TensorProto, helper

    names = [o.name for o in graph.output]
    if made.task == "regression":
        units = {"scale": np.array(made.scale), "center": np.array(made.center)}
        scale, center = (constant(f"raw.target.{k}", v) for k, v in units.items())
        axis = constant("raw.axis", np.array([1]))
        wide = [add("Cast", [add("Squeeze", [n, axis], f"{n}.row")], f"{n}.wide", to=TensorProto.DOUBLE) for n in names]
        add("Add", [add("Mul", [wide[0], scale], "raw.times"), center], "prediction")
        add("Mul", [wide[1], scale], "std")
        return [helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["rows"]) for name in ("prediction", "std")]
    texts = isinstance(made.classes[0], str)
    classes = constant("raw.classes", list(made.classes) if texts else np.array(made.classes))
    best = add("ArgMax", [names[0]], "raw.best", axis=1, keepdims=0)
    add("Gather", [classes, best], "prediction", axis=0)
    kind = TensorProto.STRING if texts else TensorProto.DOUBLE
    first = helper.make_tensor_value_info("prediction", kind, ["rows"])
    rest = [helper.make_tensor_value_info(names[0], TensorProto.FLOAT, ["rows", len(made.classes)])]
    return [first, *rest, *(helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows"]) for n in names[1:])]
