"""TFLite files: their interpreter is the oracle; tf2onnx converts their main graph."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tf2onnx.tflite.Model import Model

from onnxmill.calibration.samples import Array
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.export import SourceSettings
from onnxmill.tasks.export.tensorflow_convert import from_tflite
from onnxmill.tasks.export.tensorflow_source import Port, arranged, nhwc, unreadable
from onnxmill.tasks.findings import Finding
from onnxmill.tasks.machine import threads
from onnxmill.tasks.spec import Contract

SERVING = "serving_default"


@dataclass(frozen=True)
class Lite:
    """A TFLite file and its interpreter. Names are those of its signature, or of its tensors without one."""

    path: Path
    interpreter: Any
    ports: tuple[Port, ...]
    outputs: tuple[str, ...]
    nchw: tuple[str, ...]

    def predict(self, inputs: Mapping[str, Array]) -> list[tuple[str, Array]]:
        given = arranged(self.ports, nhwc(inputs, self.nchw))
        places = {port.name: detail["index"] for port, detail in self._inputs()}
        for name, array in given.items():
            self.interpreter.resize_tensor_input(places[name], array.shape)
        self.interpreter.allocate_tensors()
        for name, array in given.items():
            self.interpreter.set_tensor(places[name], array)
        self.interpreter.invoke()
        details = zip(self.outputs, self.interpreter.get_output_details(), strict=True)
        return [(name, self.interpreter.get_tensor(detail["index"])) for name, detail in details]

    def _inputs(self) -> list[tuple[Port, dict[str, Any]]]:
        return list(zip(self.ports, self.interpreter.get_input_details(), strict=True))

    def routes(self, contract: Contract, opset: int) -> list[str]:
        return ["tf2onnx"]

    def write(self, route: str, contract: Contract, opset: int, path: Path) -> list[Finding]:
        spec_names = arranged(self.ports, {name: name for name in contract.input_names})
        tensors = {detail["name"]: spec_names[port.name] for port, detail in self._inputs()}
        return from_tflite(self.path, contract, opset, self.nchw, tensors, self.outputs, path)


def load(settings: SourceSettings, path: Path) -> Lite:
    """A file with an interpreter on it. Raises `InputError` for one that does not run, or has no such signature."""
    fix = "give a complete file, without custom operators"
    with unreadable(settings, "is no TFLite file that its interpreter can run", fix):
        _read_through(path.read_bytes())
        interpreter = tf.lite.Interpreter(str(path), num_threads=threads())
        interpreter.allocate_tensors()
    ins, outs = interpreter.get_input_details(), interpreter.get_output_details()
    named = {detail["name"]: detail["name"] for detail in (*ins, *outs)}
    signatures = interpreter.get_signature_list()
    wanted = settings.signature or next(iter(signatures if len(signatures) == 1 else []), SERVING)
    if wanted in signatures:
        runner = interpreter.get_signature_runner(wanted)
        found = {**runner.get_input_details(), **runner.get_output_details()}
        if {detail["name"] for detail in found.values()} != set(named):
            raise InputError("source.signature", wanted, "is not of the file's main graph, which alone is converted")
        named |= {detail["name"]: name for name, detail in found.items()}
    elif settings.signature:
        raise InputError("source.signature", wanted, f"is not in the file, whose signatures are {sorted(signatures)}")
    ports = tuple(
        Port(
            named[d["name"]], np.dtype(d["dtype"]).name, tuple(None if n < 0 else int(n) for n in d["shape_signature"])
        )
        for d in ins
    )
    return Lite(path, interpreter, ports, tuple(named[d["name"]] for d in outs), settings.nchw)


def _read_through(content: bytes) -> None:
    """Read every part of a TFLite file: its interpreter trusts offsets, and crashes on a file that was cut off.

    Raises what reading out of bounds raises.
    """
    model = Model.GetRootAs(content)
    for index in range(model.BuffersLength()):
        model.Buffers(index).DataAsNumpy()
    for part in (model.Subgraphs(index) for index in range(model.SubgraphsLength())):
        for index in range(part.TensorsLength()):
            part.Tensors(index).Name(), part.Tensors(index).ShapeAsNumpy()
        for index in range(part.OperatorsLength()):
            part.Operators(index).InputsAsNumpy(), part.Operators(index).OutputsAsNumpy()
