"""ONNX as a source: the file is the export; ONNX Runtime without optimisation, at the source's opset, its oracle."""

from collections.abc import Mapping
from pathlib import Path

import onnx
import onnxruntime
from google.protobuf.message import DecodeError
from onnx import TensorProto

from onnxmill.calibration.samples import Array
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.export import SourceSettings
from onnxmill.tasks.machine import threads
from onnxmill.tasks.spec import Contract, Tensor


def load(settings: SourceSettings) -> Path:
    """The model's path, once the checker accepts it. Raises `InputError` for a broken file."""
    assert settings.path
    path = Path.cwd() / settings.path
    try:
        onnx.checker.check_model(str(path))
    except (onnx.checker.ValidationError, DecodeError, RuntimeError) as error:
        text = " ".join(str(error).split())
        raise InputError("source.path", settings.path, f"is not a valid ONNX model: {text}") from error
    return path


def predict(model: Path, inputs: Mapping[str, Array]) -> list[tuple[str, Array]]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads()
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return list(zip(names, session.run(None, dict(inputs)), strict=True))


def write(model: Path, contract: Contract, path: Path) -> str:
    proto = onnx.load(str(model))
    onnx.save(proto, str(path))
    opset = next(o.version for o in proto.opset_import if o.domain in ("", "ai.onnx"))
    return f"taken as it is, opset {opset}"


def describe(path: Path) -> dict[str, Tensor]:
    """The inputs of an ONNX file as a spec writes them; a size that is not fixed gets its name in the file, or one."""
    proto = onnx.load(str(path), load_external_data=False)
    known = {initializer.name for initializer in proto.graph.initializer}
    return {value.name: _tensor(value) for value in proto.graph.input if value.name not in known}


def _tensor(value: onnx.ValueInfoProto) -> Tensor:
    shape: list[int | str] = []
    for axis, dim in enumerate(value.type.tensor_type.shape.dim):
        name = "".join(c if c.isalnum() else "_" for c in dim.dim_param) or ("batch" if axis == 0 else f"dim_{axis}")
        shape.append(dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else name)
    dtype = TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
    dtype = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    return Tensor.model_validate({"dtype": dtype, "shape": shape})
