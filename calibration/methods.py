"""Range methods: from what was observed of a tensor to the range that its quantizer covers.

All but the moving average take a histogram, and count in its bins, of which every value is an exact multiple: data
scaled by a power of two gets its range scaled by it, bit for bit.
"""

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from onnxmill.calibration.histogram import HALF, Counts, Histogram
from onnxmill.calibration.methods_entropy import entropy
from onnxmill.calibration.methods_mse import mse
from onnxmill.calibration.methods_scheme import Range, Scheme, around_zero, extremes

Method = Literal["minmax", "moving-average", "percentile", "entropy", "mse"]
METHODS: tuple[Method, ...] = get_args(Method)


def find(
    method: Method, histogram: Histogram, samples: npt.NDArray[np.float32], scheme: Scheme, percent: float = 99.999
) -> Range:
    """The tensor's range by one of METHODS.

    `samples` [samples, 2], each sample's extremes, is for "moving-average", `percent` for "percentile". Raises
    ValueError where no value was observed.
    """
    match method:
        case "minmax":
            return minmax(histogram, scheme)
        case "moving-average":
            return moving_average(samples, scheme)
        case "percentile":
            return percentile(histogram, scheme, percent)
        case "entropy":
            return entropy(histogram, scheme)
        case "mse":
            return mse(histogram, scheme)


def minmax(histogram: Histogram, scheme: Scheme) -> Range:
    """The exact extremes of all values."""
    extremes(histogram)
    return around_zero(histogram.low, histogram.high, scheme)


def moving_average(samples: npt.NDArray[np.float32], scheme: Scheme, constant: float = 0.01) -> Range:
    """The samples' extremes [samples, 2], averaged in the order of the rows; a row weighs 1 − constant times the next.

    As torch's MovingAverageMinMaxObserver and ONNX Runtime's `averaging_constant`, but for its start: there the first
    row weighs as much as all before it would, which is most of the whole in any calibration of less than 100 samples.
    Here the weights are divided by their sum (D. Kingma, J. Ba, "Adam", 2015, section 3). In float64.
    """
    if not len(samples):
        raise ValueError("no range: the moving average of no samples")
    if not 0 < constant <= 1:
        raise ValueError(f"averaging constant {constant}: expected 0 < constant <= 1")
    low = high = weight = 0.0
    for sample_low, sample_high in samples.tolist():
        weight += constant * (1 - weight)
        low += constant / weight * (sample_low - low)
        high += constant / weight * (sample_high - high)
    return around_zero(low, high, scheme)


def percentile(histogram: Histogram, scheme: Scheme, percent: float = 99.999) -> Range:
    """The range of `percent` % of the values, as ONNX Runtime means it: symmetric, of |x|; asymmetric, what is left is
    cut off half on each side. Within one bin of numpy's percentile of all values, and within their extremes.

    Where nearly all values are zero, so that it would be [0, 0], the exact extremes.
    """
    if not 0 < percent <= 100:
        raise ValueError(f"percentile {percent}: expected 0 < percentile <= 100")
    lowest, highest = extremes(histogram)
    counts, mirrored, cut = histogram.counts, histogram.counts[::-1], (100 - percent) / 100
    if scheme.symmetric:
        high = _above(counts[HALF:] + mirrored[HALF:], 0, max(-lowest, highest), cut)
        low = -high
    else:
        low = -_above(mirrored, -HALF, -histogram.low / histogram.width, cut / 2)
        high = _above(counts, -HALF, histogram.high / histogram.width, cut / 2)
    low, high = max(low, lowest) * histogram.width, min(high, highest) * histogram.width
    if np.float32(low) >= 0 >= np.float32(high):
        return minmax(histogram, scheme)
    return around_zero(low, high, scheme)


def _above(counts: Counts, start: int, highest: float, cut: float) -> float:
    """The value, in bins, that has the share `cut` of all above it; the first bin begins at `start`.

    Between two neighbours in order it is interpolated, as numpy does by default. The values of a bin are taken as
    evenly spread, but for the highest of all, which is known.
    """
    down = np.cumsum(counts[::-1])  # how many values are in the last bin, the last two, ...
    place, between = divmod(cut * (int(down[-1]) - 1), 1)

    def ordered(place: int) -> float:  # 0 is the highest
        bin_ = int(np.searchsorted(down, place, side="right"))
        return min(highest, start + len(counts) - 1 - bin_ + float((down[bin_] - place - 0.5) / counts[-1 - bin_]))

    upper = ordered(int(place)) if place else highest
    return upper - between * (upper - ordered(int(place) + 1)) if between else upper
