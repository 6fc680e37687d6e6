"""Fair measurement: one benchmark at a time, rounds in turn, numbers that follow from the latencies."""

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxmill.tasks.benchmark import Budget, lock_path, machine_slot, measure, settings
from onnxmill.tasks.errors import InputError, OnnxmillError, StepError
from onnxmill.tasks.isolate import Progress
from onnxmill.tasks.report import Measurement
from onnxmill.tasks.targets import TARGETS

CPU = TARGETS["cpu"]
SCRIPTED = replace(CPU, name="scripted", session="scripted:open_session", fidelity="simulated")
QUICK = Budget(rounds=6, seconds_per_round=0.02, warm_up_seconds=0.5)


@pytest.fixture(autouse=True)
def own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock file in a folder of the test's own, and scripted.py importable in children."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


# --- a real model ------------------------------------------------------------------------------------------


def chain(path: Path, length: int) -> Path:
    """`length` products with a [256, 256] matrix: the work grows with it, the rest stays."""
    weight = np.random.default_rng(1).normal(0, 1 / 16, (256, 256)).astype(np.float32)
    names = ["x", *(f"h{i}" for i in range(1, length)), "y"]
    nodes = "\n".join(f"{after} = MatMul ({before}, w)" for before, after in pairwise(names))
    header = 'ir_version: 8, opset_import: ["": 18]'
    model = parser.parse_model(
        f"<{header}> g (float[batch, 256] x, float[256, 256] w) => (float[batch, 256] y) {{ {nodes} }}"
    )
    model.graph.input.pop()
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(model, path)
    return path


def cases(path: Path) -> Path:
    x = np.random.default_rng(2).normal(size=(64, 256)).astype(np.float32)
    np.savez(path, **{"000000/input/x": x[:1], "000001/input/x": x})  # type: ignore[arg-type]
    return path


def measure_chains(folder: Path, baseline: int | None, variant: int, seen: list[Progress] | None = None) -> Measurement:
    return measure(
        CPU,
        variant=chain(folder / "variant.onnx", variant),
        baseline=chain(folder / "baseline.onnx", baseline) if baseline else None,
        baseline_name="fp32" if baseline else None,
        inputs=cases(folder / "cases.npz"),
        dims={"batch": 64},
        threads=1,
        budget=QUICK,
        on_progress=seen.append if seen is not None else None,
    )


def codes(measurement: Measurement) -> set[str]:
    return {f.code for f in measurement.findings}


def test_four_times_the_work_is_slower_and_the_interval_says_so(tmp_path: Path) -> None:
    result = measure_chains(tmp_path, baseline=1, variant=4)
    assert result.speedup is not None
    assert result.speedup_interval is not None
    low, high = result.speedup_interval
    assert 0 < low <= result.speedup <= high < 1
    assert "BEN002" in codes(result)
    [slower] = [f for f in result.findings if f.code == "BEN002"]
    assert (slower.measured, slower.limit, slower.severity) == (low, 1.0, "info")
    assert "against fp32" in slower.message


def test_a_quarter_of_the_work_is_faster_and_nothing_is_said(tmp_path: Path) -> None:
    seen: list[Progress] = []
    result = measure_chains(tmp_path, baseline=4, variant=1, seen=seen)
    assert result.speedup_interval is not None
    assert result.speedup_interval[0] > 1
    assert "BEN002" not in codes(result)
    assert result.baseline == "fp32"
    assert result.placement == {"CPUExecutionProvider": 1.0}
    assert result.p50_ms is not None
    assert result.p95_ms is not None
    assert result.p99_ms is not None
    assert 0 < result.p50_ms <= result.p95_ms <= result.p99_ms
    assert result.throughput_per_s == pytest.approx(64 / result.p50_ms * 1000)
    assert result.load_ms is not None
    assert result.load_ms > 0
    assert result.peak_rss_mb is not None
    assert 20 < result.peak_rss_mb < 2000
    assert seen == [Progress("benchmark rounds", i, 6) for i in range(1, 7)]


def test_the_baseline_is_measured_alone(tmp_path: Path) -> None:
    result = measure_chains(tmp_path, baseline=None, variant=1)
    assert (result.baseline, result.speedup, result.speedup_interval) == (None, None, None)
    assert result.p50_ms is not None
    assert "BEN002" not in codes(result)


def test_a_model_that_does_not_load_is_a_step_error_and_frees_the_machine(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(StepError, match="benchmark"):
        measure(
            CPU,
            variant=tmp_path / "broken.onnx",
            baseline=None,
            baseline_name=None,
            inputs=cases(tmp_path / "cases.npz"),
            dims={"batch": 1},
            threads=1,
            budget=QUICK,
        )
    assert_free(lock_path())


# --- scripted latencies ------------------------------------------------------------------------------------


def measure_scripted(
    folder: Path, variant: list[list[float]], baseline: list[list[float]] | None = None, threads: int = 1
) -> Measurement:
    (folder / "B.json").write_text(json.dumps(variant))
    (folder / "A.json").write_text(json.dumps(baseline))
    return measure(
        SCRIPTED,
        variant=folder / "B.json",
        baseline=folder / "A.json" if baseline else None,
        baseline_name="fp32" if baseline else None,
        inputs=folder / "none.npz",
        dims={"batch": 4},
        threads=threads,
        budget=Budget(rounds=len(variant)),
    )


def test_numbers_follow_from_the_latencies(tmp_path: Path) -> None:
    variant = [[1.0, 2.0, 3.0], [2.0, 2.0, 2.0], [1.0, 2.0, 7.0]]
    baseline = [[4.0, 6.0, 8.0], [5.0, 6.0, 9.0], [6.0, 6.0, 6.0]]
    result = measure_scripted(tmp_path, variant, baseline)
    every = np.concatenate(variant)
    assert (result.p50_ms, result.p95_ms, result.p99_ms) == tuple(np.percentile(every, [50, 95, 99]))
    assert result.throughput_per_s == 2000.0  # 4 items in 2 ms
    assert result.speedup == pytest.approx(3.0)
    assert result.speedup_interval == pytest.approx((3.0, 3.0))
    assert (result.status, result.findings, result.load_ms) == ("measured", (), 12.5)
    assert result.placement == {"A": 0.75, "B": 0.25}
    assert (result.target, result.fidelity, result.dims, result.threads) == (
        "scripted",
        "simulated",
        {"batch": 4},
        1,
    )


def test_both_sides_warm_up_before_rounds_in_turn(tmp_path: Path) -> None:
    measure_scripted(tmp_path, [[1.0]] * 4, [[2.0]] * 4)
    calls = (tmp_path / "calls.txt").read_text().splitlines()
    assert sorted(calls[:2]) == ["A warm_up", "B warm_up"]
    assert calls[2:] == ["A measure", "B measure"] * 4


@pytest.mark.parametrize(("late", "status"), [(1.09, "measured"), (1.11, "unstable"), (0.89, "unstable")])
def test_drift_over_ten_percent_is_unstable(tmp_path: Path, late: float, status: str) -> None:
    result = measure_scripted(tmp_path, [[1.0]] * 4 + [[late]] * 2)
    assert result.status == status
    if status == "unstable":
        [found] = result.findings
        assert (found.code, found.limit) == ("BEN001", 0.10)
        assert found.measured == pytest.approx(max(late, 1 / late) - 1)
        assert result.p50_ms == 1.0  # the numbers are given all the same


def test_one_slow_round_is_not_drift(tmp_path: Path) -> None:
    assert measure_scripted(tmp_path, [[1.0]] * 4 + [[3.0]] + [[1.0]] * 4).status == "measured"


def test_equal_speed_is_not_faster(tmp_path: Path) -> None:
    result = measure_scripted(tmp_path, [[1.0]] * 3, [[1.0]] * 3)
    assert [f.code for f in result.findings] == ["BEN002"]
    assert result.status == "measured"


def test_a_session_s_input_error_stays_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="threads: 2: must be 1 here"):
        measure_scripted(tmp_path, [[1.0]] * 3, threads=2)
    assert_free(lock_path())


def test_settings_hold_all_that_the_numbers_depend_on() -> None:
    base = settings(Budget(), {"batch": 1}, 2)
    json.dumps(base)
    others = [
        settings(Budget(rounds=5), {"batch": 1}, 2),
        settings(Budget(), {"batch": 2}, 2),
        settings(Budget(), {"batch": 1}, 1),
    ]
    assert base == settings(Budget(), {"batch": 1}, 2)
    assert all(other != base for other in others)


# --- one at a time -----------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from onnxmill.tasks.benchmark import machine_slot
path, times, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
for _ in range(times):
    with machine_slot(path):
        start = time.monotonic()
        print("held", start, flush=True)
        time.sleep(seconds)
        print("freed", time.monotonic(), flush=True)
"""


def holder(path: Path, times: int, seconds: float) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HOLD, str(path), str(times), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def assert_free(path: Path) -> None:
    seen: list[Progress] = []
    with machine_slot(path, seen.append):
        assert seen == []  # no wait


def test_the_next_gets_the_lock_at_once_when_its_holder_is_killed(tmp_path: Path) -> None:
    path, seen, times = tmp_path / "lock", list[Progress](), list[float]()
    with holder(path, 1, 600) as process:
        assert process.stdout
        assert process.stdout.readline().startswith("held")

        def wait() -> None:
            with machine_slot(path, seen.append):
                times.append(time.monotonic())

        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.3)
        assert times == []
        killed = time.monotonic()
        process.send_signal(signal.SIGKILL)
        waiter.join(timeout=10)
    assert times[0] - killed < 2
    assert seen == [Progress("waiting for another benchmark on this machine", 0, 0)]  # said once
    assert_free(path)


def test_two_processes_take_turns(tmp_path: Path) -> None:
    processes = [holder(tmp_path / "lock", 4, 0.05) for _ in range(2)]
    spans: list[tuple[float, float]] = []
    for process in processes:
        lines = process.communicate(timeout=20)[0].split("\n")
        at = [float(line.split()[1]) for line in lines if line]
        spans += zip(at[::2], at[1::2], strict=True)
    spans.sort()
    assert len(spans) == 8
    assert all(freed <= held for (_, freed), (held, _) in pairwise(spans))


def test_two_threads_of_one_process_take_turns(tmp_path: Path) -> None:
    inside, most = list[int](), list[int]()

    def work() -> None:
        with machine_slot(tmp_path / "lock"):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.05)
            inside.pop()

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert most == [1, 1, 1]


def test_every_user_may_open_the_lock_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        assert_free(tmp_path / "lock")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o666


def test_a_lock_that_cannot_be_opened_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(OnnxmillError, match=r"cannot open the lock .*TMPDIR"),
        machine_slot(tmp_path / "lock"),
    ):
        pass
    assert not (tmp_path / "elsewhere").exists()
