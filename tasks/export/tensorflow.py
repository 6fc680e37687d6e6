"""TensorFlow: Keras models, SavedModels, functions, frozen graphs and TFLite files; run, and converted by tf2onnx.

Layout stays as the source has it (images NHWC), except for the inputs that `source.nchw` lists.
"""

import contextlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # both are read while the libraries are imported
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import tensorflow as tf

from onnxmill.calibration.samples import Array
from onnxmill.tasks import loader
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.export import Source, SourceSettings, tensorflow_lite
from onnxmill.tasks.export import tensorflow_convert as convert
from onnxmill.tasks.export.tensorflow_lite import SERVING
from onnxmill.tasks.export.tensorflow_source import Port, arranged, nhwc, unreadable
from onnxmill.tasks.findings import Finding
from onnxmill.tasks.machine import threads
from onnxmill.tasks.spec import Contract

KERAS_FILES = (".keras", ".h5", ".hdf5")
VARIABLES = ("Variable", "VariableV2", "VarHandleOp", "AutoReloadVariable")
PLACEHOLDERS = ("Placeholder", "PlaceholderV2")
PASSIVE = ("Const", "NoOp", "Assert", "PlaceholderWithDefault")
"""Operators that are neither inputs nor outputs of a graph."""


@dataclass(frozen=True)
class Function:
    """Anything that TensorFlow can trace: `call` takes tensors by the names of `ports`."""

    ports: tuple[Port, ...]
    call: Callable[[dict[str, tf.Tensor]], Any]
    nchw: tuple[str, ...]

    def predict(self, inputs: Mapping[str, Array]) -> list[tuple[str, Array]]:
        """The model's outputs, flattened, with their keys where it returns a mapping ("" elsewhere).

        Raises `InputError` where the model's own inputs are others, or an output is of strings.
        """
        given = arranged(self.ports, nhwc(inputs, self.nchw))
        value = self.call({name: tf.constant(array) for name, array in given.items()})
        return [(name, tensor.numpy()) for name, tensor in _flatten(value)]

    def routes(self, contract: Contract, opset: int) -> list[str]:
        return ["tf2onnx"]

    def write(self, route: str, contract: Contract, opset: int, path: Path) -> list[Finding]:
        own: list[str] = []

        def traced(*tensors: tf.Tensor) -> list[tf.Tensor]:
            given = arranged(self.ports, dict(zip(contract.input_names, tensors, strict=True)))
            flat = _flatten(self.call(given))
            own[:] = [name for name, _ in flat]
            return [tf.identity(tensor) for _, tensor in flat]  # one tensor may be there twice, or be an input

        return convert.from_function(tf.function(traced), contract, opset, self.nchw, own, path)


def load(settings: SourceSettings) -> Source:
    """The model, in inference mode, on the CPU. Raises `InputError` for a file or a loader that gives none."""
    with contextlib.suppress(RuntimeError):  # a process that used TensorFlow before keeps its settings
        tf.config.threading.set_intra_op_parallelism_threads(threads())
        tf.config.set_visible_devices([], "GPU")
    keras.utils.set_random_seed(0)
    path = Path.cwd() / settings.path if settings.path else None
    if settings.signature and not (path and (path.is_dir() or settings.framework == "tflite")):
        raise InputError("source.signature", settings.signature, "is for a SavedModel or a TFLite file")
    if not path:
        assert settings.loader
        return _loaded(settings, loader.call("source.loader", settings.loader))
    if settings.framework == "tflite":
        return tensorflow_lite.load(settings, path)
    if settings.framework == "keras":
        return _keras_file(settings, path)
    return _saved_model(settings, path) if path.is_dir() else _frozen_graph(settings, path)


# --- what a loader returns -------------------------------------------------------------------------------------------


def _loaded(settings: SourceSettings, model: Any) -> Function:
    if isinstance(model, keras.Model):
        return _keras_model(model, settings)
    expected = "must return a keras.Model"
    if settings.framework == "tensorflow":
        if isinstance(model, tf.types.experimental.ConcreteFunction):
            return _concrete(model, settings)
        if callable(model):
            return Function(_parameters(model), lambda given: model(**given), settings.nchw)
        expected = "must return a tf.Module with __call__, a tf.function, a ConcreteFunction or a keras.Model"
    raise InputError("source.loader", settings.loader, f"{expected}; it returned a {type(model).__name__}")


def _keras_model(model: Any, settings: SourceSettings) -> Function:
    """A functional or Sequential model says what it takes; of another one it is what its `call` says, in which one
    argument may be a list or a dict of tensors, as the model was built with."""
    tensors = getattr(model, "inputs", None)
    if tensors:
        structure = tensors[0] if isinstance(model, keras.Sequential) else model.input
        keyed = isinstance(structure, Mapping) and len(structure) == len(tensors)
        names = sorted(structure) if keyed else [tensor.name for tensor in tensors]
        ports = tuple(Port(n, t.dtype, tuple(t.shape)) for n, t in zip(names, tensors, strict=True))
        return Function(
            ports,
            lambda given: model(keras.tree.pack_sequence_as(structure, [given[n] for n in names]), training=False),
            settings.nchw,
        )
    ports = _parameters(model.call, besides=("training", "mask"))
    shapes = (model.get_build_config() or {}).get("input_shape")
    if len(ports) != 1 or not shapes or not isinstance(next(iter(shapes)), str | Sequence):
        return Function(ports, lambda given: model(**given, training=False), settings.nchw)
    if isinstance(shapes, Mapping):
        return Function(tuple(map(Port, shapes)), lambda given: model(given, training=False), settings.nchw)
    parts = tuple(Port(f"{ports[0].name}_{index}") for index in range(len(shapes)))
    return Function(parts, lambda given: model(list(given.values()), training=False), settings.nchw)


def _parameters(function: Callable[..., Any], besides: Sequence[str] = ()) -> tuple[Port, ...]:
    """The parameters of a Python function, which say no more than names."""
    found = inspect.signature(function).parameters.values()
    named = [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in besides]
    return tuple(Port(p.name, required=p.default is p.empty) for p in named)


def _concrete(function: Any, settings: SourceSettings) -> Function:
    """A traced function: its tensors' names are those of its signature."""
    structure = function.structured_input_signature
    flat = tf.nest.flatten(structure)
    ports = tuple(_port(spec.name, spec) for spec in flat if isinstance(spec, tf.TensorSpec))

    def call(given: dict[str, tf.Tensor]) -> Any:
        values = [given[spec.name] if isinstance(spec, tf.TensorSpec) else spec for spec in flat]
        arguments, keywords = tf.nest.pack_sequence_as(structure, values)
        return function(*arguments, **keywords)

    return Function(ports, call, settings.nchw)


def _port(name: str, tensor: Any) -> Port:
    """Of a TensorSpec or a tensor; an unknown rank stays open."""
    return Port(name, tensor.dtype.name, None if tensor.shape.rank is None else tuple(tensor.shape))


# --- files -----------------------------------------------------------------------------------------------------------


def _keras_file(settings: SourceSettings, path: Path) -> Function:
    if path.suffix not in KERAS_FILES:
        raise InputError("source.path", settings.path, f"must end in one of {', '.join(KERAS_FILES)}")
    fix = "a model with code of its own (a Lambda, custom layers) needs a `loader:` that builds it and loads weights"
    with unreadable(settings, "Keras cannot load it safely", fix):
        return _keras_model(keras.models.load_model(path, compile=False, safe_mode=True), settings)


def _saved_model(settings: SourceSettings, path: Path) -> Function:
    """A signature of a SavedModel, frozen. By the loader of TensorFlow 1: it takes what either version saved, also
    where the classes of the saved objects (an optimizer's, say) are no longer known."""
    fix = "give the complete folder: saved_model.pb and variables/"
    with tf.Graph().as_default() as whole, tf.compat.v1.Session(graph=whole) as session:
        with unreadable(settings, "is no SavedModel that TensorFlow can load", fix):
            found = tf.compat.v1.saved_model.load(session, ["serve"], str(path)).signature_def
        wanted, names = settings.signature or SERVING, sorted(name for name in found if not name.startswith("__"))
        if wanted not in names:
            raise InputError("source.signature", wanted, f"is not in the SavedModel, whose signatures are {names}")
        inputs = {name: info.name for name, info in sorted(found[wanted].inputs.items())}
        outputs = {name: info.name for name, info in sorted(found[wanted].outputs.items())}
        kept = [tensor.partition(":")[0] for tensor in (*inputs.values(), *outputs.values())]
        frozen = tf.compat.v1.graph_util.convert_variables_to_constants(session, whole.as_graph_def(), kept)
    return _graph(settings, frozen, inputs, outputs)


def _frozen_graph(settings: SourceSettings, path: Path) -> Function:
    """A GraphDef without variables: its placeholders are the inputs, what nobody consumes the outputs."""
    definition = tf.compat.v1.GraphDef()
    fix = "give a frozen graph, or the folder (not the file) of a SavedModel"
    with unreadable(settings, "is no frozen graph", fix), tf.Graph().as_default() as whole:
        definition.ParseFromString(path.read_bytes())
        if variables := [node.name for node in definition.node if node.op in VARIABLES]:
            raise InputError("source.path", settings.path, f"is not frozen: it has variables {variables}", fix)
        tf.graph_util.import_graph_def(definition, name="")
    operations = whole.get_operations()
    inputs = {op.name: op.outputs[0].name for op in operations if op.type in PLACEHOLDERS}
    outputs = {
        tensor.name.removesuffix(":0"): tensor.name
        for op in operations
        for tensor in op.outputs
        if op.type not in (*PLACEHOLDERS, *PASSIVE) and not tensor.consumers()
    }
    if not inputs or not outputs:
        raise InputError("source.path", settings.path, "is a graph without placeholders or without outputs", fix)
    return _graph(settings, definition, inputs, outputs)


def _graph(settings: SourceSettings, definition: Any, inputs: dict[str, str], outputs: dict[str, str]) -> Function:
    """A graph without variables; `inputs` and `outputs` map names to tensors."""
    wrapped = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(definition, name=""), [])
    takes, gives = (
        {name: wrapped.graph.get_tensor_by_name(tensor) for name, tensor in names.items()}
        for names in (inputs, outputs)
    )
    function = wrapped.prune(list(takes.values()), list(gives.values()))
    return Function(
        tuple(_port(name, tensor) for name, tensor in takes.items()),
        lambda given: dict(zip(gives, function(*given.values()), strict=True)),
        settings.nchw,
    )


# --- values ----------------------------------------------------------------------------------------------------------


def _flatten(value: Any, name: str = "") -> list[tuple[str, tf.Tensor]]:
    if tf.is_tensor(value) and isinstance(value, tf.Tensor):
        if value.dtype == tf.string:
            raise InputError(
                "outputs", name or None, "the model gives strings, which have no place here", "return numbers"
            )
        return [(name, value)]
    if isinstance(value, Mapping):
        return [pair for key, part in value.items() if part is not None for pair in _flatten(part, str(key))]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [pair for part in value if part is not None for pair in _flatten(part)]
    raise InputError("source", type(value).__name__, "the model must return tensors, or tuples or dicts of tensors")
