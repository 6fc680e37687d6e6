"""Sources that hold arrays: an .npy file, an .npz file, a folder of recorded requests. Rows are read one at a time."""

import bisect
import itertools
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import numpy as np

from onnxmill.calibration.samples import Array, header
from onnxmill.tasks.errors import InputError

LABEL = "label"
"""The key of an .npz under which labels lie, unless the model has an input of that name."""


class Rows:
    """The rows of a stored array [n, ...], read one at a time: only those before the one asked for are passed.

    In Fortran order, where a row is not in one piece, the whole array is read at the first.
    """

    def __init__(self, key: str, file: str, what: str, open_: Callable[[], IO[bytes]]) -> None:
        self._key, self._file, self._what, self._open = key, file, what, open_
        self._stream: IO[bytes] | None = None
        self._whole: Array | None = None
        try:
            with open_() as stream:
                self.shape, self._fortran, self.dtype = header(stream)
                self._start = stream.tell()
        except OSError as error:
            raise self._fault(f"cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise self._fault(f"is no .npy array: {error}") from error
        if self.dtype.hasobject:
            raise self._fault("holds Python objects; store numbers")

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 1

    def __getitem__(self, index: int) -> Array:
        """Row `index`, [...]."""
        if self._fortran:
            return np.ascontiguousarray(self.whole()[index])
        self._stream = self._stream or self._open()
        return self._read(self._stream, index * math.prod(self.shape[1:]), self.shape[1:])

    def whole(self) -> Array:
        """The array, kept."""
        if self._whole is None:
            with self._open() as stream:
                values = self._read(stream, 0, self.shape[::-1] if self._fortran else self.shape)
            self._whole = values.T if self._fortran else values
        return self._whole

    def close(self) -> None:
        """Let go of the file and the array; a row that is asked for later opens it again."""
        if self._stream:
            self._stream.close()
        self._stream = self._whole = None

    def _read(self, stream: IO[bytes], at: int, shape: tuple[int, ...]) -> Array:
        """The values after the first `at` ones, as many as `shape` holds."""
        stream.seek(self._start + at * self.dtype.itemsize)
        data = stream.read(math.prod(shape) * self.dtype.itemsize)
        if len(data) < math.prod(shape) * self.dtype.itemsize:
            raise self._fault(f"ends before its shape {list(self.shape)} says")
        return np.ndarray(shape, self.dtype, data)

    def _fault(self, fault: str) -> InputError:
        return InputError(self._key, self._file, f"{self._what} {fault}")


class ArrayFile:
    """An .npy file [n, ...]: n samples of the input `name`."""

    def __init__(self, key: str, path: Path, name: str) -> None:
        self._name = name
        self._rows = Rows(key, str(path), "it", lambda: path.open("rb"))
        if not self._rows.shape or not len(self._rows):
            shape = list(self._rows.shape)
            raise InputError(
                key, str(path), f"holds no sample: its shape is {shape}, must be [n, …] with n of 1 or more"
            )

    def __len__(self) -> int:
        return len(self._rows)

    def sample(self, index: int) -> dict[str, Array]:
        return {self._name: self._rows[index][np.newaxis]}

    def label(self, index: int) -> Array | None:
        return None

    def origin(self, index: int) -> str:
        return f"row {index}"


class Archive:
    """An .npz file: {input: [n, ...]} is n samples, with labels [n, ...] under `label`.

    `split` holds the model's inputs; one that is false there has no axis of samples, and goes with each as it is.
    """

    def __init__(self, key: str, path: Path, split: Mapping[str, bool]) -> None:
        self._split = split
        arrays = _members(key, path)
        self._labels = arrays.pop(LABEL).whole() if LABEL in arrays and LABEL not in split else None
        self._arrays = arrays
        if not arrays:
            raise InputError(key, str(path), "holds no array")
        counts = {name: len(rows) for name, rows in arrays.items() if split.get(name, True)}
        for name in counts:
            if not arrays[name].shape:
                raise InputError(key, str(path), f"'{name}' is a single value; its first axis must count the samples")
        if self._labels is not None:
            counts[LABEL] = len(self._labels) if self._labels.shape else 1
        if len(set(counts.values())) > 1:
            shown = ", ".join(f"'{name}' {count}" for name, count in counts.items())
            raise InputError(key, str(path), f"its arrays differ in their number of samples: {shown}")
        self._length = next(iter(counts.values()), 1)
        if not self._length:
            raise InputError(key, str(path), "holds no sample: its arrays are empty")

    def __len__(self) -> int:
        return self._length

    def sample(self, index: int) -> dict[str, Array]:
        return {
            name: rows[index][np.newaxis] if self._split.get(name, True) else rows.whole()
            for name, rows in self._arrays.items()
        }

    def label(self, index: int) -> Array | None:
        if self._labels is None:
            return None
        return np.asarray(self._labels[index]) if self._labels.shape else self._labels

    def origin(self, index: int) -> str:
        return f"row {index}"

    def close(self) -> None:
        for rows in self._arrays.values():
            rows.close()


class Requests:
    """A folder of recorded requests, .npz files in the order of their names: each {input: array} of any batch size.

    Inputs that are true in `split` are cut along their first axis, one sample a row; the others go with each sample.
    """

    def __init__(self, key: str, folder: Path, split: Mapping[str, bool]) -> None:
        self._names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.npz"))
        if not self._names:
            raise InputError(key, str(folder), "holds no .npz file")
        self._archives = [Archive(key, folder / name, split) for name in self._names]
        self._ends = list(itertools.accumulate(map(len, self._archives)))
        self._open = self._archives[0]

    def __len__(self) -> int:
        return self._ends[-1]

    def sample(self, index: int) -> dict[str, Array]:
        file, row = self._at(index)
        if self._archives[file] is not self._open:
            self._open.close()
            self._open = self._archives[file]
        return self._open.sample(row)

    def label(self, index: int) -> Array | None:
        file, row = self._at(index)
        return self._archives[file].label(row)

    def origin(self, index: int) -> str:
        file, row = self._at(index)
        return self._names[file] + (f", row {row}" if len(self._archives[file]) > 1 else "")

    def _at(self, index: int) -> tuple[int, int]:
        """The file that holds a sample, and its row there."""
        file = bisect.bisect_right(self._ends, index)
        return file, index - (self._ends[file] - len(self._archives[file]))


def _members(key: str, path: Path) -> dict[str, Rows]:
    """The arrays of an .npz by name. Its checksums are verified here, since rows are read without."""
    try:
        with zipfile.ZipFile(path) as archive:
            names, damaged = archive.namelist(), archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError) as error:
        raise InputError(key, str(path), f"is no sound .npz file: {error}") from error
    if damaged:
        raise InputError(key, str(path), f"is no sound .npz file: '{damaged}' is damaged")
    foreign = [name for name in names if not name.endswith(".npy")]
    if foreign:
        raise InputError(key, str(path), f"holds '{foreign[0]}', which is no array")

    def opener(name: str) -> Callable[[], IO[bytes]]:
        def open_() -> IO[bytes]:
            with zipfile.ZipFile(path) as archive:
                return archive.open(name)  # stays open when the archive is closed

        return open_

    plain = {name.removesuffix(".npy"): name for name in names}
    return {name: Rows(key, str(path), f"'{name}'", opener(entry)) for name, entry in plain.items()}
