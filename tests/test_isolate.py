"""A child that crashes, hangs, runs over its memory or loses its parent: always one clear error, never a survivor."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from onnxmill.tasks.errors import InputError, StepError
from onnxmill.tasks.isolate import Child, Limits, Progress, child_environment, ending_children, run

HERE = {"PYTHONPATH": str(Path(__file__).parent)}


def call(function: str, limits: Limits = Limits(), **arguments: object) -> object:
    return run(f"misbehave:{function}", arguments, step="demo", limits=limits, environment=HERE).value


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_value_comes_back_converted_by_annotation_and_prints_do_not_disturb() -> None:
    assert call("add", a="2", b=0.5) == 2.5


def test_paths_come_back_as_text_and_cwd_is_as_asked(tmp_path: Path) -> None:
    assert run("misbehave:where", {}, step="demo", cwd=tmp_path, environment=HERE).value == str(tmp_path)


def test_progress_comes_through_in_order() -> None:
    seen: list[Progress] = []
    run("misbehave:count", {"to": 3}, step="demo", environment=HERE, on_progress=seen.append)
    assert seen == [Progress("things", i, 3) for i in (1, 2, 3)]


def test_input_error_stays_an_input_error() -> None:
    with pytest.raises(InputError, match=r"data\.calibration: 'data\.py:f': must yield something\. look at it"):
        call("bad_input")


def test_exception_becomes_step_error_with_traceback_and_tail() -> None:
    with pytest.raises(StepError, match="demo: ZeroDivisionError: on purpose") as caught:
        call("fails")
    assert "about to fail" in caught.value.stderr_tail
    assert "in fails" in caught.value.traceback


@pytest.mark.parametrize(("function", "name"), [("segfault", "SIGSEGV"), ("aborts", "SIGABRT"), ("killed", "SIGKILL")])
def test_death_by_signal_names_step_signal_and_peak(function: str, name: str) -> None:
    with pytest.raises(StepError) as caught:
        call(function)
    assert caught.value.signal == name
    assert caught.value.peak_rss_mb is not None
    assert caught.value.peak_rss_mb > 1
    assert str(caught.value).startswith(f"demo: its process was killed by {name}")
    assert "peak RSS" in str(caught.value)


def test_sigkill_reads_out_of_memory() -> None:
    with pytest.raises(StepError, match="out of memory in demo"):
        call("killed")


def test_exit_without_result() -> None:
    with pytest.raises(StepError, match="ended without a result"):
        call("exits")


def test_the_peak_is_also_that_of_what_the_worker_ran() -> None:
    reply = run("misbehave:has_a_large_child", {"mb": 300}, step="demo", environment=HERE)
    assert reply.peak_rss_mb > 300


def test_hang_ends_at_its_time_out(tmp_path: Path) -> None:
    with pytest.raises(StepError, match=r"no answer after 1 s") as caught:
        call("hangs", Limits(timeout_s=1.0), pid_file=tmp_path / "pids", grandchild=True)
    assert caught.value.signal == "timeout"
    assert all(is_gone(int(pid)) for pid in (tmp_path / "pids").read_text().split())


def test_memory_overrun_is_killed_and_told() -> None:
    with pytest.raises(StepError, match="went over its memory limit of 200 MB") as caught:
        call("eats_memory", Limits(memory_mb=200.0))
    assert caught.value.peak_rss_mb is not None
    assert caught.value.peak_rss_mb > 200


@pytest.mark.parametrize("hang", ["hangs", "hangs_in_native_code"])
def test_nothing_survives_a_killed_parent(tmp_path: Path, hang: str) -> None:
    pids = tmp_path / "pids"
    code = f"from onnxmill.tasks.isolate import run; run('misbehave:{hang}', {{'pid_file': '{pids}'}}, step='demo')"
    parent = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **HERE})
    assert wait_until(lambda: pids.is_file() and pids.read_text() != "")
    children = psutil.Process(parent.pid).children(recursive=True)
    assert children
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert wait_until(lambda: all(is_gone(child.pid) for child in children))
    assert wait_until(lambda: is_gone(int(pids.read_text())))


def test_nothing_survives_an_interrupted_caller(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    def interrupted() -> None:
        with Child("demo", environment=HERE) as child:
            child.create("misbehave:counter", {"start": 1})
            pids.write_text(str(child._process.pid))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert is_gone(int(pids.read_text()))


def test_an_interrupted_block_ends_the_children_that_other_threads_wait_for(tmp_path: Path) -> None:
    """As a flow does: its steps' threads wait for children, and must come back when it is cancelled."""

    def interrupted() -> None:
        with ThreadPoolExecutor() as pool, ending_children():
            waiting = pool.submit(call, "hangs", pid_file=tmp_path / "pids")
            assert wait_until(lambda: (tmp_path / "pids").is_file() and (tmp_path / "pids").read_text() != "")
            futures.append(waiting)
            raise KeyboardInterrupt

    futures: list[Future[object]] = []
    with Child("outer", environment=HERE) as outer:
        outer.create("misbehave:counter", {"start": 1})
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert outer.call("more", {"by": 1}).value == 2  # it was there before the block, and stays
    with pytest.raises(StepError, match=r"ended without a result|killed by SIGKILL"):
        futures[0].result(timeout=10)
    assert is_gone(int((tmp_path / "pids").read_text()))


def test_worker_keeps_its_state_between_calls() -> None:
    with Child("demo", environment=HERE) as child:
        child.create("misbehave:counter", {"start": 40})
        assert child.call("more", {"by": 1}).value == 41
        assert child.call("more", {"by": 1}).value == 42


def test_log_file_keeps_what_the_child_printed(tmp_path: Path) -> None:
    run("misbehave:add", {"a": 1, "b": 1}, step="demo", environment=HERE, log=tmp_path / "log")
    assert "noise on stdout" in (tmp_path / "log").read_text()


def test_services_and_secrets_stay_out_of_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:secret@host")
    monkeypatch.setenv("MY_API_TOKEN", "secret")
    monkeypatch.setenv("HARMLESS", "yes")
    kept = child_environment()
    assert "HARMLESS" in kept
    assert "MLFLOW_TRACKING_URI" not in kept
    assert "MY_API_TOKEN" not in kept


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands orphans to a subreaper")
def test_a_process_that_left_the_workers_session_ends_with_the_step(tmp_path: Path) -> None:
    call("leaves_a_daemon", pid_file=tmp_path / "pid")
    assert wait_until(lambda: is_gone(int((tmp_path / "pid").read_text())))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals a parent's death")
def test_the_worker_ends_when_its_supervisor_is_killed(tmp_path: Path) -> None:
    with Child("demo", environment=HERE) as child, ThreadPoolExecutor() as pool:
        request = {"function": "misbehave:hangs", "arguments": {"pid_file": str(tmp_path / "pids")}}
        waiting = pool.submit(child.ask, request, None)
        assert wait_until(lambda: (tmp_path / "pids").is_file() and (tmp_path / "pids").read_text() != "")
        psutil.Process(child._process.pid).kill()
        with pytest.raises(StepError, match="SIGKILL"):
            waiting.result(timeout=10)
    assert wait_until(lambda: is_gone(int((tmp_path / "pids").read_text())))


def test_no_library_reports_home(tmp_path: Path) -> None:
    """ONNX Runtime would write a device's id and a queue of events under HOME."""
    run("misbehave:opens_a_session", {}, step="demo", environment={**HERE, "HOME": str(tmp_path)})
    assert list(tmp_path.rglob("*")) == []
