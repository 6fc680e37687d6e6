"""tf2onnx: what it is asked, what it lacks, and what it says of success.

It is silent about an operator that it does not know: the model then still holds it. And whatever it calls inputs,
outputs and dims, the file gets the contract's names.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tensorflow as tf
import tf2onnx
import tf2onnx.convert
from tensorflow.python.framework import op_def_registry
from tf2onnx.handler import tf_op

from onnxmill.tasks import graph
from onnxmill.tasks.export.tensorflow_names import respell
from onnxmill.tasks.export.tensorflow_source import TO_NHWC
from onnxmill.tasks.findings import Finding, finding
from onnxmill.tasks.graph import ONNX_DOMAINS
from onnxmill.tasks.spec import Contract

MAX_OPSET = 18
"""The highest that tf2onnx writes; a later step goes up from there."""


# --- operators that tf2onnx lacks, or spells as twenty others --------------------------------------------------------


@tf_op("Erf")
class Erf:
    @classmethod
    def version_9(cls, ctx: Any, node: Any, **kwargs: Any) -> None:
        """ONNX has it."""


@tf_op("Erfc")
class Erfc:
    @classmethod
    def version_9(cls, ctx: Any, node: Any, **kwargs: Any) -> None:
        """erfc(x) = 1 - erf(x)."""
        erf = ctx.make_node("Erf", [node.input[0]], op_name_scope=node.name)
        _replace(ctx, node, "Sub", [_constant(ctx, node, 1.0), erf.output[0]])


@tf_op("TFL_GELU")
class Gelu:
    @classmethod
    def version_9(cls, ctx: Any, node: Any, **kwargs: Any) -> None:
        """x * (1 + erf(x / sqrt 2)) / 2, or 1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)) where it is approximate."""
        x = node.input[0]

        def made(op: str, *inputs: str) -> str:
            name: str = ctx.make_node(op, list(inputs), op_name_scope=node.name).output[0]
            return name

        if node.get_attr_value("approximate"):
            cube = made("Mul", made("Mul", x, x), made("Mul", x, _constant(ctx, node, 0.044715)))
            curve = made("Tanh", made("Mul", made("Add", x, cube), _constant(ctx, node, np.sqrt(2 / np.pi))))
        else:
            curve = made("Erf", made("Mul", x, _constant(ctx, node, np.sqrt(0.5))))
        raised = made("Add", curve, _constant(ctx, node, 1.0))
        _replace(ctx, node, "Mul", [made("Mul", x, _constant(ctx, node, 0.5)), raised])


def _constant(ctx: Any, node: Any, value: float) -> str:
    """A scalar of the dtype of the node's input."""
    dtype = tf2onnx.utils.map_onnx_to_numpy_type(ctx.get_dtype(node.input[0]))
    name: str = ctx.make_const(tf2onnx.utils.make_name(node.name), np.array(value, dtype)).output[0]
    return name


def _replace(ctx: Any, node: Any, op: str, inputs: list[str]) -> None:
    shapes, dtypes, outputs = node.output_shapes, node.output_dtypes, list(node.output)
    ctx.remove_node(node.name)
    ctx.make_node(op, inputs, name=node.name, outputs=outputs, shapes=shapes, dtypes=dtypes)


# --- conversion ------------------------------------------------------------------------------------------------------


def from_function(
    function: Any, contract: Contract, opset: int, nchw: Sequence[str], own: list[str], path: Path
) -> list[Finding]:
    """Write a tf.function that takes the contract's inputs in order, by position. `own` holds the names of its
    outputs once it was traced."""
    specs, names = [], {}
    for index, name in enumerate(contract.input_names):
        tensor = contract.inputs[name]
        shape = [None if isinstance(dim, str) else dim for dim in tensor.shape]
        if name in nchw:
            shape = [shape[axis] for axis in TO_NHWC]
        names[name] = f"onnxmill_input_{index}"
        specs.append(tf.TensorSpec(shape, tensor.dtype, name=names[name]))
    with _heard() as failures:
        model, _ = tf2onnx.convert.from_function(
            function, specs, opset=min(opset, MAX_OPSET), inputs_as_nchw=[names[name] for name in nchw]
        )
    return _written(model, contract, {names[name]: name for name in names}, own, failures, path)


def from_tflite(
    file: Path, contract: Contract, opset: int, nchw: Sequence[str], names: Mapping[str, str],
    own: Sequence[str], path: Path,
) -> list[Finding]:  # fmt: skip
    """Write a TFLite file. `names` maps its inputs' tensors to the contract's names; `own` are its outputs' names."""
    tensors = [tensor for tensor, name in names.items() if name in nchw]
    with _heard() as failures:
        model, _ = tf2onnx.convert.from_tflite(str(file), opset=min(opset, MAX_OPSET), inputs_as_nchw=tensors)
    return _written(model, contract, names, own, failures, path)


@contextlib.contextmanager
def _heard() -> Iterator[list[Finding]]:
    """What tf2onnx could not convert: it goes on, and says so in its log alone."""
    found: list[Finding] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.ERROR and record.exc_info and record.exc_info[1]:
                where = str(record.args[0]) if isinstance(record.args, tuple) and record.args else "tf2onnx"
                found.append(finding("EXP001", where, " ".join(str(record.exc_info[1]).split())))

    logger, listener = logging.getLogger("tf2onnx"), Listener()
    logger.addHandler(listener)
    try:
        yield found
    finally:
        logger.removeHandler(listener)


def _written(
    model: onnx.ModelProto, contract: Contract, inputs: Mapping[str, str], own: Sequence[str],
    failures: list[Finding], path: Path,
) -> list[Finding]:  # fmt: skip
    """Give the graph the contract's names and order and write it; or say why it is none."""
    unknown = {
        node.op_type: _is_textual(node.op_type) for node in graph.nodes_of(model.graph) if not _is_onnx(node, model)
    }
    if texts := sorted(op for op, textual in unknown.items() if textual):
        return [finding("EXP003", ", ".join(texts), "strings have no place in the model", fix="take them out of it")]
    if unknown:
        return [finding("EXP002", ", ".join(sorted(unknown))), *failures]
    if failures:
        return failures
    outputs = list(contract.output_names)
    named = list(own) if sorted(own) == sorted(outputs) else outputs  # in the model's own order
    respell(model, inputs, named)
    model.graph.input.sort(key=lambda value: contract.input_names.index(value.name))
    model.graph.output.sort(key=lambda value: outputs.index(value.name))
    graph.save(model, path)
    return []


def _is_onnx(node: onnx.NodeProto, model: onnx.ModelProto) -> bool:
    try:
        onnx.defs.get_schema(node.op_type, graph.opset_of(model), node.domain)
    except onnx.defs.SchemaError:
        return False
    return node.domain in ONNX_DOMAINS


def _is_textual(operator: str) -> bool:
    """Whether a TensorFlow operator takes or gives strings."""
    definition = op_def_registry.get(operator)
    arguments = [*definition.input_arg, *definition.output_arg] if definition else []
    return any(argument.type == tf.string.as_datatype_enum for argument in arguments)
