"""Sources of arrays: rows one at a time whatever the file's form, and what is wrong with a file in one line."""

import io
import tracemalloc
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from onnxmill.calibration.samples import Array
from onnxmill.calibration.sources import Source
from onnxmill.calibration.sources_arrays import Archive, ArrayFile, Requests, Rows
from onnxmill.tasks.errors import InputError

KEY = "data.calibration"
X = np.arange(24, dtype=np.float32).reshape(6, 2, 2)
IDS = np.arange(18).reshape(6, 3)
BOTH = {"x": True, "ids": True}


def taken(source: Source) -> dict[str, Array]:
    """All samples of a source as one array an input; each had a batch axis of 1."""
    found = [source.sample(index) for index in range(len(source))]
    assert all(array.shape[0] == 1 for sample in found for array in sample.values())
    return {name: np.concatenate([sample[name] for sample in found]) for name in found[0]}


def fault(make: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        make()
    assert caught.value.key == KEY
    return str(caught.value)


# --- one array -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool", ">f4"])
def test_an_npy_is_its_rows(tmp_path: Path, order: str, dtype: str) -> None:
    np.save(tmp_path / "x.npy", np.array(X.astype(dtype), order=order))  # type: ignore[call-overload]  # C or F
    source = ArrayFile(KEY, tmp_path / "x.npy", "image")
    assert len(source) == 6
    assert list(source.sample(0)) == ["image"]
    assert source.sample(0)["image"].dtype == np.dtype(dtype)
    assert np.array_equal(taken(source)["image"], X.astype(dtype))
    assert source.label(3) is None
    assert source.origin(3) == "row 3"


def test_rows_may_be_single_values(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(4))
    assert ArrayFile(KEY, tmp_path / "x.npy", "x").sample(2)["x"].tolist() == [2]


@given(
    npst.arrays(
        st.sampled_from(["float32", "int8", "int64"]),
        npst.array_shapes(min_dims=1, max_dims=4, max_side=5),
        elements=st.integers(-100, 100),
    ),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_rows_are_numpys_in_any_order(array: Array, fortran: bool, deflated: bool, data: st.DataObject) -> None:
    file, member = io.BytesIO(), io.BytesIO()
    np.save(member, np.asfortranarray(array) if fortran else array)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED) as archive:
        archive.writestr("x.npy", member.getvalue())

    def from_archive() -> IO[bytes]:
        with zipfile.ZipFile(file) as archive:
            return archive.open("x.npy")

    for open_ in (lambda: io.BytesIO(member.getvalue()), from_archive):
        rows = Rows(KEY, "x.npz", "'x'", open_)
        assert (rows.shape, rows.dtype) == (array.shape, array.dtype)
        for index in data.draw(st.lists(st.integers(0, len(array) - 1), max_size=8)):
            assert np.array_equal(rows[index], array[index])
        assert np.array_equal(rows.whole(), array)
        rows.close()
        assert np.array_equal(rows[0], array[0])


# --- archives --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_holds_each_input_and_labels(tmp_path: Path, save: Callable[..., None]) -> None:
    save(tmp_path / "s.npz", x=X, ids=IDS, label=np.array(["a", "b", "c", "a", "b", "c"]))
    source = Archive(KEY, tmp_path / "s.npz", BOTH)
    assert len(source) == 6
    assert np.array_equal(taken(source)["x"], X)
    assert np.array_equal(taken(source)["ids"], IDS)
    assert [str(source.label(index)) for index in range(6)] == list("abcabc")
    assert source.origin(5) == "row 5"


def test_labels_may_be_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=X, label=IDS)
    assert np.array_equal(np.asarray(Archive(KEY, tmp_path / "s.npz", BOTH).label(2)), IDS[2])


def test_an_input_of_the_name_label_is_an_input(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=X, label=IDS)
    source = Archive(KEY, tmp_path / "s.npz", {"x": True, "label": True})
    assert list(source.sample(0)) == ["x", "label"]
    assert source.label(0) is None


# --- requests --------------------------------------------------------------------------------------------------------


def record(folder: Path, requests: Mapping[str, Mapping[str, Array]]) -> Path:
    for name, arrays in requests.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        np.savez(folder / name, allow_pickle=False, **arrays)
    return folder


def test_requests_are_cut_into_samples_in_the_order_of_their_names(tmp_path: Path) -> None:
    requests: dict[str, dict[str, Array]] = {
        "b.npz": {"x": X[3:4], "label": np.array([3])},
        "a.npz": {"x": X[:3], "label": np.arange(3)},
        "c/a.npz": {"x": X[4:], "label": np.array([4, 5])},
    }
    source = Requests(KEY, record(tmp_path, requests), {"x": True})
    assert np.array_equal(taken(source)["x"], X)
    assert [int(source.label(index)) for index in range(6)] == list(range(6))  # type: ignore[arg-type]  # not None
    assert [source.origin(index) for index in (0, 2, 3, 5)] == [
        "a.npz, row 0",
        "a.npz, row 2",
        "b.npz",
        "c/a.npz, row 1",
    ]


def test_an_input_without_a_batch_goes_with_each_sample_of_its_request(tmp_path: Path) -> None:
    requests: dict[str, dict[str, Array]] = {
        "a.npz": {"x": X[:2], "scale": np.array(0.5), "anchors": IDS[:2]},
        "b.npz": {"x": X[2:3], "scale": np.array(2.0), "anchors": IDS[2:4]},
    }
    source = Requests(KEY, record(tmp_path, requests), {"x": True, "scale": False, "anchors": False})
    assert [float(source.sample(index)["scale"]) for index in range(3)] == [0.5, 0.5, 2]
    assert np.array_equal(source.sample(1)["anchors"], IDS[:2])


def test_without_any_batch_a_request_is_a_sample(tmp_path: Path) -> None:
    source = Requests(KEY, record(tmp_path, {"a.npz": {"x": X}, "b.npz": {"x": X * 2}}), {"x": False})
    assert len(source) == 2
    assert np.array_equal(source.sample(1)["x"], X * 2)


def test_few_files_are_open_at_a_time(tmp_path: Path) -> None:
    source = Requests(KEY, record(tmp_path, {f"{i:03d}.npz": {"x": X, "ids": IDS} for i in range(40)}), BOTH)

    def open_files() -> int:
        return sum(".npz" in str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())

    for index in range(0, len(source), 6):
        source.sample(index)
    assert 1 <= open_files() <= 2


# --- what is wrong ---------------------------------------------------------------------------------------------------


def zipped(**entries: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name.replace("_", "."), data)
    return file.getvalue()


def npy(array: object) -> bytes:
    file = io.BytesIO()
    np.save(file, array)  # type: ignore[arg-type]  # objects too
    return file.getvalue()


def damaged(data: bytes) -> bytes:
    """One byte of the values changed: the sizes hold, the checksum does not."""
    at = data.index(np.float32(7).tobytes())
    return data[:at] + b"\xff" + data[at + 1 :]


OBJECTS = np.array([{}, None], dtype=object)
ARCHIVES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is no sound .npz file"),
    "text": (b"not a zip", "is no sound .npz file"),
    "cut": (zipped(x_npy=npy(X))[:-40], "is no sound .npz file"),
    "damaged": (damaged(zipped(x_npy=npy(X))), "is no sound .npz file: 'x.npy' is damaged"),
    "nothing in it": (zipped(), "holds no array"),
    "labels alone": (zipped(label_npy=npy(IDS)), "holds no array"),
    "a text file": (zipped(x_npy=npy(X), readme_txt=b"hi"), "holds 'readme.txt', which is no array"),
    "a member that is no array": (zipped(x_npy=b"hi"), "'x' is no .npy array"),
    "objects": (zipped(x_npy=npy(OBJECTS)), "'x' holds Python objects"),
    "labels of objects": (zipped(x_npy=npy(X[:2]), label_npy=npy(OBJECTS)), "'label' holds Python objects"),
    "a short member": (zipped(x_npy=npy(X), label_npy=npy(X)[:-4]), "'label' ends before its shape [6, 2, 2] says"),
    "a single value": (zipped(x_npy=npy(np.float32(1))), "'x' is a single value; its first axis must count"),
    "lengths": (zipped(x_npy=npy(X), ids_npy=npy(IDS[:5])), "number of samples: 'x' 6, 'ids' 5"),
    "lengths of labels": (zipped(x_npy=npy(X), label_npy=npy(IDS[:5])), "number of samples: 'x' 6, 'label' 5"),
    "no rows": (zipped(x_npy=npy(X[:0])), "holds no sample: its arrays are empty"),
    "no labels": (zipped(x_npy=npy(X), label_npy=npy(IDS[:0])), "number of samples: 'x' 6, 'label' 0"),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_bad_npz_is_one_line(tmp_path: Path, name: str) -> None:
    data, words = ARCHIVES[name]
    (tmp_path / "s.npz").write_bytes(data)
    message = fault(lambda: Archive(KEY, tmp_path / "s.npz", BOTH))
    assert message.startswith(f"{KEY}: '{tmp_path / 's.npz'}': ")
    assert words in message
    record(tmp_path / "requests", {"a.npz": {"x": X}})
    (tmp_path / "requests" / "b.npz").write_bytes(data)
    message = fault(lambda: Requests(KEY, tmp_path / "requests", BOTH))
    assert "requests/b.npz" in message
    assert words in message


NPYS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it is no .npy array"),
    "text": (b"1,2,3\n4,5,6\n", "it is no .npy array"),
    "objects": (npy(OBJECTS), "it holds Python objects"),
    "a single value": (npy(np.float32(1)), "holds no sample: its shape is [], must be [n, …]"),
    "no rows": (npy(X[:0]), "holds no sample: its shape is [0, 2, 2], must be [n, …]"),
}


@pytest.mark.parametrize("name", NPYS)
def test_a_bad_npy_is_one_line(tmp_path: Path, name: str) -> None:
    data, words = NPYS[name]
    (tmp_path / "x.npy").write_bytes(data)
    message = fault(lambda: ArrayFile(KEY, tmp_path / "x.npy", "x"))
    assert message.startswith(f"{KEY}: '{tmp_path / 'x.npy'}': ")
    assert words in message


@pytest.mark.parametrize("array", [X, np.asfortranarray(X)])
def test_an_npy_that_ends_too_early(tmp_path: Path, array: Array) -> None:
    (tmp_path / "x.npy").write_bytes(npy(array)[:-4])
    source = ArrayFile(KEY, tmp_path / "x.npy", "x")
    assert "it ends before its shape [6, 2, 2] says" in fault(lambda: source.sample(5))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "it cannot be read: No such file" in fault(lambda: ArrayFile(KEY, tmp_path / "x.npy", "x"))
    assert "is no sound .npz file: " in fault(lambda: Archive(KEY, tmp_path / "x.npz", BOTH))


def test_a_folder_without_requests(tmp_path: Path) -> None:
    assert "holds no .npz file" in fault(lambda: Requests(KEY, tmp_path, BOTH))


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [False, True])
def test_memory_is_that_of_a_row(tmp_path: Path, compressed: bool) -> None:
    big = np.zeros((64, 65536), np.float32)  # 16 MB, a row 256 KB
    np.save(tmp_path / "x.npy", big)
    (np.savez_compressed if compressed else np.savez)(tmp_path / "x.npz", x=big)
    record(tmp_path / "requests", {f"{i}.npz": {"x": big[:16]} for i in range(4)})
    del big
    sources: list[Callable[[], Source]] = [
        lambda: ArrayFile(KEY, tmp_path / "x.npy", "x"),
        lambda: Archive(KEY, tmp_path / "x.npz", {"x": True}),
        lambda: Requests(KEY, tmp_path / "requests", {"x": True}),
    ]
    for make in sources:
        tracemalloc.start()
        source = make()
        for index in range(len(source)):
            source.sample(index)
        peak_mb = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
        assert 0.25 < peak_mb < 2.5
