"""Parity: the numbers, against direct computations and by property; and a model for every gate that refuses."""

import itertools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from onnxmill.tasks import parity
from onnxmill.tasks.findings import refused
from onnxmill.tasks.parity import DEFAULT_GATES, OutputParity, compare, effective_gate, judge
from onnxmill.tasks.spec import Gate, RecipeName

Array = npt.NDArray[np.float64]
EVERY_GATE = Gate(max_rel=1e-9, min_cosine=0.999999999, min_sqnr_db=250.0, min_argmax_agreement=1.0)

FINITE = st.floats(-1e300, 1e300, allow_subnormal=False)
MATRICES = arrays.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 5)), elements=FINITE)
PLAIN = arrays.arrays(np.float64, (3, 4), elements=st.floats(-1e6, 1e6, allow_subnormal=False))


def one(reference: npt.ArrayLike, output: npt.ArrayLike) -> OutputParity:
    found, _ = compare(["y"], [{"y": np.asarray(reference)}], [{"y": np.asarray(output)}])
    return found.outputs[0]


def faults(reference: npt.ArrayLike, output: npt.ArrayLike, gate: Gate = EVERY_GATE) -> list[str]:
    """Codes of all findings of comparing and judging."""
    found, findings = compare(["y"], [{"y": np.asarray(reference)}], [{"y": np.asarray(output)}])
    return [f.code for f in (*findings, *judge(found, gate))]


@given(st.lists(MATRICES, min_size=1, max_size=3))
def test_identical_arrays_pass_every_gate(stack: list[Array]) -> None:
    both = [{"y": array} for array in stack]
    found, findings = compare(["y"], both, [{"y": array.copy()} for array in stack])
    assert not findings
    assert judge(found, EVERY_GATE) == []
    assert found.cases == len(stack)
    assert found.outputs[0].sqnr_db == parity.SQNR_EXACT_DB


@given(PLAIN, arrays.arrays(np.float64, (3, 4), elements=st.floats(-1, 1)), st.integers(1, 1000))
def test_the_error_scales_with_what_is_added(reference: Array, noise: Array, factor: int) -> None:
    assume(np.abs(noise).max() > 1e-3)
    once, scaled = one(reference, reference + noise), one(reference, reference + factor * noise)
    assert once.max_abs is not None
    assert scaled.max_abs == pytest.approx(factor * once.max_abs, rel=1e-5)
    assert once.max_rel is not None
    assert scaled.max_rel == pytest.approx(factor * once.max_rel, rel=1e-5)


@given(PLAIN, PLAIN, st.integers(-100, 100))
def test_relative_numbers_do_not_depend_on_the_unit(reference: Array, output: Array, power: int) -> None:
    assume(np.abs(reference).max() > 1e-3)
    unit = 10.0**power
    plain, scaled = one(reference, output), one(reference * unit, output * unit)
    for number in ("max_rel", "cosine", "sqnr_db"):
        assert getattr(scaled, number) == pytest.approx(getattr(plain, number), rel=1e-6, abs=1e-6)


@given(MATRICES, st.data(), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_a_value_that_is_not_finite_never_passes(reference: Array, data: st.DataObject, bad: float) -> None:
    output = reference.copy()
    output.flat[data.draw(st.integers(0, output.size - 1))] = bad
    codes = faults(reference, output)
    assert "CON008" in codes
    assert "GATE001" in codes
    found = one(reference, output)
    assert found.max_abs is found.max_rel is found.cosine is found.sqnr_db is None
    for gate in (Gate(max_rel=1e300), Gate(min_cosine=-1), Gate(min_sqnr_db=-1e300), Gate(min_argmax_agreement=0)):
        assert refused(judge(compare(["y"], [{"y": reference}], [{"y": output}])[0], gate))


def test_not_finite_in_the_reference_must_be_the_same_in_the_output() -> None:
    reference = [[1.0, np.inf, np.nan, -2.0]]
    assert faults(reference, reference) == []
    assert "CON008" in faults(reference, [[1.0, 5.0, np.nan, -2.0]])
    assert "CON008" in faults(reference, [[1.0, -np.inf, np.nan, -2.0]])
    assert "GATE007" in faults([[np.nan, np.nan]], [[np.nan, np.nan]])  # nothing finite was compared


@given(arrays.arrays(np.float64, (4, 3), elements=st.floats(-100, 100), unique=True), st.permutations(range(4)))
def test_permuted_rows_do_not_pass(reference: Array, order: list[int]) -> None:
    assume(order != sorted(order))
    assert "GATE001" in faults(reference, reference[order])


def test_sqnr_and_the_others_against_direct_computations() -> None:
    random = np.random.default_rng(1)
    cases = [(r, r + 0.01 * random.standard_normal(r.shape)) for r in (random.standard_normal((2, n)) for n in (3, 5))]
    found, _ = compare(["y"], [{"y": r} for r, _ in cases], [{"y": o} for _, o in cases])
    ref = np.concatenate([r.ravel() for r, _ in cases])
    out = np.concatenate([o.ravel() for _, o in cases])
    row = found.outputs[0]
    assert row.sqnr_db == pytest.approx(10 * np.log10((ref**2).sum() / ((out - ref) ** 2).sum()))
    assert row.cosine == pytest.approx(ref @ out / np.sqrt((ref @ ref) * (out @ out)))
    assert row.max_abs == pytest.approx(np.abs(out - ref).max())
    assert row.max_rel == pytest.approx(np.abs(out - ref).max() / np.ptp(ref))


def test_argmax_agreement_counts_rows_over_all_cases() -> None:
    reference = [{"y": np.eye(3)}, {"y": np.array([[0.0, 1.0]])}]
    output = [{"y": np.eye(3)[[0, 2, 2]]}, {"y": np.array([[1.0, 0.0]])}]
    assert compare(["y"], reference, output)[0].outputs[0].argmax_agreement == 0.5
    assert one([[1.0], [2.0]], [[1.0], [2.0]]).argmax_agreement is None  # one class has no argmax
    assert faults([[1.0], [2.0]], [[1.0], [2.0]], Gate(min_argmax_agreement=1.0)) == []


@pytest.mark.parametrize(
    ("value", "output", "passes"),
    [
        (5.0, 5.0, True),
        (5.0, 5.0 + 1e-6, True),
        (5.0, 5.5, False),  # no range: relative to the value itself
        (0.0, 0.0, True),
        (0.0, 0.5, False),
        (0.0, -1e-30, False),  # against nothing, any value is all error
    ],
)
def test_constant_outputs(value: float, output: float, passes: bool) -> None:
    codes = faults(np.full((3, 2), value), np.full((3, 2), output), DEFAULT_GATES["fp32"])
    assert (codes == []) is passes


@given(st.sampled_from([1.0, 1e4, 1e8, 1e-8]))
def test_the_tolerance_is_relative_to_the_range_of_the_output(scale: float) -> None:
    logits = scale * np.array([[3.0, -1.0, 0.5], [0.1, 2.0, -2.0]])
    assert faults(logits, logits * (1 + 1e-6), DEFAULT_GATES["fp32"]) == []
    assert "GATE001" in faults(logits, logits * (1 + 1e-3), DEFAULT_GATES["fp32"])


@pytest.mark.parametrize(("names", "references", "outputs"), [([], 1, 1), (["y"], 0, 0), (["y"], 2, 1), (["y"], 0, 1)])
def test_comparing_nothing_is_refused(names: list[str], references: int, outputs: int) -> None:
    case = {"y": np.ones(2)}
    found, findings = compare(names, [case] * references, [case] * outputs)
    assert [f.code for f in findings] == ["GATE007"]
    assert [f.code for f in judge(found, Gate())] == ["GATE007"]
    assert "GATE007" in faults(np.ones((0, 3)), np.ones((0, 3)))


@pytest.mark.parametrize("shape", [(3, 2), (6,), (1, 2, 3), (2, 1), ()])
def test_shapes_that_differ_are_refused(shape: tuple[int, ...]) -> None:
    codes = faults(np.ones((2, 3)), np.ones(shape))
    assert codes[0] == "GATE008"
    assert refused(judge(compare(["y"], [{"y": np.ones((2, 3))}], [{"y": np.ones(shape)}])[0], Gate(max_rel=1.0)))


NOISE = np.array([[1.0, 0.0], [0.0, 1.0]])


@pytest.mark.parametrize(
    ("code", "gate", "output", "passing"),
    [
        ("GATE001", Gate(max_rel=0.1), NOISE + 0.2, NOISE + 0.05),
        ("GATE002", Gate(min_cosine=0.99), NOISE + 0.5, NOISE * 7.0),
        ("GATE003", Gate(min_sqnr_db=20.0), NOISE * 1.2, NOISE * 1.05),
        ("GATE004", Gate(min_argmax_agreement=0.75), NOISE[::-1], NOISE * 0.1),
    ],
)
def test_each_gate_refuses_and_names_number_and_limit(code: str, gate: Gate, output: Array, passing: Array) -> None:
    assert faults(NOISE, passing, gate) == []
    (finding,) = judge(compare(["y"], [{"y": NOISE}], [{"y": output}])[0], gate)
    assert (finding.code, finding.where, finding.severity) == (code, "output y", "refuse")
    assert finding.measured is not None
    assert finding.limit is not None
    assert f"{finding.limit:g}" in finding.message
    assert f"{finding.measured:.4g}" in finding.message


def test_every_output_is_judged() -> None:
    good, bad = np.eye(3), np.ones((3, 3))
    found, _ = compare(["a", "b"], [{"a": good, "b": good}], [{"a": good, "b": bad}])
    assert {f.where for f in judge(found, EVERY_GATE)} == {"output b"}


def test_a_variants_own_limits_replace_those_of_its_recipe_and_no_others() -> None:
    assert effective_gate("int8-static", Gate(min_sqnr_db=30.0)) == Gate(min_sqnr_db=30.0, min_cosine=0.95)
    assert effective_gate("fp32", Gate()) == DEFAULT_GATES["fp32"]


QUANTISE: dict[RecipeName, Callable[[Array], Array]] = {
    "fp32": lambda y: y.astype(np.float32).astype(np.float64),
    "fp16": lambda y: y.astype(np.float16).astype(np.float64),
    "int8-dynamic": lambda y: np.round(y * 16) / 16,
    "int8-static": lambda y: np.round(y * 16) / 16,
}


@pytest.mark.parametrize("recipe", QUANTISE)
def test_default_gates_accept_their_own_rounding_and_refuse_another_network(recipe: RecipeName) -> None:
    reference = np.random.default_rng(3).standard_normal((8, 10))
    other = np.random.default_rng(4).standard_normal((8, 10))
    assert faults(reference, QUANTISE[recipe](reference), DEFAULT_GATES[recipe]) == []
    assert faults(reference, other, DEFAULT_GATES[recipe]) != []


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64, np.uint8, np.bool_])
def test_any_dtype_is_compared_without_overflow(dtype: npt.DTypeLike) -> None:
    reference = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    assert faults(reference, reference) == []
    for row, column in itertools.product(range(2), range(3)):
        output = reference.copy()
        output[row, column] = 1 - output[row, column] if dtype is not np.bool_ else not output[row, column]
        assert "GATE001" in faults(reference, output)
        assert one(reference, output).max_abs == 1.0
