"""Readers: ONNX Runtime's `CalibrationDataReader` over samples on disk. Streams, rewinds, knows its length."""

from collections.abc import Iterator
from pathlib import Path

from onnxruntime.quantization import CalibrationDataReader

from onnxmill.calibration import samples


class SampleReader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime ships no types
    """One sample a call, {input: array}; holds one at a time. Also good for ONNX Runtime's own quantizer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._length = len(samples.hashes(folder))
        self._stream: Iterator[samples.Sample] = samples.read(folder)

    def __len__(self) -> int:
        return self._length

    def get_next(self) -> dict[str, samples.Array] | None:
        sample = next(self._stream, None)
        return sample.inputs if sample else None

    def rewind(self) -> None:
        self._stream = samples.read(self.folder)
