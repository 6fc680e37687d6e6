"""Samples on disk: checked one by one, the same bytes for the same samples, memory that does not grow."""

import itertools
import json
import tracemalloc
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from onnxmill.calibration import samples
from onnxmill.calibration.samples import (
    Array,
    Expected,
    Sample,
    batches,
    check,
    check_label,
    count_batches,
    read,
    read_shapes,
    sha256,
    write,
)
from onnxmill.tasks.errors import InputError

KEY = "data.calibration"
IMAGE = {"image": Expected("float32", ("batch", 2, 3))}
TEXT = {"ids": Expected("int64", (1, "length")), "mask": Expected("bool", (1, "length"))}


def image(value: float = 0.0) -> Array:
    return np.full((1, 2, 3), value, np.float32)


def written(
    folder: Path,
    items: object,
    expected: Mapping[str, Expected] = IMAGE,
    *,
    limit: int | None = None,
    labelled: bool = False,
) -> list[Sample]:
    folder.mkdir(exist_ok=True)
    count = write(KEY, items, expected, folder, limit=limit, labelled=labelled)  # type: ignore[arg-type]  # also bad ones
    kept = list(read(folder))
    assert count == len(kept) == len(samples.hashes(folder))
    return kept


# --- what is sound ---------------------------------------------------------------------------------------------------


def test_samples_come_back_as_they_were(tmp_path: Path) -> None:
    kept = written(tmp_path, ({"image": image(i)} for i in range(12)))
    assert [float(sample.inputs["image"][0, 0, 0]) for sample in kept] == list(range(12))
    assert kept[0].inputs["image"].dtype == np.float32
    assert kept[0].label is None


def test_inputs_come_back_in_the_specs_order(tmp_path: Path) -> None:
    item = {"mask": np.ones((1, 4), bool), "ids": np.arange(4)[np.newaxis]}
    (sample,) = written(tmp_path, [item], TEXT)
    assert list(sample.inputs) == ["ids", "mask"]
    assert sample.inputs["mask"].dtype == bool


@pytest.mark.parametrize(
    "label", [3, 2.5, True, "cat", np.int64(3), np.array([0, 1, 0]), [0.5, 0.25], [[1, 2], [3, 4]]]
)
def test_labels_are_numbers_words_or_arrays(tmp_path: Path, label: object) -> None:
    (sample,) = written(tmp_path, [({"image": image()}, label)], labelled=True)
    assert sample.label is not None
    assert np.array_equal(sample.label, np.asarray(label))


def test_names_may_hold_a_slash_and_a_colon(tmp_path: Path) -> None:
    expected = {"serving/x:0": Expected("float32", (1,)), "serving/y.npy": Expected("float32", (1,))}
    item = {"serving/x:0": np.ones(1, np.float32), "serving/y.npy": np.zeros(1, np.float32)}
    (sample,) = written(tmp_path, [item], expected)
    assert list(sample.inputs) == list(expected)


def test_a_scalar_input_stays_a_scalar(tmp_path: Path) -> None:
    (sample,) = written(tmp_path, [{"t": np.float32(0.5)}], {"t": Expected("float32", ())})
    assert sample.inputs["t"].shape == ()


def test_lengths_may_differ_from_sample_to_sample(tmp_path: Path) -> None:
    items = [{"ids": np.zeros((1, n), np.int64), "mask": np.ones((1, n), bool)} for n in (3, 7)]
    assert [sample.inputs["ids"].shape for sample in written(tmp_path, items, TEXT)] == [(1, 3), (1, 7)]


def test_no_more_than_the_limit_is_taken(tmp_path: Path) -> None:
    taken = []

    def endless() -> Iterator[dict[str, Array]]:
        while True:
            taken.append(1)
            yield {"image": image()}

    assert len(written(tmp_path, endless(), limit=5)) == 5
    assert len(taken) == 5


def test_fewer_than_the_limit_are_fewer(tmp_path: Path) -> None:
    assert len(written(tmp_path, [{"image": image()}], limit=5)) == 1


def test_progress_is_told_after_each_sample(tmp_path: Path) -> None:
    seen: list[int] = []
    items = [{"image": image()}] * 3
    write(KEY, items, IMAGE, tmp_path, limit=None, labelled=False, on_sample=seen.append)
    assert seen == [1, 2, 3]


def test_numpy_opens_the_file(tmp_path: Path) -> None:
    written(tmp_path, [({"image": image(7)}, 3)], labelled=True)
    with np.load(tmp_path / samples.FILE) as archive:
        assert archive.files == ["000000/@label", "000000/image"]
        assert archive["000000/image"].max() == 7


# --- the same bytes --------------------------------------------------------------------------------------------------


def test_equal_samples_give_equal_bytes(tmp_path: Path) -> None:
    fortran = np.asfortranarray(image())
    strided = np.zeros((1, 2, 6), np.float32)[:, :, ::2]
    for name, array in {"plain": image(), "fortran": fortran, "strided": strided}.items():
        written(tmp_path / name, [({"image": array}, array)], labelled=True)
    files = {(tmp_path / name / samples.FILE).read_bytes() for name in ("plain", "fortran", "strided")}
    assert len(files) == 1
    assert len({(tmp_path / name / samples.MANIFEST).read_bytes() for name in ("plain", "fortran")}) == 1


def test_the_files_hold_no_date(tmp_path: Path) -> None:
    written(tmp_path, [{"image": image()}])
    with zipfile.ZipFile(tmp_path / samples.FILE) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_a_digest_is_of_the_inputs_whatever_their_order() -> None:
    a, b = np.zeros(2, np.float32), np.ones(2, np.float32)
    assert sha256({"a": a, "b": b}) == sha256({"b": b, "a": a})
    assert sha256({"x": np.asfortranarray(np.eye(3)[:2])}) == sha256({"x": np.eye(3)[:2]})


def test_each_part_of_the_inputs_counts_in_the_digest() -> None:
    zeros = np.zeros(4, np.float32)
    digests = [
        sha256({"a": zeros}),
        sha256({"b": zeros}),
        sha256({"a": zeros.reshape(2, 2)}),
        sha256({"a": zeros.astype(np.int32)}),
        sha256({"a": zeros, "b": zeros}),
        sha256({"a": np.array([0, 0, 0, 1e-30], np.float32)}),
    ]
    assert len(set(digests)) == len(digests)


def test_the_label_is_no_part_of_the_digest(tmp_path: Path) -> None:
    written(tmp_path / "a", [({"image": image()}, 1)], labelled=True)
    written(tmp_path / "b", [{"image": image()}])
    assert samples.hashes(tmp_path / "a") == samples.hashes(tmp_path / "b") == [sha256({"image": image()})]
    assert json.loads((tmp_path / "a" / samples.MANIFEST).read_text()) == [sha256({"image": image()})]


DTYPES = ["float16", "float32", "float64", "int8", "int64", "uint8", "bool"]


@given(
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: npst.arrays(
            dtype, st.tuples(st.just(1), st.integers(1, 3)), elements=npst.from_dtype(np.dtype(dtype))
        )
    )
)
def test_any_finite_array_survives(tmp_path_factory: pytest.TempPathFactory, array: Array) -> None:
    expected = {"x": Expected(array.dtype.name, ("batch", "n"))}
    folder = tmp_path_factory.mktemp("any")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        with pytest.raises(InputError, match="not finite"):
            written(folder, [{"x": array}], expected)
        return
    (sample,) = written(folder, [{"x": array}], expected)
    assert sample.inputs["x"].dtype == array.dtype
    assert np.array_equal(sample.inputs["x"], array)


# --- what is not sound -----------------------------------------------------------------------------------------------


class NeedsGrad:
    """Refuses to be an array, as a torch tensor that needs its gradient does."""

    def __array__(self, dtype: object = None, copy: object = None) -> Array:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad")


BAD: dict[str, tuple[object, list[str]]] = {
    "None": (None, ["must be a mapping {input: array}", "NoneType"]),
    "a bare array": (image(), ["must be a mapping", "ndarray"]),
    "a pair": (({"image": image()}, 3), ["must be a mapping", "tuple"]),
    "a word": ("image", ["must be a mapping", "str"]),
    "empty": ({}, ["lacks input 'image'; it has []"]),
    "a misspelt name": ({"imgae": image()}, ["'imgae'", "did you mean 'image'?", "Choices: image"]),
    "one name too many": ({"image": image(), "mask": image()}, ["'mask'", "has an input that the spec does not"]),
    "a name that is a number": ({0: image()}, ["has an input that the spec does not", "0"]),
    "float64": ({"image": image().astype(np.float64)}, ["'image'", "dtype float64, must be float32"]),
    "uint8": ({"image": image().astype(np.uint8)}, ["dtype uint8, must be float32"]),
    "big-endian": ({"image": image().astype(">f4")}, ["must be float32"]),
    "a list of numbers": ({"image": [[1.0]]}, ["dtype float64, must be float32"]),
    "an object": ({"image": object()}, ["dtype object, must be float32"]),
    "None in it": ({"image": None}, ["dtype object, must be float32"]),
    "a ragged list": ({"image": [[1.0], [1.0, 2.0]]}, ["input 'image' is no array; it is a list"]),
    "a tensor that needs grad": ({"image": NeedsGrad()}, ["is no array; it is a NeedsGrad", "requires grad"]),
    "no batch axis": ({"image": image()[0]}, ["shape [2, 3], must be [batch, 2, 3] with a batch of 1"]),
    "a batch of 2": ({"image": np.zeros((2, 2, 3), np.float32)}, ["shape [2, 2, 3], must be [batch, 2, 3]"]),
    "another size": ({"image": np.zeros((1, 2, 4), np.float32)}, ["shape [1, 2, 4], must be [batch, 2, 3]"]),
    "an axis too many": ({"image": np.zeros((1, 2, 3, 1), np.float32)}, ["shape [1, 2, 3, 1]"]),
    "NaN": ({"image": image(np.nan)}, ["input 'image' holds 6 values that are not finite"]),
    "infinite": ({"image": np.where(np.eye(2, 3)[None] > 0, np.inf, 0).astype(np.float32)}, ["holds 2 values"]),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("index", [0, 3])
def test_a_bad_sample_is_named_by_its_index(tmp_path: Path, name: str, index: int) -> None:
    bad, words = BAD[name]
    with pytest.raises(InputError) as caught:
        written(tmp_path, [{"image": image()}] * index + [bad])
    assert str(caught.value).startswith(f"{KEY}: ")
    assert f"sample {index}" in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_bad_sample_is_named_as_the_caller_says(tmp_path: Path) -> None:
    items = [{"image": image()}, {"image": image(np.nan)}]
    with pytest.raises(InputError) as caught:
        write(
            KEY,
            items,
            IMAGE,
            tmp_path,
            limit=None,
            labelled=False,
            named=lambda i: f"sample {7 * i} (cats/{7 * i}.jpg)",
        )
    assert str(caught.value) == (
        "data.calibration: sample 7 (cats/7.jpg), input 'image' holds 6 values that are not finite"
    )


def test_an_empty_axis_is_no_size_of_a_dim(tmp_path: Path) -> None:
    item = {"ids": np.zeros((1, 0), np.int64), "mask": np.zeros((1, 0), bool)}
    with pytest.raises(InputError, match=r"shape \[1, 0\]"):
        written(tmp_path, [item], TEXT)


@pytest.mark.parametrize("item", [{"image": image()}, ({"image": image()},), [{"image": image()}, 3], None, "ab"])
def test_a_labelled_sample_is_a_pair(tmp_path: Path, item: object) -> None:
    with pytest.raises(InputError, match=r"sample 0 must be a pair \(\{input: array\}, label\)"):
        written(tmp_path, [item], labelled=True)


@pytest.mark.parametrize("label", [None, object(), {"a": 1}, [1, None], [[1], [1, 2]], b"cat", 1j])
def test_a_label_that_cannot_be_kept(label: object) -> None:
    with pytest.raises(InputError, match="sample 4") as caught:
        check_label(KEY, "sample 4", label)
    assert type(label).__name__ in str(caught.value)


@pytest.mark.parametrize("labelled", [False, True])
def test_no_sample_at_all(tmp_path: Path, labelled: bool) -> None:
    with pytest.raises(InputError, match=r"data\.calibration: yielded no sample; give at least one"):
        written(tmp_path, iter(()), labelled=labelled)
    assert not (tmp_path / samples.MANIFEST).exists()


def test_check_does_not_change_the_users_array() -> None:
    given_array = np.asfortranarray(image(2))
    checked = check(KEY, "sample 0", {"image": given_array}, IMAGE)
    assert checked["image"].flags["C_CONTIGUOUS"]
    assert given_array.flags["F_CONTIGUOUS"]


# --- batches ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 3), max_size=12), st.integers(1, 5))
def test_batches_keep_the_order_and_never_mix_shapes(lengths: list[int], size: int) -> None:
    stream = [{"x": np.full((1, length), index)} for index, length in enumerate(lengths)]
    groups = list(batches(iter(stream), size))
    assert [int(inputs["x"][0, 0]) for group in groups for inputs in group] == list(range(len(lengths)))
    for group in groups:
        assert 1 <= len(group) <= size
        assert len({inputs["x"].shape for inputs in group}) == 1
    for group, after in itertools.pairwise(groups):  # none is cut short without need
        assert len(group) == size or group[0]["x"].shape != after[0]["x"].shape
    assert count_batches(({"x": (1, length)} for length in lengths), size) == len(groups)


def test_shapes_are_those_of_the_inputs_alone(tmp_path: Path) -> None:
    items = [({"ids": np.zeros((1, n), np.int64), "mask": np.ones((1, n), bool)}, n) for n in (3, 7)]
    written(tmp_path, items, TEXT, labelled=True)
    assert list(read_shapes(tmp_path)) == [{"ids": (1, 3), "mask": (1, 3)}, {"ids": (1, 7), "mask": (1, 7)}]


# --- memory ----------------------------------------------------------------------------------------------------------


def peak_mb(folder: Path, count: int) -> tuple[float, float]:
    """The peaks of writing and of reading `count` samples of 0.2 MB each."""
    folder.mkdir()
    expected = {"image": Expected("float32", (1, 50_000))}
    items = ({"image": np.full((1, 50_000), i, np.float32)} for i in range(count))
    peaks = []
    for work in (
        lambda: write(KEY, items, expected, folder, limit=None, labelled=False),
        lambda: sum(float(sample.inputs["image"][0, 0]) for sample in read(folder)),
    ):
        tracemalloc.start()
        work()
        peaks.append(tracemalloc.get_traced_memory()[1] / 2**20)
        tracemalloc.stop()
    return peaks[0], peaks[1]


def test_memory_does_not_grow_with_the_number_of_samples(tmp_path: Path) -> None:
    few, many = peak_mb(tmp_path / "few", 50), peak_mb(tmp_path / "many", 400)
    assert few[0] > 0.2  # a sample was seen
    for before, after in zip(few, many, strict=True):
        assert after < before + 1.0  # 350 samples more are 67 MB
