"""A random forest that tells digits apart, fitted in a second."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

FITTED = 1_000
"""How many of the 1,797 digits it is fitted to; the others are for the proof."""


def load() -> RandomForestClassifier:
    """`[n, 64]` pixels in [0, 16] to a digit and its probabilities `[n, 10]`."""
    pixels, digits = load_digits(return_X_y=True)
    forest = RandomForestClassifier(n_estimators=40, max_depth=10, random_state=5)
    return forest.fit(pixels[:FITTED].astype(np.float32), digits[:FITTED])


def calibration() -> Iterator[dict[str, NDArray[np.float32]]]:
    """Digits that it was not fitted to, one at a time: `[1, 64]`."""
    pixels, _ = load_digits(return_X_y=True)
    for row in pixels[FITTED:].astype(np.float32):
        yield {"pixels": row[np.newaxis]}
