"""Pin a model to an opset and to the lowest IR version that it allows. What the converter gives is proven by values."""

from pathlib import Path

import onnx
import onnx.inliner
from onnx import version_converter
from pydantic import BaseModel, ConfigDict

from onnxmill.tasks import proof
from onnxmill.tasks.contract import opset_of
from onnxmill.tasks.findings import Finding, finding
from onnxmill.tasks.proof import MODEL, Proof, Stamp
from onnxmill.tasks.spec import Contract
from onnxmill.tasks.step import Step

STEP = Step("opset", 1, "onnxmill.tasks.opset:pin", tools=("onnx", "onnxruntime", "numpy", "cpu"))


class GraphSettings(BaseModel):
    """Settings of a step from model to model."""

    model_config = ConfigDict(frozen=True)

    contract: Contract
    stamp: Stamp


def pin(settings: GraphSettings, model: Path, reference: Path, out: Path) -> Proof:
    """The model at the contract's opset. Finding OPS001 where no converter leads there: the model goes on as it is.

    Functions of the model are inlined: the converter drops them, and no later step looks into them.
    """
    proto = onnx.load(str(model / MODEL))
    if proto.functions:
        proto = onnx.inliner.inline_local_functions(proto)
    current, wanted = opset_of(proto), settings.contract.opset
    findings: tuple[Finding, ...] = ()
    note = f"already at opset {wanted}"
    if current != wanted:
        try:
            proto = version_converter.convert_version(proto, wanted)
            note = f"converted from opset {current} to {wanted}"
        except RuntimeError as error:  # the converter's C++ has no class of its own
            reason = str(error).rpartition("failed: ")[2]  # without the place in the converter's own source
            nearest = _nearest(proto, current, wanted)
            detail = f"from {current} to {wanted}: {reason}; the nearest opset that works is {nearest}"
            fix = f"pin opset {nearest}"
            findings, note = (finding("OPS001", f"opset {wanted}", detail, fix=fix),), "not converted"
    raw = out.parent / "pinned.onnx"
    proof.save(proto, raw)
    return proof.publish(
        raw,
        out,
        settings.contract,
        settings.stamp,
        reference,
        note=note,
        findings=findings,
        pinned=not findings,
    )


def _nearest(proto: onnx.ModelProto, current: int, wanted: int) -> int:
    """The opset closest to `wanted`, on the way from `current`, that the converter reaches."""
    for opset in range(wanted, current, 1 if wanted < current else -1):
        try:
            version_converter.convert_version(proto, opset)
        except RuntimeError:
            continue
        return opset
    return current
