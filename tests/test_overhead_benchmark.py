"""The arithmetic of benchmarks/overhead.py; nothing is timed here."""

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxmill.tasks.report import ArtifactRow, Digests, MetricRow, Report, StepRow, VariantRow

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "overhead.py"
spec = importlib.util.spec_from_file_location("overhead", SCRIPT)
assert spec
assert spec.loader
overhead: Any = importlib.util.module_from_spec(spec)
sys.modules["overhead"] = overhead  # dataclasses look their module up
spec.loader.exec_module(overhead)

TASKS = ("samples", "reference", "export", "score source", "log")
INTERVALS = st.lists(st.tuples(st.sampled_from(TASKS), st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=8)


def report(steps: Iterable[StepRow] = (), variants: Iterable[VariantRow] = ()) -> Report:
    return Report(
        name="a", created_at="2026-01-01T00:00:00+00:00", sentence="", exit_code=0, spec="spec.yaml", versions={},
        machine={}, digests=Digests(source="0", data=None), opset=18, steps=tuple(steps), variants=tuple(variants),
        decisions=(),
    )  # fmt: skip


def step(name: str, seconds: float, variant: str | None = None, cached: bool = False) -> StepRow:
    return StepRow(step=name, variant=variant, seconds=seconds, cached=cached, note="")


def flow(tasks: Iterable[tuple[str, float, float]], steps: Iterable[StepRow] = ()) -> Any:
    return overhead.Flow(100.0, 10.0, 95.0, tuple(overhead.Task(*task) for task in tasks), report(steps))


def test_an_instant_is_shared_by_the_tasks_that_run_in_it() -> None:
    tasks = [overhead.Task("a", 0.0, 4.0), overhead.Task("b", 2.0, 6.0), overhead.Task("c", 8.0, 9.0)]
    assert overhead.shares(tasks) == {"a": 3.0, "b": 3.0, "c": 1.0}


@given(INTERVALS)
def test_shares_sum_to_the_time_in_which_any_task_ran(rows: list[tuple[str, int, int]]) -> None:
    tasks = [overhead.Task(f"{name} {i}", start, start + length) for i, (name, start, length) in enumerate(rows)]
    covered = {second for _, start, length in rows for second in range(start, start + length)}
    assert sum(overhead.shares(tasks).values()) == pytest.approx(len(covered))


@given(INTERVALS)
def test_a_timeline_adds_up_to_the_wall_time(rows: list[tuple[str, int, int]]) -> None:
    found = overhead.timeline(flow([(name, 10.0 + start, 10.0 + start + length) for name, start, length in rows]))
    assert sum(found.values()) == pytest.approx(100.0)
    assert found["start and imports"] == 10.0
    assert found["end"] == 5.0
    assert found["between tasks"] >= 0


def test_every_task_of_the_flow_has_a_phase() -> None:
    pytest.importorskip("prefect")
    from onnxmill.flows import steps

    policies = ("samples", "reference", "export", "pin_opset", "simplify", "score_source", "quantize", "assess")
    names = [getattr(steps, name).name for name in (*policies, "benchmark", "log", "promote")]
    assert {name.split()[0] for name in names} == set(overhead.PHASES)


def test_the_bare_timeline_adds_up_to_the_wall_time() -> None:
    found = overhead.bare_timeline(20.0, {"export": 5.0, "MLflow database": 2.0, "log": 3.0})
    assert found == {"start and imports": 12.0, "export": 5.0, "log": 3.0}


def test_children_are_counted_by_what_they_import() -> None:
    found = overhead.children(
        [
            step("export", 1.0),
            step("reference", 1.0),
            step("score", 1.0),
            step("score", 1.0, "fp16", cached=True),  # nothing was started
            step("quantize-none", 0.0, "fp32", cached=True),
            step("benchmark", 1.0, "fp32"),
            step("benchmark", 1.0, "fp16"),  # two sessions
        ]
    )
    assert found == {overhead.SOURCE: 2, "onnxmill.tasks.metric": 1, "onnxmill.tasks.targets.cpu": 3}


@pytest.mark.parametrize(("seconds", "expected"), [(0.1, 1), (4.0, 1), (5.0, 1), (8.5, 2), (12.0, 3)])
def test_attempts_of_a_benchmark(seconds: float, expected: int) -> None:
    assert overhead.attempts(seconds, 4.0) == expected


def test_causes_add_up_to_the_difference() -> None:
    steps = [step("export", 6.0), step("benchmark", 4.0, "fp32"), step("benchmark", 12.0, "fp16")]
    run = flow([("export", 10.0, 20.0), ("benchmark fp32 on cpu", 20.0, 24.0)], steps)
    pair = overhead.Pair(40.0, {"export": 3.0, "parity": 1.0, "benchmark": 4.0}, run, run, 12.0, 6.0, (0.0, 0.0))
    imports = dict.fromkeys([*overhead.CHILD_IMPORTS.values(), overhead.LOAD_BACK], 1.0)
    found = overhead.causes(pair, overhead.Costs(imports, 2.0, 0.5, 0.5, 0.25, 0.125))
    assert sum(found.values()) == pytest.approx(100.0 - 40.0)
    assert found["child processes: start and imports of 4"] == 4.0  # export, and 1 + 2 sessions
    assert found["contract checks and proofs of 1 graph(s)"] == 1.0  # 2 s, of which the bare script has 1 s as well
    assert found["benchmarks repeated because they were unstable"] == pytest.approx(12.0 * 2 / 3)


def variant(size_bytes: int, metric: float) -> VariantRow:
    return VariantRow(
        name="fp32", recipe="fp32", status="passed",
        artifact=ArtifactRow(path="fp32/model.onnx", digest="0", size_bytes=size_bytes, opset=18, ir_version=8),
        metric=MetricRow(source=metric, variant=metric, drop_interval=(0.0, 0.0), samples=10),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("bare", "fault"),
    [
        ({"fp32": {"size_bytes": 1010.0, "metric": 0.98}}, None),
        ({"fp32": {"size_bytes": 1200.0, "metric": 0.98}}, "1200 bytes"),
        ({"fp32": {"size_bytes": 1000.0, "metric": 0.5}}, "metric 0.5000"),
        ({}, "one of the two only"),
    ],
)
def test_a_bare_script_that_does_something_else_is_noticed(
    bare: dict[str, dict[str, float]], fault: str | None
) -> None:
    found = overhead.disagreements(bare, report(variants=[variant(1000, 0.98)]))
    assert len(found) == (fault is not None)
    assert fault is None or fault in found[0]


def test_spread_and_means() -> None:
    assert overhead.spread([2.0]) == "2.00"
    assert overhead.spread([1.0, 4.0, 2.0]) == "2.00 [1.00, 4.00]"
    assert overhead.means([{"a": 1.0}, {"a": 3.0, "b": 4.0}]) == {"a": 2.0, "b": 2.0}


def test_phases_are_shown_in_the_flows_order() -> None:
    mixed = ["end", "log", "parity", "start and imports", "opset", "evaluate", "opset"]
    assert overhead.ordered(mixed) == ["start and imports", "opset", "parity", "evaluate", "log", "end"]


@pytest.mark.parametrize(("again_s", "word"), [(10.0, "(below 5 s)"), (11.0, "NOT below")])
def test_the_second_run_is_judged_beyond_prefects_start(again_s: float, word: str) -> None:
    edges = {"start and imports": 5.0, "between tasks": 1.0, "end": 1.0}
    found = {
        "bare_s": [10.0], "flow_s": [20.0], "load": [(0.5, 0.5)], "again_s": [again_s], "nothing_warm_s": [6.0],
        "phases": {"bare": edges, "flow": edges, "again": edges}, "causes": {"a": 10.0},
    }  # fmt: skip
    table = overhead.tables(found)["the same command again, unchanged"]
    labels = list(table.columns[0].cells)
    assert word in str(labels[-1])
