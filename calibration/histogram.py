"""A histogram whose bins lie on a grid of powers of two, anchored at zero: it grows and merges without any loss.

Twice the width is two neighbouring bins made one, so a wider grid is reached exactly from a narrower one. The width is
the smallest that holds every value: a histogram depends on the values alone, not on their order or how they were cut.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BINS = 4096
"""Bins on both sides of zero: the larger side is cut in 1,024 to 2,048."""
HALF = BINS // 2
EXPONENT_MIN = -120
"""Of the bins' width: scaling by its inverse stays finite in float32. Values below it share the bins next to zero."""

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Histogram:
    """`counts` [BINS]: bin i holds the values from (i - HALF) to (i + 1 - HALF), times 2**exponent.

    Of its two borders that nearer to zero belongs to a bin, and zero to bin HALF: mirrored values have mirrored counts.
    `low` and `high` are the exact extremes of all values, +inf and -inf where there is none.
    """

    low: float
    high: float
    exponent: int
    counts: Counts

    @property
    def width(self) -> float:
        """Of one bin."""
        return float(2.0**self.exponent)

    @property
    def total(self) -> int:
        """How many values were counted."""
        return int(self.counts.sum())

    def edges(self) -> npt.NDArray[np.float64]:
        """The borders of the bins, [BINS + 1]."""
        return np.arange(-HALF, HALF + 1, dtype=np.float64) * np.float64(self.width)


def empty() -> Histogram:
    return Histogram(np.inf, -np.inf, EXPONENT_MIN, np.zeros(BINS, np.int64))


def exponent_for(low: float, high: float) -> int:
    """The exponent of the smallest width whose grid holds both values."""
    largest = max(abs(low), abs(high))
    if largest == 0:
        return EXPONENT_MIN
    _, power = np.frexp(largest)  # it is below 2**power, and not below half of it
    return max(EXPONENT_MIN, int(power) - (HALF.bit_length() - 1))


def widened(counts: Counts, steps: int) -> Counts:
    """The counts on a grid whose bins are 2**steps as wide."""
    for _ in range(min(steps, BINS.bit_length())):
        pairs = counts.reshape(-1, 2).sum(1)
        counts = np.zeros(BINS, np.int64)
        counts[HALF // 2 : HALF // 2 + HALF] = pairs
    return counts


def merged(a: Histogram, b: Histogram) -> Histogram:
    """The histogram of the values of both, bit for bit: the same whichever part a value was in."""
    exponent = max(a.exponent, b.exponent)
    counts = widened(a.counts, exponent - a.exponent) + widened(b.counts, exponent - b.exponent)
    return Histogram(min(a.low, b.low), max(a.high, b.high), exponent, counts)
