"""The digits that the example calibrates with and the others that it is judged by.

The file holds 5,000 handwritten digits, one a line: 784 pixels in [0, 255], row by row, then the label.
Which part a digit belongs to follows from its own pixels, so it stays there if the file is reordered or
grows, and two copies of one image are never on both sides.
"""

import gzip
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DIGITS = Path(__file__).with_name("digits.csv.gz")


@dataclass(frozen=True)
class Digits:
    """Images `[n, 1, 28, 28]`, float32 in [0, 1], and their labels `[n]`."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]


def read_digits(path: Path, *, training: bool) -> Digits:
    """The digits to train and calibrate with, or the others.

    They come in the order of their hashes: the file is sorted by label, and the first few hundred should
    hold every digit.
    """
    with gzip.open(path, "rt") as lines:
        rows = np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    hashed = sorted((hashlib.sha256(row[:-1].tobytes()).digest(), i) for i, row in enumerate(rows))
    # 50 of the 256 values of a hash's first byte: about a fifth of the digits.
    chosen = rows[[i for digest, i in hashed if (digest[0] < 50) == training]]
    images = chosen[:, :-1].reshape(-1, 1, 28, 28).astype(np.float32) / np.float32(255)
    return Digits(images, chosen[:, -1].astype(np.int64))


def calibration() -> Iterator[dict[str, NDArray[np.float32]]]:
    """Training digits as the model takes them: `image` `[1, 1, 28, 28]`."""
    for image in read_digits(DIGITS, training=True).images:
        yield {"image": image[np.newaxis]}


def evaluation() -> Iterator[tuple[dict[str, NDArray[np.float32]], int]]:
    """Digits that the model never saw, each with its label."""
    digits = read_digits(DIGITS, training=False)
    for image, label in zip(digits.images, digits.labels, strict=True):
        yield {"image": image[np.newaxis]}, int(label)


def correct(outputs: dict[str, NDArray[np.float32]], label: int) -> float:
    """1.0 where the largest of `logits` `[1, 10]` is the label's, else 0.0."""
    return float(outputs["logits"].argmax() == label)
