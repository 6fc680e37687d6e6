"""Bootstrap intervals: they cover the truth as often as they say, and behave under the symmetries of their
statistics."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxmill.tasks.bootstrap import paired_mean_interval, ratio_interval

numbers = st.floats(-1e6, 1e6, allow_subnormal=False)
samples = st.lists(numbers, min_size=1, max_size=30)
latencies = st.floats(1e-3, 1e5)
rounds = st.lists(st.tuples(latencies, latencies), min_size=1, max_size=20)


def interval(values: object, confidence: float = 0.95, seed: int = 7) -> tuple[float, float]:
    return paired_mean_interval(values, seed=seed, confidence=confidence, resamples=200)  # type: ignore[arg-type]


@given(samples)
def test_interval_lies_within_the_values_and_repeats(values: list[float]) -> None:
    low, high = interval(values)
    slack = 1e-9 * max(map(abs, values))
    assert min(values) - slack <= low <= high <= max(values) + slack
    assert interval(values) == (low, high)


@given(numbers, st.integers(1, 50))
def test_all_equal_is_exact(value: float, n: int) -> None:
    assert interval([value] * n) == (value, value)


@given(samples, st.floats(-1e3, 1e3), st.floats(0.01, 100))
def test_interval_moves_and_scales_with_the_values(values: list[float], shift: float, scale: float) -> None:
    low, high = interval(values)
    moved = interval([v * scale + shift for v in values])
    slack = 1e-9 * (scale * max(map(abs, values)) + abs(shift)) + 1e-9
    assert moved == pytest.approx((low * scale + shift, high * scale + shift), abs=slack)


@given(samples)
def test_more_confidence_is_never_narrower(values: list[float]) -> None:
    low, high = interval(values, 0.8)
    wide_low, wide_high = interval(values, 0.99)
    assert wide_low <= low
    assert high <= wide_high


@pytest.mark.parametrize("n", [6, 12])
def test_covers_the_true_mean_as_often_as_it_says_on_few_rounds(n: int) -> None:
    """Measured: 92.6 % and 94.0 %. The plain percentile interval, 85 % and 90 %, would fail."""
    random = np.random.default_rng(11)
    trials = 1000
    hits = 0
    for trial in range(trials):
        low, high = paired_mean_interval(random.normal(3.0, 2.0, n), seed=trial)
        hits += low <= 3.0 <= high
    assert 0.915 <= hits / trials <= 0.97


def test_large_samples_give_the_normal_interval_in_bounded_memory() -> None:
    scores = np.random.default_rng(5).choice([-1.0, 0.0, 1.0], 50_000, p=[0.01, 0.98, 0.01])
    tracemalloc.start()
    low, high = paired_mean_interval(scores, seed=0)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 100e6
    half = 1.96 * scores.std() / math.sqrt(scores.size)
    assert (low, high) == pytest.approx((scores.mean() - half, scores.mean() + half), abs=0.1 * half)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [1.0, math.inf]])
def test_nothing_and_non_finite_differences_are_errors(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite and at least one"):
        interval(values)


@given(rounds)
def test_ratio_is_inside_its_interval_and_swapping_sides_inverts_it(pairs: list[tuple[float, float]]) -> None:
    baseline, variant = [a for a, _ in pairs], [b for _, b in pairs]
    ratio, low, high = ratio_interval(baseline, variant, seed=3)
    assert 0 < low <= high < math.inf
    assert low * (1 - 1e-9) <= ratio <= high * (1 + 1e-9)
    swapped = ratio_interval(variant, baseline, seed=3)
    assert swapped == pytest.approx((1 / ratio, 1 / high, 1 / low))


@given(rounds, st.floats(0.01, 100))
def test_ratio_does_not_depend_on_the_unit(pairs: list[tuple[float, float]], unit: float) -> None:
    baseline, variant = [a for a, _ in pairs], [b for _, b in pairs]
    scaled = ratio_interval([a * unit for a in baseline], [b * unit for b in variant], seed=3)
    assert scaled == pytest.approx(ratio_interval(baseline, variant, seed=3))


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=20))
def test_drift_that_both_sides_share_cancels(drift: list[float]) -> None:
    assert ratio_interval([3.0 * d for d in drift], [1.5 * d for d in drift], seed=0) == pytest.approx((2.0,) * 3)


def test_one_disturbed_round_does_not_hide_a_real_gain_but_widens_the_interval() -> None:
    calm = ratio_interval([2.0, 2.02, 1.98] * 4, [1.0] * 12, seed=0)
    disturbed = ratio_interval([2.0, 2.02, 1.98] * 4, [1.0] * 11 + [1.8], seed=0)
    assert disturbed[1] > 1.5
    assert disturbed[2] - disturbed[1] > 3 * (calm[2] - calm[1])


@pytest.mark.parametrize(
    ("baseline", "variant"),
    [([], []), ([1.0], [1.0, 2.0]), ([1.0], [0.0]), ([math.nan], [1.0]), ([1.0], [math.inf])],
)
def test_bad_rounds_are_errors(baseline: list[float], variant: list[float]) -> None:
    with pytest.raises(ValueError, match=r"rounds must be paired|positive finite"):
        ratio_interval(baseline, variant, seed=0)
