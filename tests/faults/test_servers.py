"""The flow against a started `prefect server` and `mlflow server`, and what it does when MLflow goes away."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from onnxmill.tasks.artifact import Store
from onnxmill.tasks.report import Report
from tests.faults.processes import Server, free_port, left_after, running_steps, until
from tests.flow.command import Ended, run, start
from tests.planted import write_tiny

pytestmark = pytest.mark.full


@pytest.fixture
def mlflow_server(tmp_path: Path) -> Iterator[Server]:
    """`mlflow server` on SQLite; artifacts go through it."""
    folder, port = tmp_path / "mlflow-server", free_port()
    folder.mkdir()
    arguments = ["mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    arguments += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
    arguments += ["--artifacts-destination", str(folder / "artifacts")]
    settings = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}
    server = Server(arguments, f"http://127.0.0.1:{port}/health", folder / "log", settings)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def test_servers_and_a_lost_mlflow(
    prefect_server: str, mlflow_server: Server, undisturbed: Report, tmp_path: Path
) -> None:
    home, spec, out = tmp_path / "home", write_tiny(tmp_path / "spec"), tmp_path / "out"
    uri = mlflow_server.health.removesuffix("/health")
    settings = {"PREFECT_API_URL": prefect_server, "MLFLOW_TRACKING_URI": uri}

    log = tmp_path / "log"
    process = start("convert", spec, "--out", out, "--json", home=home, log=log, settings=settings)

    def exporting() -> bool:
        assert process.poll() is None, log.read_text(encoding="utf-8")
        return any(step.startswith("export-") for step in running_steps(process.pid, home / "logs"))

    until(exporting, 120, "no export")
    mlflow_server.stop()
    process.wait(timeout=240)
    lost = Ended(process.returncode, "", log.read_text(encoding="utf-8"))
    assert lost.code == 1, lost.err
    assert uri in lost.error
    assert "Connection refused. Next: see that it is up" in lost.error
    assert "Traceback" not in lost.err
    kept = Report.model_validate_json((out / "report.json").read_text(encoding="utf-8"))
    assert (kept.mlflow_run_id, kept.decisions) == (None, ())
    assert Store(home / "store").check() == []
    assert left_after(home, 5) == []

    started = time.monotonic()
    still = run("convert", spec, "--out", out, "--json", home=home, settings=settings)
    assert still.code == 1
    assert "cannot be used" in still.error
    assert time.monotonic() - started < 20

    mlflow_server.start()
    ended = run("convert", spec, "--out", out, "--json", home=home, settings=settings)
    assert ended.code == 0, ended.err
    report = Report.model_validate_json(ended.out)
    assert [row.step for row in report.steps if not row.cached] == []  # all work was done before MLflow was needed
    assert [row.artifact for row in report.variants] == [row.artifact for row in undisturbed.variants]
    assert report.digests == undisturbed.digests
    assert not (home / "mlflow" / "mlflow.db").exists()
    assert not (home / "prefect").exists()
    check_logged_once(uri, report)

    again = run("convert", spec, "--out", out, "--json", home=home, settings=settings)
    assert again.code == 0
    assert Report.model_validate_json(again.out).mlflow_run_id == report.mlflow_run_id
    check_logged_once(uri, report)

    named = {"flow_runs": {"name": {"any_": ["convert tiny"]}}, "sort": "START_TIME_DESC", "limit": 1}
    (newest,) = httpx.post(f"{prefect_server}/flow_runs/filter", json=named).json()
    assert newest["state"]["message"] == Report.model_validate_json(again.out).sentence


LOOK = """
import json, sys
from mlflow import MlflowClient
client = MlflowClient()
(experiment,) = [e for e in client.search_experiments() if e.name == "onnxmill/tiny"]
version = client.get_model_version_by_alias("tiny-onnx", "champion")
print(json.dumps({
    "runs": sorted(run.info.run_id for run in client.search_runs([experiment.experiment_id])),
    "models": len(client.search_logged_models([experiment.experiment_id])),
    "versions": len(client.search_model_versions("name = 'tiny-onnx'")),
    "champion": [version.tags["onnxmill.variant"], version.tags["onnxmill.artifact_digest"]],
}))
"""


def check_logged_once(uri: str, report: Report) -> None:
    """The server has one run for the conversion and one a variant, a model a variant, one version with the alias."""
    seen = subprocess.run(
        [sys.executable, "-c", LOOK],
        env={**os.environ, "MLFLOW_TRACKING_URI": uri, "MLFLOW_DISABLE_TELEMETRY": "true"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    rows = {row.name: row for row in report.variants}
    (decision,) = report.decisions
    winner = rows[decision.variant or ""]
    assert winner.artifact
    assert yaml.safe_load(seen.stdout) == {
        "runs": sorted(str(run) for run in [report.mlflow_run_id, *(row.mlflow_run_id for row in report.variants)]),
        "models": 2,
        "versions": 1,
        "champion": [winner.name, winner.artifact.digest],
    }
