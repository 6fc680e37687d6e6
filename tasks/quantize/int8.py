"""int8: dynamic (weights int8, activations measured at each run) and static (activation ranges from calibration).

On x86 activations are uint8 and weights int8 (U8S8): the kernels for that pair are the fast ones.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnxruntime.quantization import (
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from onnxmill.calibration import samples
from onnxmill.calibration.readers import SampleReader
from onnxmill.tasks import graph, proof
from onnxmill.tasks.findings import Finding, finding
from onnxmill.tasks.graph import MODEL, graphs_of, nodes_of
from onnxmill.tasks.isolate import report_progress
from onnxmill.tasks.proof import Proof
from onnxmill.tasks.quantize import RecipeSettings, load_for, refusal

METHODS = {
    "minmax": CalibrationMethod.MinMax,
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
}
QUANTIZABLE = ("Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM")
"""Operators that carry nearly all of a network's weights and work: what "quantized / quantizable" counts."""
DYNAMIC_OPERATORS = ["MatMul", "LSTM"]
"""ONNX Runtime's quantizer turns each Gemm into MatMul and Add first. Conv stays float: ConvInteger is slower than
float on CPUs and missing in older runtimes."""
INTEGER_OPERATORS = (
    "MatMulInteger",
    "ConvInteger",
    "DynamicQuantizeLSTM",
    "DynamicQuantizeMatMul",
    "MatMulIntegerToFloat",
)
FEW_SAMPLES = 32


def dynamic(settings: RecipeSettings, model: Path, reference: Path, out: Path) -> Proof:
    """int8 weights; activations are quantized at run time, so no calibration is needed."""
    proto = load_for(settings, model / MODEL)
    if before := refusal(proto) or _half(proto):
        return proof.nothing(before)
    prepared, raw = out.parent / "prepared.onnx", out.parent / "dynamic.onnx"
    graph.save(proto, prepared)
    flat = [i.name for i in proto.graph.initializer if len(i.dims) != 2]
    quantize_dynamic(
        prepared,
        raw,
        op_types_to_quantize=DYNAMIC_OPERATORS,
        # ONNX Runtime's per-channel form of a weight that is not a matrix gives a model that does not run
        per_channel=settings.per_channel and not _uses(proto, "MatMul", flat),
        weight_type=QuantType.QInt8,
        # the second name is that of the MatMul which the quantizer makes of a Gemm
        nodes_to_exclude=[name for e in settings.exclude for name in (e, f"{e}_MatMul")],
        extra_options={"MatMulConstBOnly": True},
    )
    return _publish(settings, proto, raw, reference, out, ())


def static(settings: RecipeSettings, model: Path, reference: Path, calibration: Path, out: Path) -> Proof:
    """int8 QDQ with activation ranges from the calibration samples."""
    proto = load_for(settings, model / MODEL)
    if before := refusal(proto) or _half(proto):
        return proof.nothing(before)
    in_rows = broadcast_biases(proto)
    prepared, raw = out.parent / "prepared.onnx", out.parent / "static.onnx"
    graph.save(proto, prepared)
    reader = SampleReader(calibration)
    if settings.method != "minmax" and len(shapes := _shapes(calibration)) > 1:
        return proof.nothing(finding("QNT005", "calibration", f"{settings.method}, and {len(shapes)} shapes"))
    report_progress(f"calibrating on {len(reader)} samples", 0, len(reader))
    quantize_static(
        prepared,
        raw,
        reader,
        quant_format=QuantFormat.QDQ,
        per_channel=settings.per_channel,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        nodes_to_exclude=[*settings.exclude, *in_rows],
        calibrate_method=METHODS[settings.method],
    )
    few = len(reader) < FEW_SAMPLES
    findings = (finding("QNT004", "calibration", measured=len(reader), limit=FEW_SAMPLES),) if few else ()
    return _publish(settings, proto, raw, reference, out, findings)


def _shapes(calibration: Path) -> set[tuple[tuple[int, ...], ...]]:
    return {tuple(array.shape for array in sample.inputs.values()) for sample in samples.read(calibration)}


def _publish(
    settings: RecipeSettings,
    before: onnx.ModelProto,
    raw: Path,
    reference: Path,
    out: Path,
    findings: tuple[Finding, ...],
) -> Proof:
    after = onnx.load(str(raw))
    total = sum(node.op_type in QUANTIZABLE for node in nodes_of(before.graph))
    done = quantized_nodes(after)
    if done == 0:
        findings = (*findings, finding("QNT001", "model", f"{total} quantizable nodes", measured=0, limit=1))
    elif done < total:
        left = sorted(n.name or n.op_type for n in _float_nodes(after))
        kept = ", ".join(left[:5]) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
        findings = (*findings, finding("QNT002", "model", f"{done} of {total} quantized; in float: {kept}"))
    return proof.publish(
        raw,
        out,
        settings.contract,
        settings.stamp,
        reference,
        opset=settings.opset,
        findings=findings,
        quantized=(done, total),
    )


def broadcast_biases(model: onnx.ModelProto) -> list[str]:
    """Give each Gemm's constant bias of shape (1, N), (1,), () … its full shape (N,). Edits `model`; same values.

    ONNX Runtime's quantizer indexes a bias by output channel and raises on any other shape. Returns the names of
    Gemms whose bias has a value for each row, which have no such form: they stay in float.
    """
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    left = []
    for node in model.graph.node:
        if node.op_type != "Gemm" or not set(node.input[1:]) <= set(constants) or len(node.input) < 3:
            continue
        bias = numpy_helper.to_array(constants[node.input[2]])
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        width = constants[node.input[1]].dims[0 if transposed else 1]
        if bias.ndim == 2 and bias.shape[0] > 1:
            left.append(node.name)
        elif bias.shape != (width,):
            full = np.ascontiguousarray(np.broadcast_to(bias.ravel(), (width,)))
            node.input[2] = f"{node.name}_bias"
            model.graph.initializer.append(numpy_helper.from_array(full, node.input[2]))
    return left


def quantized_nodes(model: onnx.ModelProto) -> int:
    """Nodes that compute on integers: integer operators, and float ones between DequantizeLinear (QDQ)."""
    nodes = nodes_of(model.graph)
    integer = sum(n.op_type in INTEGER_OPERATORS or n.op_type.startswith("QLinear") for n in nodes)
    return integer + sum(n.op_type in QUANTIZABLE for n in nodes) - len(_float_nodes(model))


def _float_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Quantizable nodes left in float: their first two inputs do not both come from DequantizeLinear."""
    nodes = nodes_of(model.graph)
    dequantized = {o for n in nodes if n.op_type == "DequantizeLinear" for o in n.output}
    return [n for n in nodes if n.op_type in QUANTIZABLE and not dequantized.issuperset(n.input[:2])]


def _half(model: onnx.ModelProto) -> Finding | None:
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


def _uses(model: onnx.ModelProto, op_type: str, initializers: list[str]) -> bool:
    return any(n.op_type == op_type and any(i in initializers for i in n.input) for n in nodes_of(model.graph))
