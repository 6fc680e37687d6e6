"""The CPU session: threads and spinning as asked, the right input chosen, real latencies, placement as
recorded."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import parser

from onnxmill.tasks.errors import InputError
from onnxmill.tasks.targets import TARGETS
from onnxmill.tasks.targets.cpu import Session, open_session, options

MODEL = """<ir_version: 8, opset_import: ["": 18]>
g (float[batch, 4] x, float[batch, length] "scope/mask") => (float[batch, 4] y) {
  zero = Constant <value = float {0.0}> ()
  sum = ReduceSum <keepdims = 1, noop_with_empty_axes = 0> ("scope/mask")
  nothing = Mul (sum, zero)
  r = Relu (x)
  y = Add (r, nothing)
}"""

Arrays = dict[str, npt.NDArray[np.float32]]


def case(batch: int, length: int, value: float) -> Arrays:
    return {"x": np.full((batch, 4), value, np.float32), "scope/mask": np.ones((batch, length), np.float32)}


def write_cases(path: Path, cases: list[Arrays]) -> Path:
    members = {f"{i:06}/input/{name}": array for i, feed in enumerate(cases) for name, array in feed.items()}
    outputs = {f"{i:06}/output/y": feed["x"] for i, feed in enumerate(cases) if "x" in feed}
    np.savez(path, **members, **outputs)  # type: ignore[arg-type]
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(parser.parse_model(MODEL), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def opened(model: Path, cases: list[Arrays], **dims: int) -> Session:
    return open_session(model, write_cases(model.with_name("cases.npz"), cases), dims, threads=1)


def feed_of(session: Session) -> dict[str, tuple[tuple[int, ...], float]]:
    return {name: (array.shape, float(array.flat[0])) for name, array in session._feed.items()}


def test_options_fix_threads_and_stop_spinning() -> None:
    chosen = options(3)
    assert (chosen.intra_op_num_threads, chosen.inter_op_num_threads) == (3, 1)
    assert chosen.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert chosen.get_session_config_entry("session.inter_op.allow_spinning") == "0"


def test_the_first_case_of_the_measured_sizes_is_taken(model: Path) -> None:
    cases = [case(8, 5, 1.0), case(2, 5, 2.0), case(2, 7, 3.0), case(2, 7, 4.0)]
    assert feed_of(opened(model, cases, batch=2, length=7)) == {
        "x": ((2, 4), 3.0),
        "scope/mask": ((2, 7), 1.0),
    }


def test_a_dimension_that_is_not_among_the_measured_ones_takes_any_size(model: Path) -> None:
    assert feed_of(opened(model, [case(8, 5, 1.0), case(2, 5, 2.0)], batch=2))["x"] == ((2, 4), 2.0)


def test_without_a_case_of_the_sizes_the_first_is_repeated_or_cut(model: Path) -> None:
    first = case(2, 5, 1.0)
    first["x"][1] = 9.0
    session = opened(model, [first, case(2, 6, 2.0)], batch=5, length=3)
    assert session._feed["x"][:, 0].tolist() == [1.0, 9.0, 1.0, 9.0, 1.0]
    assert session._feed["scope/mask"].shape == (5, 3)
    assert session.loaded().batch == 5
    session.measure(0.0, 1)  # it runs


@pytest.mark.parametrize(
    ("cases", "message"),
    [
        ([], "at least one parity case"),
        ([{"x": np.ones((1, 4), np.float32)}], r"case 000000: \['scope/mask'\]: must have every input"),
        (
            [{**case(1, 5, 1.0), "x": np.ones(4, np.float32)}],
            r"input x: \[4\]: must have a shape of \[1, 4\]",
        ),
    ],
)
def test_cases_that_do_not_fit_the_model_are_an_input_error(model: Path, cases: list[Arrays], message: str) -> None:
    with pytest.raises(InputError, match=message):
        opened(model, cases, batch=1, length=5)


def test_loaded_tells_load_time_batch_and_placement(model: Path) -> None:
    loaded = opened(model, [case(8, 5, 1.0)], batch=8, length=5).loaded()
    assert loaded.load_ms > 0
    assert loaded.batch == 8
    assert loaded.placement == {"CPUExecutionProvider": 1.0} == dict.fromkeys(TARGETS["cpu"].providers, 1.0)


def test_warm_up_runs_at_least_two_windows_even_without_time(model: Path) -> None:
    session = opened(model, [case(1, 5, 1.0)], batch=1, length=5)
    assert session.warm_up(0.0) >= 6


def test_a_round_times_every_run_for_as_long_as_asked(model: Path) -> None:
    session = opened(model, [case(1, 5, 1.0)], batch=1, length=5)
    latencies = session.measure(0.05, 3).latencies_ms
    assert len(latencies) > 20
    assert min(latencies) > 0
    assert 10 < sum(latencies) < 50 + max(latencies)  # ms: the time between runs is not in it
    assert len(session.measure(0.0, 4).latencies_ms) == 4
