"""What the range methods share: the quantized types, a range, a quantizer's levels, a histogram in units of bins."""

from dataclasses import dataclass
from math import isfinite
from typing import Literal

import numpy as np
import numpy.typing as npt

from onnxmill.calibration.histogram import HALF, Counts, Histogram

Array = npt.NDArray[np.float64]
LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}


@dataclass(frozen=True)
class Scheme:
    """How a tensor will be quantized. Symmetric: the zero point is the middle of the type."""

    dtype: Literal["int8", "uint8", "int16", "uint16"]
    symmetric: bool

    @property
    def limits(self) -> tuple[int, int]:
        """The lowest and highest quantized value; like ONNX Runtime, symmetric signed types leave out the lowest."""
        lowest, highest = LIMITS[self.dtype]
        return (-highest if self.symmetric and lowest < 0 else lowest), highest

    @property
    def levels(self) -> int:
        """How many quantized values there are."""
        lowest, highest = self.limits
        return highest - lowest + 1


@dataclass(frozen=True)
class Range:
    """low <= 0 <= high, so that zero is a level; finite and not empty. ValueError otherwise."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (isfinite(self.low) and isfinite(self.high) and self.low <= 0 <= self.high and self.low < self.high):
            raise ValueError(f"range [{self.low}, {self.high}]: expected low <= 0 <= high, finite, not both zero")


def around_zero(low: float, high: float, scheme: Scheme) -> Range:
    """The range of float32 values (as calibration tables hold) that has both and zero, and mirrors if symmetric.

    [0, 1] (symmetric [-1, 1]) where both are zero: no value tells a scale, and a scale of zero is not valid.
    """
    low, high = min(float(np.float32(low)), 0.0), max(float(np.float32(high)), 0.0)
    if low == high:
        low, high = 0.0, 1.0
    if scheme.symmetric:
        high = max(-low, high)
        low = -high
    return Range(low, high)


def extremes(histogram: Histogram) -> tuple[float, float]:
    """The lowest and highest value in bins, zero included: exact, as a bin's width is a power of two.

    Raises ValueError where no value was counted.
    """
    if not histogram.total:
        raise ValueError("no range: the histogram is empty")
    return min(histogram.low / histogram.width, 0.0), max(histogram.high / histogram.width, 0.0)


def without_zeros(counts: Counts) -> Counts:
    """The counts without the values that are taken for exact zeros: what a bin next to zero has beyond its neighbour.

    Zero is exact at every scale, so a spike of zeros (of ReLU, padding, a mask) must not pull the range to a small one.
    NVIDIA's pytorch-quantization does so too (`bins[0] = bins[1]`).
    """
    kept = counts.copy()
    kept[HALF] = min(counts[HALF], counts[HALF + 1])
    kept[HALF - 1] = min(counts[HALF - 1], counts[HALF - 2])
    return kept


def levels(low: Array, high: Array, scheme: Scheme) -> tuple[Array, Array, Array]:
    """The quantizers of ranges [N]: their steps, lowest and highest levels (multiples of the step, zero is level 0).

    As `onnxruntime.quantization.quant_utils.compute_scale_zp`, without its rounding of the scale to float32.
    """
    lowest, highest = scheme.limits
    step = (high - low) / (highest - lowest)
    middle = np.full_like(step, (lowest + highest) / 2)
    zero_point = np.rint(middle if scheme.symmetric else lowest - low / step)
    return step, lowest - zero_point, highest - zero_point
