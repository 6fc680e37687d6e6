"""int8: dynamic (weights int8, activations measured at each run) and static (activation ranges from calibration).

On x86 activations are uint8 and weights int8 (U8S8): the kernels for that pair are the fast ones.
"""

from pathlib import Path

import onnx
from onnxruntime.quantization import (
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from onnxmill.calibration.readers import SampleReader
from onnxmill.tasks import proof
from onnxmill.tasks.findings import Finding, finding
from onnxmill.tasks.isolate import report_progress
from onnxmill.tasks.proof import MODEL, Proof
from onnxmill.tasks.quantize import RecipeSettings, load_for

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
    prepared, raw = out.parent / "prepared.onnx", out.parent / "dynamic.onnx"
    proof.save(proto, prepared)
    flat = [i.name for i in proto.graph.initializer if len(i.dims) != 2]
    quantize_dynamic(
        prepared,
        raw,
        op_types_to_quantize=DYNAMIC_OPERATORS,
        # ONNX Runtime's per-channel form of a weight that is not a matrix gives a model that does not run
        per_channel=settings.per_channel and not _uses(proto, "MatMul", flat),
        weight_type=QuantType.QInt8,
        nodes_to_exclude=list(settings.exclude),
        extra_options={"MatMulConstBOnly": True},
    )
    return _publish(settings, proto, raw, reference, out, ())


def static(settings: RecipeSettings, model: Path, reference: Path, calibration: Path, out: Path) -> Proof:
    """int8 QDQ with activation ranges from the calibration samples."""
    proto = load_for(settings, model / MODEL)
    prepared, raw = out.parent / "prepared.onnx", out.parent / "static.onnx"
    proof.save(proto, prepared)
    reader = SampleReader(calibration)
    report_progress(f"calibrating on {len(reader)} samples", 0, len(reader))
    quantize_static(
        prepared,
        raw,
        reader,
        quant_format=QuantFormat.QDQ,
        per_channel=settings.per_channel,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        nodes_to_exclude=list(settings.exclude),
        calibrate_method=METHODS[settings.method],
    )
    few = len(reader) < FEW_SAMPLES
    findings = (finding("QNT004", "calibration", measured=len(reader), limit=FEW_SAMPLES),) if few else ()
    return _publish(settings, proto, raw, reference, out, findings)


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
        left = sorted(n.name or n.op_type for n in nodes_of(after.graph) if _is_float(n, after))
        kept = ", ".join(left[:5]) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
        findings = (*findings, finding("QNT002", "model", f"{done} of {total} quantized; in float: {kept}"))
    return proof.publish(
        raw, out, settings.contract, settings.stamp, reference, findings=findings, quantized=(done, total)
    )


def nodes_of(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """All nodes, those of If and Loop bodies included."""
    nodes = []
    for node in graph.node:
        nodes.append(node)
        for attribute in node.attribute:
            for body in [attribute.g, *attribute.graphs]:
                nodes += nodes_of(body)
    return nodes


def quantized_nodes(model: onnx.ModelProto) -> int:
    """Nodes that compute on integers: integer operators, and float ones between DequantizeLinear (QDQ)."""
    nodes = nodes_of(model.graph)
    return sum(n.op_type in INTEGER_OPERATORS or n.op_type.startswith("QLinear") for n in nodes) + sum(
        n.op_type in QUANTIZABLE and not _is_float(n, model) for n in nodes
    )


def _is_float(node: onnx.NodeProto, model: onnx.ModelProto) -> bool:
    """Whether a quantizable node was left in float: its first two inputs do not both come from DequantizeLinear."""
    if node.op_type not in QUANTIZABLE:
        return False
    dequantized = {o for n in nodes_of(model.graph) if n.op_type == "DequantizeLinear" for o in n.output}
    return not all(name in dequantized for name in node.input[:2])


def _uses(model: onnx.ModelProto, op_type: str, initializers: list[str]) -> bool:
    return any(n.op_type == op_type and any(i in initializers for i in n.input) for n in nodes_of(model.graph))
