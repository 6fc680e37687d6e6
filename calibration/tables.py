"""Calibration tables: ranges to and from the files in which ONNX Runtime and TensorRT keep theirs.

ONNX Runtime's cache holds lowest and highest. The other two hold one magnitude a tensor, max(|low|, |high|), so what
is read from them mirrors around zero. All are float32.
"""

import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
from onnxruntime.quantization import CalibrationMethod, save_tensors_data
from onnxruntime.quantization.calibrate import TensorData, TensorsData
from onnxruntime.quantization.CalTableFlatBuffers.TrtTable import TrtTable
from onnxruntime.quantization.quant_utils import write_calibration_table

from onnxmill.calibration.methods_scheme import Range, Scheme, around_zero
from onnxmill.tasks.errors import InputError, close_match, shorten

Value = TypeVar("Value")
LARGEST, SMALLEST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
NAMED = "expected one or more, each with a name"
TENSORRT = "TRT-100300-EntropyCalibration2"
"""The first line of TensorRT's cache: version 10.3.0. TensorRT takes a cache of its own version alone."""


@dataclass(frozen=True)
class Form:
    """A kind of table. `encode` and `decode` raise ValueError: the tensor or line, and what was expected."""

    file_name: str
    encode: Callable[[Mapping[str, Range]], bytes]
    decode: Callable[[bytes], dict[str, Range]]


def write(ranges: Mapping[str, Range], path: Path, form: str) -> None:
    """Write `ranges` {tensor: range}, rounded to float32, as a table of `FORMS`. InputError: what a form can't hold."""
    if form not in FORMS:
        raise InputError("form", form, "unknown kind of calibration table", close_match(form, FORMS))
    try:
        if not ranges or "" in ranges:
            raise ValueError(f"{len(ranges)} tensors: {NAMED}")
        path.write_bytes(FORMS[form].encode(ranges))
    except (OSError, ValueError) as error:
        raise InputError(str(path), form, f"not written: {error}") from error


def read(path: Path) -> dict[str, Range]:
    """The ranges of a table; its content tells the form. InputError: no such table, or one with a fault."""
    try:
        content = path.read_bytes()
        ranges = FORMS[_form(content)].decode(content)
        if not ranges or "" in ranges:
            raise ValueError(f"{len(ranges)} tensors: {NAMED}")
    except (OSError, ValueError) as error:
        raise InputError(str(path), None, f"not read as a calibration table: {error}") from error
    return ranges


def _form(content: bytes) -> str:
    if content.startswith(b"{"):
        return "onnxruntime"
    return "tensorrt" if content.startswith(b"TRT-") else "onnxruntime-trt"


def _to_cache(ranges: Mapping[str, Range]) -> bytes:
    for name, found in ranges.items():
        _checked(name, found.low, found.high)
    with TemporaryDirectory() as folder:
        path = Path(folder) / CACHE
        save_tensors_data(_tensors_data(ranges), path)
        return path.read_bytes()


def _from_cache(content: bytes) -> dict[str, Range]:
    try:
        table = json.loads(content, object_pairs_hook=_unique)
    except RecursionError as error:
        raise ValueError("JSON nested too deeply") from error
    entries = table.get("data")
    if not isinstance(entries, dict):
        raise ValueError('expected JSON with "data": {tensor: range}, as ONNX Runtime\'s save_tensors_data writes it')
    if table.get("smooth_quant"):
        raise ValueError("ranges of a graph that SmoothQuant changed; expected those of the model itself")
    return {name: _checked(name, *_extremes(name, entry)) for name, entry in entries.items()}


def _extremes(name: str, entry: Any) -> tuple[float, float]:
    """Lowest and highest of a tensor in ONNX Runtime's cache."""
    try:
        with np.errstate(over="ignore"):  # gives inf, refused with the rest
            lowest, highest = (np.asarray(value) for value in TensorData.from_dict(entry).range_value)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(
            f"tensor {name!r}: {shorten(repr(entry))}: expected numbers lowest and highest"
            f" ({type(error).__name__}: {error})"
        ) from error
    if lowest.size != 1 or highest.size != 1:
        raise ValueError(f"tensor {name!r}: {lowest.size} lowest, {highest.size} highest; expected one range a tensor")
    return lowest.item(), highest.item()


def _checked(name: str, low: float, high: float) -> Range:
    """The range of two float32 values, zero included, as ONNX Runtime's quantizer includes it."""
    if not -LARGEST <= low <= high <= LARGEST:  # false for NaN too
        raise ValueError(f"tensor {name!r}: [{low}, {high}]: expected lowest <= highest, finite as float32")
    return around_zero(low, high, Scheme("uint8", symmetric=False))


def _tensors_data(ranges: Mapping[str, Range]) -> TensorsData:
    # MinMax: quantize_static takes a cache of the method that it is called with, and this is its default
    return TensorsData(
        CalibrationMethod.MinMax,
        {
            name: TensorData(lowest=np.float32(found.low), highest=np.float32(found.high))
            for name, found in ranges.items()
        },
    )


def _to_flatbuffers(ranges: Mapping[str, Range]) -> bytes:
    # ONNX Runtime's writer takes max(low, high), which is wrong where -low is larger: it gets the range mirrored
    mirrored = {name: _mirrored(_magnitude(name, found)) for name, found in ranges.items()}
    with TemporaryDirectory() as folder:
        write_calibration_table(_tensors_data(mirrored), folder)
        return (Path(folder) / FLATBUFFERS).read_bytes()


def _from_flatbuffers(content: bytes) -> dict[str, Range]:
    try:
        # 0xff is not UTF-8: a text that the end of the file cuts (or its length, 4 bytes before it) does not decode
        table = TrtTable.GetRootAs(content + b"\xff" * 8)
        entries = [table.Dict(index) for index in range(table.DictLength())]
        texts = [(entry.Key().decode(), entry.Value().decode()) for entry in entries]
    except (AttributeError, IndexError, OverflowError, TypeError, UnicodeDecodeError, struct.error) as error:
        raise ValueError(
            'expected ONNX Runtime\'s JSON (first "{"), TensorRT\'s text (first "TRT-") or ONNX Runtime\'s flatbuffers'
            " file, whole"
        ) from error
    return _unique((name, _mirrored(_number(name, text))) for name, text in texts)


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise ValueError(f"tensor {name!r}: {shorten(text)!r}: expected a number") from error
    return _positive(name, value)


def _to_text(ranges: Mapping[str, Range]) -> bytes:
    def line(name: str, found: Range) -> str:
        if "\n" in name:
            raise ValueError(f"tensor {name!r}: a name of more than one line does not fit a table of lines")
        scale = np.float32(_magnitude(name, found) / 127)
        _positive(name, float(scale) * 127)
        return f"{name}: {struct.pack('>f', scale).hex()}"

    return "\n".join([TENSORRT, *(line(name, found) for name, found in ranges.items()), ""]).encode()


def _from_text(content: bytes) -> dict[str, Range]:
    """The ranges are ±127 times the scale, not rounded to float32, so that the same scale is written again."""
    lines = content.decode().rstrip().split("\n")  # not splitlines: it splits at characters that a name may have

    def entries() -> Iterator[tuple[str, Range]]:
        for number, line in enumerate(lines[1:], start=2):
            found = re.fullmatch(r"(.+): ([0-9a-fA-F]{8})\r?", line)
            if not found:
                raise ValueError(f"line {number}: {shorten(line)!r}: expected 'tensor: scale', 8 hexadecimal digits")
            name, digits = found.groups()
            (scale,) = struct.unpack(">f", bytes.fromhex(digits))
            yield name, _mirrored(_positive(name, scale * 127))

    return _unique(entries())


def _magnitude(name: str, found: Range) -> float:
    return _positive(name, max(-found.low, found.high))


def _positive(name: str, magnitude: float) -> float:
    """`magnitude`, if it and its scale are normal float32: ONNX Runtime's std::stof throws at others."""
    if not 127 * SMALLEST <= magnitude <= LARGEST:
        raise ValueError(f"tensor {name!r}: magnitude {magnitude}: expected {127 * SMALLEST:.2g} to {LARGEST:.2g}")
    return magnitude


def _mirrored(magnitude: float) -> Range:
    return Range(-magnitude, magnitude)


def _unique(pairs: Iterable[tuple[str, Value]]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} is there twice, expected once")
        found[name] = value
    return found


CACHE, FLATBUFFERS = "calibration_cache.json", "calibration.flatbuffers"
FORMS = {
    "onnxruntime": Form(CACHE, _to_cache, _from_cache),
    "onnxruntime-trt": Form(FLATBUFFERS, _to_flatbuffers, _from_flatbuffers),
    "tensorrt": Form("calibration.cache", _to_text, _from_text),
}
"""Kinds of tables: of ONNX Runtime's quantize_static, of its TensorRT provider, of TensorRT itself."""
