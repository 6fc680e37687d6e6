"""`verify`: everything that can be checked before work is done, for an ONNX source (no framework to import)."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxmill.tasks import verification
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.loader import ROOTS_SETTING

SPEC = """
version: 1
name: double
source: {framework: onnx, path: models/net.onnx, files: [models/net.onnx.data]}
data: {calibration: data.py:calibration, evaluation: data.py:evaluation}
metric: {fn: data.py:close}
dims: {batch: [1, 4]}
inputs: {x: {shape: [batch, 3]}}
"""
DATA = """
import numpy as np
def calibration():
    for i in range(3):
        yield {"x": np.full((1, 3), i, np.float32)}
def evaluation():
    for i in range(5):
        yield {"x": np.full((1, 3), i + 10, np.float32)}, 2 * (i + 10)
def close(outputs, label):
    return float(np.allclose(outputs["y"], label))
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec whose model lies in a folder below, with its weights in a second file."""
    monkeypatch.setenv("ONNXMILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(ROOTS_SETTING, str(tmp_path))
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18]> agraph (float[batch, 3] x) => (float[batch, 3] y) { y = Mul(x, w) }
    """)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.full(3, 2, np.float32), "w"))
    (tmp_path / "models").mkdir()
    onnx.save(
        model, tmp_path / "models/net.onnx", save_as_external_data=True, location="net.onnx.data", size_threshold=0
    )
    (tmp_path / "data.py").write_text(DATA)
    (tmp_path / "spec.yaml").write_text(SPEC)
    return tmp_path / "spec.yaml"


@pytest.mark.integration
def test_facts_of_a_sound_spec(spec: Path) -> None:
    said: list[str] = []
    facts = verification.verify(spec, said.append)
    assert facts["spec"] == "double: fp32, int8-static at opset 18"
    assert facts["source"].startswith("net.onnx, net.onnx.data; digest ")
    assert facts["inputs"] == "x float32 ['batch', 3]"
    assert facts["outputs"] == "y float32 ['batch', 3]"
    assert facts["parity cases"] == "8 of real samples, 4 made up"
    assert (facts["calibration samples"], facts["evaluation samples"]) == ("3", "5")
    assert facts["metric of the source"] == "1.0000"
    assert "samples: calling data.calibration data.py:calibration" in said


@pytest.mark.integration
def test_the_first_fault_is_told(spec: Path) -> None:
    (spec.parent / "data.py").write_text(DATA.replace("i + 10, np.float32", "i, np.float32"))
    with pytest.raises(InputError, match=r"shares 3 sample\(s\) .*calibration sample 0 is evaluation sample 0"):
        verification.verify(spec, lambda what: None)
