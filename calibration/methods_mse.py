"""The range with the least expected squared error: M. Nagel et al., "A White Paper on Neural Network Quantization",
2021, section 3.1; R. Banner et al., "Post training 4-bit quantization of convolutional networks", 2019 (ACIQ).
"""

from dataclasses import dataclass

import numpy as np

from onnxmill.calibration.histogram import HALF, Histogram
from onnxmill.calibration.methods_scheme import Array, Range, Scheme, around_zero, extremes, levels, without_zeros

SHARES = 2.0 ** (-np.arange(88) / 8)
"""Of the extremes, an eighth of an octave apart, down to about one bin."""
ZOOMS = 2.0 ** (np.arange(8, -9, -1) / 64), 2.0 ** (np.arange(8, -9, -1) / 512)
"""Around the best so far: from its neighbours among the shares in sixteen steps, then once more."""


def mse(histogram: Histogram, scheme: Scheme) -> Range:
    """The best range that a search within the extremes finds; they are its first candidate, so never worse than minmax.

    It tries [−T, T] cut to the extremes, then (asymmetric) each bound by itself, then finer around the best.
    """
    lowest, highest = extremes(histogram)
    if histogram.low == histogram.high:
        return around_zero(histogram.low, histogram.high, scheme)
    errors = _Expected.of(histogram, scheme)
    thresholds = max(-lowest, highest) * SHARES
    if scheme.symmetric:
        low, high = _best(errors, -thresholds, thresholds)
        for zoom in ZOOMS:
            high_tried = np.minimum(high * zoom, thresholds[0])
            low, high = _best(errors, -high_tried, high_tried)
    else:
        low, high = _best(errors, np.maximum(-thresholds, lowest), np.minimum(thresholds, highest))
        low, high = _best(errors, low, np.append(high, highest * SHARES))
        low, high = _best(errors, np.append(low, lowest * SHARES), high)
        for zoom in ZOOMS:
            low, high = _best(errors, low, np.minimum(high * zoom, highest))
            low, high = _best(errors, np.maximum(low * zoom, lowest), high)
    return around_zero(low * histogram.width, high * histogram.width, scheme)


def expected_error(histogram: Histogram, range_: Range, scheme: Scheme) -> float:
    """The mean squared error of the histogram's values, quantized in that range: clipping and rounding together."""
    extremes(histogram)
    low, high = (np.array([bound / histogram.width]) for bound in (range_.low, range_.high))
    return float(_Expected.of(histogram, scheme)(low, high)[0]) * histogram.width**2 / histogram.total


def _best(errors: "_Expected", low: Array | float, high: Array | float) -> tuple[float, float]:
    """The range of those [N] with the least error, the first of equals; rounded to float32, as its user will."""
    lows, highs = (bound.astype(np.float32).astype(np.float64) for bound in np.broadcast_arrays(low, high))
    best = int(np.argmin(errors(lows, highs)))
    return float(lows[best]), float(highs[best])


@dataclass(frozen=True)
class _Expected:
    """The sum of squared errors of a histogram's values, as a function of the range; all in units of bins.

    Values are uniform within a bin, and the integral over it is taken in closed form: a centre would fall on or beside
    a level, and a level is only a few bins wide. The bins at the ends reach to the extremes only, and one that is
    (nearly) a point there is taken for one: activations pile up where they are clipped, as ReLU6's at 6.
    """

    scheme: Scheme
    edges: Array
    weights: Array
    """Of the antiderivative at the edges: the density before the edge less that after it."""
    points: Array
    counts: Array

    @staticmethod
    def of(histogram: Histogram, scheme: Scheme) -> "_Expected":
        counts = without_zeros(histogram.counts).astype(np.float64)
        first, last = np.flatnonzero(histogram.counts)[[0, -1]]
        counts = counts[first : last + 1]
        edges = np.arange(first, last + 2) - float(HALF)
        edges[0], edges[-1] = max(edges[0], histogram.low / histogram.width), histogram.high / histogram.width
        widths = np.diff(edges)
        point = widths <= np.abs(edges[1:]) * 2**-20
        density = np.divide(counts, widths, out=np.zeros(len(counts)), where=~point)
        weights = -np.diff(density, prepend=0, append=0)
        return _Expected(
            scheme, edges[weights != 0], weights[weights != 0], (edges[1:] - widths / 2)[point], counts[point]
        )

    def __call__(self, low: Array, high: Array) -> Array:
        """Of the ranges [N].

        The error is that to the nearest level k: in units of steps, the antiderivative of (x − k)² that is zero at zero
        is k/12 + (x − k)³/3, and also where values are clipped.
        """
        step, lowest, highest = (values[:, None] for values in levels(low, high, self.scheme))

        def apart(values: Array) -> tuple[Array, Array]:
            scaled = values / step
            nearest = np.clip(np.rint(scaled), lowest, highest)
            return nearest, scaled - nearest

        nearest, distance = apart(self.edges)
        cubes = distance * distance * distance  # `**` is ten times as slow
        uniform: Array = ((nearest / 12 + cubes / 3) * self.weights).sum(axis=1) * step[:, 0]
        piled: Array = (apart(self.points)[1] ** 2 * self.counts).sum(axis=1)
        return (uniform + piled) * step[:, 0] ** 2
