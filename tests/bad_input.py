"""Specs with one fault each: what is changed of a tiny sound one, and what the message must say."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import yaml

from tests.planted import write_tiny

Change = Callable[[Path, dict[str, Any]], None]
"""Edits a tiny spec's folder, and its spec."""


def written(tmp_path: Path, change: Change) -> Path:
    """A tiny spec after `change`."""
    path = write_tiny(tmp_path / "spec")
    spec = yaml.safe_load(path.read_text(encoding="utf-8"))
    change(path.parent, spec)
    path.write_text(yaml.safe_dump(spec, sort_keys=False), encoding="utf-8")
    return path


def entry(*keys: str | int, value: Any) -> Change:
    """Set the spec's entry under `keys`."""

    def change(folder: Path, spec: dict[str, Any]) -> None:
        part: Any = spec
        for key in keys[:-1]:
            part = part[key]
        part[keys[-1]] = value

    return change


def source(name: str, text: str) -> Change:
    """Replace a source file of the spec."""

    def change(folder: Path, spec: dict[str, Any]) -> None:
        (folder / name).write_text(text, encoding="utf-8")

    return change


def calibration(body: str) -> Change:
    """Replace the data callables: `body` is the calibration's, evaluation stays sound."""
    text = (
        "import numpy as np\n\n"
        f"def calibration():\n    {body}\n\n"
        "def evaluation():\n    yield {'image': np.ones((1, 1, 8, 8), np.float32)}, 0\n\n"
        "def correct(outputs, label):\n    return 1.0\n"
    )
    return source("data.py", text)


def no_weights(folder: Path, spec: dict[str, Any]) -> None:
    (folder / "weights.pt").unlink()


def outside(folder: Path, spec: dict[str, Any]) -> None:
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "model.py").write_text("def load(): ...\n", encoding="utf-8")
    spec["source"]["loader"] = "../elsewhere/model.py:load"


def linked_outside(folder: Path, spec: dict[str, Any]) -> None:
    elsewhere = folder.parent / "secret.py"
    elsewhere.write_text("def load(): ...\n", encoding="utf-8")
    (folder / "model.py").unlink()
    (folder / "model.py").symlink_to(elsewhere)


def broken_onnx(folder: Path, spec: dict[str, Any]) -> None:
    (folder / "model.onnx").write_bytes(b"\x08\x07 no model at all")
    spec["source"] = {"framework": "onnx", "path": "model.onnx"}


def invalid_onnx(folder: Path, spec: dict[str, Any]) -> None:
    """A file that can be parsed, with a node whose input nothing gives."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18]>
        agraph (float[batch, 1, 8, 8] image) => (float[batch, 1, 8, 8] logits) { logits = Add(image, missing) }
    """)
    onnx.save(model, folder / "model.onnx")
    spec["source"] = {"framework": "onnx", "path": "model.onnx"}


def nan_metric(folder: Path, spec: dict[str, Any]) -> None:
    (folder / "metric.py").write_text("def correct(outputs, label):\n    return float('nan')\n", encoding="utf-8")
    spec["metric"]["fn"] = "metric.py:correct"


def overlapping(folder: Path, spec: dict[str, Any]) -> None:
    with np.load(folder / "samples.npz") as arrays:
        samples = dict(arrays)
    samples["calibration"][5] = samples["evaluation"][7]
    np.savez(folder / "samples.npz", allow_pickle=False, **samples)


Fault = tuple[Change, str, list[str]]
"""The change, the key that the message names, and words of it."""

SPEC: dict[str, Fault] = {
    "unknown key": (entry("opsett", value=18), "opsett", ["18", "unknown key", "did you mean 'opset'?"]),
    "unknown key below": (entry("data", "sample", value=3), "data.sample", ["did you mean 'samples'?"]),
    "unknown dtype": (
        entry("inputs", "image", "dtype", value="flaot32"),
        "inputs.image.dtype",
        ["'flaot32'", "float32"],
    ),
    "size 0": (entry("inputs", "image", "shape", value=["batch", 0, 8, 8]), "inputs.image.shape", ["at least 1"]),
    "no variant": (entry("variants", value=[]), "variants", ["names no variant", "fp32"]),
    "unknown variant": (entry("variants", value=["int8-statik"]), "variants.0.recipe", ["did you mean 'int8-static'?"]),
    "required no variant": (entry("require", value=["fp16"]), "require", ["'fp16'", "fp32, int8-static"]),
    "opset too high": (entry("opset", value=99), "opset", ["99", "23"]),
    "opset too low": (entry("opset", value=7), "opset", ["7", "13"]),
    "version": (entry("version", value=2), "version", ["2", "1"]),
    "no source": (lambda folder, spec: spec.pop("source"), "source", ["is required"]),
}
"""Found by reading the spec."""

PACK: dict[str, Fault] = {
    "missing weights": (no_weights, "source.files", ["'weights.pt'", "no such file", "looked for"]),
    "missing data": (entry("data", "files", value=["sampels.npz"]), "data.files", ["'sampels.npz'", "no such file"]),
    "a folder for a file": (entry("data", "files", value=["."]), "data.files", ["is a folder"]),
    "missing loader": (
        entry("source", "loader", value="modle.py:load"),
        "source.loader",
        ["'modle.py:load'", "no such file"],
    ),
    "loader of no form": (entry("source", "loader", value="model.py"), "source.loader", ["file.py:callable"]),
    "loader outside": (
        outside,
        "source.loader",
        ["'../elsewhere/model.py:load'", "must lie in the spec's folder or below it"],
    ),
    "module outside": (
        entry("source", "loader", value="elsewhere.model:load"),
        "source.loader",
        ["'elsewhere.model:load'", "no such module in the folders whose code may run"],
    ),
    "loader linked outside": (
        linked_outside,
        "source.loader",
        ["outside the folders whose code may run", "ONNXMILL_LOADER_ROOTS"],
    ),
    "syntax error": (
        source("parts.py", "def features(:\n"),
        "source.loader",
        ["parts.py", "not valid Python at line 1"],
    ),
}
"""Found by packing."""

DATA: dict[str, Fault] = {
    "empty": (calibration("yield from ()"), "data.calibration", ["yielded no sample"]),
    "not finite": (
        calibration("yield {'image': np.full((1, 1, 8, 8), np.nan, np.float32)}"),
        "data.calibration",
        ["sample 0", "'image'", "64 values that are not finite"],
    ),
    "wrong dtype": (
        calibration("yield {'image': np.ones((1, 1, 8, 8))}"),
        "data.calibration",
        ["sample 0", "'image'", "float64", "must be float32"],
    ),
    "wrong shape": (
        calibration("yield {'image': np.ones((1, 8, 8), np.float32)}"),
        "data.calibration",
        ["sample 0", "[1, 8, 8]", "must be [batch, 1, 8, 8]"],
    ),
    "wrong name": (
        calibration("yield {'imagee': np.ones((1, 1, 8, 8), np.float32)}"),
        "data.calibration",
        ["'imagee'", "did you mean 'image'?"],
    ),
    "None": (calibration("return None"), "data.calibration", ["'data.py:calibration'", "returned None"]),
    "raises": (
        calibration("yield {'image': 1 / 0}"),
        "data.calibration",
        ["taking sample 0", "ZeroDivisionError", "data.py:4"],
    ),
    "hangs": (
        calibration("import time; time.sleep(60); yield 1"),
        "data.calibration",
        ["'data.py:calibration'", "gave nothing within 2 s", "ONNXMILL_STEP_TIMEOUT_S"],
    ),
    "overlap": (overlapping, "data.evaluation", ["1 sample(s)", "calibration sample 5 is evaluation sample 7"]),
}
"""Found by taking the samples."""

MODEL: dict[str, Fault] = {
    "raises": (
        source("model.py", "def load():\n    raise ValueError('no such layer')\n"),
        "source.loader",
        ["'model.py:load'", "ValueError", "model.py:2", "no such layer"],
    ),
    "returns None": (
        source("model.py", "def load():\n    return None\n"),
        "source.loader",
        ["'model.py:load'", "None"],
    ),
    "returns a number": (
        source("model.py", "def load():\n    return 3\n"),
        "source.loader",
        ["torch.nn.Module", "int"],
    ),
    "no such callable": (
        entry("source", "loader", value="model.py:laod"),
        "source.loader",
        ["has no 'laod'", "did you mean 'load'?"],
    ),
    "undeclared file": (
        entry("source", "files", value=[]),
        "source.loader",
        ["weights.pt", "must be declared in `files:`"],
    ),
    "wrong input shape": (
        entry("inputs", "image", "shape", value=["batch", 2, 8, 8]),
        "data.calibration",
        ["[1, 1, 8, 8]", "must be [batch, 2, 8, 8]"],
    ),
    "wrong output dtype": (
        entry("outputs", "logits", "dtype", value="float64"),
        "outputs.logits.dtype",
        ["'float64'", "the model gives float32"],
    ),
    "wrong output shape": (entry("outputs", "logits", "shape", value=["batch", 5]), "outputs.logits.shape", ["5", "4"]),
    "broken onnx": (broken_onnx, "source.path", ["'model.onnx'", "not a valid ONNX model"]),
    "invalid onnx": (invalid_onnx, "source.path", ["'model.onnx'", "not a valid ONNX model", "missing"]),
    "metric gives no number": (nan_metric, "metric.fn", ["'metric.py:correct'", "finite number", "sample 0"]),
}
"""Found by loading and running the source; seconds each, since a child imports its framework."""
