"""Statistics: a model's tensors over samples, whatever their batches, their order or the machines that saw them."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnxruntime.quantization.calibrate import CalibrationDataReader, MinMaxCalibrater

from onnxmill.calibration import statistics
from onnxmill.calibration.methods import METHODS, Method
from onnxmill.calibration.methods_scheme import Range, Scheme
from onnxmill.calibration.samples import Array
from onnxmill.calibration.statistics import NotFiniteActivation, Statistics
from onnxmill.tasks.errors import InputError
from tests import graphs

TEXT = """
agraph (float[batch, 4] x) => (float[batch, 3] y)
<float[4, 3] w = {1, -2, 3, 4, -5, 6, 7, 8, -9, 2, 1, 0}> {
  h = MatMul(x, w)
  r = Relu(h)
  y = Add(r, h)
}
"""
TENSORS = ("x", "r", "y")
SCHEMES = (Scheme("uint8", symmetric=False), Scheme("int8", symmetric=True))
COUNT = 13

Values = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return graphs.parse(TEXT)


def rows(seed: int) -> Values:
    """Samples of whole numbers: their products and sums are exact, whichever kernel a batch size takes."""
    return np.random.default_rng(seed).integers(-9, 10, (COUNT, 4)).astype(np.float32)


def batches(values: Values, size: int) -> list[dict[str, Array]]:
    return [{"x": values[start : start + size]} for start in range(0, len(values), size)]


def collected(model: onnx.ModelProto, values: Values, size: int = 1, first: int = 0) -> Statistics:
    return statistics.collect(model, TENSORS, batches(values, size), threads=2, first=first)


def ranges(seen: Statistics, method: Method) -> list[Range]:
    return [found for scheme in SCHEMES for found in statistics.ranges(seen, method, 99.9, scheme).values()]


def saved(seen: Statistics, folder: Path) -> bytes:
    statistics.save(seen, folder / statistics.FILE)
    return (folder / statistics.FILE).read_bytes()


seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@few
@given(seeds)
def test_the_batch_size_changes_no_bit(model: onnx.ModelProto, tmp_path: Path, seed: int) -> None:
    values = rows(seed)
    files = {saved(collected(model, values, size), tmp_path) for size in (1, 3, 8)}  # 13 samples: each end is ragged
    assert len(files) == 1


@few
@given(seeds)
def test_the_order_changes_no_range_but_the_moving_averages(model: onnx.ModelProto, seed: int) -> None:
    values = rows(seed)
    shuffled = np.random.default_rng(seed).permutation(values)
    a, b = collected(model, values), collected(model, shuffled, 3)
    for method in METHODS:
        if method != "moving-average":
            assert ranges(a, method) == ranges(b, method)


@few
@given(seeds, st.lists(st.integers(1, COUNT - 1), min_size=1, max_size=3, unique=True), st.randoms())
def test_shards_in_any_order_merge_into_the_whole(
    model: onnx.ModelProto, tmp_path: Path, seed: int, cuts: Sequence[int], random: Random
) -> None:
    values = rows(seed)
    borders = [0, *sorted(cuts), COUNT]
    parts = [collected(model, values[a:b], first=a) for a, b in pairwise(borders)]
    random.shuffle(parts)
    whole = collected(model, values)
    assert saved(statistics.merged(parts), tmp_path) == saved(whole, tmp_path)
    for method in METHODS:
        assert ranges(statistics.merged(parts), method) == ranges(whole, method)


class _Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime ships no types
    def __init__(self, values: Values) -> None:
        self._stream = iter(batches(values, 1))

    def get_next(self) -> dict[str, Array] | None:
        return next(self._stream, None)


@few
@given(seeds)
def test_extremes_are_those_of_onnx_runtimes_calibrator(model: onnx.ModelProto, tmp_path: Path, seed: int) -> None:
    values = rows(seed)
    onnx.save(model, str(tmp_path / "model.onnx"))
    theirs = MinMaxCalibrater(tmp_path / "model.onnx", augmented_model_path=str(tmp_path / "augmented.onnx"))
    theirs.augment_graph()
    theirs.create_inference_session()
    theirs.collect_data(_Reader(values))
    expected = {name: data.range_value for name, data in theirs.compute_data().items()}
    seen = collected(model, values)
    for name in TENSORS:
        low, high = (np.asarray(end).item() for end in expected[name])
        assert (seen.histograms[name].low, seen.histograms[name].high) == (low, high)


def test_each_samples_extremes_are_kept_in_order(model: onnx.ModelProto) -> None:
    values = rows(7)
    seen = collected(model, values, 8, first=40)
    assert seen.positions.tolist() == list(range(40, 40 + COUNT))
    assert np.array_equal(seen.extremes["x"], np.stack([values.min(1), values.max(1)], 1))


def test_what_was_saved_is_loaded(model: onnx.ModelProto, tmp_path: Path) -> None:
    seen = collected(model, rows(3))
    before = saved(seen, tmp_path)
    again = statistics.load(tmp_path / statistics.FILE)
    assert saved(again, tmp_path) == before
    assert list(again.histograms) == list(TENSORS)


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04 cut"])
def test_another_file_is_no_statistics(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "statistics.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is no file of calibration statistics"):
        statistics.load(path)


def test_parts_of_other_tensors_or_of_the_same_sample_do_not_merge(model: onnx.ModelProto) -> None:
    part = collected(model, rows(1))
    other = statistics.collect(model, ["x"], batches(rows(1), 1), threads=1, first=COUNT)
    with pytest.raises(ValueError, match="the parts hold other tensors"):
        statistics.merged([part, other])
    with pytest.raises(ValueError, match="a sample is in two parts"):
        statistics.merged([part, part])


def test_no_sample_is_refused(model: onnx.ModelProto) -> None:
    with pytest.raises(InputError, match=r"data\.calibration: gave no sample"):
        statistics.collect(model, TENSORS, [], threads=1)


def test_a_sample_that_the_model_does_not_take_is_named(model: onnx.ModelProto) -> None:
    items = [{"x": np.zeros((1, 4), np.float32)}, {"x": np.zeros((1, 5), np.float32)}]
    with pytest.raises(InputError, match=r"data\.calibration: the model does not run on sample 1: "):
        statistics.collect(model, TENSORS, items, threads=1)


def test_an_activation_that_is_not_finite_names_tensor_and_sample() -> None:
    model = graphs.parse("g (float[batch, 2] x) => (float[batch, 2] y) { l = Log(x)  y = Add(l, x) }")
    items = [{"x": np.array([[1, value]], np.float32)} for value in (1, 2, 0, 3)]
    with pytest.raises(NotFiniteActivation, match="tensor 'l' on sample 12: 1 of 2 values are not finite") as caught:
        statistics.collect(model, ["x", "l"], items, threads=2, first=10)
    assert (caught.value.tensor, caught.value.sample) == ("l", 12)


def test_of_several_tensors_that_are_not_finite_the_first_is_named() -> None:
    model = graphs.parse("g (float[batch, 2] x) => (float[batch, 2] y) { l = Log(x)  m = Mul(l, l)  y = Add(m, x) }")
    items = [{"x": np.zeros((1, 2), np.float32)}]
    with pytest.raises(NotFiniteActivation, match="tensor 'l' on sample 0"):
        statistics.collect(model, ["x", "l", "m", "y"], items, threads=3)


def test_a_model_of_a_fixed_batch_is_run_as_it_is() -> None:
    model = graphs.parse("g (float[2, 3] x) => (float[2, 3] y) { y = Neg(x) }")
    items = [{"x": np.full((2, 3), value, np.float32)} for value in range(4)]
    seen = statistics.collect(model, ["y"], items, threads=1)
    assert seen.extremes["y"].tolist() == [[0, 0], [-1, -1], [-2, -2], [-3, -3]]


def test_a_model_with_a_scalar_input_is_run_as_it_is() -> None:
    model = graphs.parse("g (float[batch, 2] x, float s) => (float[batch, 2] y) { y = Mul(x, s) }")
    items = [{"x": np.ones((1, 2), np.float32), "s": np.array(value, np.float32)} for value in (1, 2)]
    seen = statistics.collect(model, ["y"], items, threads=1)
    assert seen.extremes["y"].tolist() == [[1, 1], [2, 2]]


def test_samples_are_taken_one_at_a_time(model: onnx.ModelProto) -> None:
    taken: list[int] = []
    observed: list[int] = []

    def stream() -> Iterator[dict[str, Array]]:
        for index, batch in enumerate(batches(rows(5), 1)):
            taken.append(index)
            assert len(taken) - len(observed) <= 1
            yield batch

    statistics.collect(model, TENSORS, stream(), threads=1, on_sample=observed.append)
    assert observed == list(range(1, COUNT + 1))
