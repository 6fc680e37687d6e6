"""Run a small model as it is written: ONNX Runtime without optimisation, seeded inputs."""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

from onnxmill.tasks.graph import lowest_ir
from tests import graphs


def outputs(model: onnx.ModelProto, *, size: int = 3, seed: int = 7) -> list[npt.NDArray[Any]]:
    """The outputs on normal inputs (true where they are bool), each dynamic dim of `size`."""
    onnx.checker.check_model(model, full_check=True)
    model.ir_version = lowest_ir(model)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    defaults = {tensor.name for tensor in model.graph.initializer}
    feeds: dict[str, npt.NDArray[Any]] = {}
    for offset, value in enumerate(i for i in model.graph.input if i.name not in defaults):
        tensor = value.type.tensor_type
        shape = tuple(dim.dim_value or size for dim in tensor.shape.dim)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        feeds[value.name] = np.asarray(graphs.normal(shape, seed + offset)).astype(dtype)
    return list(session.run(None, feeds))


def operators(model: onnx.ModelProto) -> list[str]:
    """The operators of the main graph, in order."""
    return [node.op_type for node in model.graph.node]


def weights(model: onnx.ModelProto) -> dict[str, npt.NDArray[Any]]:
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
