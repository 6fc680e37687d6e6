"""The range that loses least information: S. Migacz, "8-bit Inference with TensorRT", GTC 2017."""

from typing import Any

import numpy as np
import numpy.typing as npt

from onnxmill.calibration.histogram import HALF, Counts, Histogram
from onnxmill.calibration.methods_scheme import Array, Range, Scheme, around_zero, extremes, levels, without_zeros

BINS_A_LEVEL = 4
"""At least. A level of m bins shows 1 − 1/m² of what it rounds away, nothing if it is one bin: narrower levels would
seem to lose less than they do, and the range would be cut far too much for the sake of them."""
OUTSIDE = 1e-4
"""At most, as a share of the values: the divergence does not see how far outside a value is, and so would cut off a
tail for a lucky alignment of levels and peaks."""
EQUAL = 1e-12
"""Divergences this close are one: more than the rounding errors of their sums."""
BLOCK = 256
"""Windows at a time: their arrays [BLOCK, levels] stay in the processor's cache, three times as fast as all at once."""


def entropy(histogram: Histogram, scheme: Scheme) -> Range:
    """The window with the least KL divergence (`divergences`), the widest of equals.

    For each threshold T, a whole number of bins, the window is [−T, T] cut to the extremes. Unlike Migacz's, only
    windows with levels of BINS_A_LEVEL or more are judged, and with a share of OUTSIDE or less outside. 16-bit types
    have none, as they have more levels than there are bins: they get the exact extremes. So does a tensor whose values
    all pass for exact zeros (`without_zeros`).
    """
    lowest, highest = extremes(histogram)
    counts = without_zeros(histogram.counts)
    if histogram.low == histogram.high or not counts.any():
        return around_zero(histogram.low, histogram.high, scheme)
    below, above = -int(np.floor(lowest)), int(np.floor(highest)) + 1  # bins on either side
    threshold = np.arange(1, max(below, above) + 1)
    low, high = np.maximum(lowest, -threshold), np.minimum(highest, threshold)
    if scheme.symmetric:
        high = np.maximum(-low, high)
        low = -high
    start, stop = HALF - np.minimum(threshold, below), HALF + np.minimum(threshold, above)
    step, first_level, last_level = levels(low, high, scheme)
    count_to = _sums_before(counts)
    within = count_to[stop] - count_to[start]
    judged = np.flatnonzero((step >= BINS_A_LEVEL) & (count_to[-1] - within <= OUTSIDE * count_to[-1]))
    if not len(judged):
        return around_zero(histogram.low, histogram.high, scheme)
    blocks = np.split(judged, range(BLOCK, len(judged), BLOCK))
    divergence = np.concatenate(
        [divergences(counts, start[i], stop[i], step[i], first_level[i], last_level[i]) for i in blocks]
    )
    best = judged[np.flatnonzero(divergence <= divergence.min() + EQUAL)[-1]]
    return around_zero(low[best] * histogram.width, high[best] * histogram.width, scheme)


def divergences(counts: Counts, start: Counts, stop: Counts, step: Array, lowest: Array, highest: Array) -> Array:
    """KL(P‖Q) of windows [N], each the bins start..stop − 1 and levels lowest..highest, `step` bins apart.

    P is the histogram in the window, with the values outside added to its end bins. Q is the histogram in the window,
    each level's values spread evenly over those of its bins that P has. A bin belongs to the level nearest its centre.
    Infinite where values from outside fall on a level that has none of its own (nothing is smoothed away).
    """
    count_to, used_to, log_to = (_sums_before(values) for values in (counts, counts > 0, _x_log_x(counts)))
    total, before, after = count_to[-1], count_to[start], count_to[-1] - count_to[stop]
    first, last = counts[start], counts[stop - 1]

    borders = np.ceil((lowest[:, None] + np.arange(highest[0] - lowest[0]) + 0.5) * step[:, None] - 0.5) + HALF
    edges = np.column_stack([start, np.clip(borders, start[:, None], stop[:, None]).astype(np.int64), stop])
    own, used = np.diff(count_to[edges]), np.diff(used_to[edges])  # values and used bins of each level, [N, levels]
    given = own.copy()
    rows = np.arange(len(start))
    for bin_, count, outside in ((start, first, before), (stop - 1, last, after)):
        level = np.count_nonzero(edges[:, 1:-1] <= bin_[:, None], axis=1)
        given[rows, level] += outside
        used[rows, level] += (count == 0) & (outside > 0)

    with np.errstate(divide="ignore", invalid="ignore"):  # of levels that have no values
        p_log_q = np.where(given > 0, given * np.log(own / used), 0).sum(axis=1)
    p_log_p = log_to[stop] - log_to[start]
    p_log_p += _x_log_x(first + before) - _x_log_x(first) + _x_log_x(last + after) - _x_log_x(last)
    within = np.maximum(total - before - after, 1)  # where it is none, the divergence is infinite already
    return np.asarray((p_log_p - p_log_q) / total + np.log(within / total))


def _x_log_x(counts: Counts) -> Array:
    return np.asarray(counts * np.log(np.maximum(counts, 1)))


def _sums_before(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Of the values before each index, [len(values) + 1]."""
    return np.concatenate([[0], np.cumsum(values)])
