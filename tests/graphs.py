"""Tiny models in ONNX text, each with its own proof to compare with: what the tests of the graph steps work on."""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser

from onnxmill.calibration import samples
from onnxmill.calibration.samples import Expected
from onnxmill.tasks import graph, proof
from onnxmill.tasks.export import SourceSettings
from onnxmill.tasks.export import onnx as onnx_source
from onnxmill.tasks.graph import MODEL
from onnxmill.tasks.opset import GraphSettings, Pin, PinSettings
from onnxmill.tasks.proof import Proof, Stamp
from onnxmill.tasks.quantize import CalibrationSettings, RecipeSettings, calibrate, int8, prepare
from onnxmill.tasks.reference import ReferenceSettings, compute
from onnxmill.tasks.spec import Contract, Method

STAMP = Stamp(name="tiny", source="0" * 64)
SOURCE = SourceSettings(framework="onnx", path=MODEL)

GEMM = """
agraph (float[batch, 4] x) => (float[batch, 2] y)
<float[4, 2] w = {1, -2, 3, -4, 5, -6, 7, -8}, float[2] b = {1, -1}>
{ y = Gemm(x, w, b) }
"""

QDQ = """
agraph (float[batch, 4] x) => (float[batch, 2] y)
<float s = {0.05}, uint8 z = {128}, int8[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[2] ws = {0.05, 0.1},
 int8[2] wz = {0, 0}> {
  q = QuantizeLinear(x, s, z)
  d = DequantizeLinear(q, s, z)
  f = DequantizeLinear<axis = 1>(w, ws, wz)
  y = MatMul(d, f)
}
"""
INTEGER = """
agraph (float[batch, 4] x) => (float[batch, 2] y)
<int8[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float ws = {0.05}, int8 wz = {0}> {
  q, s, z = DynamicQuantizeLinear(x)
  m = MatMulInteger(q, w, z, wz)
  f = Cast<to = 1>(m)
  both = Mul(s, ws)
  y = Mul(f, both)
}
"""


@dataclass(frozen=True)
class Ready:
    """A model's folder, its completed contract and its reference: what a step is called with."""

    folder: Path
    model: Path
    reference: Path
    contract: Contract
    opset: int

    @property
    def settings(self) -> GraphSettings:
        return GraphSettings(contract=self.contract, stamp=STAMP, opset=self.opset)

    @property
    def pin(self) -> PinSettings:
        return PinSettings(contract=self.contract, stamp=STAMP, pin=Pin(opset=self.opset))

    def recipe(
        self, *, method: Method = "minmax", per_channel: bool = True, exclude: tuple[str, ...] = ()
    ) -> RecipeSettings:
        return RecipeSettings(
            contract=self.contract,
            stamp=STAMP,
            opset=self.opset,
            method=method,
            percentile=99.999,
            per_channel=per_channel,
            exclude=exclude,
        )

    def out(self, name: str = "step") -> Path:
        """The folder `out` of a fresh workspace, as a step gets it."""
        out = self.folder / name / "out"
        out.mkdir(parents=True)
        return out

    def publish(self, model: onnx.ModelProto, name: str = "candidate") -> Proof:
        """Prove another model against this one's reference; it lands in `folder`/`name`/out."""
        out = self.out(name)
        graph.save(model, out.parent / "raw.onnx")
        return proof.publish(out.parent / "raw.onnx", out, self.contract, STAMP, self.reference, opset=self.opset)


def static(ready: Ready, recipe: RecipeSettings, calibration: Path) -> Proof:
    """Prepare, calibrate on the samples in the folder `calibration`, and quantize, as a conversion does.

    The result of the first step that refuses. The model lands in `folder`/step/out.
    """
    prepared, observed = ready.out("prepare"), ready.out("calibrate")
    done = prepare.prepare(ready.settings, ready.model, ready.reference, prepared)
    if proof.faults(done):
        return done
    seen = calibrate.calibrate(CalibrationSettings(exclude=recipe.exclude), prepared, calibration, observed)
    if seen.findings:
        return proof.nothing(*seen.findings)
    return int8.static(recipe, prepared, ready.reference, observed, ready.out())


def parse(graph: str, *, opset: int = 18, ir: int = 8, domains: str = "", functions: str = "") -> onnx.ModelProto:
    """A model of ONNX text; `domains` adds to the opset imports, e.g. ', "my": 1'."""
    return onnx.parser.parse_model(f'<ir_version: {ir}, opset_import: ["": {opset}{domains}]>\n{graph}\n{functions}')


def ready(
    folder: Path,
    model: onnx.ModelProto | str,
    *,
    opset: int = 18,
    real: Path | None = None,
    nondeterministic: bool = False,
    ranges: dict[str, tuple[float, float]] | None = None,
) -> Ready:
    """Write `model` (or its text at opset 18) to `folder`/model and compute its reference as the step does.

    `opset` is the pin. `ranges` are those of integer inputs.
    """
    proto = parse(model) if isinstance(model, str) else model
    source, reference = folder / "model", folder / "reference"
    source.mkdir(parents=True)
    reference.mkdir()
    graph.save(proto, source / MODEL)
    inputs = onnx_source.describe(source / MODEL)
    for name, bounds in (ranges or {}).items():
        inputs[name] = inputs[name].model_copy(update={"range": bounds})
    dims = {dim: (1, 3) for tensor in inputs.values() for dim in tensor.shape if isinstance(dim, str)}
    contract = Contract(
        input_names=tuple(inputs),
        inputs=inputs,
        output_names=(),
        outputs={},
        dims=dims,
        nondeterministic=nondeterministic,
    )
    with contextlib.chdir(source):
        seen = compute(ReferenceSettings(source=SOURCE, contract=contract), source, reference, real)
    proof.normalise(proto, seen.contract, STAMP)  # as the step before would have left it
    graph.save(proto, source / MODEL)
    return Ready(folder, source, reference, seen.contract, opset)


def externalise(tensor: onnx.TensorProto, folder: Path, name: str) -> None:
    """Move a tensor's bytes to the end of the file `name` in the model's folder."""
    content, file = onnx.numpy_helper.to_array(tensor).tobytes(), folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    offset = file.stat().st_size if file.exists() else 0
    with file.open("ab") as stream:
        stream.write(content)
    for field in ("float_data", "int32_data", "int64_data", "raw_data"):
        tensor.ClearField(field)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": name, "offset": str(offset), "length": str(len(content))}.items():
        tensor.external_data.add(key=key, value=value)


@contextlib.contextmanager
def user_code(folder: Path) -> Iterator[Path]:
    """`folder` as the working folder of a step that imports a user's sources; what it imported goes afterwards."""
    before, path = set(sys.modules), list(sys.path)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with contextlib.chdir(folder):
            yield folder
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(folder)):
                del sys.modules[name]


def write_samples(
    folder: Path, arrays: Sequence[Mapping[str, npt.NDArray[Any]]], labels: Sequence[object] = ()
) -> Path:
    """A folder of samples, labelled where `labels` are given."""
    folder.mkdir(parents=True)
    expected = {name: Expected(str(array.dtype), array.shape) for name, array in arrays[0].items()}
    items = zip(arrays, labels, strict=True) if labels else arrays
    samples.write("data", items, expected, folder, limit=None, labelled=bool(labels))
    return folder


def normal(shape: tuple[int, ...], seed: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def codes(result: Proof) -> list[str]:
    return [finding.code for finding in result.findings]


def ops(path: Path) -> list[str]:
    """The operators of a published model, in order."""
    return [node.op_type for node in onnx.load(str(path / MODEL)).graph.node]


def shown(result: Proof) -> str:
    """All findings as text, to assert what they name."""
    return json.dumps([finding.model_dump() for finding in result.findings])
