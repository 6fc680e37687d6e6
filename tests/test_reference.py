"""The reference: parity inputs that can tell models apart, and a contract completed from what was seen."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxmill.calibration import samples
from onnxmill.calibration.samples import Array, sha256
from onnxmill.tasks import cases, reference
from onnxmill.tasks.errors import InputError, StepError
from onnxmill.tasks.reference import ReferenceSettings, compute, named, parity_inputs
from onnxmill.tasks.spec import Contract, Tensor
from tests import graphs


def contract(
    inputs: Mapping[str, tuple[int | str, ...] | Tensor],
    *,
    dims: Mapping[str, tuple[int, ...]] | None = None,
    outputs: Mapping[str, Tensor] | tuple[str, ...] = (),
) -> Contract:
    tensors = {n: t if isinstance(t, Tensor) else Tensor(shape=t) for n, t in inputs.items()}
    used = {dim for t in tensors.values() for dim in t.shape if isinstance(dim, str)}
    return Contract(
        input_names=tuple(tensors),
        inputs=tensors,
        output_names=tuple(outputs),
        outputs=dict(outputs) if isinstance(outputs, Mapping) else {},
        dims=dict(dims) if dims is not None else {dim: (1, 3) for dim in sorted(used)},
        nondeterministic=False,
    )


# --- parity inputs ---------------------------------------------------------------------------------------------------


@given(
    st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(1, 4), min_size=2, max_size=3, unique=True)),
    st.sampled_from(["float32", "float64", "int64", "uint8"]),
)
def test_inputs_differ_from_each_other_and_cover_every_size(dims: dict[str, list[int]], dtype: str) -> None:
    shape = (*dims, 16)
    bounds = (0, 200) if dtype in ("int64", "uint8") else None
    tensor = Tensor.model_validate({"dtype": dtype, "shape": shape, "range": bounds})
    asked = contract({"x": tensor, "z": tensor}, dims={d: tuple(s) for d, s in dims.items()})
    made = [inputs for _, inputs in parity_inputs(asked, None)]
    digests = [sha256({"array": array}) for inputs in made for array in inputs.values()]
    assert len(set(digests)) == len(digests)  # neither two cases nor two inputs of a case are alike
    for axis, sizes in enumerate(dims.values()):
        assert {inputs["x"].shape[axis] for inputs in made} == set(sizes)
    assert all(array.dtype == dtype for inputs in made for array in inputs.values())
    assert made[0]["x"].shape[:-1] == tuple(sizes[0] for sizes in dims.values())  # the sizes that are measured
    again = [inputs for _, inputs in parity_inputs(asked, None)]
    assert all(np.array_equal(a["x"], b["x"]) for a, b in zip(made, again, strict=True))


@given(st.integers(2, 4))
def test_no_dim_always_equals_another_nor_stays_as_it_was(count: int) -> None:
    names = [f"d{i}" for i in range(count)]
    seen = [inputs["x"].shape for _, inputs in parity_inputs(contract({"x": tuple(names)}), None)]
    for first in range(count):
        for second in range(first):
            assert any(shape[first] != shape[second] for shape in seen)
    assert (3,) * count in seen


def test_real_samples_come_first_stacked_and_each_once(tmp_path: Path) -> None:
    real = graphs.write_samples(tmp_path / "real", [{"x": np.full((1, 2), i, np.float32)} for i in range(20)])
    made = list(parity_inputs(contract({"x": ("batch", 2)}), real))
    kinds = [kind for kind, _ in made]
    assert kinds == ["real"] * 4 + ["random"] * 2 + ["real"] * 4 + ["random"] * 2
    rows = [row for kind, inputs in made if kind == "real" for row in inputs["x"][:, 0].tolist()]
    assert rows == list(range(16))
    for kind, inputs in made:
        if kind == "random":  # over the real range
            assert inputs["x"].min() >= 0
            assert inputs["x"].max() <= 19


def test_samples_of_several_shapes_are_all_used_and_not_mixed(tmp_path: Path) -> None:
    lengths = [3, 5, 3, 4, 7, 6, 8, 9]
    folder = tmp_path / "real"
    folder.mkdir()
    items = [{"x": np.full((1, n), i, np.float32)} for i, n in enumerate(lengths)]
    samples.write(
        "data", items, {"x": samples.Expected("float32", ("batch", "length"))}, folder, limit=None, labelled=False
    )
    made = list(parity_inputs(contract({"x": ("batch", "length")}), folder))
    real = [inputs["x"] for kind, inputs in made if kind == "real"]
    assert {len(x) for x in real} == {1, 3}
    assert {x.shape[1] for x in real} == set(lengths)
    assert {float(value) for x in real for value in x[:, 0]} == set(range(len(lengths)))
    assert all(lengths[int(row[0])] == len(row) for x in real for row in x)


def test_a_source_that_gives_nothing_finite_is_refused(tmp_path: Path) -> None:
    model = graphs.parse(
        "g (float[batch,3] x) => (float[batch,3] y) { m = Abs(x) n = Neg(m) o = Sub(n, m) y = Log(o) }"
    )
    with pytest.raises(InputError, match="gives no finite value for output 'y'"):
        graphs.ready(tmp_path, model)


@pytest.mark.parametrize(("range_", "low", "high"), [((3, 7), 3, 6), ((-2, 0), -2, -1)])
def test_integers_fill_their_range(range_: tuple[float, float], low: int, high: int) -> None:
    ids = Tensor(dtype="int64", shape=("batch", 50), range=range_)
    made = np.concatenate([inputs["ids"] for _, inputs in parity_inputs(contract({"ids": ids}), None)])
    assert (made.min(), made.max()) == (low, high)


def test_integers_without_a_range_take_that_of_the_samples_or_are_refused(tmp_path: Path) -> None:
    asked = contract({"ids": Tensor(dtype="int64", shape=("batch", 50))})
    with pytest.raises(InputError, match=r"inputs\.ids\.range: integers need bounds"):
        list(parity_inputs(asked, None))
    ids = [{"ids": np.arange(50, dtype=np.int64).reshape(1, 50) % 9 + 4} for _ in range(4)]
    made = list(parity_inputs(asked, graphs.write_samples(tmp_path / "real", ids)))
    random = np.concatenate([inputs["ids"] for kind, inputs in made if kind == "random"])
    assert (random.min(), random.max()) == (4, 12)


def test_bools_are_both() -> None:
    made = list(parity_inputs(contract({"mask": Tensor(dtype="bool", shape=("batch", 50))}), None))
    for _, inputs in made:
        assert inputs["mask"].dtype == np.bool_
        assert set(inputs["mask"].ravel().tolist()) == {True, False}


# --- outputs ---------------------------------------------------------------------------------------------------------

ONE, TWO = np.ones((1, 2), np.float32), np.full((1, 2), 2, np.float32)


@pytest.mark.parametrize(
    ("asked", "raw", "expected"),
    [
        ((), [("", ONE), ("", TWO)], ["output_0", "output_1"]),  # a tuple
        ((), [("a", ONE), ("b", TWO)], ["a", "b"]),  # a dict
        (("first", "second"), [("", ONE), ("", TWO)], ["first", "second"]),
        (("first", "second"), [("a", ONE), ("b", TWO)], ["first", "second"]),  # all renamed, in order
    ],
)
def test_outputs_are_named(asked: tuple[str, ...], raw: list[tuple[str, Array]], expected: list[str]) -> None:
    found = named(contract({"x": (1, 2)}, outputs=asked), raw)
    assert list(found) == expected
    assert [array[0, 0] for array in found.values()] == [1, 2]


def test_a_dict_gives_outputs_by_its_keys_whatever_the_order() -> None:
    found = named(contract({"x": (1, 2)}, outputs=("b", "a")), [("a", ONE), ("b", TWO)])
    assert [(name, array[0, 0]) for name, array in found.items()] == [("b", 2), ("a", 1)]


@pytest.mark.parametrize(
    ("asked", "raw", "message"),
    [
        (("a", "b", "c"), [("", ONE), ("", TWO)], r"gives 2 output\(s\), the spec names 3"),
        (("a",), [("", ONE), ("", TWO)], r"gives 2 output\(s\), the spec names 1"),
        (("x", "b"), [("", ONE), ("", TWO)], "inputs and outputs must all differ"),
        ((), [("a", ONE), ("a", TWO)], "must all differ"),
        ((), [], "gives no output"),
        (("b", "c"), [("a", ONE), ("b", TWO)], r"names its outputs \['a', 'b'\]"),
    ],
)
def test_names_that_do_not_fit_are_refused(asked: tuple[str, ...], raw: list[tuple[str, Array]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        named(contract({"x": (1, 2)}, outputs=asked), raw)


def test_shapes_become_fixed_sizes_dims_or_names_of_their_own(tmp_path: Path) -> None:
    ready = graphs.ready(
        tmp_path,
        """
        agraph (float[batch, length, 4] x) => (float[a, b, c] same, float[d, e] turned, int64[f, g] where, float total)
        <int64[2] tail = {-1, 4}, int64[1] flat = {-1}> {
          same = Relu(x)
          rows = Reshape(x, tail)
          turned = Transpose(rows)
          where = NonZero(x)
          total = ReduceSum<keepdims = 0>(x)
        }
        """,
    )
    outputs = {name: (tensor.dtype, tensor.shape) for name, tensor in ready.contract.outputs.items()}
    assert outputs == {
        "same": ("float32", ("batch", "length", 4)),
        "turned": ("float32", (4, "turned_1")),  # batch × length is neither
        "where": ("int64", (3, "where_1")),
        "total": ("float32", ()),
    }


def compute_gemm(folder: Path, **outputs: Tensor) -> Contract:
    """The Gemm's completed contract, with these outputs declared."""
    made = graphs.ready(folder, graphs.GEMM)
    asked = made.contract.model_copy(update={"output_names": tuple(outputs), "outputs": outputs})
    again = folder / "again"
    again.mkdir()
    with graphs.user_code(made.model):
        return compute(ReferenceSettings(source=graphs.SOURCE, contract=asked), made.model, again).contract


def test_declared_outputs_hold(tmp_path: Path) -> None:
    declared = Tensor(dtype="float32", shape=("batch", 2))
    assert compute_gemm(tmp_path, y=declared).outputs == {"y": declared}


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (Tensor(dtype="int64", shape=("batch", 2)), r"outputs\.y\.dtype: 'int64': the model gives float32"),
        (Tensor(shape=("batch", 3)), r"outputs\.y\.shape: \['batch', 3\]: axis 1 of the model is 2"),
        (Tensor(shape=(1, 2)), r"axis 0 of the model is batch"),
        (Tensor(shape=("batch",)), "the model gives 2 axes"),
        (Tensor(shape=("batch", "batch")), "axis 1 of the model is 2"),
    ],
)
def test_declared_outputs_that_are_wrong_are_refused(tmp_path: Path, declared: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        compute_gemm(tmp_path, y=declared)


def test_a_number_of_axes_that_changes_is_an_error() -> None:
    seen: list[tuple[dict[str, int], Array]] = [({"batch": 1}, np.ones(2)), ({"batch": 3}, np.ones((3, 2)))]
    with pytest.raises(StepError, match=r"output 'y' has \[1, 2\] axes"):
        reference._output("y", contract({"x": ("batch", 2)}), seen)


def test_what_the_model_does_not_take_is_the_specs_fault(tmp_path: Path) -> None:
    made = graphs.ready(tmp_path, graphs.GEMM)
    asked = made.contract.model_copy(update={"inputs": {"x": Tensor(shape=("batch", 5))}})
    settings = ReferenceSettings(source=graphs.SOURCE, contract=asked)
    with graphs.user_code(made.model), pytest.raises(InputError, match=r"inputs: the model does not take"):
        compute(settings, made.model, tmp_path, None)


def test_cases_on_disk_are_the_models_own_outputs(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, graphs.GEMM)
    weight = np.array([[1, -2], [3, -4], [5, -6], [7, -8]], np.float32)
    read = list(cases.read(ready.reference))
    assert [case.inputs["x"].shape[0] for case in read] == [1, 1, 3, 3]
    for case in read:
        expected = case.inputs["x"].astype(np.float32) @ weight + [1, -1]
        np.testing.assert_allclose(case.outputs["y"].astype(np.float32), expected, rtol=1e-5, atol=1e-5)


# --- a reference that the user gives ---------------------------------------------------------------------------------

X, Y = np.ones((2, 4), np.float32), np.array([[17, -21], [17, -21]], np.float32)  # what GEMM gives


def with_reference(folder: Path, **arrays: Array) -> reference.Reference:
    """The reference of the model GEMM with the user's file of these arrays."""
    ready = graphs.ready(folder, graphs.GEMM)
    np.savez(ready.model / "outputs.npz", allow_pickle=False, **arrays)
    source = graphs.SOURCE.model_copy(update={"reference": "outputs.npz"})
    (folder / "out").mkdir()
    asked = ready.contract.model_copy(update={"output_names": (), "outputs": {}})
    with graphs.user_code(ready.model):
        return compute(ReferenceSettings(source=source, contract=asked), ready.model, folder / "out")


@pytest.mark.parametrize("prefix", ["", "first/"])
def test_a_given_reference_comes_first_and_is_what_counts(tmp_path: Path, prefix: str) -> None:
    seen = with_reference(tmp_path, **{f"{prefix}input/x": X, f"{prefix}output/y": Y + 1})
    first = next(iter(cases.read(tmp_path / "out")))
    assert (first.kind, first.outputs["y"].tolist()) == ("real", [[18, -20], [18, -20]])  # not what the model gives
    assert (seen.real_cases, seen.note) == (1, "proven against outputs.npz")
    assert seen.random_cases == 4


def test_without_one_an_onnx_file_is_proven_against_itself_only(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, graphs.GEMM)
    (tmp_path / "out").mkdir()
    with graphs.user_code(ready.model):
        seen = compute(ReferenceSettings(source=graphs.SOURCE, contract=ready.contract), ready.model, tmp_path / "out")
    assert "against itself only" in seen.note


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "holds no case"),
        ({"input/x": X}, "case 0 holds no output"),
        ({"output/y": Y}, "sample 0 lacks input 'x'"),
        ({"input/x": X.astype(np.float64), "output/y": Y}, "dtype float64, must be float32"),
        ({"input/x": X[:, :3], "output/y": Y}, r"shape \[2, 3\], must be \[batch, 4\]"),
        ({"input/x": X, "input/z": X, "output/y": Y}, "'z'"),
        ({"input/x": X, "output/y": Y, "output/z": Y}, r"gives \['y', 'z'\]|outputs"),
    ],
)
def test_a_bad_reference_is_named(tmp_path: Path, arrays: dict[str, Array], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        with_reference(tmp_path, **arrays)
    assert raised.value.key in ("source.reference", "outputs")


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_a_reference_that_is_no_archive_is_named(tmp_path: Path, content: bytes) -> None:
    ready = graphs.ready(tmp_path, graphs.GEMM)
    (ready.model / "outputs.npz").write_bytes(content)
    source = graphs.SOURCE.model_copy(update={"reference": "outputs.npz"})
    (tmp_path / "out").mkdir()
    with graphs.user_code(ready.model), pytest.raises(InputError, match=r"^source\.reference: 'outputs\.npz': is no"):
        compute(ReferenceSettings(source=source, contract=ready.contract), ready.model, tmp_path / "out")
