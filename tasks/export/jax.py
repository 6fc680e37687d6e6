"""JAX: load a function or module (flax, equinox) through the user's loader, run it on the CPU, export it by jax2onnx.

64-bit types are as the loader leaves `jax_enable_x64`: without it JAX takes int64 as int32 and float64 as float32, and
so does the graph, whose inputs keep the dtypes of the spec.
"""

import inspect
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np
from jax2onnx import to_onnx

from onnxmill.calibration.samples import Array
from onnxmill.tasks import graph, loader
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.export import SourceSettings
from onnxmill.tasks.export.interface import conform
from onnxmill.tasks.findings import Finding, finding
from onnxmill.tasks.spec import Contract, Dtype

SURE_OPSET = 18
"""Below it jax2onnx may write nodes as they are from 18 on (ReduceMean's axes), above what it declares."""
DIRECT, FROM_SURE = "jax2onnx", f"jax2onnx at opset {SURE_OPSET}"

DATA_DEPENDENT = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
"""What JAX raises where Python needs the value of an array that is only traced."""


@dataclass(frozen=True)
class _Shape:
    """What jax2onnx takes for an input: names in `shape` are dynamic dims."""

    shape: tuple[int | str, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Jax:
    """A function of arrays."""

    function: Callable[..., Any]

    def predict(self, inputs: Mapping[str, Array]) -> list[tuple[str, Array]]:
        """The function's outputs as JAX flattens them (a mapping by sorted keys), with their keys ("" elsewhere)."""
        value = self._by_position(tuple(inputs))(*(jax.numpy.asarray(array) for array in inputs.values()))
        leaves = jax.tree_util.tree_leaves_with_path(value)
        return [(_key(path), _array(leaf)) for path, leaf in leaves]

    def routes(self, contract: Contract, opset: int) -> list[str]:
        return [DIRECT] if opset >= SURE_OPSET else [DIRECT, FROM_SURE]

    def write(self, route: str, contract: Contract, opset: int, path: Path) -> list[Finding]:
        tensors = [contract.inputs[name] for name in contract.input_names]
        types = [jax.dtypes.canonicalize_dtype(np.dtype(tensor.dtype)) for tensor in tensors]
        names: list[str] = []

        def function(*arrays: Any) -> Any:
            leaves = jax.tree_util.tree_leaves_with_path(self._by_position(contract.input_names)(*arrays))
            names[:] = [_key(key) for key, _ in leaves]
            return tuple(jax.numpy.asarray(leaf) for _, leaf in leaves)

        try:
            proto = to_onnx(
                function,
                [_Shape(tensor.shape, kind) for tensor, kind in zip(tensors, types, strict=True)],
                model_name="function",
                opset=SURE_OPSET if route == FROM_SURE else opset,
                enable_double_precision=jax.dtypes.canonicalize_dtype(np.float64) == np.float64,
            )
        except Exception as error:
            refusal = _refusal(error)
            if refusal is None:
                raise
            traceback.print_exc()
            return [refusal]
        outputs = [value.name for value in proto.graph.output]
        if set(names) == set(contract.output_names):  # the function names its outputs: order is the spec's
            own = dict(zip(names, outputs, strict=True))
            outputs = [own[name] for name in contract.output_names]
        conform(proto, contract, [f"in_{index}" for index in range(len(tensors))], outputs)
        graph.save(proto, path)
        return []

    def _by_position(self, names: tuple[str, ...]) -> Callable[..., Any]:
        """The function of the inputs in the order of the spec: by name where it has parameters of these names."""
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except (TypeError, ValueError):  # a compiled function need not have a signature
            return self.function
        kinds = {parameter.kind for parameter in parameters}
        known = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if set(names) <= known or kinds == {inspect.Parameter.VAR_KEYWORD}:
            return lambda *arrays: self.function(**dict(zip(names, arrays, strict=True)))
        return self.function


def load(settings: SourceSettings) -> Jax:
    """The user's function, on the CPU; a flax nnx module in eval mode. Raises `InputError` where it is no function."""
    jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]  # jax leaves it untyped
    assert settings.loader
    model = loader.call("source.loader", settings.loader)
    if not callable(model):
        expected = f"must return a function of arrays, or a module; it returned a {type(model).__name__}"
        raise InputError("source.loader", settings.loader, expected)
    if isinstance(model, type):
        raise InputError("source.loader", settings.loader, f"returned the class {model.__name__}", "return an instance")
    if callable(getattr(model, "eval", None)):  # live Dropout and batch statistics are never exported
        model.eval()
    return Jax(model)


def _key(path: tuple[Any, ...]) -> str:
    """The name of an output: the last key of a mapping (or field of a named tuple) on the way to it, or ""."""
    keys = [str(getattr(part, "key", getattr(part, "name", ""))) for part in path]
    keys = [key for key, part in zip(keys, path, strict=True) if not isinstance(part, jax.tree_util.FlattenedIndexKey)]
    return next((key for key in reversed(keys) if key), "")


def _array(leaf: Any) -> Array:
    try:
        array = np.asarray(leaf)
    except TypeError as error:
        raise InputError(
            "source", type(leaf).__name__, "the function must return arrays, or trees of arrays"
        ) from error
    if str(array.dtype) not in get_args(Dtype):
        fix = "cast it in the function, e.g. to float32"
        raise InputError(
            "source", str(array.dtype), f"an output's dtype must be one of {', '.join(get_args(Dtype))}", fix
        )
    return array


def _refusal(error: Exception) -> Finding | None:
    """What is to be said of an error of JAX or jax2onnx; None for one that says it best itself."""
    text = " ".join(str(error).split())
    primitive = re.search(r"No plugins registered for primitive '([^']+)'", text)
    if primitive:
        fix = "write it with other functions of jax.numpy or jax.lax"
        return finding("EXP002", primitive[1], "jax2onnx has no plugin for this primitive", fix=fix)
    if isinstance(error, NotImplementedError):
        return finding("EXP002", "jax2onnx", text)
    if isinstance(error, DATA_DEPENDENT):
        detail = f"Python control flow depends on an array's values ({type(error).__name__}{_place(error)})"
        fix = "use jax.numpy.where, jax.lax.cond, jax.lax.scan or jax.lax.fori_loop instead of if and for"
        return finding("EXP001", "control flow", detail, fix=fix)
    if type(error).__name__ == "InconclusiveDimensionOperation":
        detail = f"Python code depends on the size of a dynamic dim{_place(error)}: {text.partition(' This error')[0]}"
        fix = "use jax.lax.scan or jax.vmap instead of a loop over an axis, or give the dim a fixed size in the spec"
        return finding("EXP001", "control flow", detail, fix=fix)
    keywords = re.search(r"patched_(\w+)\(\) takes \d+ positional argument", text)
    if keywords:
        fix = f"give {keywords[1]} its arguments by keyword"
        return finding("EXP001", keywords[1], "jax2onnx takes its arguments by keyword alone", fix=fix)
    return None


def _place(error: Exception) -> str:
    """at file:line of the user's code, the innermost that the error passed."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if Path(f.filename).is_relative_to(Path.cwd())]
    return f" at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
