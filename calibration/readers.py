"""Readers: ONNX Runtime's `CalibrationDataReader` over samples, for our calibration and for its own quantizer."""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path

from onnxruntime.quantization import CalibrationDataReader

from onnxmill.calibration import samples
from onnxmill.calibration.samples import Array


class BatchReader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime ships no types
    """Batches of what `begin()` gives, {input: array}; it is called again for each time through. Holds one batch.

    `batch` neighbours of equal shapes are one, along the first axis, which must be the batch axis of every input; the
    last of a run of equal shapes may be fewer. `len` is the number of batches: the first one that is asked for goes
    through the samples once.
    """

    def __init__(self, begin: Callable[[], Iterable[dict[str, Array]]], batch: int = 1) -> None:
        if batch < 1:
            raise ValueError(f"batch is {batch}, must be at least 1")
        self._begin, self._batch = begin, batch
        self.rewind()

    def get_next(self) -> dict[str, Array] | None:
        """The next batch; None at the end."""
        group = next(self._groups, None)
        return samples.stack(group) if group else None

    def rewind(self) -> None:
        """From the first sample again."""
        self._groups: Iterator[list[dict[str, Array]]] = samples.batches(self._begin(), self._batch)

    def __len__(self) -> int:
        return self._length

    @cached_property
    def _length(self) -> int:
        return sum(1 for _ in samples.batches(self._begin(), self._batch))


class SampleReader(BatchReader):
    """Batches of the samples in a folder that `samples.write` made. `len` reads their shapes alone."""

    def __init__(self, folder: Path, batch: int = 1) -> None:
        self._folder = folder
        super().__init__(lambda: (sample.inputs for sample in samples.read(folder)), batch)

    @cached_property
    def _length(self) -> int:
        if self._batch == 1:
            return len(samples.hashes(self._folder))
        return samples.count_batches(samples.read_shapes(self._folder), self._batch)
