"""Variants that do not pass: refused or broken, each alone; and what Prefect and MLflow show of it."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from onnxmill.tasks.artifact import Store
from onnxmill.tasks.report import Report
from tests.flow.conftest import Converted, World
from tests.planted import write_tiny

pytestmark = pytest.mark.integration


@pytest.fixture
def world(converted: Converted) -> World:
    """A home where the tiny spec was converted before: its source is exported already."""
    return converted.world


def write_lopsided(folder: Path, *, variants: list[str], require: list[str]) -> Path:
    """The tiny network with a channel of its features 1,000 times as large, and the last layer's weights for it 1,000
    times as small: in float the same network. In int8 the other channels fall below one step of the common scale."""
    spec = write_tiny(folder, variants=variants, require=require)
    state = torch.load(folder / "weights.pt", weights_only=True)
    channel = int(state["features.0.weight"].abs().amax(dim=(1, 2, 3)).argmin())
    state["features.0.weight"][channel] *= 1000
    state["features.0.bias"][channel] *= 1000
    state["logits.weight"].view(4, 4, 64)[:, channel] /= 1000  # [classes, channels, pixels]
    torch.save(state, folder / "weights.pt")
    text = (
        spec.read_text(encoding="utf-8").replace("name: tiny", "name: lopsided").replace("tiny-onnx", "lopsided-onnx")
    )
    spec.write_text(text, encoding="utf-8")
    return spec


def test_collapsed_int8_is_refused(world: World, tmp_path: Path) -> None:
    spec = write_lopsided(tmp_path / "spec", variants=["int8-static"], require=[])
    ended = world.convert(spec, "--out", tmp_path / "out", "--json")
    assert ended.code == 3, ended.err
    assert "error:" not in ended.err
    report = Report.model_validate_json(ended.out)
    (row,) = report.variants
    assert row.status == "refused"
    gates = [f for f in row.findings if f.severity == "refuse"]
    assert {f.code for f in gates} >= {"GATE003"}
    for found in gates:
        assert found.measured is not None
        assert found.limit is not None
        assert found.fix
    sqnr = next(f for f in gates if f.code == "GATE003")
    assert "logits" in sqnr.where
    assert row.results == ()  # what is refused is not measured
    assert report.sentence.startswith("refused: int8-static (")
    assert report.sentence.endswith("nothing promoted")
    assert [(d.cause, d.variant, d.version) for d in report.decisions] == [("none", None, None)]

    client = mlflow_client(world)
    run = client.get_run(row.mlflow_run_id)
    assert run.data.tags["onnxmill.verdict"] == "refused"
    assert "SQNR" in run.data.tags["mlflow.note.content"]
    assert "findings.json" in [f.path for f in client.list_artifacts(row.mlflow_run_id)]
    assert client.search_registered_models("name = 'lopsided-onnx'") == []

    seen = flow_run(report)
    assert (seen.state_name, seen.state_type.value) == ("Refused", "FAILED")
    assert seen.state.message == report.sentence


def test_required_variant_that_is_refused_fails_the_run(world: World, tmp_path: Path) -> None:
    spec = write_lopsided(tmp_path / "spec", variants=["fp32", "int8-static"], require=["int8-static"])
    ended = world.convert(spec, "--out", tmp_path / "out", "--json")
    assert ended.code == 3, ended.err
    report = Report.model_validate_json(ended.out)
    assert [(row.name, row.status) for row in report.variants] == [("fp32", "passed"), ("int8-static", "refused")]
    assert "int8-static, which is required" in report.sentence
    assert "fp32 passed" in report.sentence
    assert mlflow_client(world).search_registered_models("name = 'lopsided-onnx'") == []


def test_prefect_shows_what_happened(converted: Converted, tmp_path: Path) -> None:
    ended = converted.world.convert(converted.spec, "--out", tmp_path / "out", "--json")
    report = Report.model_validate_json(ended.out)
    seen = flow_run(report)
    assert seen.name == "convert tiny"
    assert seen.state.message == report.sentence
    assert seen.state_type.value == "COMPLETED"
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, FlowRunFilter, FlowRunFilterId

    with get_client(sync_client=True) as client:
        tasks = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[seen.id])))
        states = {task.name: task.state_name for task in tasks}
        of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[seen.id]))
        (artifact,) = client.read_artifacts(artifact_filter=of_run)
    assert {name: state for name, state in states.items() if name not in ("log", "promote")} == dict.fromkeys(
        ["samples", "reference", "export", "opset", "simplify", "score source", "calibrate"]
        + [f"{step} {variant}" for step in ("quantize", "assess") for variant in ("fp32", "int8-static")]
        + [f"benchmark {variant} on cpu" for variant in ("fp32", "int8-static")],
        "Cached",
    )
    assert states["log"] == states["promote"] == "Completed"
    assert (artifact.key, artifact.type) == ("convert-tiny", "table")
    assert artifact.description == report.sentence
    assert "int8-static" in str(artifact.data)


def convert_killing(world: World, spec: Path, out: Path, step: str) -> Report:
    """The report of a conversion whose `step` of int8-static was killed: that variant failed, and it alone."""
    with killer(world.home / "logs", f"{step}-") as killed:
        ended = world.convert(spec, "--out", out, "--json")
    assert len(killed) == 1
    assert ended.code == 0, ended.err  # nothing requires it
    report = Report.model_validate_json(ended.out)
    assert {row.name: row.status for row in report.variants} == {"fp32": "passed", "int8-static": "failed"}
    (found,) = next(row.findings for row in report.variants if row.name == "int8-static")
    assert (found.code, found.where) == ("RUN001", f"step {step}")
    assert "SIGKILL" in found.message
    return report


def test_killed_calibration_fails_its_variants_alone(prefect_api: str, tmp_path: Path) -> None:
    world, spec = World(tmp_path / "home", prefect_api), write_tiny(tmp_path / "spec")
    convert_killing(world, spec, tmp_path / "out", "calibrate")


def test_killed_variant_fails_alone(prefect_api: str, converted: Converted, tmp_path: Path) -> None:
    """And the same command then finishes it: from an empty home, in another folder, the digests are the same."""
    world, spec = World(tmp_path / "home", prefect_api), write_tiny(tmp_path / "spec")
    report = convert_killing(world, spec, tmp_path / "out", "quantize-int8-static")
    assert "failed: int8-static" in report.sentence
    assert Store(world.home / "store").check() == []

    again = world.convert(spec, "--out", tmp_path / "out", "--json")
    assert again.code == 0
    finished = Report.model_validate_json(again.out)
    assert {row.variant for row in finished.steps if not row.cached} == {"int8-static"}
    first = Report.model_validate_json(converted.ended.out)
    assert [row.artifact for row in finished.variants] == [row.artifact for row in first.variants]
    assert finished.digests == first.digests


def test_every_variant_broken_is_exit_1(world: World, tmp_path: Path) -> None:
    spec = write_tiny(tmp_path / "spec", variants=["fp16"])
    with killer(world.home / "logs", "quantize-fp16-"):
        ended = world.convert(spec, "--out", tmp_path / "out", "--json")
    assert ended.code == 1, ended.err
    assert "Traceback" not in ended.err
    report = Report.model_validate_json(ended.out)
    assert report.sentence.startswith("failed: fp16 (")
    assert [d.cause for d in report.decisions] == ["none"]
    seen = flow_run(report)
    assert (seen.state_name, seen.state.message) == ("Failed", report.sentence)


@contextlib.contextmanager
def killer(logs: Path, step: str) -> Iterator[list[int]]:
    """Meanwhile, kill the first worker whose log in `logs` begins with `step`; gives the list of pids killed."""
    killed: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.01) and not killed:
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error, OSError):
                    log = Path(f"/proc/{process.pid}/fd/2").readlink()
                    is_worker = not process.children()  # its parent, the supervisor, has the same log
                    if log.parent == logs and log.name.startswith(step) and is_worker and process.ppid() != os.getpid():
                        process.kill()
                        killed.append(process.pid)
                        return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def mlflow_client(world: World):
    from mlflow import MlflowClient

    return MlflowClient(world.tracking_uri, world.tracking_uri)


def flow_run(report: Report):
    """The latest run of the report's flow."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName
    from prefect.client.schemas.sorting import FlowRunSort

    with get_client(sync_client=True) as client:
        named = FlowRunFilter(name=FlowRunFilterName(any_=[f"convert {report.name}"]))
        for _ in range(20):  # the server sees a state a moment after it was set
            (run,) = client.read_flow_runs(flow_run_filter=named, sort=FlowRunSort.START_TIME_DESC, limit=1)
            if run.state and run.state.is_final():
                return run
            time.sleep(0.1)
    raise AssertionError(f"the run is {run.state}")
