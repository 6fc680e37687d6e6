"""`init`: a commented spec for a given model, ready to be edited."""

from pathlib import Path

from onnxmill.tasks import export, isolate, loader
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
# promote: {{objective: latency, target: cpu, register_as: {name}-onnx}}
"""


def initial_spec(model: str, file: str) -> str:
    """A spec for `model`: an .onnx file, or a loader such as "model.py:load", whose signature gives the inputs' names.

    Raises `InputError` where the model cannot be read or loaded.
    """
    if model.endswith(".onnx"):
        path = Path(model)
        if not path.is_file():
            raise InputError("MODEL", model, "no such file")
        found = isolate.run(
            "onnxmill.tasks.initial:describe", {"name": path.name}, step="init", cwd=path.resolve().parent
        )
        inputs = {name: Tensor.model_validate(tensor) for name, tensor in dict(_mapping(found.value)).items()}
        source = f"  framework: onnx\n  path: {path.name}"
        return _fill(path.stem, source, inputs, file, note="")
    entry = loader.parse_entry("MODEL", model)
    if entry.file and not Path(entry.file).is_file():
        raise InputError("MODEL", model, "no such file; give an .onnx file or file.py:callable")
    folder = Path(entry.file).resolve().parent if entry.file else Path.cwd()
    text = f"{Path(entry.file).name}:{entry.attribute}" if entry.file else model
    found = isolate.run("onnxmill.tasks.initial:parameters", {"text": text}, step="init", cwd=folder)
    names = list(_list(found.value)) or ["input"]
    inputs = {name: Tensor(dtype="float32", shape=("batch", 3, 224, 224)) for name in names}
    source = f"  framework: torch\n  loader: {text}\n  files: []          # what the loader reads, such as weights.pt"
    return _fill(folder.name, source, inputs, file, note="   # <- your model's sizes")


def describe(name: str) -> dict[str, Tensor]:
    """In a child: the inputs of an ONNX file in the working folder."""
    return export.describe(export.DescribeSettings(path=name), Path.cwd(), Path.cwd())


def parameters(text: str) -> list[str]:
    """In a child: the names of the parameters of the forward of the module that a loader gives."""
    import inspect

    model = loader.call("source.loader", text)
    forward = getattr(model, "forward", None)
    if forward is None:
        kind = type(model).__name__
        raise InputError("MODEL", text, f"must return a torch.nn.Module; it returned a {kind}")
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in inspect.signature(forward).parameters.values() if p.kind in kinds and p.default is p.empty]


def _fill(name: str, source: str, inputs: dict[str, Tensor], file: str, note: str) -> str:
    lines, symbols = [], list[str]()
    for key, tensor in inputs.items():
        shape = ", ".join(map(str, tensor.shape))
        bounds = "" if tensor.dtype.startswith("float") else ", range: [0, 100]"
        lines.append(f"  {key}: {{dtype: {tensor.dtype}, shape: [{shape}]{bounds}}}{note}")
        symbols += [d for d in tensor.shape if isinstance(d, str) and d not in symbols]
    dims = [f"  {symbol}: [1, {3 + index}]" for index, symbol in enumerate(symbols)]
    clean = "".join(c if c.isalnum() or c in "._-" else "-" for c in name).strip("._-") or "model"
    return SPEC.format(name=clean, source=source, inputs="\n".join(lines), dims="\n".join(dims) or "  {}", file=file)


def _mapping(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value


def _list(value: object) -> list[str]:
    assert isinstance(value, list)
    return [str(item) for item in value]
