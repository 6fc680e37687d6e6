"""The reader: one sample at a time, again from the start, and good for ONNX Runtime's own quantizer."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from onnxmill.calibration import samples
from onnxmill.calibration.readers import SampleReader
from onnxmill.calibration.samples import Expected

EXPECTED = {"x": Expected("float32", ("batch", 3))}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five samples, [1, 3], of the values 0 … 4."""
    items = ({"x": np.full((1, 3), i, np.float32)} for i in range(5))
    samples.write("data.calibration", items, EXPECTED, tmp_path, limit=None, labelled=False)
    return tmp_path


def values(reader: SampleReader) -> list[float]:
    found = []
    while (inputs := reader.get_next()) is not None:
        assert list(inputs) == ["x"]
        found.append(float(inputs["x"][0, 0]))
    return found


def test_it_gives_each_sample_once_and_then_none(folder: Path) -> None:
    reader = SampleReader(folder)
    assert isinstance(reader, CalibrationDataReader)
    assert values(reader) == [0, 1, 2, 3, 4]
    assert reader.get_next() is None


def test_it_has_a_length_wherever_it_stands(folder: Path) -> None:
    reader = SampleReader(folder)
    reader.get_next()
    assert len(reader) == 5


def test_it_rewinds_from_the_end_and_from_the_middle(folder: Path) -> None:
    reader = SampleReader(folder)
    values(reader)
    reader.rewind()
    reader.get_next()
    reader.rewind()
    assert values(reader) == [0, 1, 2, 3, 4]


def test_two_readers_do_not_disturb_each_other(folder: Path) -> None:
    one, other = SampleReader(folder), SampleReader(folder)
    one.get_next()
    assert values(other) == [0, 1, 2, 3, 4]
    assert values(one) == [1, 2, 3, 4]


def test_it_can_be_iterated_over(folder: Path) -> None:
    assert [float(inputs["x"].max()) for inputs in SampleReader(folder)] == [0, 1, 2, 3, 4]


def test_labels_are_not_inputs(tmp_path: Path) -> None:
    item = ({"x": np.ones((1, 3), np.float32)}, 7)
    samples.write("data.evaluation", [item], EXPECTED, tmp_path, limit=None, labelled=True)
    assert list(SampleReader(tmp_path).get_next() or {}) == ["x"]


def test_onnxruntime_calibrates_on_it(folder: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        agraph (float[batch, 3] x) => (float[batch, 3] y)
        <float[3, 3] w = {1, 0, 0, 0, 1, 0, 0, 0, 1}>
        { y = MatMul(x, w) }
    """)
    onnx.save(model, folder / "model.onnx")
    quantize_static(
        folder / "model.onnx", folder / "int8.onnx", SampleReader(folder),
        quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    quantized = onnx.load(folder / "int8.onnx")
    assert "QuantizeLinear" in {node.op_type for node in quantized.graph.node}
    scales = {i.name: onnx.numpy_helper.to_array(i) for i in quantized.graph.initializer if i.name.endswith("_scale")}
    assert scales["x_scale"] == pytest.approx(4 / 255)  # the range of the samples: 0 … 4
