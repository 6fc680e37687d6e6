"""`init`: a commented spec for a given model, ready to be edited."""

import json
import os
import re
from pathlib import Path

import yaml
from pydantic import BaseModel

from onnxmill.tasks import isolate, loader
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.spec import Tensor

SPEC = """\
# What onnxmill does with this model: `onnxmill verify {file}` checks it, `onnxmill convert {file}` runs it.
version: 1
name: {name}

source:
{source}

# What the model takes, in order. A name in a shape makes a dynamic dim.
inputs:
{inputs}

# Sizes that each dynamic dim is proven at; the first is the one that is timed.
dims:
{dims}

opset: 18

# Real samples make the proof, and are what int8-static is calibrated on. A callable yields {{input: array}} with a
# batch axis of 1; evaluation yields ({{input: array}}, label).
# data:
#   calibration: data.py:calibration
#   evaluation: data.py:evaluation
#   files: [samples.npz]          # what these callables read
#   samples: 256

# A score a sample, averaged; a variant that loses more than max_drop is refused.
# metric: {{fn: data.py:correct, max_drop: 0.005}}

variants: [fp32, fp16, int8-dynamic]   # with data.calibration: int8-static too
# require: [fp32]                      # the run fails (exit 3) when one of these is refused

# Promote the fastest proven variant in the MLflow registry:
# promote: {{objective: latency, target: cpu, register_as: {model}-onnx}}
"""


def initial_spec(model: str, file: str) -> str:
    """A spec for `model`: an .onnx file, or a loader such as "model.py:load", whose signature gives the inputs' names.

    `file` is where the spec will stand: its paths are relative to that folder.
    Raises `InputError` where the model cannot be read or loaded.
    """
    beside = Path(file).resolve().parent
    if model.endswith(".onnx"):
        path = Path(model)
        if not path.is_file():
            raise InputError("MODEL", model, "no such file")
        found = isolate.run(
            "onnxmill.tasks.initial:describe", {"name": path.name}, step="init", cwd=path.resolve().parent
        )
        described = Described.model_validate(found.value)
        source = f"  framework: onnx\n  path: {_scalar(os.path.relpath(path.resolve(), beside))}"
        if weights := [os.path.relpath(path.resolve().parent / name, beside) for name in described.files]:
            source += f"\n  files: [{', '.join(map(_scalar, weights))}]   # its weights"
        return _fill(path.stem, source, described.inputs, file, note="")
    entry = loader.parse_entry("MODEL", model)
    if entry.file and not Path(entry.file).is_file():
        raise InputError("MODEL", model, "no such file; give an .onnx file or file.py:callable")
    text = model
    if entry.file:
        path = Path(os.path.relpath(Path(entry.file).resolve(), beside))
        if ".." in path.parts:
            fix = f"write the spec there: --out {Path(entry.file).parent / Path(file).name}"
            raise InputError("MODEL", model, "must lie in the spec's folder or below it", fix)
        text = f"{path}:{entry.attribute}"
    found = isolate.run("onnxmill.tasks.initial:parameters", {"text": text}, step="init", cwd=beside)
    names = list(_list(found.value)) or ["input"]
    inputs = {name: Tensor(dtype="float32", shape=("batch", 3, 224, 224)) for name in names}
    source = f"  framework: torch\n  loader: {_scalar(text)}\n  files: []   # what the loader reads, such as weights.pt"
    return _fill(beside.name, source, inputs, file, note="   # <- your model's sizes")


class Described(BaseModel):
    """An ONNX file: its inputs, and the files beside it that hold its weights."""

    inputs: dict[str, Tensor]
    files: list[str]


def describe(name: str) -> Described:
    """In a child: what an ONNX file in the working folder is."""
    from onnxmill.tasks.export import steps
    from onnxmill.tasks.graph import external_files
    from onnxmill.tasks.opset import Pin

    inputs = steps.describe(steps.DescribeSettings(path=name, pin=Pin(opset=None)), Path.cwd(), Path.cwd())
    return Described(inputs=inputs, files=external_files(Path.cwd() / name))


def parameters(text: str) -> list[str]:
    """In a child: the names of the parameters of the forward of the module that a loader gives."""
    import inspect

    model = loader.call("source.loader", text)
    forward = getattr(model, "forward", None)
    if forward is None:
        kind = type(model).__name__
        fix = "init knows modules of torch and .onnx files; docs/sources.md shows the source of other frameworks"
        raise InputError("MODEL", text, f"must return a torch.nn.Module; it returned a {kind}", fix)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in inspect.signature(forward).parameters.values() if p.kind in kinds and p.default is p.empty]


def _fill(name: str, source: str, inputs: dict[str, Tensor], file: str, note: str) -> str:
    lines, symbols = [], list[str]()
    for key, tensor in inputs.items():
        shape = ", ".join(_scalar(dim) if isinstance(dim, str) else str(dim) for dim in tensor.shape)
        bounds = ", range: [0, 100]" if "int" in tensor.dtype else ""
        lines.append(f"  {_scalar(key)}: {{dtype: {tensor.dtype}, shape: [{shape}]{bounds}}}{note}")
        symbols += [d for d in tensor.shape if isinstance(d, str) and d not in symbols]
    dims = [f"  {_scalar(symbol)}: [1, {3 + index}]" for index, symbol in enumerate(symbols)]
    clean = re.sub(r"[^A-Za-z0-9._-]", "-", name).strip("._-")[:90] or "model"
    return SPEC.format(
        name=_scalar(clean),
        model=clean,
        source=source,
        inputs="\n".join(lines),
        dims="\n".join(dims) or "  {}",
        file=file,
    )


def _scalar(text: str) -> str:
    """`text` as YAML: quoted where it would be read as something else (no, 1.5, a#b)."""
    plain = re.fullmatch(r"[A-Za-z0-9_./:-]+", text) and yaml.safe_load(f"{{{text}: 0}}") == {text: 0}
    return text if plain else json.dumps(text)


def _list(value: object) -> list[str]:
    assert isinstance(value, list)
    return [str(item) for item in value]
