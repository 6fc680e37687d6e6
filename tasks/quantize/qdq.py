"""ONNX Runtime's QDQ quantizer: which tensors it needs a range for, and the graph that it makes of them."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import QuantType
from onnxruntime.quantization.calibrate import TensorData
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from onnxruntime.quantization.quant_utils import load_model_with_shape_infer
from onnxruntime.quantization.registry import CreateQDQQuantizer, QDQRegistry, QLinearOpsRegistry

from onnxmill.calibration.methods_scheme import Range
from onnxmill.tasks import graph
from onnxmill.tasks.graph import MODEL

OPERATORS = sorted({*QLinearOpsRegistry, *QDQRegistry})
ACTIVATIONS = ("Relu", "Clip")
"""The quantizer folds them into the node before, which then has their range."""
SOFTMAX_RANGE = Range(0.0, 1.0)
LARGE = 1024
"""A constant with more values than this is a weight, not a shape."""


def tensors_to_observe(model: onnx.ModelProto, exclude: tuple[str, ...]) -> list[str]:
    """The tensors that a quantizer needs the range of, in the graph's order; the fewer are fetched, the more stays
    fused. Not among them: what takes another's range (Relu's input, MaxPool's output …), and constants.

    Found by asking the quantizer itself, with a range for every tensor that is never used.
    """
    everything = {name: Range(-1.0, 1.0) for name in _tensors(model)}
    quantizer = _quantizer(_without_weights(model), everything, per_channel=True, exclude=exclude)
    for node in quantizer.model.nodes():
        if quantizer.should_quantize_node(node):
            CreateQDQQuantizer(quantizer, node).quantize()
    constants = {tensor.name for tensor in model.graph.initializer}
    known = constants | set(_softmax_outputs(model))
    followed = _followed(model, exclude)
    found = dict.fromkeys(
        _last(name, followed) for name, info in quantizer.tensors_to_quantize.items() if not info.is_shared
    )
    return [name for name in found if name not in known]


def adjusted(model: onnx.ModelProto, ranges: Mapping[str, Range], exclude: tuple[str, ...]) -> dict[str, Range]:
    """`ranges` of the observed tensors, with those that follow from them: the input of a Relu or Clip that takes its
    place has its range; Softmax gives 0 to 1."""
    followed = _followed(model, exclude)
    implied = {name: ranges[_last(name, followed)] for name in followed if _last(name, followed) in ranges}
    return {**ranges, **implied, **dict.fromkeys(_softmax_outputs(model), SOFTMAX_RANGE)}


def quantized(
    model: onnx.ModelProto, ranges: Mapping[str, Range], *, per_channel: bool, exclude: tuple[str, ...]
) -> onnx.ModelProto:
    """The model with QuantizeLinear and DequantizeLinear: activations uint8, weights int8."""
    quantizer = _quantizer(model, ranges, per_channel=per_channel, exclude=exclude)
    quantizer.quantize_model()
    quantizer.model.topological_sort()  # its new nodes are appended at the end
    result: onnx.ModelProto = quantizer.model.model
    return result


def _quantizer(
    model: onnx.ModelProto, ranges: Mapping[str, Range], *, per_channel: bool, exclude: tuple[str, ...]
) -> QDQQuantizer:
    data = {
        name: TensorData(lowest=np.float32(found.low), highest=np.float32(found.high)) for name, found in ranges.items()
    }
    with tempfile.TemporaryDirectory() as folder:  # the quantizer takes shapes from a file alone
        path = Path(folder) / MODEL
        graph.save(model, path)
        inferred = load_model_with_shape_infer(path)
    return QDQQuantizer(
        inferred, per_channel, False, QuantType.QInt8, QuantType.QUInt8, data, [], list(exclude), OPERATORS, {}
    )


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the shapes and types of its large float constants alone."""
    light = onnx.ModelProto()
    light.CopyFrom(model)
    for tensor in light.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and int(np.prod(tensor.dims)) > LARGE:
            tensor.ClearField("raw_data")
            tensor.ClearField("float_data")
    return light


def _followed(model: onnx.ModelProto, exclude: tuple[str, ...]) -> dict[str, str]:
    """{input: output} of each Relu and Clip that is all that takes its input."""
    takers: dict[str, int] = {}
    for node in model.graph.node:
        for name in node.input:
            takers[name] = takers.get(name, 0) + 1
    return {
        node.input[0]: node.output[0]
        for node in model.graph.node
        if node.op_type in ACTIVATIONS and node.name not in exclude and takers[node.input[0]] == 1
    }


def _last(name: str, followed: Mapping[str, str]) -> str:
    while name in followed:
        name = followed[name]
    return name


def _softmax_outputs(model: onnx.ModelProto) -> list[str]:
    return [node.output[0] for node in model.graph.node if node.op_type == "Softmax"]


def _tensors(model: onnx.ModelProto) -> list[str]:
    """Inputs and results of the graph's own nodes."""
    given = [value.name for value in model.graph.input]
    return [*given, *(name for node in model.graph.node for name in node.output if name)]
