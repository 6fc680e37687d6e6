"""Bootstrap intervals for the two paired comparisons: metric scores a sample, and latencies a round.

Both resample pairs with replacement and take quantiles of the resampled means: the percentile interval of
Efron & Tibshirani, An Introduction to the Bootstrap (1993), chapter 13. On few pairs that interval is too
narrow, so its quantiles are moved out as in Hesterberg, What Teachers Should Know About the Bootstrap (2015)
("expanded percentile"): to the level Phi(-sqrt(n / (n - 1)) t), with t the quantile of Student's
t with n - 1 degrees of freedom. On thousands of pairs this changes nothing.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

CHUNK = 1 << 21
"""Values that are drawn at once: about 32 MB."""


def paired_mean_interval(
    differences: npt.ArrayLike, *, seed: int, confidence: float = 0.95, resamples: int = 2000
) -> tuple[float, float]:
    """An interval for the mean of paired `differences` [N]; the same for the same seed.

    All equal, one value included: exactly (d, d), because a sample without spread says nothing about its
    error. Raises ValueError when nothing is compared or a difference is not finite.
    """
    values = np.asarray(differences, dtype=np.float64).ravel()
    if values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"paired differences must be finite and at least one: {values.size} values given")
    if values.min() == values.max():
        return float(values[0]), float(values[0])
    level = _expanded_level(values.size, confidence)
    low, high = np.quantile(_resampled_means(values, seed, resamples), [level, 1 - level])
    return float(low), float(high)


def ratio_interval(
    baseline_rounds_ms: Sequence[float],
    variant_rounds_ms: Sequence[float],
    *,
    seed: int,
    confidence: float = 0.95,
    resamples: int = 2000,
) -> tuple[float, float, float]:
    """How many times faster the variant is: (ratio, low, high), from one latency a round, paired by round.

    The ratio is the geometric mean of baseline / variant over the rounds, that is exp(mean(log ratio)):
    swapping the two sides gives 1 / ratio exactly as it should, which the mean of ratios does not; and unlike
    a median of a dozen rounds, which can take a dozen values, a mean has a smooth bootstrap distribution.
    Each round's latency should be a median already, so that single slow runs do not reach it. A whole
    disturbed round widens the interval. Raises ValueError when rounds are missing, unpaired, or not positive
    finite numbers.
    """
    baseline, variant = np.asarray(baseline_rounds_ms, np.float64), np.asarray(variant_rounds_ms, np.float64)
    if baseline.shape != variant.shape or baseline.size == 0:
        raise ValueError(f"rounds must be paired and at least one: {baseline.size} and {variant.size} given")
    both = np.concatenate([baseline, variant])
    if not (np.isfinite(both) & (both > 0)).all():
        raise ValueError(f"latencies must be positive finite numbers: {both.tolist()}")
    logs = np.log(baseline) - np.log(variant)
    low, high = paired_mean_interval(logs, seed=seed, confidence=confidence, resamples=resamples)
    # equal logs: their mean can be off by a rounding error, which would put it outside of its own interval
    mean = low if low == high else float(logs.mean())
    return math.exp(mean), math.exp(low), math.exp(high)


def _resampled_means(values: npt.NDArray[np.float64], seed: int, resamples: int) -> npt.NDArray[np.float64]:
    """[resamples]: means of as many draws of N from `values` [N], in chunks of bounded memory."""
    random = np.random.default_rng(seed)
    rows = max(1, CHUNK // values.size)
    sizes = [min(rows, resamples - start) for start in range(0, resamples, rows)]
    draws = (random.integers(values.size, size=(size, values.size), dtype=np.int32) for size in sizes)
    return np.concatenate([values[draw].mean(axis=1) for draw in draws])


def _expanded_level(n: int, confidence: float) -> float:
    """The lower quantile to take of the resampled means, see above. Student's t comes from its expansion
    around the normal quantile (Abramowitz & Stegun 26.7.5): right to 0.01 from 5 degrees of freedom on."""
    normal, v = NormalDist(), n - 1
    z = normal.inv_cdf((1 + confidence) / 2)
    t = (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )
    return normal.cdf(-math.sqrt(n / (n - 1)) * t)
