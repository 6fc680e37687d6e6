"""The readers: samples in batches, again from the start, and good for ONNX Runtime's own quantizer."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)

from onnxmill.calibration import samples
from onnxmill.calibration.readers import BatchReader, SampleReader
from onnxmill.calibration.samples import Array, Expected
from onnxmill.calibration.sources import chosen, stream
from onnxmill.calibration.sources_arrays import ArrayFile
from onnxmill.tasks.errors import InputError

EXPECTED = {"x": Expected("float32", ("batch", 3))}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five samples, [1, 3], of the values 0 … 4."""
    items = ({"x": np.full((1, 3), i, np.float32)} for i in range(5))
    samples.write("data.calibration", items, EXPECTED, tmp_path, limit=None, labelled=False)
    return tmp_path


def values(reader: BatchReader) -> list[float]:
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


# --- batches ---------------------------------------------------------------------------------------------------------


def shapes(reader: BatchReader) -> list[tuple[int, ...]]:
    return [inputs["x"].shape for inputs in reader]


@pytest.mark.parametrize(("batch", "sizes"), [(1, [1] * 5), (2, [2, 2, 1]), (3, [3, 2]), (5, [5]), (8, [5])])
def test_the_last_batch_may_be_ragged(folder: Path, batch: int, sizes: list[int]) -> None:
    reader = SampleReader(folder, batch)
    assert len(reader) == len(sizes)
    assert shapes(reader) == [(size, 3) for size in sizes]
    reader.rewind()
    assert np.concatenate([inputs["x"] for inputs in reader])[:, 0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_another_shape_begins_another_batch(tmp_path: Path, batch: int) -> None:
    lengths = [3, 3, 3, 5, 3, 5, 5]
    items = [{"x": np.zeros((1, length), np.float32)} for length in lengths]
    samples.write("data", items, {"x": Expected("float32", ("batch", "n"))}, tmp_path, limit=None, labelled=False)
    reader = SampleReader(tmp_path, batch)
    expected = {
        1: [(1, length) for length in lengths],
        2: [(2, 3), (1, 3), (1, 5), (1, 3), (2, 5)],
        4: [(3, 3), (1, 5), (1, 3), (2, 5)],
    }[batch]
    assert shapes(reader) == expected
    assert len(reader) == len(expected)


def test_no_batch_is_below_1(folder: Path) -> None:
    with pytest.raises(ValueError, match="batch is 0, must be at least 1"):
        SampleReader(folder, 0)


# --- anything that can be gone through again -------------------------------------------------------------------------


def test_a_reader_over_a_source_on_files(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(30, dtype=np.float32).reshape(10, 3))
    source = ArrayFile("data", tmp_path / "x.npy", "x")
    reader = BatchReader(lambda: stream(source, chosen(source, 5, seed=0)), batch=2)
    assert shapes(reader) == [(2, 3), (2, 3), (1, 3)]
    assert len(reader) == 3
    reader.rewind()
    assert len(values(reader)) == 3


def test_a_readers_length_does_not_move_it() -> None:
    begun = []

    def begin() -> Iterator[dict[str, Array]]:
        begun.append(1)
        return ({"x": np.full((1, 3), i, np.float32)} for i in range(5))

    reader = BatchReader(begin)
    reader.get_next()
    assert (len(reader), len(reader)) == (5, 5)
    assert values(reader) == [1, 2, 3, 4]
    assert len(begun) == 2  # once for the samples, once for their number


def test_what_a_source_raises_comes_through() -> None:
    def begin() -> Iterator[dict[str, Array]]:
        yield {"x": np.zeros((1, 3), np.float32)}
        raise InputError("data.calibration", None, "sample 1 is bad")

    reader = BatchReader(begin)
    reader.get_next()
    with pytest.raises(InputError, match="sample 1 is bad"):
        reader.get_next()


# --- ONNX Runtime's own quantizer ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "batch"),
    # its histograms fail on a ragged batch: they stack what they collect
    [(CalibrationMethod.MinMax, 1), (CalibrationMethod.MinMax, 2), (CalibrationMethod.Entropy, 1)],
)
def test_onnxruntime_calibrates_on_any_reader(folder: Path, method: CalibrationMethod, batch: int) -> None:
    made = [
        quantized(folder, reader, method)
        for reader in (
            SampleReader(folder, batch),
            BatchReader(lambda: ({"x": np.full((1, 3), i, np.float32)} for i in range(5)), batch),
        )
    ]
    assert made[0] == made[1]
    assert "QuantizeLinear" in {node.op_type for node in made[0].graph.node}
    if method == CalibrationMethod.MinMax:
        assert scale_of(made[0]) == pytest.approx(4 / 255)  # the range of the samples: 0 … 4


def quantized(folder: Path, reader: CalibrationDataReader, method: CalibrationMethod) -> onnx.ModelProto:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        agraph (float[batch, 3] x) => (float[batch, 3] y)
        <float[3, 3] w = {1, 0, 0, 0, 1, 0, 0, 0, 1}>
        { y = MatMul(x, w) }
    """)
    onnx.save(model, folder / "model.onnx")
    quantize_static(
        folder / "model.onnx", folder / "int8.onnx", reader, calibrate_method=method,
        quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    return onnx.load(folder / "int8.onnx")


def scale_of(model: onnx.ModelProto) -> float:
    return next(float(onnx.numpy_helper.to_array(i)) for i in model.graph.initializer if i.name == "x_scale")
