"""ONNX as a source: the file is the export; ONNX Runtime without optimisation, at the source's opset, its oracle."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import onnx
import onnxruntime
from google.protobuf.message import DecodeError
from onnx import TensorProto

from onnxmill.calibration.samples import Array
from onnxmill.tasks import proof
from onnxmill.tasks.contract import opset_of
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.export import SourceSettings
from onnxmill.tasks.machine import threads
from onnxmill.tasks.spec import Contract, Dtype, Tensor, dim_name


@dataclass(frozen=True)
class Source:
    """A model file and an open session on it."""

    path: Path
    session: onnxruntime.InferenceSession


def load(settings: SourceSettings) -> Source:
    """The model, once the checker accepts it and a session opens. Raises `InputError` where one does not."""
    assert settings.path
    path = Path.cwd() / settings.path
    for name in external_files(path):
        if not (path.parent / name).is_file():
            raise InputError("source.files", name, "is missing: the model's weights lie in it", "declare it there")
    try:
        onnx.checker.check_model(str(path))
    except (onnx.checker.ValidationError, DecodeError, RuntimeError) as error:
        text = " ".join(str(error).split())
        raise InputError("source.path", settings.path, f"is not a valid ONNX model: {text}") from error
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads()
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has no root class of its errors
        text = " ".join(str(error).split())
        raise InputError("source.path", settings.path, f"no ONNX Runtime session opens on it: {text}") from error
    return Source(path, session)


def external_files(path: Path) -> list[str]:
    """The files beside a model that hold its weights, as the model names them. None for a file that is no model."""
    try:
        model = onnx.load(str(path), load_external_data=False)
    except DecodeError:
        return []
    found = {
        entry.value
        for tensor in model.graph.initializer
        if tensor.data_location == TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return sorted(found)


def predict(model: Source, inputs: Mapping[str, Array]) -> list[tuple[str, Array]]:
    names = [output.name for output in model.session.get_outputs()]
    return list(zip(names, model.session.run(None, dict(inputs)), strict=True))


def write(model: Source, contract: Contract, path: Path) -> str:
    proto = onnx.load(str(model.path))
    proof.save(proto, path)
    return f"taken as it is, opset {opset_of(proto)}"


def describe(path: Path) -> dict[str, Tensor]:
    """The inputs of an ONNX file as a spec writes them; a size that is not fixed gets its name in the file, or one.

    Raises `InputError` for an input that a spec cannot describe: of another dtype, no tensor, without a shape.
    """
    proto = onnx.load(str(path), load_external_data=False)
    known = {initializer.name for initializer in proto.graph.initializer}
    return {value.name: _tensor(value) for value in proto.graph.input if value.name not in known}


def _tensor(value: onnx.ValueInfoProto) -> Tensor:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        raise InputError(f"inputs.{value.name}", None, "the file gives no shape for it", "give `inputs:` in the spec")
    shape: list[int | str] = []
    for axis, dim in enumerate(tensor.shape.dim):
        shape.append(dim.dim_value if dim.dim_value > 0 else dim_name(dim.dim_param, axis))
    dtype = TensorProto.DataType.Name(tensor.elem_type).lower()
    dtype = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    if dtype not in get_args(Dtype):
        raise InputError(f"inputs.{value.name}.dtype", dtype, f"must be one of {', '.join(get_args(Dtype))}")
    return Tensor.model_validate({"dtype": dtype, "shape": shape})
