"""Calibration tables: what ONNX Runtime and TensorRT read and write, and the files that must be refused."""

import contextlib
import json
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static, save_tensors_data
from onnxruntime.quantization.calibrate import TensorData, TensorsData
from onnxruntime.quantization.CalTableFlatBuffers.TrtTable import TrtTable
from onnxruntime.quantization.quant_utils import compute_scale_zp, write_calibration_table

from onnxmill.calibration.methods_scheme import Range
from onnxmill.calibration.tables import FORMS, read, write
from onnxmill.tasks.errors import InputError

NAMES = ["x", "input_1:0", "a: b", "/layer 1/Relu (copy)", "größe ", "\u2028"]
RANGES = {name: Range(-1.5 * index, 2.25 + index) for index, name in enumerate(NAMES)}
LARGEST, SMALLEST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
HEADER = "TRT-8601-EntropyCalibration2\n"

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), min_size=1)
single = st.floats(width=32, min_value=0, allow_infinity=False)
limits = st.tuples(single, single).filter(any).map(lambda pair: Range(-pair[0], pair[1]))
magnitudes = st.floats(width=32, min_value=2.0**-118, max_value=2.0**127)


def mirrored(ranges: dict[str, Range]) -> dict[str, Range]:
    return {name: Range(-max(-r.low, r.high), max(-r.low, r.high)) for name, r in ranges.items()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file to write over: hypothesis takes no fixture of a single test."""
    return tmp_path_factory.mktemp("tables") / "table"


@given(ranges=st.dictionaries(names, limits, min_size=1))
def test_the_cache_of_onnxruntime_keeps_every_bit(shared, ranges):
    write(ranges, shared, "onnxruntime")
    assert read(shared) == ranges


@given(ranges=st.dictionaries(names, magnitudes.map(lambda m: Range(-m, m)), min_size=1))
def test_the_table_of_the_tensorrt_provider_keeps_every_bit_of_a_magnitude(shared, ranges):
    write(ranges, shared, "onnxruntime-trt")
    assert read(shared) == ranges


@given(ranges=st.dictionaries(names, magnitudes.map(lambda m: Range(-m, m)), min_size=1))
def test_the_cache_of_tensorrt_is_within_half_a_step_of_float32_and_stays_as_it_is(shared, ranges):
    write(ranges, shared, "tensorrt")
    content, found = shared.read_bytes(), read(shared)
    assert list(found) == list(ranges)
    for name, expected in ranges.items():
        assert found[name].high == pytest.approx(expected.high, rel=2**-24, abs=0)
        assert found[name].low == -found[name].high
    write(found, shared, "tensorrt")
    assert shared.read_bytes() == content


@pytest.mark.parametrize("form", FORMS)
def test_a_table_that_was_cut_gives_no_wrong_range(path, form):
    write(RANGES, path, form)
    content, whole = path.read_bytes(), read(path)
    refused = 0
    for cut in range(len(content)):
        path.write_bytes(content[:cut])
        try:
            assert read(path).items() <= whole.items()  # lines may be missing, and what follows the last value
        except InputError:
            refused += 1
    assert refused > 0.9 * len(content)


@pytest.mark.parametrize("form", FORMS)
@given(changes=st.dictionaries(st.integers(0, 10_000), st.integers(0, 255), min_size=1, max_size=3))
def test_changed_bytes_give_ranges_or_an_input_error(shared, form, changes):
    write(RANGES, shared, form)
    content = bytearray(shared.read_bytes())
    for place, byte in changes.items():
        content[place % len(content)] = byte
    shared.write_bytes(content)
    with contextlib.suppress(InputError):
        found = read(shared)
        assert found
        assert "" not in found


@given(content=st.binary() | st.binary().map(lambda end: b"TRT-" + end) | st.binary().map(lambda end: b"{" + end))
def test_rubbish_is_refused(shared, content):
    shared.write_bytes(content)
    with pytest.raises(InputError, match="not read as a calibration table"):
        read(shared)


@pytest.mark.parametrize("form", ["onnxruntime-trt", "tensorrt"])
def test_the_larger_side_counts_where_one_magnitude_is_kept(path, form):
    ranges = {"negative": Range(-127.0, 2.0), "positive": Range(-1.0, 254.0), "none below": Range(0.0, 127.0)}
    write(ranges, path, form)
    assert read(path) == mirrored(ranges)


@pytest.mark.parametrize("form", FORMS)
def test_names_survive(path, form):
    write(RANGES, path, form)
    assert set(read(path)) == set(NAMES)


def test_the_bytes_of_tensorrt(path):
    write({"images": Range(-127.0, 3.0), "a:0": Range(0.0, 254.0)}, path, "tensorrt")
    assert path.read_text() == "TRT-100300-EntropyCalibration2\nimages: 3f800000\na:0: 40000000\n"


def test_a_cache_that_tensorrt_wrote(path):
    """Lines as in NVIDIA/TensorRT issue 2036, with another algorithm, the ends of Windows and an empty last line."""
    path.write_bytes(b"TRT-8203-MinMaxCalibration\r\n167: 3c009976\r\ninput_1:0: 3C010A14\r\n\r\n")
    found = read(path)
    assert found["167"].high == pytest.approx(127 * 0.0078491, rel=1e-5)
    assert found["input_1:0"].high == pytest.approx(127 * 0.0078760, rel=1e-5)


def test_the_provider_reads_text_of_a_magnitude(path):
    """`ReadDynamicRange` of ONNX Runtime's TensorRT provider takes keys, and std::stof of the values."""
    write({"x": Range(-5.0, 1.0), "y": Range(0.0, 0.1)}, path, "onnxruntime-trt")
    table = TrtTable.GetRootAs(path.read_bytes())
    entries = {table.Dict(index).Key(): table.Dict(index).Value() for index in range(table.DictLength())}
    assert entries[b"x"] == b"5.0"
    assert np.float32(entries[b"y"].decode()) == np.float32(0.1)


def test_what_onnxruntime_wrote(tmp_path, path):
    """Ranges without zero (its quantizer adds it), of nothing but zeros, float16; a file of its other writer too."""

    def entry(lowest: float, highest: float, dtype: type = np.float32) -> TensorData:
        return TensorData(lowest=np.array(lowest, dtype), highest=np.array([highest], dtype))

    data = TensorsData(
        CalibrationMethod.Entropy,
        {"above": entry(2, 3), "below": entry(-3, -2), "zero": entry(0, 0), "half": entry(-0.5, 0.25, np.float16)},
    )
    expected = {"above": Range(0, 3), "below": Range(-3, 0), "zero": Range(0, 1), "half": Range(-0.5, 0.25)}
    save_tensors_data(data, path)
    assert read(path) == expected
    write_calibration_table(data, str(tmp_path))
    assert read(tmp_path / "calibration.json") == expected


MODEL = """<ir_version: 8, opset_import: ["": 18]>
model (float[batch, 4] x) => (float[batch, 3] y) <float[4, 3] w> {
    hidden = MatMul(x, w)
    y = Sigmoid(hidden)
}"""


def test_quantize_static_takes_the_cache_and_its_scales_are_those_of_our_ranges(tmp_path, path):
    model = onnx.parser.parse_model(MODEL)
    weights = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "model.onnx")
    ranges = {"x": Range(-1.25, 3.7), "hidden": Range(-0.1, 9.0), "y": Range(0.0, 1.0)}
    ranges = {name: Range(float(np.float32(r.low)), float(np.float32(r.high))) for name, r in ranges.items()}
    write(ranges, path, "onnxruntime")
    quantize_static(
        tmp_path / "model.onnx",
        tmp_path / "int8.onnx",
        None,
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        calibration_cache_path=path,
    )
    made = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / "int8.onnx").graph.initializer}
    for name, found in ranges.items():
        lowest, highest = np.float32(found.low), np.float32(found.high)
        zero_point, scale = compute_scale_zp(lowest, highest, np.array(0, np.uint8), np.array(255, np.uint8))
        assert made[f"{name}_scale"].tobytes() == np.float32(scale).tobytes()
        assert made[f"{name}_zero_point"] == zero_point


def cache(lowest: object, highest: object) -> str:
    return json.dumps({"data": {"x": {"lowest": lowest, "highest": highest}}})


def array(data: object, dtype: str) -> dict[str, object]:
    return {"CLS": "numpy.array", "data": data, "dtype": dtype}


REFUSED = {
    "empty": ("", ["whole"]),
    "unknown": ("x 1.0\ny 2.0\n", ["flatbuffers", "TRT-"]),
    "no JSON": ('{"data": ', ["Expecting value", "line 1"]),
    "other JSON": ('{"ranges": {}}', ['"data"', "save_tensors_data"]),
    "nested": ('{"data": ' + "[" * 100_000, ["nested"]),
    "no tensor in JSON": ('{"data": {}}', ["0 tensors"]),
    "no name in JSON": ('{"data": {"": {"lowest": 0, "highest": 1}}}', ["with a name"]),
    "twice in JSON": (
        '{"data": {"x": {"lowest": 0, "highest": 1}, "x": {"lowest": 0, "highest": 2}}}',
        ["'x'", "twice"],
    ),
    "smoothed": ('{"data": {"x": {}}, "smooth_quant": true}', ["SmoothQuant"]),
    "no highest": ('{"data": {"x": {"lowest": 0}}}', ["'x'", "highest"]),
    "no entry": ('{"data": {"x": 3}}', ["'x'", "lowest and highest"]),
    "unknown entry": ('{"data": {"x": {"mean": 3}}}', ["'x'", "mean"]),
    "text": (cache("a", "b"), ["'x'", "lowest and highest"]),
    "channels": (cache(array([0.0, -1.0], "float32"), array([1.0, 1.0], "float32")), ["'x'", "2 lowest"]),
    "NaN": (cache(float("nan"), 1), ["'x'", "[nan, 1.0]", "finite"]),
    "infinite": (cache(0, float("inf")), ["'x'", "inf", "finite"]),
    "beyond float32": (cache(0, 1e39), ["'x'", "inf", "finite"]),
    "beyond int": (cache(0, 10**400), ["'x'", "OverflowError"]),
    "no dtype": (cache(0, array([1.0], "rubbish")), ["'x'", "rubbish"]),
    "no data": (cache(0, {"CLS": "numpy.array"}), ["'x'", "KeyError"]),
    "upside down": (cache(2, 1), ["'x'", "[2.0, 1.0]", "lowest <= highest"]),
    "header alone": (HEADER, ["0 tensors"]),
    "no scale": (HEADER + "x: 3f800000\ny\n", ["line 3", "'y'", "8 hexadecimal digits"]),
    "short scale": (HEADER + "x: 3f80\n", ["line 2", "8 hexadecimal digits"]),
    "no name": (HEADER + ": 3f800000\n", ["line 2"]),
    "empty line": (HEADER + "\nx: 3f800000\n", ["line 2", "''"]),
    "NaN scale": (HEADER + "x: 7fc00000\n", ["'x'", "nan"]),
    "infinite scale": (HEADER + "x: 7f800000\n", ["'x'", "inf"]),
    "scale of zero": (HEADER + "x: 00000000\n", ["'x'", "0.0", "1.5e-36"]),
    "negative scale": (HEADER + "x: bf800000\n", ["'x'", "-127.0"]),
    "twice in text": (HEADER + "x: 3f800000\nx: 3f800001\n", ["'x'", "twice"]),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("content", "words"), REFUSED.values(), ids=REFUSED)
def test_a_faulty_table_is_refused_by_name(path, content, words):
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        read(path)
    for word in [str(path), *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ({}, ["0 tensors", "one or more"]),
        ({"": Range(-1, 1)}, ["with a name"]),
        ({"x": Range(-1, 1), "y": Range(-1, 1e39)}, ["'y'", "1e+39"]),
        ({"x": Range(-1e300, 1)}, ["'x'", "1e+300"]),
    ],
)
def test_ranges_that_no_form_holds(path, form, ranges, words):
    with pytest.raises(InputError) as caught:
        write(ranges, path, form)
    for word in [str(path), *words]:
        assert word in str(caught.value)
    assert not path.exists()


@pytest.mark.parametrize(
    ("form", "name", "found"),
    [
        ("onnxruntime-trt", "x", Range(0.0, SMALLEST)),
        ("tensorrt", "x", Range(0.0, SMALLEST)),
        ("tensorrt", "x", Range(0.0, LARGEST)),
        ("tensorrt", "a\nb", Range(0.0, 1.0)),
    ],
)
def test_ranges_that_a_form_does_not_hold(path, form, name, found):
    with pytest.raises(InputError, match="not written: tensor"):
        write({name: found}, path, form)


def test_values_of_a_flatbuffers_table_are_checked(path):
    write({"x": Range(-1.5, 1.5)}, path, "onnxruntime-trt")
    content = path.read_bytes()
    for value, words in {b"nan": "nan", b"a.5": "'a.5': expected a number", b"0.0": "0.0", b"-15": "-15"}.items():
        assert content.count(b"1.5") == 1
        path.write_bytes(content.replace(b"1.5", value))
        with pytest.raises(InputError, match=f"'x': .*{words}"):
            read(path)


def test_a_tensor_that_is_twice_in_a_flatbuffers_table(path):
    write({"x": Range(-1.5, 1.5), "y": Range(-2.5, 2.5)}, path, "onnxruntime-trt")
    path.write_bytes(path.read_bytes().replace(b"y\0", b"x\0"))
    with pytest.raises(InputError, match="'x' is there twice"):
        read(path)


def test_no_such_form_file_or_folder(tmp_path):
    with pytest.raises(InputError, match=r"did you mean 'tensorrt'\?"):
        write(RANGES, tmp_path / "table", "tensor-rt")
    with pytest.raises(InputError, match="No such file"):
        write(RANGES, tmp_path / "missing" / "table", "tensorrt")
    with pytest.raises(InputError, match="No such file"):
        read(tmp_path / "missing")
    with pytest.raises(InputError, match="directory"):
        read(tmp_path)


def test_nothing_is_left_in_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    for form, kind in FORMS.items():
        write(RANGES, tmp_path / "out" / kind.file_name, form)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert len(list((tmp_path / "out").iterdir())) == len(FORMS)
