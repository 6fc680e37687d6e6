"""Samples on disk: checked, hashed, written and read one at a time, so that memory does not grow with their number.

A samples file is an .npz (a zip of .npy entries, which `numpy.load` opens): `000000/<input>.npy` … for each sample,
with `000000/@label.npy` where there are labels. Beside it, `manifest.json` lists the sha256 of each sample's inputs.
The bytes depend on the samples alone.
"""

import hashlib
import io
import itertools
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from onnxmill.tasks.errors import InputError, close_match

Array = npt.NDArray[np.generic]
Shapes = dict[str, tuple[int, ...]]
FILE, MANIFEST, LABEL = "samples.npz", "manifest.json", "@label"


@dataclass(frozen=True)
class Expected:
    """What one input of a sample must be. `shape` has sizes, and names for dims of any size; the first axis is the
    batch axis, where a name means a size of 1."""

    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class Sample:
    """One sample: {input: array} with a batch axis of 1, and its label where there is one."""

    inputs: dict[str, Array]
    label: Array | None


def check(
    key: str, where: str, inputs: object, expected: Mapping[str, Expected], *, any_batch: bool = False
) -> dict[str, Array]:
    """A sample's inputs as contiguous arrays in the order of `expected`. `any_batch` allows any size of a named first
    axis, where a sample has 1.

    Raises `InputError` with `where` ("sample 3"), the input and the fault: wrong names, dtype or shape, not finite.
    """
    if not isinstance(inputs, Mapping):
        raise InputError(key, None, f"{where} must be a mapping {{input: array}}; it is a {type(inputs).__name__}")
    for name in inputs:
        if name not in expected:
            hint = close_match(str(name), expected)
            raise InputError(key, name, f"{where} has an input that the spec does not; {hint}")
    checked = {}
    for name, want in expected.items():
        if name not in inputs:
            raise InputError(key, None, f"{where} lacks input '{name}'; it has {sorted(inputs)}")
        array = _as_array(key, f"{where}, input '{name}'", inputs[name])
        if array.dtype != np.dtype(want.dtype):
            raise InputError(key, None, f"{where}, input '{name}' has dtype {array.dtype}, must be {want.dtype}")
        if not _fits(array.shape, want.shape, any_batch):
            shown = "[" + ", ".join(map(str, want.shape)) + "]" + ("" if any_batch else " with a batch of 1")
            raise InputError(key, None, f"{where}, input '{name}' has shape {list(array.shape)}, must be {shown}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            bad = int((~np.isfinite(array)).sum())
            raise InputError(key, None, f"{where}, input '{name}' holds {bad} values that are not finite")
        checked[name] = array
    return checked


def _as_array(key: str, where: str, value: object) -> Array:
    """`value` as an array in C order. Raises `InputError` for what is none: ragged lists, tensors that need grad."""
    try:
        return np.asarray(value, order="C")
    except (ValueError, TypeError, RuntimeError) as error:
        text = " ".join(str(error).split())
        raise InputError(key, None, f"{where} is no array; it is a {type(value).__name__}: {text}") from error


def _fits(shape: tuple[int, ...], want: tuple[int | str, ...], any_batch: bool) -> bool:
    if len(shape) != len(want):
        return False
    for axis, (size, dim) in enumerate(zip(shape, want, strict=True)):
        many = axis == 0 and isinstance(dim, str) and size != 1 and not any_batch
        if (isinstance(dim, int) and size != dim) or many or size == 0:
            return False
    return True


def check_label(key: str, where: str, label: object) -> Array:
    """A label as an array of numbers, bools or text. Raises `InputError` for None and for Python objects."""
    array = _as_array(key, f"the label of {where}", label)
    if array.dtype.kind not in "biufU":
        raise InputError(key, None, f"{where} has a label of type {type(label).__name__}; use numbers or text")
    return array


def write(
    key: str,
    items: Iterable[object],
    expected: Mapping[str, Expected],
    out: Path,
    *,
    limit: int | None,
    labelled: bool,
    named: Callable[[int], str] = "sample {}".format,
    on_sample: Callable[[int], None] = lambda count: None,
) -> int:
    """Check and write at most `limit` samples to the folder `out`; how many there were.

    `items` yields {input: array}, or ({input: array}, label) when `labelled`. Raises `InputError` for a bad sample and
    for no sample at all; `key` names the source in it, `named(i)` the i-th of the items.
    """
    hashes: list[str] = []
    with zipfile.ZipFile(out / FILE, "w", zipfile.ZIP_STORED) as archive:
        for index, item in enumerate(items):
            where = named(index)
            if labelled:
                if not isinstance(item, tuple) or len(item) != 2:
                    raise InputError(key, None, f"{where} must be a pair ({{input: array}}, label)")
                inputs, label = check(key, where, item[0], expected), check_label(key, where, item[1])
                append(archive, f"{index:06d}/{LABEL}", label)
            else:
                inputs = check(key, where, item, expected)
            for name, array in inputs.items():
                append(archive, f"{index:06d}/{name}", array)
            hashes.append(sha256(inputs))
            on_sample(index + 1)
            if limit is not None and len(hashes) >= limit:
                break
    if not hashes:
        raise InputError(key, None, "yielded no sample; give at least one")
    (out / MANIFEST).write_text(json.dumps(hashes, indent=0))
    return len(hashes)


def append(archive: zipfile.ZipFile, name: str, array: Array) -> None:
    """Add one .npy entry to an open .npz, with a fixed date: equal arrays give equal bytes."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array, order="C"), allow_pickle=False)
    archive.writestr(zipfile.ZipInfo(f"{name}.npy"), buffer.getvalue())


def sha256(inputs: Mapping[str, Array]) -> str:
    """The digest of a sample's inputs: names, dtypes, shapes and bytes, whatever their order."""
    digest = hashlib.sha256()
    for name in sorted(inputs):
        array = np.asarray(inputs[name], order="C")
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def hashes(folder: Path) -> list[str]:
    """The sha256 of each sample, in order, of a folder that `write` made."""
    value: list[str] = json.loads((folder / MANIFEST).read_text())
    return value


def stack(chosen: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Samples of one shape as one batch, along the first axis. One alone stays as it is: it may have no axis."""
    if len(chosen) == 1:
        return dict(chosen[0])
    return {name: np.concatenate([inputs[name] for inputs in chosen]) for name in chosen[0]}


def batches(stream: Iterable[dict[str, Array]], size: int) -> Iterator[list[dict[str, Array]]]:
    """Neighbours of equal shapes, `size` at most, in order: the last of each run of them may be fewer."""
    group: list[dict[str, Array]] = []
    for inputs in stream:
        if group and _shapes_of(inputs) != _shapes_of(group[0]):
            yield group
            group = []
        group.append(inputs)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def count_batches(shapes: Iterable[Shapes], size: int) -> int:
    """How many groups `batches` makes of samples of these shapes."""
    return sum(-(-sum(1 for _ in run) // size) for _, run in itertools.groupby(shapes))


def _shapes_of(inputs: Mapping[str, Array]) -> Shapes:
    return {name: array.shape for name, array in inputs.items()}


def read_shapes(folder: Path) -> Iterator[Shapes]:
    """The shapes of each sample's inputs of a folder that `write` made; their values are not read."""
    with zipfile.ZipFile(folder / FILE) as archive:
        entries = (entry for entry in archive.namelist() if not entry.endswith(f"/{LABEL}.npy"))
        for _, group in itertools.groupby(entries, key=lambda entry: entry.partition("/")[0]):
            shapes: Shapes = {}
            for entry in group:
                with archive.open(entry) as stream:
                    shapes[entry.partition("/")[2].removesuffix(".npy")] = header(stream)[0]
            yield shapes


def header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Shape, whether in Fortran order, and dtype of the .npy array that a stream begins with. Raises `ValueError`."""
    first = np.lib.format.read_magic(stream) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    return shape, fortran, dtype


def read_groups(path: Path) -> Iterator[tuple[str, dict[str, Array]]]:
    """Stream an .npz whose entries are `group/name.npy`, in the file's order: (group, {name: array}) at a time."""
    with zipfile.ZipFile(path) as archive:
        group, arrays = "", dict[str, Array]()
        for entry in archive.namelist():
            head, _, tail = entry.removesuffix(".npy").partition("/")
            if head != group:
                if arrays:
                    yield group, arrays
                group, arrays = head, {}
            with archive.open(entry) as stream:
                arrays[tail] = np.lib.format.read_array(stream, allow_pickle=False)
        if arrays:
            yield group, arrays


def read_labels(folder: Path) -> Iterator[Array]:
    """Stream the labels alone of a folder that `write` made with labels."""
    with zipfile.ZipFile(folder / FILE) as archive:
        for entry in archive.namelist():
            if entry.endswith(f"/{LABEL}.npy"):
                with archive.open(entry) as stream:
                    yield np.lib.format.read_array(stream, allow_pickle=False)


def read(folder: Path) -> Iterator[Sample]:
    """Stream the samples of a folder that `write` made."""
    for _, arrays in read_groups(folder / FILE):
        label = arrays.pop(LABEL, None)
        yield Sample(arrays, label)
