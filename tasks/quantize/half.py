"""fp16: weights and arithmetic in float16, inputs and outputs as in the contract (float32).

ONNX Runtime's CPU provider runs float16 by casts, so a run proves little about its range: constants are scanned.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnxruntime.transformers.float16 import convert_float_to_float16
from onnxruntime.transformers.onnx_model import OnnxModel

from onnxmill.calibration.samples import Array
from onnxmill.tasks import graph, proof
from onnxmill.tasks.findings import Finding, finding
from onnxmill.tasks.graph import MODEL, nodes_of, with_bodies
from onnxmill.tasks.proof import Proof
from onnxmill.tasks.quantize import RecipeSettings, load_for, refusal

FP16_MAX, FP16_TINY = 65504.0, 2.0**-24
"""float16's largest finite value and its smallest above zero."""


def convert(settings: RecipeSettings, model: Path, reference: Path, out: Path) -> Proof:
    """The model in float16; nodes with a constant out of its range, and those excluded, stay in float32 (QNT003)."""
    proto = load_for(settings.exclude, model / MODEL)
    if before := refusal(proto):
        return proof.nothing(before)
    blocked = out_of_range(proto)
    keep = {*settings.exclude, *(name for name, _ in blocked)}
    # a node of a body keeps the whole If or Loop: the converter would put the casts around it outside of the body
    keep_whole = [node.name for node in proto.graph.node if keep & {n.name for n in with_bodies(node)}]
    half = convert_float_to_float16(proto, keep_io_types=True, node_block_list=keep_whole)
    _skip_round_trips(half)
    ordered = OnnxModel(half)
    ordered.prune_graph(allow_remove_graph_inputs=False)
    ordered.topological_sort()  # the converter appends its casts at the end
    raw = out.parent / "half.onnx"
    graph.save(ordered.model, raw)
    findings: tuple[Finding, ...] = tuple(
        finding("QNT003", f"node {name}", f"holds {value:.3g}", measured=value, limit=FP16_MAX)
        for name, value in blocked
    )
    return proof.publish(
        raw, out, settings.contract, settings.stamp, reference, opset=settings.opset, findings=findings
    )


def _skip_round_trips(model: onnx.ModelProto) -> None:
    """Let a cast to float32 take what a cast to float16 just before it took. Edits `model`.

    The converter puts such pairs after each node that stays in float32, an output's too: its values would go through
    float16's range nevertheless.
    """
    halved = {node.output[0]: node.input[0] for node in model.graph.node if _casts_to(node, TensorProto.FLOAT16)}
    for node in model.graph.node:
        if _casts_to(node, TensorProto.FLOAT) and node.input[0] in halved:
            node.input[0] = halved[node.input[0]]


def _casts_to(node: onnx.NodeProto, dtype: int) -> bool:
    return node.op_type == "Cast" and any(a.name == "to" and a.i == dtype for a in node.attribute)


def out_of_range(model: onnx.ModelProto) -> list[tuple[str, float]]:
    """Nodes that take a float32 constant which float16 cannot hold, each with that value: (node name, value).

    A tensor counts when a value is above the largest float16, or when all of its values other than 0 are below the
    smallest (single tiny values beside larger ones only lose themselves).
    """
    nodes = nodes_of(model.graph)
    bodies = [body for node in nodes for attribute in node.attribute for body in (attribute.g, *attribute.graphs)]
    tensors = [tensor for graph in (model.graph, *bodies) for tensor in graph.initializer]
    constants = {t.name: numpy_helper.to_array(t) for t in tensors if t.data_type == t.FLOAT}
    for node in nodes:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value" and attribute.t.data_type == attribute.t.FLOAT:
                    constants[node.output[0]] = numpy_helper.to_array(attribute.t)
                elif attribute.name in ("value_float", "value_floats"):
                    constants[node.output[0]] = np.asarray(onnx.helper.get_attribute_value(attribute), np.float32)
    found = []
    for node in nodes:
        for name in node.input:
            value = _offender(constants[name]) if name in constants else None
            if value is not None:
                found.append((node.name, value))
                break
    return found


def _offender(array: Array) -> float | None:
    sizes = np.abs(array.astype(np.float64).ravel())
    sizes = sizes[sizes > 0]
    if sizes.size == 0:
        return None
    if sizes.max() > FP16_MAX:
        return float(sizes.max())
    return float(sizes.max()) if sizes.max() < FP16_TINY else None
