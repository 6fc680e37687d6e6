"""What the sources of TensorFlow share: the model's inputs against those of the spec, and files that cannot be read."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from onnxmill.calibration.samples import Array
from onnxmill.tasks.errors import InputError, shorten
from onnxmill.tasks.export import SourceSettings

TO_NHWC = (0, 2, 3, 1)

T = TypeVar("T")


@dataclass(frozen=True)
class Port:
    """One input as the model has it: "" and None (of `shape` or of a size) where it does not say."""

    name: str
    dtype: str = ""
    shape: tuple[int | None, ...] | None = None
    required: bool = True

    def __str__(self) -> str:
        sizes = "" if self.shape is None else f"[{', '.join('?' if n is None else str(n) for n in self.shape)}]"
        return f"{self.name} {self.dtype}{sizes}".rstrip()


def arranged(ports: Sequence[Port], given: Mapping[str, T]) -> dict[str, T]:
    """The spec's inputs under the model's names, in the model's order: by name where the names agree, else by place.

    `given` holds arrays, which are checked, or whatever stands for them. Raises `InputError`, naming both sides.
    """
    own, names = [port.name for port in ports], list(given)
    needed = [port.name for port in ports if port.required]
    if set(needed) <= set(names) <= set(own):
        found = {name: given[name] for name in own if name in given}
    else:
        strays = [name for name, place in zip(names, own, strict=False) if name in own and name != place]
        if strays or not len(needed) <= len(names) <= len(own):
            raise _mismatch(ports, given)
        found = dict(zip(own, given.values(), strict=False))
    for port in ports:
        array = found.get(port.name)
        if isinstance(array, np.ndarray) and not _fits(array, port):
            raise _mismatch(ports, given)
    return found


def _fits(array: Array, port: Port) -> bool:
    if port.dtype and array.dtype.name != port.dtype:
        return False
    if port.shape is None:
        return True
    return len(port.shape) == array.ndim and all(
        n in (None, size) for n, size in zip(port.shape, array.shape, strict=True)
    )


def _mismatch(ports: Sequence[Port], given: Mapping[str, Any]) -> InputError:
    shown = [
        str(Port(name, value.dtype.name, value.shape) if isinstance(value, np.ndarray) else name)
        for name, value in given.items()
    ]
    fix = "use the model's names, or list as many inputs as it takes, in its order"
    return InputError("inputs", shown, f"the model takes {[str(port) for port in ports]}", fix)


def nhwc(inputs: Mapping[str, Array], nchw: Sequence[str]) -> dict[str, Array]:
    """The arrays as the source takes them: those of `nchw` are of the ONNX model's layout. Raises `InputError`."""
    for name in nchw:
        if inputs[name].ndim != len(TO_NHWC):
            raise InputError("source.nchw", name, f"has {inputs[name].ndim} axes; a batch of images has 4")
    return {name: array.transpose(TO_NHWC) if name in nchw else array for name, array in inputs.items()}


@contextlib.contextmanager
def unreadable(settings: SourceSettings, what: str, fix: str) -> Iterator[None]:
    """A block that reads a file: whatever the library raises becomes an `InputError` on `source.path`."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        text = " ".join(str(error).replace(f"{Path.cwd()}/", "").split())
        raise InputError("source.path", settings.path, f"{what}: {shorten(text, 400).rstrip('.')}", fix) from error
