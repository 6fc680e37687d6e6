"""BatchNormalization, folded into the operator before it."""

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, numpy_helper

from onnxmill.tasks.graph import ONNX_DOMAINS, graphs_of
from onnxmill.tasks.simplify.passes import add, attributes, constants, delete
from onnxmill.tasks.simplify.tidy import fresh, uses

SCALABLE = ("Conv", "ConvTranspose", "Gemm")
"""Operators that a factor for each output channel can be multiplied into."""
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


def batch_norms(model: onnx.ModelProto) -> str:
    """Fold each BatchNormalization into the Conv, ConvTranspose or Gemm whose result it alone uses.

    y = (x − mean) · γ / √(var + ε) + β for each channel (Ioffe & Szegedy 2015), computed in float64. Only at
    inference, with constants of the same graph, and with a weight of that node alone: a copy would grow the file. The
    bytes grow by at most a bias a node.
    """
    folded: dict[str, int] = {}
    used = uses(model)
    for graph in graphs_of(model):
        known = constants(graph)
        producers = {n.output[0]: n for n in graph.node if n.op_type in SCALABLE and n.domain in ONNX_DOMAINS}
        dead = []
        for index, norm in enumerate(graph.node):
            before = producers.get(norm.input[0]) if _is_inference_norm(norm) else None
            if before is None or used[norm.input[0]] != 1 or used[before.input[1]] != 1:
                continue
            if _fold_norm(model, graph, known, before, norm):
                before.output[0] = norm.output[0]
                producers[norm.output[0]] = before
                dead.append(index)
                folded[before.op_type] = folded.get(before.op_type, 0) + 1
        delete(graph, dead)
    return "; ".join(f"BatchNormalization folded into {op} {count}×" for op, count in sorted(folded.items()))


def _is_inference_norm(node: onnx.NodeProto) -> bool:
    if node.op_type != "BatchNormalization" or node.domain not in ONNX_DOMAINS:
        return False
    given = attributes(node)
    training = given.get("training_mode", 0) or any(node.output[1:])
    return not training and given.get("spatial", 1) == 1  # `spatial`: up to opset 8


def _fold_norm(
    model: onnx.ModelProto,
    graph: onnx.GraphProto,
    known: dict[str, TensorProto],
    before: onnx.NodeProto,
    norm: onnx.NodeProto,
) -> bool:
    """Scale the weight of `before` in its place and give it the bias that `norm` leaves. False where that can't be."""
    if not {before.input[1], *norm.input[1:]} <= set(known):
        return False
    weight = known[before.input[1]]
    gamma, beta, mean, variance = (numpy_helper.to_array(known[n]).astype(np.float64) for n in norm.input[1:])
    bias = _bias(before, known, len(gamma))
    if weight.data_type not in FLOATS or bias is None:
        return False
    old = numpy_helper.to_array(weight)
    with np.errstate(all="ignore"):  # what is not finite is not folded
        scale = gamma / np.sqrt(variance + attributes(norm).get("epsilon", 1e-5))
        new = (old * _along_channels(scale, before, old.shape)).astype(old.dtype)
        shifted = ((bias - mean) * scale + beta).astype(old.dtype)
    if not (np.isfinite(new).all() and np.isfinite(shifted).all()):
        return False
    weight.CopyFrom(numpy_helper.from_array(new, weight.name))
    name = fresh(model, f"{before.name}_bias")
    add(graph, known, name, numpy_helper.from_array(shifted))
    del before.input[2:]
    before.input.append(name)
    return True


def _bias(node: onnx.NodeProto, known: dict[str, TensorProto], channels: int) -> npt.NDArray[np.float64] | None:
    """The bias for each channel, zeros where there is none; null for one that is no constant or has another shape."""
    name = node.input[2] if len(node.input) > 2 else ""
    if node.op_type == "Gemm" and attributes(node).get("beta", 1.0) != 1.0:
        return None
    if not name:
        return np.zeros(channels)
    if name not in known:
        return None
    bias = numpy_helper.to_array(known[name]).astype(np.float64)
    whole = bias.size == channels and bias.shape[-1:] == (channels,)  # (C,), and a Gemm's (1, C)
    return np.broadcast_to(bias.ravel(), channels) if whole or bias.size == 1 else None


def _along_channels(
    scale: npt.NDArray[np.float64], node: onnx.NodeProto, shape: tuple[int, ...]
) -> npt.NDArray[np.float64]:
    """`scale` [C], shaped to multiply the weight of `node` along its output channels."""
    given = attributes(node)
    if node.op_type == "Gemm":
        return scale[:, None] if given.get("transB", 0) else scale[None, :]
    if node.op_type == "Conv":  # [C, inputs / groups, …]
        return scale.reshape(-1, *[1] * (len(shape) - 1))
    groups = given.get("group", 1)  # ConvTranspose: [inputs, C / groups, …], the inputs group by group
    a_group = np.repeat(scale.reshape(groups, -1), shape[0] // groups, axis=0)
    return a_group.reshape(shape[0], shape[1], *[1] * (len(shape) - 2))
