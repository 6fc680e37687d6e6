"""ONNX as a source: the file is the export; ONNX Runtime without optimisation, at the source's opset, its oracle."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import get_args

import onnx
import onnxruntime
from google.protobuf.message import DecodeError
from onnx import TensorProto, ValueInfoProto

from onnxmill.calibration.samples import Array
from onnxmill.tasks import graph
from onnxmill.tasks.errors import InputError, shorten
from onnxmill.tasks.export import SourceSettings, interface
from onnxmill.tasks.findings import Finding
from onnxmill.tasks.machine import threads
from onnxmill.tasks.spec import Contract, Dtype, Tensor, dim_name

OPSET_OLDEST = 7
"""What ONNX Runtime reads. Older operators have other rules of broadcasting."""
CUT = "cut the graph at that tensor with `onnx.utils.extract_model`, and do the rest in your own code"


@dataclass(frozen=True)
class Source:
    """A model file and an open session on it."""

    path: Path
    session: onnxruntime.InferenceSession

    def predict(self, inputs: Mapping[str, Array]) -> list[tuple[str, Array]]:
        names = [output.name for output in self.session.get_outputs()]
        return list(zip(names, self.session.run(None, dict(inputs)), strict=True))

    def routes(self, contract: Contract, opset: int) -> list[str]:
        return ["; ".join(["as it is", *_remarks(onnx.load(str(self.path), load_external_data=False))])]

    def write(self, route: str, contract: Contract, opset: int, path: Path) -> list[Finding]:
        model = graph.load(self.path)
        if model.ir_version < 4:  # which wants each weight to be an input, too; since then that means "may be replaced"
            weights = {tensor.name for tensor in model.graph.initializer}
            inputs = [value for value in model.graph.input if value.name not in weights]
            del model.graph.input[:]
            model.graph.input.extend(inputs)
        own = [value.name for value in model.graph.output]
        if own != list(contract.output_names):  # the spec has another order, or names of its own by position
            chosen = list(contract.output_names) if set(own) == set(contract.output_names) else own
            interface.conform(model, contract, list(contract.input_names), chosen)
        graph.save(model, path, beside=self.path.parent)
        return []


def load(settings: SourceSettings) -> Source:
    """The model, once the checker accepts it and a session opens. Raises `InputError` where one does not."""
    assert settings.path
    path = Path.cwd() / settings.path
    try:
        model = onnx.load(str(path), load_external_data=False)
    except DecodeError as error:
        raise InputError("source.path", settings.path, f"is not a valid ONNX model: {error}") from error
    if 0 < graph.opset_of(model) < OPSET_OLDEST:
        expected = f"is at opset {graph.opset_of(model)}, must be {OPSET_OLDEST} or newer"
        raise InputError("source.path", settings.path, expected, "convert it with `onnx.version_converter` first")
    _check_external(settings.path, path.parent, graph.external_names(model))
    try:
        onnx.checker.check_model(str(path))
    except (onnx.checker.ValidationError, RuntimeError) as error:
        text = " ".join(str(error).split())
        raise InputError("source.path", settings.path, f"is not a valid ONNX model: {text}") from error
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # other steps work beside this one
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has no root class of its errors
        raise _no_session(settings.path, " ".join(str(error).split())) from error
    return Source(path, session)


def describe(path: Path, given: Collection[str] = ()) -> dict[str, Tensor]:
    """The inputs of an ONNX file as a spec writes them; a size that is not fixed gets its name in the file, or one.
    Those that are `given` by the spec are left out.

    Raises `InputError` for an input or output that a spec cannot describe: of another dtype, no tensor; an input
    without a shape.
    """
    proto = onnx.load(str(path), load_external_data=False)
    known = {*given, *(initializer.name for initializer in proto.graph.initializer)}
    for value in proto.graph.output:
        _dtype(f"outputs.{value.name}", value)
    return {value.name: _tensor(value) for value in proto.graph.input if value.name not in known}


def _tensor(value: ValueInfoProto) -> Tensor:
    dtype, tensor = _dtype(f"inputs.{value.name}", value), value.type.tensor_type
    if not tensor.HasField("shape"):
        raise InputError(f"inputs.{value.name}", None, "the file gives no shape for it", "give `inputs:` in the spec")
    shape: list[int | str] = []
    for axis, dim in enumerate(tensor.shape.dim):
        shape.append(dim.dim_value if dim.dim_value > 0 else dim_name(dim.dim_param, axis))
    return Tensor.model_validate({"dtype": dtype, "shape": shape})


def _dtype(key: str, value: ValueInfoProto) -> str:
    kind = value.type.WhichOneof("value")
    if kind and kind != "tensor_type":
        raise InputError(key, kind.removesuffix("_type"), "must be a tensor", CUT)
    dtype = TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
    dtype = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    if dtype not in get_args(Dtype) and not (dtype == "undefined" and key.startswith("outputs")):
        raise InputError(f"{key}.dtype", dtype, f"must be one of {', '.join(get_args(Dtype))}", CUT)
    return dtype


def _check_external(model: str, folder: Path, names: list[str]) -> None:
    """Whether every file of weights is there, below the model's folder."""
    root = folder.resolve()
    for name in names:
        windows = PureWindowsPath(name)  # takes \ and / for separators, and knows drives
        outside = bool(windows.drive or windows.root) or ".." in windows.parts
        if outside or not (folder / name).resolve().is_relative_to(root):
            expected = f"its external file '{shorten(name)}' lies outside of the model's folder"
            raise InputError("source.path", model, expected, "save the model with its weights beside it")
        if not name or not (folder / name).is_file():
            raise InputError("source.files", name, "is missing: the model's weights lie in it", "declare it there")


def _no_session(model: str, text: str) -> InputError:
    """ONNX Runtime's refusal of a model; an operator that it does not know is named."""
    unknown = re.search(r"([\w.]+):(\w+)\(-?\d+\) is not a registered function/op", text)
    if unknown:
        expected = f"{unknown[1]}::{unknown[2]} is a custom operator that no runtime here knows"
        fix = "export the model with standard operators, or give the operator a body as a model-local function"
        return InputError("source.path", model, expected, fix)
    return InputError("source.path", model, f"no ONNX Runtime session opens on it: {text}")


def _remarks(model: onnx.ModelProto) -> list[str]:
    """What later steps cannot do with the model."""
    nodes = graph.nodes_of(model.graph)
    operators = {node.op_type for node in nodes if node.domain in graph.STANDARD_DOMAINS}
    functions = {(function.domain, function.name) for function in model.functions}
    custom = {
        f"{node.domain}::{node.op_type}"
        for node in nodes
        if node.domain not in graph.STANDARD_DOMAINS and (node.domain, node.op_type) not in functions
    }
    forms = {
        "QDQ": {"QuantizeLinear", "DequantizeLinear"} & operators,
        "QOperator": {op for op in operators if op.startswith("QLinear") or op.endswith("Integer")},
    }
    found = [form for form, marks in forms.items() if marks]
    remarks = [f"quantized already ({' and '.join(found)})"] if found else []
    return remarks + ([f"no shape inference beyond {', '.join(sorted(custom))}"] if custom else [])
