"""Parity cases on disk."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from onnxmill.calibration.samples import Array
from onnxmill.tasks import cases
from onnxmill.tasks.cases import Case

ARRAYS = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9_./-]{0,8}", fullmatch=True).filter(lambda name: not name.endswith((".npy", "/"))),
    st.sampled_from([np.float32, np.int64, np.bool_, np.float16]).flatmap(
        lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(["real", "random"]), ARRAYS, ARRAYS), max_size=4))
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, given_cases: list[tuple[cases.Kind, dict[str, Array], dict[str, Array]]]
) -> None:
    folder = tmp_path_factory.mktemp("cases")
    written = [Case(*parts) for parts in given_cases]
    with zipfile.ZipFile(folder / cases.FILE, "w") as archive:
        for index, case in enumerate(written):
            cases.append(archive, index, case)
    found = list(cases.read(folder))
    assert [case.kind for case in found] == [case.kind for case in written]
    for before, after in zip(written, found, strict=True):
        for was, now in ((before.inputs, after.inputs), (before.outputs, after.outputs)):
            assert list(was) == list(now)
            for name in was:
                assert was[name].dtype == now[name].dtype
                np.testing.assert_array_equal(was[name], now[name])


def test_the_file_opens_in_numpy(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / cases.FILE, "w") as archive:
        cases.append(archive, 7, Case("real", {"x": np.ones(2)}, {"y": np.zeros(3)}))
    with np.load(tmp_path / cases.FILE) as loaded:
        assert sorted(loaded.files) == ["007-real/input/x", "007-real/output/y"]
