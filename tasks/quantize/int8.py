"""int8: dynamic (weights int8, activations measured at each run) and static (activation ranges from calibration).

On x86 activations are uint8 and weights int8 (U8S8): the kernels for that pair are the fast ones.
"""

from pathlib import Path

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic

from onnxmill.calibration import statistics, tables
from onnxmill.calibration.methods_scheme import Range, Scheme
from onnxmill.tasks import graph, proof
from onnxmill.tasks.errors import InputError, close_match
from onnxmill.tasks.findings import Finding, finding
from onnxmill.tasks.graph import MODEL, nodes_of
from onnxmill.tasks.proof import Proof
from onnxmill.tasks.quantize import (
    QUANTIZABLE,
    RecipeSettings,
    load_for,
    nothing_quantized,
    qdq,
    quantizable,
    refusal,
)
from onnxmill.tasks.quantize.prepare import left_in_float, refusal_of_half

ACTIVATIONS = Scheme("uint8", symmetric=False)
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
    proto = load_for(settings.exclude, model / MODEL)
    if before := refusal(proto) or refusal_of_half(proto):
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
    """int8 QDQ of a prepared model. `calibration` holds what was observed of it, or without a method a table of ranges.

    Raises `InputError` for a table that lacks a tensor.
    """
    proto = load_for(settings.exclude, model / MODEL)
    exclude = (*settings.exclude, *left_in_float(proto))
    findings: tuple[Finding, ...] = ()
    if settings.method:
        seen = statistics.load(calibration / statistics.FILE)
        found = statistics.ranges(seen, settings.method, settings.percentile, ACTIVATIONS)
        if len(seen.positions) < FEW_SAMPLES:
            findings = (finding("QNT004", "calibration", measured=len(seen.positions), limit=FEW_SAMPLES),)
    else:
        found = _of_table(calibration, qdq.tensors_to_observe(proto, exclude))
    found = qdq.adjusted(proto, found, exclude)
    raw = out.parent / "static.onnx"
    graph.save(qdq.quantized(proto, found, per_channel=settings.per_channel, exclude=exclude), raw)
    return _publish(settings, proto, raw, reference, out, findings)


def _of_table(folder: Path, tensors: list[str]) -> dict[str, Range]:
    """The tensors' ranges from the calibration table that is a folder's only file."""
    (path,) = (file for file in folder.rglob("*") if file.is_file())
    table = tables.read(path)
    if missing := [name for name in tensors if name not in table]:
        raise InputError(
            "variants.ranges", path.name,
            f"lacks {len(missing)} of {len(tensors)} tensors, first '{missing[0]}'; {close_match(missing[0], table)}",
            "the table must be of this graph: `onnxmill calibrate SPEC --table onnxruntime` writes one",
        )  # fmt: skip
    return {name: table[name] for name in tensors}


def _publish(
    settings: RecipeSettings,
    before: onnx.ModelProto,
    raw: Path,
    reference: Path,
    out: Path,
    findings: tuple[Finding, ...],
) -> Proof:
    after = onnx.load(str(raw))
    total = quantizable(before)
    done = quantized_nodes(after)
    if done == 0:
        findings = (*findings, nothing_quantized(before))
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


def _uses(model: onnx.ModelProto, op_type: str, initializers: list[str]) -> bool:
    return any(n.op_type == op_type and any(i in initializers for i in n.input) for n in nodes_of(model.graph))
