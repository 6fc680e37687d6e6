"""Logistic regression that tells digits apart, fitted in a second."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

FITTED = 1_000
"""How many of the 1,797 digits it is fitted to; the others are for the proof."""


def load() -> LogisticRegression:
    """`[n, 64]` pixels in [0, 16] to a digit and its probabilities `[n, 10]`."""
    pixels, digits = load_digits(return_X_y=True)
    return LogisticRegression(C=0.01, max_iter=2_000).fit(pixels[:FITTED].astype(np.float32), digits[:FITTED])


def calibration() -> Iterator[dict[str, NDArray[np.float32]]]:
    """Digits that it was not fitted to, one at a time: `[1, 64]`."""
    pixels, _ = load_digits(return_X_y=True)
    for row in pixels[FITTED:].astype(np.float32):
        yield {"pixels": row[np.newaxis]}
