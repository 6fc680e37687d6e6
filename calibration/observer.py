"""The one loop over all values: exact extremes and a histogram of each tensor, compiled, at memory speed.

A float32 is compared as an integer (its bits, in an order that is the floats' own), which vectorises and lets NaN and
infinity show as the largest. Counting has four lanes, since many equal values in a row (zeros after Relu) would
otherwise wait for each other's store.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from onnxmill.calibration import histogram
from onnxmill.calibration.histogram import BINS, HALF, Histogram

CHUNK = 8192
"""Values at a time: they are read twice, the second time from the first-level cache."""
INFINITY = np.int32(0x7F800000)
SIGN_FREE = np.int32(0x7FFFFFFF)
START = np.array([SIGN_FREE, ~SIGN_FREE], np.int32)
"""Extremes of no value, as ordered integers."""

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]


class NotFinite(ValueError):
    """NaN or infinity among a tensor's values."""


class Observer:
    """What has been seen of one tensor. `add` takes float32 arrays of any shape; releases the GIL."""

    def __init__(self) -> None:
        self._exponent = histogram.EXPONENT_MIN
        self._lanes = np.zeros((4, BINS), np.int64)
        self._low, self._high = np.inf, -np.inf

    def add(self, array: npt.NDArray[np.generic]) -> tuple[float, float]:
        """Count an array's values; its own extremes, (inf, -inf) of an empty one. Raises `NotFinite`, and TypeError
        for another dtype than float32."""
        if array.dtype != np.float32:
            raise TypeError(f"float32 alone is observed, not {array.dtype}")
        values: Floats = np.ascontiguousarray(array).reshape(-1)
        ordered, seen, done = values.view(np.int32), START.copy(), 0
        while True:
            done = _count(values, ordered, done, *self._scale(), seen, self._lanes)
            low, high = _as_floats(seen)
            if done == values.size:
                break
            if seen[1] >= INFINITY or seen[0] <= ~INFINITY:
                raise NotFinite(f"{int((~np.isfinite(values)).sum())} of {values.size} values are not finite")
            self._widen(low, high)
        self._low, self._high = min(self._low, low), max(self._high, high)
        return low, high

    def histogram(self) -> Histogram:
        """Of all values so far, at the width that they need."""
        return Histogram(self._low, self._high, self._exponent, self._lanes.sum(0))

    def _scale(self) -> tuple[np.float32, np.int32]:
        """The inverse of the width, and the bits of the first magnitude that has no bin."""
        limit = np.float32(HALF * 2.0**self._exponent) if self._exponent < 117 else np.float32(np.inf)
        return np.float32(2.0**-self._exponent), np.int32(min(limit.view(np.int32), INFINITY))

    def _widen(self, low: float, high: float) -> None:
        exponent = histogram.exponent_for(low, high)
        counts = histogram.widened(self._lanes.sum(0), exponent - self._exponent)
        self._lanes[:] = 0
        self._lanes[0], self._exponent = counts, exponent


def _as_floats(ordered: Integers) -> tuple[float, float]:
    bits = ordered ^ ((ordered >> 31) & SIGN_FREE)
    low, high = (bits.view(np.float32) + np.float32(0)).tolist()  # + 0 makes -0.0 to 0.0
    return (np.inf, -np.inf) if ordered[0] > ordered[1] else (low, high)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled at its first call, and kept beside this module, as Python keeps its byte code, where that can be."""
    try:
        return numba.njit(nogil=True, error_model="numpy", cache=True)(function)
    except RuntimeError:  # no folder that can be written
        return numba.njit(nogil=True, error_model="numpy")(function)


@_compiled
def _count(values, ordered, done, inverse, limit, seen, lanes):  # type: ignore[no-untyped-def]
    """Count from index `done`; the index where a value had no bin, or the number of values. Edits `seen`, `lanes`.

    A value's bin: towards zero, then one down for what is below it. That is exact, even where the product is too small
    for a float32.
    """
    while done < values.size:
        end = min(done + CHUNK, values.size)
        bits, chunk = ordered[done:end], values[done:end]
        low, high = seen[0], seen[1]
        for index in range(bits.size):
            value = bits[index]
            value ^= (value >> 31) & SIGN_FREE
            low, high = min(low, value), max(high, value)
        seen[0], seen[1] = low, high
        if high >= limit or low <= ~limit:
            return done
        whole = chunk.size // 4 * 4
        for index in range(0, whole, 4):
            a, b, c, d = chunk[index], chunk[index + 1], chunk[index + 2], chunk[index + 3]
            lanes[0, np.uint64(np.int32(a * inverse) + HALF - (a < 0))] += 1
            lanes[1, np.uint64(np.int32(b * inverse) + HALF - (b < 0))] += 1
            lanes[2, np.uint64(np.int32(c * inverse) + HALF - (c < 0))] += 1
            lanes[3, np.uint64(np.int32(d * inverse) + HALF - (d < 0))] += 1
        for index in range(whole, chunk.size):
            a = chunk[index]
            lanes[0, np.uint64(np.int32(a * inverse) + HALF - (a < 0))] += 1
        done = end
    return done
