"""The files of this folder as the model takes them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HALF, NO_BYTE = 1024, 256
FILES = ("model.onnx", "config.min.json", "README.md", "spec.yaml", "data.py")


def calibration() -> Iterator[dict[str, NDArray[np.int32]]]:
    """Each file's first and last bytes without the blanks around them, `[1, 2048]`; padding is inside."""
    for name in FILES:
        content = Path(__file__).with_name(name).read_bytes()
        values = np.full((1, 2 * HALF), NO_BYTE, dtype=np.int32)
        first = np.frombuffer(content[:4096].lstrip()[:HALF], np.uint8)
        last = np.frombuffer(content[-4096:].rstrip()[-HALF:], np.uint8)
        values[0, : len(first)] = first
        values[0, 2 * HALF - len(last) :] = last
        yield {"bytes": values}
