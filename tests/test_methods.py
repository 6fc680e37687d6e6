"""The range methods: bounds that hold for any data, and each against a plain definition of it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from onnxmill.calibration.histogram import BINS, HALF, Histogram, empty, exponent_for
from onnxmill.calibration.methods import METHODS, find, minmax, moving_average, percentile
from onnxmill.calibration.methods_entropy import divergences, entropy
from onnxmill.calibration.methods_mse import expected_error, mse
from onnxmill.calibration.methods_scheme import Range, Scheme, levels

UINT8 = Scheme("uint8", symmetric=False)
INT8 = Scheme("int8", symmetric=True)
SCHEMES = [
    UINT8,
    INT8,
    Scheme("int8", symmetric=False),
    Scheme("uint8", symmetric=True),
    Scheme("int16", symmetric=True),
]
SCHEMES += [Scheme("uint16", symmetric=False)]

ordinary = st.floats(-1e6, 1e6, width=32).filter(lambda value: value == 0 or abs(value) > 1e-6)
any_finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
samples_of = lambda values: arrays(np.float32, st.integers(1, 200), elements=values)  # noqa: E731


def histogram_of(values) -> Histogram:
    values = np.asarray(values, np.float64).ravel()
    exponent = exponent_for(values.min(), values.max())
    bins = np.floor(values * 2.0**-exponent).astype(np.int64) + HALF
    return Histogram(float(values.min()), float(values.max()), exponent, np.bincount(bins, minlength=BINS))


def observed(values, method, scheme, percent=99.999) -> Range:
    values = np.asarray(values, np.float32)
    extremes = np.array([[values.min(), values.max()]], np.float32)
    return find(method, histogram_of(values), extremes, scheme, percent)


def as_float32(low, high) -> Range:
    return Range(float(np.float32(low)), float(np.float32(high)))


def shapes_of_activations():
    rng = np.random.default_rng(0)
    normal = rng.standard_normal(200_000)
    outliers = normal.copy()
    outliers[:5] = [40.3, -30.1, 55.7, 61.3, -62.1]
    sparse = np.where(rng.random(200_000) < 0.9, 0, np.abs(rng.laplace(size=200_000)))
    return {
        "normal": normal,
        "relu": np.maximum(normal, 0),
        "outliers": outliers,
        "sparse": sparse,
        "silu": 3 * normal / (1 + np.exp(-3 * normal)),
        "clipped": np.clip(3 * normal, 0, 6),
        "negative": -np.abs(normal) - 1,
        "two peaks": np.concatenate([rng.normal(-1, 0.1, 90_000), rng.normal(4, 0.5, 110_000)]),
    }


ACTIVATIONS = shapes_of_activations()


# Any method


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=40, deadline=None)
@given(values=samples_of(any_finite), scheme=st.sampled_from(SCHEMES))
def test_a_range_holds_zero_has_a_width_and_stays_within_the_extremes(method, values, scheme):
    found = observed(values, method, scheme)
    assert found.low <= 0 <= found.high
    assert 0 < found.high - found.low < np.inf
    assert found.low == np.float32(found.low)
    assert found.high == np.float32(found.high)
    if scheme.symmetric:
        assert found.low == -found.high
    if values.any():
        widest = minmax(histogram_of(values), scheme)
        assert widest.low <= found.low
        assert found.high <= widest.high


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=30, deadline=None)
@given(values=samples_of(ordinary), power=st.integers(-40, 40), scheme=st.sampled_from(SCHEMES))
def test_values_scaled_by_a_power_of_two_scale_the_range_exactly(method, values, power, scheme):
    found, scaled = observed(values, method, scheme), observed(values * np.float32(2.0**power), method, scheme)
    if values.any():
        assert scaled == Range(found.low * 2.0**power, found.high * 2.0**power)


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_histogram_is_refused(method):
    with pytest.raises(ValueError, match="no range"):
        find(method, empty(), np.zeros((0, 2), np.float32), UINT8)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("values", "asymmetric", "symmetric"),
    [
        ([0.0, 0.0], (0, 1), (-1, 1)),
        ([5.0] * 3, (0, 5), (-5, 5)),
        ([-5.0] * 3, (-5, 0), (-5, 5)),
        ([0.1], (0, 0.1), (-0.1, 0.1)),
        ([1e-44], (0, 1e-44), (-1e-44, 1e-44)),
        ([-3e38], (-3e38, 0), (-3e38, 3e38)),
    ],
)
def test_ranges_of_degenerate_tensors(method, values, asymmetric, symmetric):
    assert observed(values, method, UINT8) == as_float32(*asymmetric)
    assert observed(values, method, INT8) == as_float32(*symmetric)


@pytest.mark.parametrize("method", METHODS)
def test_a_single_enormous_outlier_leaves_a_finite_range(method):
    found = observed([*ACTIVATIONS["normal"], 1e30], method, UINT8)
    assert 0 < found.high <= np.float32(1e30)


@pytest.mark.parametrize("method", ["minmax", "moving-average", "percentile", "mse", "entropy"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_mirrored_values_have_the_same_symmetric_range(method, name):
    values = ACTIVATIONS[name][(ACTIVATIONS[name] != 0) & (ACTIVATIONS[name] != 6)]  # those on a border change bins
    found, mirrored = observed(values, method, INT8), observed(-values, method, INT8)
    near = 0.02 if method == "entropy" else 1e-6  # a bin whose centre lies between two levels belongs to the upper one
    assert mirrored.high == pytest.approx(found.high, rel=near)


@pytest.mark.parametrize(("low", "high"), [(0, 0), (1, 2), (-2, -1), (0, np.inf), (np.nan, 1), (1, -1)])
def test_a_range_without_zero_or_width_is_refused(low, high):
    with pytest.raises(ValueError, match="expected low <= 0 <= high"):
        Range(low, high)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_levels_are_those_of_onnxruntime(scheme):
    from onnx import TensorProto
    from onnxruntime.quantization.quant_utils import compute_scale_zp, get_qmin_qmax_for_qType

    limits = get_qmin_qmax_for_qType(TensorProto.DataType.Value(scheme.dtype.upper()), symmetric=scheme.symmetric)
    assert scheme.limits == tuple(int(limit) for limit in limits)
    assert scheme.levels == scheme.limits[1] - scheme.limits[0] + 1
    low, high = (-1.5, 1.5) if scheme.symmetric else (-0.7, 1.5)
    zero_point, scale = compute_scale_zp(np.float32(low), np.float32(high), *limits, symmetric=scheme.symmetric)
    step, lowest, highest = levels(np.array([low]), np.array([high]), scheme)
    assert step[0] == pytest.approx(float(scale), rel=1e-6)
    assert (lowest[0], highest[0]) == tuple(int(limit) - int(zero_point) for limit in limits)


# Moving average


def extremes_of(samples):
    return np.stack([samples.min(1), samples.max(1)], axis=1)


def test_moving_average_weighs_later_rows_more():
    rows = np.array([[-1, 2], [-3, 1], [0.5, 6]], np.float32)
    weights = np.array([0.81, 0.9, 1])
    low, high = (weights / weights.sum()) @ rows
    found = moving_average(rows, UINT8, constant=0.1)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-6)
    assert moving_average(rows[::-1], UINT8, constant=0.1) != found
    assert moving_average(rows[:1], UINT8) == Range(-1, 2)
    with pytest.raises(ValueError, match="averaging constant"):
        moving_average(rows, UINT8, constant=0)


def test_moving_average_of_few_samples_is_nearly_their_mean():
    rows = extremes_of(np.random.default_rng(1).standard_normal((20, 100)).astype(np.float32))
    found = moving_average(rows, UINT8)
    assert (found.low, found.high) == pytest.approx(tuple(rows.mean(0)), rel=0.02)


def test_moving_average_of_many_samples_is_torchs_observers():
    torch = pytest.importorskip("torch")
    from torch.ao.quantization.observer import MovingAverageMinMaxObserver

    samples = np.random.default_rng(1).standard_normal((1500, 100)).astype(np.float32)
    observer = MovingAverageMinMaxObserver(averaging_constant=0.01)
    for sample in samples:
        observer(torch.from_numpy(sample))
    found = moving_average(extremes_of(samples), UINT8)
    assert found.low == pytest.approx(float(observer.min_val), rel=1e-5)
    assert found.high == pytest.approx(float(observer.max_val), rel=1e-5)


# Percentile


@settings(max_examples=200, deadline=None)
@given(values=samples_of(ordinary), percent=st.floats(1, 100))
def test_percentile_is_within_a_bin_of_numpys(values, percent):
    histogram, exact = histogram_of(values), values.astype(np.float64)
    bin_and_rounding = histogram.width * (1 + 1e-6)
    found = percentile(histogram, UINT8, percent)
    low, high = np.percentile(exact, [(100 - percent) / 2, 100 - (100 - percent) / 2])
    if found != minmax(histogram, UINT8):
        assert found.low == pytest.approx(min(low, 0), abs=bin_and_rounding)
        assert found.high == pytest.approx(max(high, 0), abs=bin_and_rounding)
    found = percentile(histogram, INT8, percent)
    if found != minmax(histogram, INT8):
        assert found.high == pytest.approx(np.percentile(np.abs(exact), percent), abs=bin_and_rounding)


@pytest.mark.parametrize("percent", [50, 90, 99, 99.9, 99.99, 100])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_percentile_of_activations_is_within_a_bin_of_numpys(name, percent):
    values = ACTIVATIONS[name].astype(np.float32).astype(np.float64)
    histogram = histogram_of(values)
    low, high = np.percentile(values, [(100 - percent) / 2, 100 - (100 - percent) / 2])
    if high > 0 or low < 0:
        found = percentile(histogram, UINT8, percent)
        assert found.low == pytest.approx(min(low, 0), abs=histogram.width)
        assert found.high == pytest.approx(max(high, 0), abs=histogram.width)
    if (top := np.percentile(np.abs(values), percent)) > 0:
        assert percentile(histogram, INT8, percent).high == pytest.approx(top, abs=histogram.width)


@settings(max_examples=100, deadline=None)
@given(values=samples_of(ordinary), percents=st.tuples(st.floats(1, 100), st.floats(1, 100)).map(sorted))
def test_percentile_grows_with_percent_up_to_the_extremes(values, percents):
    histogram = histogram_of(values)
    for scheme in (UINT8, INT8):
        widest = minmax(histogram, scheme)
        less, more = (percentile(histogram, scheme, percent) for percent in percents)
        assert (less.low >= more.low and less.high <= more.high) or less == widest
        assert percentile(histogram, scheme, 100) == widest


def test_percentile_of_nearly_all_zeros_is_the_extremes():
    histogram = histogram_of([0.0] * 999_999 + [-3.0])
    assert percentile(histogram, UINT8, 90) == Range(-3, 0)


@pytest.mark.parametrize("percent", [0, -1, 100.1, math.nan])
def test_percentile_out_of_bounds_is_refused(percent):
    with pytest.raises(ValueError, match="0 < percentile <= 100"):
        percentile(histogram_of([1.0]), UINT8, percent)


# Entropy


def plain_divergence(counts, start, stop, step, lowest, highest) -> float:
    """KL(P‖Q) as its definition says, one bin at a time."""
    own = counts[start:stop]
    given_ = own.copy()
    given_[0] += sum(counts[:start])
    given_[-1] += sum(counts[stop:])
    total, within = sum(given_), sum(own)
    level_of = []
    level = int(lowest)
    for place in range(start, stop):
        while level < highest and place - HALF + 0.5 >= (level + 0.5) * step:
            level += 1
        level_of.append(level)
    mass, used = dict.fromkeys(level_of, 0), dict.fromkeys(level_of, 0)
    for level, count, all_ in zip(level_of, own, given_, strict=True):
        mass[level] += count
        used[level] += all_ > 0
    divergence = 0.0
    for level, all_ in zip(level_of, given_, strict=True):
        if all_:
            if not mass[level]:
                return math.inf
            p, q = all_ / total, mass[level] / used[level] / within
            divergence += p * math.log(p / q)
    return divergence


def plain_entropy(histogram, scheme) -> Range:
    """Every threshold in turn, the last of the least divergences."""
    counts = histogram.counts.tolist()
    counts[HALF] = min(counts[HALF], counts[HALF + 1])
    counts[HALF - 1] = min(counts[HALF - 1], counts[HALF - 2])
    lowest, highest = min(histogram.low, 0) / histogram.width, max(histogram.high, 0) / histogram.width
    first, last = HALF + math.floor(lowest), HALF + math.floor(highest)
    best, least = (lowest, highest), math.inf
    for threshold in range(1, max(HALF - first, last + 1 - HALF) + 1):
        low, high = max(lowest, -threshold), min(highest, threshold)
        if scheme.symmetric:
            low, high = -max(-low, high), max(-low, high)
        step = (high - low) / (scheme.levels - 1)
        start, stop = max(HALF - threshold, first), min(HALF + threshold, last + 1)
        if step >= 4 and sum(counts[:start]) + sum(counts[stop:]) <= 1e-4 * sum(counts):
            bottom, top = scheme.limits
            zero = round((bottom + top) / 2 if scheme.symmetric else bottom - low / step)
            divergence = plain_divergence(counts, start, stop, step, bottom - zero, top - zero)
            if divergence <= least + 1e-12:
                best, least = (low, high), min(divergence, least)
    return as_float32(best[0] * histogram.width, best[1] * histogram.width)


@pytest.mark.parametrize("scheme", [UINT8, INT8], ids=["uint8", "int8 symmetric"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_entropy_equals_the_plain_definition(name, scheme):
    values = ACTIVATIONS[name]
    histogram = histogram_of((values * (17 / 16) / np.abs(values).max()).astype(np.float32))  # few bins, few thresholds
    assert entropy(histogram, scheme) == plain_entropy(histogram, scheme)


def test_divergence_equals_the_plain_definition():
    rng = np.random.default_rng(3)
    for name in ("normal", "sparse", "silu"):
        counts = histogram_of(ACTIVATIONS[name].astype(np.float32)).counts
        start, stop = HALF - rng.integers(1, 900, 20), HALF + rng.integers(300, HALF, 20)
        step, lowest, highest = levels((start - HALF).astype(np.float64), (stop - HALF).astype(np.float64), UINT8)
        expected = [
            plain_divergence(counts.tolist(), *window)
            for window in zip(start, stop, step, lowest, highest, strict=True)
        ]
        np.testing.assert_allclose(divergences(counts, start, stop, step, lowest, highest), expected, rtol=1e-9)
        assert np.isfinite(expected).any()


def test_divergence_is_infinite_where_outside_values_fall_on_an_empty_level():
    counts = np.zeros(BINS, np.int64)
    counts[HALF : HALF + 500], counts[HALF + 2000] = 10, 1
    start, stop = np.array([HALF, HALF]), HALF + np.array([500, 1500])
    found = divergences(counts, start, stop, *levels(np.zeros(2), stop - float(HALF), UINT8))
    assert np.isfinite(found).tolist() == [True, False]


def test_entropy_cuts_a_thin_tail_and_leaves_16_bits_alone():
    rng = np.random.default_rng(4)
    histogram = histogram_of([*rng.uniform(-10, 10, 100_000), 15.9])
    assert 9.9 < entropy(histogram, UINT8).high < 10.1
    for scheme in (Scheme("int16", symmetric=True), Scheme("uint16", symmetric=False)):
        assert entropy(histogram, scheme) == minmax(histogram, scheme)


def test_a_spike_of_zeros_moves_neither_entropy_nor_mse():
    values = np.abs(np.random.default_rng(5).standard_normal(100_000))
    dense, spiked = histogram_of(values), histogram_of([*values, *np.zeros(900_000)])
    assert entropy(spiked, UINT8).high == pytest.approx(entropy(dense, UINT8).high, rel=0.01)
    assert mse(spiked, UINT8).high == pytest.approx(mse(dense, UINT8).high, rel=0.01)


# MSE


def squared_error(values, found, scheme) -> float:
    step, lowest, highest = (part[0] for part in levels(np.array([found.low]), np.array([found.high]), scheme))
    return float(np.mean((values - np.clip(np.rint(values / step), lowest, highest) * step) ** 2))


@settings(max_examples=60, deadline=None)
@given(values=samples_of(any_finite), scheme=st.sampled_from(SCHEMES))
def test_mse_is_never_worse_than_the_extremes(values, scheme):
    histogram = histogram_of(values)
    best, widest = mse(histogram, scheme), minmax(histogram, scheme)
    assert expected_error(histogram, best, scheme) <= expected_error(histogram, widest, scheme)


@pytest.mark.parametrize("scheme", [UINT8, INT8, Scheme("uint8", symmetric=True)])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_expected_error_is_that_of_quantizing_the_values(name, scheme):
    values = ACTIVATIONS[name].astype(np.float32).astype(np.float64)
    histogram = histogram_of(values)
    for share in (1, 0.7, 0.4):
        widest = minmax(histogram, scheme)
        found = Range(widest.low * share, widest.high * share)
        assert expected_error(histogram, found, scheme) == pytest.approx(squared_error(values, found, scheme), rel=0.05)


@pytest.mark.parametrize("scheme", [UINT8, INT8])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_mse_finds_no_worse_a_range_than_a_dense_search(name, scheme):
    histogram = histogram_of(ACTIVATIONS[name].astype(np.float32))
    widest = minmax(histogram, scheme)
    shares = np.linspace(0.05, 1, 25)
    pairs = [(share, share) for share in shares] if scheme.symmetric else [(a, b) for a in shares for b in shares]
    errors = [expected_error(histogram, Range(widest.low * a, widest.high * b), scheme) for a, b in pairs]
    assert expected_error(histogram, mse(histogram, scheme), scheme) <= min(errors) * 1.01
