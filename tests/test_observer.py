"""Observing: exact extremes and counts, whatever the cut and the order of the values, and what is no number refused."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onnxmill.calibration import histogram
from onnxmill.calibration.histogram import BINS, EXPONENT_MIN, HALF, Histogram
from onnxmill.calibration.observer import CHUNK, NotFinite, Observer

Floats = npt.NDArray[np.float32]

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
arrays = hnp.arrays(np.float32, st.integers(1, 60), elements=finite)
spread = st.builds(lambda array, power: (array * 2.0**power).astype(np.float32), arrays, st.integers(-60, 0))


def observed(*parts: npt.NDArray[Any]) -> Histogram:
    observer = Observer()
    for part in parts:
        observer.add(part)
    return observer.histogram()


def counted(values: Floats) -> Histogram:
    """The same by plain numpy in float64: nothing clever."""
    wide = values.astype(np.float64).ravel()
    low, high = float(wide.min()) + 0.0, float(wide.max()) + 0.0
    exponent = histogram.exponent_for(low, high)
    bins = HALF + np.trunc(wide / 2.0**exponent).astype(int) - (wide < 0)
    return Histogram(low, high, exponent, np.bincount(bins, minlength=BINS))


def same(a: Histogram, b: Histogram) -> bool:
    return (a.low, a.high, a.exponent) == (b.low, b.high, b.exponent) and np.array_equal(a.counts, b.counts)


@given(arrays | spread)
def test_counts_and_extremes_are_those_of_plain_numpy(values: Floats) -> None:
    found = observed(values)
    assert same(found, counted(values))
    assert found.total == values.size
    assert (found.low, found.high) == (values.min(), values.max())


@given(arrays | spread, st.data())
def test_neither_cut_nor_order_matters(values: Floats, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, values.size), max_size=4))
    order = data.draw(st.permutations(range(values.size)))
    parts = np.split(values[np.array(order)], sorted(cuts))
    assert same(observed(*parts), observed(values))


@given(arrays | spread, arrays | spread)
def test_merging_is_observing_both(a: Floats, b: Floats) -> None:
    whole = observed(np.concatenate([a, b]))
    assert same(histogram.merged(observed(a), observed(b)), whole)
    assert same(histogram.merged(observed(b), observed(a)), whole)
    assert same(histogram.merged(whole, histogram.empty()), whole)


@given(arrays | spread)
def test_mirrored_values_have_mirrored_counts(values: Floats) -> None:
    values = values[values != 0]
    if values.size:
        assert np.array_equal(observed(-values).counts, observed(values).counts[::-1])


@given(arrays)
def test_the_grid_is_the_finest_that_holds_all_values(values: Floats) -> None:
    found = observed(values)
    edges = found.edges()
    assert edges[0] < found.low
    assert found.high < edges[-1]
    if found.exponent > EXPONENT_MIN:
        finer = edges / 2
        assert found.low <= finer[0] or found.high >= finer[-1]


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.sampled_from([CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5]))
def test_long_arrays_are_counted_whole(seed: int, size: int) -> None:
    values = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    values[-1] = 1000  # the grid grows in the last chunk
    assert same(observed(values), counted(values))


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, CHUNK, 2 * CHUNK])
def test_what_is_not_finite_is_refused(bad: float, place: int) -> None:
    values = np.ones(2 * CHUNK + 1, np.float32)
    values[place] = bad
    with pytest.raises(NotFinite, match=f"1 of {2 * CHUNK + 1} values are not finite"):
        Observer().add(values)


def test_the_largest_floats_and_the_smallest_have_a_bin() -> None:
    largest = np.finfo(np.float32).max
    values = np.array([largest, -largest, 1e-45, -1e-45, 0, -0.0], np.float32)
    found = observed(values)
    assert same(found, counted(values))
    assert found.exponent == 117


def test_an_array_of_nothing_changes_nothing() -> None:
    observer = Observer()
    assert observer.add(np.zeros((0, 3), np.float32)) == (np.inf, -np.inf)
    assert same(observer.histogram(), histogram.empty())


def test_add_gives_the_arrays_own_extremes() -> None:
    observer = Observer()
    observer.add(np.array([-5, 5], np.float32))
    assert observer.add(np.array([[1, 2], [3, -0.0]], np.float32)) == (0.0, 3.0)


def test_an_array_in_another_order_is_the_same() -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert same(observed(values.transpose(2, 0, 1)), observed(values))


def test_another_dtype_is_refused() -> None:
    with pytest.raises(TypeError, match="float32 alone is observed, not float64"):
        Observer().add(np.zeros(3))
