"""Passes of our own. Each edits the model that it is given and returns what it did, "" for nothing.

A graph's constants are its own initializers, without those that are inputs too (a caller may set them) and without
weights in files beside the model. Each body of an If or Loop is a graph of its own here.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from onnxmill.tasks.graph import EXTERNAL_BYTES, ONNX_DOMAINS, graphs_of, lowest_ir, nodes_of

SMALL = 4096
"""Constants of more elements are left alone: they are weights, not shapes or axes."""
TINY = 16
"""A computed constant of so few elements is kept even where it has more than what it is made of."""
SIZED_BY_VALUE = ("ConstantOfShape", "Expand")
"""Operators whose last input says how large the result is."""
# fmt: off
SHAPE_OPERATORS = frozenset((
    *SIZED_BY_VALUE, "Abs", "Add", "Cast", "Ceil", "Concat", "Div", "Equal", "Floor", "Gather", "Greater", "Identity",
    "Less", "Max", "Min", "Mul", "Neg", "Not", "Pow", "Reciprocal", "ReduceProd", "Reshape", "Shape", "Size", "Slice",
    "Sqrt", "Squeeze", "Sub", "Transpose", "Unsqueeze", "Where",
))
# fmt: on
"""What exporters make shapes and axes with. None of them is random, quantizes, or has bodies."""
HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
NUMPY_TYPES = frozenset(range(TensorProto.BFLOAT16)) - {TensorProto.STRING}
"""Element types that numpy has; 0 is "none given"."""


def constants(graph: onnx.GraphProto) -> dict[str, TensorProto]:
    """The initializers of one graph whose values are known and fixed."""
    inputs = {value.name for value in graph.input}
    inline = (t for t in graph.initializer if t.data_location != TensorProto.EXTERNAL)
    return {tensor.name: tensor for tensor in inline if tensor.name not in inputs}


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def constant_nodes(model: onnx.ModelProto) -> str:
    """Constant nodes become initializers: quantizers and folding passes look for weights there alone."""

    def value(node: onnx.NodeProto, known: Mapping[str, TensorProto]) -> TensorProto | None:
        if node.op_type != "Constant" or node.attribute[0].name == "sparse_value":
            return None
        name, found = next(iter(attributes(node).items()))
        if isinstance(found, TensorProto):
            return found
        kinds = {"value_float": TensorProto.FLOAT, "value_int": TensorProto.INT64, "value_string": TensorProto.STRING}
        several = isinstance(found, Sequence) and not isinstance(found, bytes)
        values = list(found) if several else [found]
        return helper.make_tensor("", kinds[name.removesuffix("s")], [len(values)] if several else [], values)

    return _replaced(model, value, "Constant made an initializer")


def small_constants(model: onnx.ModelProto) -> str:
    """Nodes of `SHAPE_OPERATORS` on constants alone become constants, unless they have more elements than what they
    are made of: a file must not grow by what a few bytes say. ONNX Runtime computes them, at the model's opset.
    """

    def value(node: onnx.NodeProto, known: Mapping[str, TensorProto]) -> TensorProto | None:
        if node.op_type not in SHAPE_OPERATORS or not node.input or not set(node.input) <= {*known, ""}:
            return None
        given = [known[name] for name in dict.fromkeys(node.input) if name]
        sizes = [math.prod(tensor.dims) for tensor in given]
        types = [tensor.data_type for tensor in given] + [attributes(node).get("to", 0)]
        if max(sizes) > SMALL or not NUMPY_TYPES.issuperset(types):
            return None
        if node.op_type in SIZED_BY_VALUE and math.prod(numpy_helper.to_array(known[node.input[-1]]).tolist()) > SMALL:
            return None
        array = _computed(model, node, given)
        return numpy_helper.from_array(array) if array.size <= max(TINY, sum(sizes)) else None

    return _replaced(model, value, "small constant computed")


def _computed(model: onnx.ModelProto, node: onnx.NodeProto, given: list[TensorProto]) -> npt.NDArray[np.generic]:
    """The output of one node whose inputs are constants."""
    result = onnx.ValueInfoProto(name=node.output[0])
    graph = helper.make_graph([node], "constant", [], [result], given)
    alone = helper.make_model(graph, opset_imports=list(model.opset_import))
    alone.ir_version = lowest_ir(alone)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(alone.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {})[0])


def _replaced(
    model: onnx.ModelProto,
    value: Callable[[onnx.NodeProto, Mapping[str, TensorProto]], TensorProto | None],
    what: str,
) -> str:
    """Replace each node of one output for which `value` gives a tensor by an initializer of the output's name.

    An output of a graph or body stays the result of a node.
    """
    count = 0
    for graph in graphs_of(model):
        known, outputs, dead = constants(graph), {output.name for output in graph.output}, []
        for index, node in enumerate(graph.node):
            if node.domain not in ONNX_DOMAINS or len(node.output) != 1 or node.output[0] in outputs:
                continue
            tensor = value(node, known)
            if tensor is not None:
                add(graph, known, node.output[0], tensor)
                dead.append(index)
        delete(graph, dead)
        count += len(dead)
    return f"{what} {count}×" if count else ""


def half_weights(model: onnx.ModelProto) -> str:
    """A weight in fp16 or bf16 that is cast to float becomes a float weight; several casts of one weight share it.

    The bytes grow, on purpose: the weight is then a plain one, which folding passes and quantizers see. Nothing is done
    where the model might no longer fit into one file.
    """
    halves = [t for graph in graphs_of(model) for t in constants(graph).values() if t.data_type in HALVES]
    if model.ByteSize() + sum(4 * math.prod(tensor.dims) for tensor in halves) >= EXTERNAL_BYTES:
        return ""
    count = 0
    for graph in graphs_of(model):
        known, outputs, dead = constants(graph), {value.name for value in graph.output}, []
        made: dict[str, str] = {}  # weight -> its float one
        shared: dict[str, str] = {}  # a cast's result -> the float weight
        for index, node in enumerate(graph.node):
            weight = known.get(node.input[0]) if node.op_type == "Cast" and node.domain in ONNX_DOMAINS else None
            if weight is None or weight.data_type not in HALVES or node.output[0] in outputs:
                continue
            if attributes(node)["to"] != TensorProto.FLOAT:
                continue
            if weight.name not in made:
                array = numpy_helper.to_array(weight).astype(np.float32)
                add(graph, known, node.output[0], numpy_helper.from_array(array))
                made[weight.name] = node.output[0]
            shared[node.output[0]] = made[weight.name]
            dead.append(index)
        delete(graph, dead)
        for node in nodes_of(graph):
            for index, name in enumerate(node.input):
                node.input[index] = shared.get(name, name)
        count += len(made)
    return f"half-precision weight made float {count}×" if count else ""


def sums(model: onnx.ModelProto) -> str:
    """Sum of two becomes Add, which ONNX Runtime quantizes as it does not Sum; Sum of one becomes Identity.

    A Sum of more stays: it would become several nodes.
    """
    found = [n for n in nodes_of(model.graph) if n.op_type == "Sum" and n.domain in ONNX_DOMAINS]
    counts = {}
    for operands, operator in ((2, "Add"), (1, "Identity")):
        those = [node for node in found if len(node.input) == operands]
        counts[operator] = len(those)
        for node in those:
            node.op_type = operator
    return "; ".join(f"Sum made {operator} {count}×" for operator, count in counts.items() if count)


def add(graph: onnx.GraphProto, known: dict[str, TensorProto], name: str, tensor: TensorProto) -> None:
    """Give the graph an initializer, and put it among its `known` constants where its values are in the model."""
    added = graph.initializer.add()
    added.CopyFrom(tensor)
    added.name = name
    if added.data_location != TensorProto.EXTERNAL:
        known[name] = added


def delete(graph: onnx.GraphProto, indices: Sequence[int]) -> None:
    """Delete nodes by their ascending indices."""
    for index in reversed(indices):
        del graph.node[index]
