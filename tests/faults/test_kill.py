"""kill -9 of the flow's process at each step in turn; then the same command again."""

import contextlib
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from onnxmill.tasks.artifact import Store
from onnxmill.tasks.report import Report
from tests.faults.processes import LOAD_BACK, left_after, running_steps
from tests.flow.command import start
from tests.planted import write_tiny

pytestmark = pytest.mark.full

STEPS = {
    "calibration-samples", "evaluation-samples", "reference", "evaluate-source", "score", "export",
    "simplify", "quantize-int8-static", "evaluate", "benchmark", LOAD_BACK,
}  # fmt: skip
SERVICES = {
    "a run is made": "select count(*) from runs",
    "a model is made": "select count(*) from logged_models",
    "a model is registered": "select count(*) from registered_models",
    "a version is made": "select count(*) from model_versions",
}
"""Points of logging and promotion, each reached when its query gives a number above 0."""


def test_kill_at_each_step(prefect_server: str, undisturbed: Report, tmp_path: Path) -> None:
    home, spec, out, log = tmp_path / "home", write_tiny(tmp_path / "spec"), tmp_path / "out", tmp_path / "log"
    store, killed, done = home / "store", list[str](), dict[Path, int]()
    while True:
        process = start("convert", spec, "--out", out, home=home, log=log, settings={"PREFECT_API_URL": prefect_server})
        point = None
        while process.poll() is None and point is None:
            time.sleep(0.01)
            point = next(iter(reached(process.pid, home) - set(killed)), None)
        if point is None:
            break
        time.sleep(0.15 * (len(killed) % 3))  # at its start, and further on in it
        process.send_signal(signal.SIGKILL)
        if process.wait() != -signal.SIGKILL:
            break  # the last point of all: it ended meanwhile
        killed.append(point)
        assert left_after(home, 5) == [], f"after a kill at {point}"
        now = {path: path.stat().st_mtime_ns for path in store.glob("actions/*")}
        assert done.items() <= now.items(), f"finished work was done again before the kill at {point}"
        done = now
        assert Store(store).check() == [], f"after a kill at {point}"
    assert process.returncode == 0, log.read_text()
    names = {point.rpartition("-")[0] if point not in (LOAD_BACK, *SERVICES) else point for point in killed}
    assert names >= STEPS
    assert names >= {"a run is made", "a model is made"}

    report = Report.model_validate_json((out / "report.json").read_text(encoding="utf-8"))
    assert [row.artifact for row in report.variants] == [row.artifact for row in undisturbed.variants]
    assert report.digests == undisturbed.digests
    assert {path: path.stat().st_mtime_ns for path in store.glob("actions/*")}.items() >= done.items()
    assert Store(store).check() == []
    assert list((store / "tmp").iterdir()) == []
    assert left_after(home, 5) == []
    ours = "select count(*) from runs join tags using (run_uuid) where lifecycle_stage = 'active' and tags.key ="
    assert counts(home, f"{ours} 'onnxmill.kind'") == 3
    records = f"{ours} 'onnxmill.audit.record' and tags.value like"
    assert counts(home, f'{records} \'%"stage":"intent"%\'') == counts(home, f'{records} \'%"stage":"outcome"%\'')
    assert counts(home, f'{records} \'%"stage":"outcome"%\' and tags.value like \'%"done":true%\'') == 1
    assert counts(home, "select count(*) from logged_models where lifecycle_stage = 'active'") == 2
    assert counts(home, "select count(*) from model_versions") == 1
    assert counts(home, "select count(*) from registered_model_aliases where alias = 'champion' and version = 1") == 1


def reached(pid: int, home: Path) -> set[str]:
    """The steps that run now, and the points of `SERVICES` that are behind."""
    services = {name for name, query in SERVICES.items() if counts(home, query)}
    return running_steps(pid, home / "logs") | services


def counts(home: Path, query: str) -> int:
    """What a query gives; 0 while there is no such table."""
    with contextlib.suppress(sqlite3.OperationalError):
        uri = f"file:{home / 'mlflow' / 'mlflow.db'}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
            number: int = connection.execute(query).fetchone()[0]
            return number
    return 0
