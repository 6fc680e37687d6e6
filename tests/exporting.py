"""Export as the flow does it, in this process: reference and export of a source, each in a copy of its files."""

from collections.abc import Mapping
from pathlib import Path

import onnx

from onnxmill.tasks import parity
from onnxmill.tasks.export import SourceSettings
from onnxmill.tasks.export.steps import ExportSettings, export
from onnxmill.tasks.findings import refused
from onnxmill.tasks.graph import MODEL
from onnxmill.tasks.proof import Proof
from onnxmill.tasks.reference import Reference, ReferenceSettings, compute
from onnxmill.tasks.spec import Spec
from tests import graphs


def exported(
    folder: Path, spec: Spec, files: Mapping[str, str | bytes], *, python: str = ""
) -> tuple[Reference, Proof]:
    """The reference and the proof of the export; the model lies in `folder`/export/out. Raises as the steps do."""
    own = spec.source.model_dump(exclude={"files", "python"})
    source, opset = SourceSettings(**own), 18 if spec.opset == "auto" else spec.opset
    for step in ("reference", "export"):
        (folder / step / "out").mkdir(parents=True)
        for name, content in files.items():
            path = folder / step / "source" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    out = folder / "reference/out"
    with graphs.user_code(folder / "reference/source") as code:
        reference = compute(ReferenceSettings(source=source, contract=spec.contract), code, out, python=python)
    with graphs.user_code(folder / "export/source") as code:
        settings = ExportSettings(source=source, contract=reference.contract, stamp=graphs.STAMP, opset=opset)
        return reference, export(settings, code, out, folder / "export/out", python)


def judged(result: Proof) -> list[str]:
    """Every code that refuses the model."""
    faults = [*result.findings, *(parity.judge(result.parity, parity.DEFAULT_GATES["fp32"]) if result.parity else [])]
    return [fault.code for fault in faults if refused([fault])]


def interface(folder: Path) -> tuple[list[str], list[str]]:
    """Names of inputs and outputs, each with its dims: "x[batch, 4]"."""
    graph = onnx.load(str(folder / "export/out" / MODEL)).graph

    def text(value: onnx.ValueInfoProto) -> str:
        return f"{value.name}[{', '.join(d.dim_param or str(d.dim_value) for d in value.type.tensor_type.shape.dim)}]"

    return [text(v) for v in graph.input], [text(v) for v in graph.output]
