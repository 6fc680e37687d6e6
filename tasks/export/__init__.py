"""Export: one module a framework, each with `load`; this table says which.

What `load` gives is a `Source`: it runs the model (the oracle of every later stage) and writes it as ONNX, by one
route or by several that are tried in turn until one is proven. Framework modules and this one import little of ours:
they run in interpreters of other environments too (`elsewhere`).
"""

import importlib
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from onnxmill.calibration.samples import Array
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.findings import Finding
from onnxmill.tasks.spec import Constant, Contract, Framework


class SourceSettings(BaseModel):
    """The source as later steps see it: its files by their names in the pack, its settings as in the spec."""

    model_config = ConfigDict(frozen=True)

    framework: Framework
    loader: str | None = None
    path: str | None = None
    state_dict: str | None = None
    constants: dict[str, Constant] = {}
    exporter: str = "auto"
    signature: str = ""
    nchw: tuple[str, ...] = ()
    reference: str | None = None


class Source(Protocol):
    """A loaded model of one framework.

    predict: the framework's own outputs on one case, flattened: (name or "", array) for each, in the model's order.
    routes: the ways to an ONNX file at (or near) `opset`, in the order in which they are tried.
    write: an ONNX file at `path` by a route; what is to be said of it. A finding that refuses says that there is none.
    Whatever else `write` raises is taken for the exporter's refusal of the model.
    """

    def predict(self, inputs: Mapping[str, Array]) -> list[tuple[str, Array]]: ...

    def routes(self, contract: Contract, opset: int) -> list[str]: ...

    def write(self, route: str, contract: Contract, opset: int, path: Path) -> list[Finding]: ...


class FrameworkModule(Protocol):
    def load(self, settings: SourceSettings) -> Source:
        """The model, in a process whose working folder holds the source part of the pack. Raises `InputError`."""
        ...


MODULES: dict[Framework, str] = {
    "torch": "torch",
    "keras": "tensorflow",
    "tensorflow": "tensorflow",
    "tflite": "tensorflow",
    "sklearn": "sklearn",
    "jax": "jax",
    "onnx": "onnx",
}
"""The module of this package that knows a framework."""

_TENSORFLOW = ("python", "tensorflow", "tensorflow-cpu", "keras", "tf2onnx", "onnx", "onnxruntime", "numpy", "cpu")
TOOLS: dict[Framework, tuple[str, ...]] = {
    "torch": ("python", "torch", "onnxscript", "onnx", "onnxruntime", "numpy", "cpu"),
    "keras": _TENSORFLOW,
    "tensorflow": _TENSORFLOW,
    "tflite": _TENSORFLOW,
    "sklearn": ("python", "scikit-learn", "skl2onnx", "onnx", "onnxruntime", "numpy", "cpu"),
    "jax": ("python", "jax", "jaxlib", "flax", "jax2onnx", "onnx", "onnxruntime", "numpy", "cpu"),
    "onnx": ("onnx", "onnxruntime", "numpy", "cpu"),
}
"""Distributions whose versions decide what a framework gives."""


def load(settings: SourceSettings) -> Source:
    """The source's model. Raises `InputError` where there is none, or where its framework is not installed."""
    name = f"onnxmill.tasks.export.{MODULES[settings.framework]}"
    try:
        module: FrameworkModule = importlib.import_module(name)
    except ImportError as error:
        traceback.print_exc()
        fix = f"`onnxmill doctor` says what {settings.framework} sources need"
        raise InputError("source.framework", settings.framework, f"cannot be used here: {error}", fix) from error
    return module.load(settings)
