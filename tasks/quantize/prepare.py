"""Prepare a graph for static int8: what ONNX Runtime's quantizer cannot take as it is gets a form that it can."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from onnxmill.tasks import graph, proof
from onnxmill.tasks.findings import Finding, finding
from onnxmill.tasks.graph import MODEL, graphs_of, nodes_of
from onnxmill.tasks.opset import GraphSettings
from onnxmill.tasks.proof import Proof
from onnxmill.tasks.quantize import QUANTIZABLE, load_for, refusal


def prepare(settings: GraphSettings, model: Path, reference: Path, out: Path) -> Proof:
    """The same model, every node with a name, each Gemm's bias in full. Refuses what the quantizer cannot take."""
    proto = load_for((), model / MODEL)
    if before := refusal(proto) or refusal_of_half(proto):
        return proof.nothing(before)
    broadcast_biases(proto)
    raw = out.parent / "prepared.onnx"
    graph.save(proto, raw)
    return proof.publish(raw, out, settings.contract, settings.stamp, reference, opset=settings.opset)


def left_in_float(model: onnx.ModelProto) -> list[str]:
    """Names of nodes that static int8 leaves alone: they cannot be quantized, or must not."""
    return [*row_biased(model), *masking(model)]


MASK = 1e4
"""The least magnitude of a value that stands for "not this one": −10,000, −65,504, −1e9, the lowest float32, −inf."""
MASK_ARITHMETIC = ("Add", "Sub", "Mul", "Where", "Expand", "Reshape", "Unsqueeze", "Squeeze", "Slice", "Transpose",
                   "Concat", "Identity")  # fmt: skip


def masking(model: onnx.ModelProto) -> list[str]:
    """Nodes that carry a mask's values, from the constant to the Softmax that makes zeros of them, itself included.

    A range that holds −3.4e38 leaves a single level for all else: attention would be the same everywhere.
    """
    masked = {tensor.name for tensor in model.graph.initializer if _is_mask(tensor)}
    found = []
    for node in model.graph.node:
        values = [
            attribute.t for attribute in node.attribute if node.op_type == "Constant" and attribute.name == "value"
        ]
        if any(map(_is_mask, values)):
            masked.update(node.output)
        elif masked.intersection(node.input) and node.op_type in (*MASK_ARITHMETIC, "Softmax"):
            found.append(node.name)
            if node.op_type != "Softmax":
                masked.update(node.output)
    return found


def _is_mask(tensor: TensorProto) -> bool:
    if tensor.data_type != TensorProto.FLOAT:
        return False
    values = numpy_helper.to_array(tensor)
    return bool(values.size) and bool(np.abs(values).max() >= MASK)


def broadcast_biases(model: onnx.ModelProto) -> None:
    """Give each Gemm's constant bias of shape (1, N), (1,), () … its full shape (N,). Edits `model`; same values.

    ONNX Runtime's quantizer indexes a bias by output channel and raises on any other shape.
    """
    constants = _constants(model)
    by_rows = row_biased(model)
    for node in _biased(model, constants):
        bias = numpy_helper.to_array(constants[node.input[2]])
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        width = constants[node.input[1]].dims[0 if transposed else 1]
        if node.name not in by_rows and bias.shape != (width,):
            full = np.ascontiguousarray(np.broadcast_to(bias.ravel(), (width,)))
            node.input[2] = f"{node.name}_bias"
            model.graph.initializer.append(numpy_helper.from_array(full, node.input[2]))


def row_biased(model: onnx.ModelProto) -> list[str]:
    """Gemms whose constant bias has a value for each row: it has no form by output channel, so they stay in float."""
    constants = _constants(model)
    shapes = {node.name: constants[node.input[2]].dims for node in _biased(model, constants)}
    return [name for name, shape in shapes.items() if len(shape) == 2 and shape[0] > 1]


def _biased(model: onnx.ModelProto, constants: dict[str, TensorProto]) -> list[onnx.NodeProto]:
    gemms = [node for node in model.graph.node if node.op_type == "Gemm" and len(node.input) == 3]
    return [node for node in gemms if set(node.input[1:]) <= set(constants)]


def _constants(model: onnx.ModelProto) -> dict[str, TensorProto]:
    return {tensor.name: tensor for tensor in model.graph.initializer}


def refusal_of_half(model: onnx.ModelProto) -> Finding | None:
    """A refusal of a graph that computes in float16, or keeps its weights in it behind a Cast: the quantizer takes
    float32 alone, and gives a graph that is invalid, or leaves these nodes without a word."""
    nodes, half = nodes_of(model.graph), TensorProto.FLOAT16
    inputs = {value.name for value in model.graph.input if value.type.tensor_type.elem_type == half}
    weights = {tensor.name for body in graphs_of(model) for tensor in body.initializer if tensor.data_type == half}
    weights |= {n.output[0] for n in nodes for a in n.attribute if a.type == a.TENSOR and a.t.data_type == half}
    casts = [node for node in nodes if node.op_type == "Cast"]
    weights |= {node.output[0] for node in casts if node.input[0] in weights}
    halves = inputs | weights | {node.output[0] for node in casts if any(a.i == half for a in node.attribute)}
    found = sum(n.op_type in QUANTIZABLE and not halves.isdisjoint(n.input) for n in nodes)
    if not found:
        return None
    detail = f"{found} quantizable nodes take float16, the quantizer float32 alone"
    return finding("QNT001", "model", detail, measured=0, limit=1, fix="give the source in float32")
