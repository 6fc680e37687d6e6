"""A small ONNX model and its samples, one of which has an outlier: what the tests of `calibrate` observe."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import yaml
from onnx import numpy_helper

MODEL = """
<ir_version: 8, opset_import: ["" : 18]>
agraph (float[batch, 1024] x) => (float[batch, 2] y)
{ first = Add(x, b)  hidden = Relu(first)  [last] y = MatMul(hidden, v) }
"""
TWO_PASSES = ({"recipe": "int8-static", "name": "half", "exclude": ["last"]}, "int8-static")
"""Variants that leave other nodes in float; the first observes one tensor less."""
QUIET = """
<ir_version: 8, opset_import: ["" : 18]> agraph (float[batch, 1024] x) => (float[batch, 1024] y) { y = Tan(x) }
"""
OVERFLOWS = """
<ir_version: 8, opset_import: ["" : 18]>
agraph (float[batch, 1024] x) => (float[batch, 2] y) <float c = {10}>
{ ten = Mul(x, c)  e = Exp(ten)  y = MatMul(e, v) }
"""
RANDOM = """
<ir_version: 8, opset_import: ["" : 18]>
agraph (float[batch, 1024] x) => (float[batch, 2] y) { r = RandomUniformLike(x)  z = Add(x, r)  y = MatMul(z, v) }
"""
DATA = """
from pathlib import Path

import numpy as np

def calibration():
    for row in np.load(Path(__file__).with_name("rows.npy")):
        yield {"x": row[np.newaxis]}
"""
WIDTH, SAMPLES, BAD, EXTREME = 1024, 40, 17, 20.0


def rows(seed: int = 0) -> npt.NDArray[np.float32]:
    """[SAMPLES, WIDTH] of -1 to 1, but for one value of row `BAD`."""
    values = np.random.default_rng(seed).uniform(-1, 1, (SAMPLES, WIDTH)).astype(np.float32)
    values[BAD, 2] = EXTREME
    return values


def write(
    folder: Path, *, model: str = MODEL, seed: int = 0, calibration: bool = True, variants: object = ("int8-static",)
) -> Path:
    """The spec of `model`; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    proto = onnx.parser.parse_model(model)
    weights = {"b": np.full(WIDTH, 0.5, np.float32), "v": np.tile(np.array([1, -1], np.float32), (WIDTH, 1))}
    taken = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(
        numpy_helper.from_array(weights[name], name) for name in sorted(taken & set(weights))
    )
    onnx.save(proto, folder / "net.onnx")
    np.save(folder / "rows.npy", rows(seed))
    (folder / "data.py").write_text(DATA, encoding="utf-8")
    spec: dict[str, object] = {
        "version": 1,
        "name": "outlier",
        "source": {"framework": "onnx", "path": "net.onnx"},
        "dims": {"batch": [1, 3]},
        "variants": list(variants) if isinstance(variants, tuple) else variants,
    }
    if calibration:
        spec["data"] = {"calibration": "data.py:calibration", "files": ["rows.npy"]}
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False), encoding="utf-8")
    return path
