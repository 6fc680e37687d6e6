"""Made-up conversions for the tests of tracking, registry and decision: real tiny models, plausible numbers."""

import zipfile
from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime

from onnxmill.tasks import cases
from onnxmill.tasks.artifact import Artifact, Store
from onnxmill.tasks.findings import finding
from onnxmill.tasks.parity import OutputParity, Parity
from onnxmill.tasks.report import ArtifactRow, Digests, Measurement, MetricRow, Report, Status, StepRow, VariantRow
from onnxmill.tasks.spec import Spec, parse

MACHINE: dict[str, str | int] = {"cpu": "test", "cores": 2}

SPEC = """
version: 1
name: {name}
source: {{framework: onnx, path: model.onnx, files: [{long}]}}
inputs: {{x: {{shape: [batch, 3]}}}}
variants: [fp32, {{recipe: int8-dynamic, exclude: [a, b]}}]
promote: {{register_as: {name}-onnx}}
"""


def spec(name: str, long: str = "weights.bin") -> Spec:
    return parse(SPEC.format(name=name, long=long))


def model(scale: float, external: bool = False) -> onnx.ModelProto:
    """`y = scale * x`, a dynamic batch, two outputs."""
    proto = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 18]>
        agraph (float[batch, 3] x) => (float[batch, 3] y, float[batch, 1] sum)
        <float[3] w = {{{scale}, {scale}, {scale}}}, int64[1] last = {{1}}>
        {{ y = Mul(x, w)  sum = ReduceSum(y, last) }}
    """)
    if external:
        weights = np.full(3, scale, np.float32)
        proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weights, "w"))  # only raw bytes can be moved
        onnx.external_data_helper.convert_model_to_external_data(proto, location="model.onnx.data", size_threshold=0)
    return proto


def publish(store: Store, proto: onnx.ModelProto) -> tuple[Artifact, Path]:
    with store.workspace() as folder:
        onnx.save_model(proto, folder / "model.onnx")
        artifact = store.publish(folder)
    return artifact, store.open(artifact)


def reference(folder: Path, path: Path) -> Path:
    """`cases.npz` with the outputs of the model at `path`."""
    folder.mkdir(parents=True, exist_ok=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    with zipfile.ZipFile(folder / cases.FILE, "w") as archive:
        for index, batch in enumerate((1, 4)):
            x = np.random.default_rng(index).normal(size=(batch, 3)).astype(np.float32)
            outputs = dict(zip(names, session.run(names, {"x": x}), strict=True))
            cases.append(archive, index, cases.Case("random", {"x": x}, outputs))
    return folder


def measurement(
    p50_ms: float = 1.0, speedup: float | None = None, interval: tuple[float, float] | None = None
) -> Measurement:
    return Measurement(
        target="cpu",
        fidelity="native",
        status="measured",
        dims={"batch": 1},
        threads=1,
        p50_ms=p50_ms,
        p95_ms=p50_ms * 1.1,
        p99_ms=p50_ms * 1.2,
        throughput_per_s=1000 / p50_ms,
        baseline="fp32" if speedup else None,
        speedup=speedup,
        speedup_interval=interval,
    )


def variant(
    name: str,
    *,
    status: Status = "passed",
    digest: str = "",
    size_bytes: int = 100,
    metric: float | None = 0.99,
    result: Measurement | None = None,
) -> VariantRow:
    number = OutputParity(name="y:0", max_abs=0.1, max_rel=0.01, cosine=1.0, sqnr_db=40.0, argmax_agreement=None)
    return VariantRow(
        name=name,
        recipe="fp32" if name.startswith("fp32") else "int8-dynamic",
        status=status,
        findings=(finding("GATE003", "output y", "4.2 dB", measured=4.2, limit=10.0),) if status == "refused" else (),
        artifact=ArtifactRow(path="m.onnx", digest=digest or name, size_bytes=size_bytes, opset=18, ir_version=8),
        parity=Parity(cases=2, outputs=(number,)),
        metric=MetricRow(source=0.99, variant=metric, drop_interval=(-0.01, 0.01), samples=100) if metric else None,
        results=(result or measurement(),),
    )


def report(name: str, *variants: VariantRow, source: str = "s1", data: str | None = "d1") -> Report:
    return Report(
        name=name,
        created_at="2026-01-01T00:00:00Z",
        sentence="a sentence",
        exit_code=0,
        spec="spec.yaml",
        versions={"onnx": "1"},
        machine=MACHINE,
        digests=Digests(source=source, data=data, metric=data),
        opset=18,
        steps=(StepRow(step="export", variant=None, seconds=1.5, cached=False),),
        variants=variants,
        decisions=(),
    )
