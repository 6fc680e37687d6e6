"""Tracking on a real, SQLite-backed MLflow: complete, once, whatever interrupted it; and fast, redacted errors."""

import dataclasses
import http.server
import pickle
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from mlflow import onnx as mlflow_onnx
from mlflow.models import Model

from onnxmill.tasks.artifact import CorruptStore, Store
from onnxmill.tasks.errors import InputError, ServiceError
from onnxmill.tasks.model_files import check_files
from onnxmill.tasks.report import Report
from onnxmill.tasks.track import Logged, Tracking, attach, connect, download, log
from tests import conversions

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class World:
    """An embedded MLflow and two models in a store."""

    tracking: Tracking
    models: dict[str, Path]
    report: Report

    def log(self, name: str, stop: str = "", seen: list[str] | None = None, echo: bool = False) -> Logged:
        def progress(what: str) -> None:
            if echo:
                print(what, flush=True)
            if seen is not None:
                seen.append(what)
            if what == stop:
                raise KeyboardInterrupt

        return log(
            self.tracking,
            self.report.model_copy(update={"name": name}),
            conversions.spec(name, long="x" * 7000),
            key=name * 2,
            models=self.models,
            files={"report.json": b"{}", "plots/a.svg": b"<svg/>"},
            example={"x": np.ones((1, 3), np.float32)},
            on_progress=progress,
        )

    def download(self, model_id: str, folder: Path) -> Path:
        return download(self.tracking, self.tracking.client().get_logged_model(model_id).artifact_location, folder)

    def contents(self, name: str) -> dict[str, object]:
        """Everything that is stored of a conversion, without ids, times and what comes of its name."""
        client = self.tracking.client()
        experiment = client.get_experiment_by_name(f"onnxmill/{name}")
        assert experiment
        runs: dict[str, list[object]] = {}
        for run in client.search_runs([experiment.experiment_id]):
            tags = {k: v for k, v in run.data.tags.items() if k.startswith("onnxmill.") and k != "onnxmill.key"}
            content = [
                run.info.status,
                tags,
                {k: v for k, v in run.data.params.items() if k not in ("name", "promote.register_as")},
                {k: [m.value for m in client.get_metric_history(run.info.run_id, k)] for k in run.data.metrics},
                len(run.outputs.model_outputs) if run.outputs else 0,
                sorted(file.path for file in client.list_artifacts(run.info.run_id)),
            ]
            runs.setdefault(tags["onnxmill.variant"], []).append(content)
        models: dict[str, list[object]] = {}
        for model in client.search_logged_models([experiment.experiment_id]):
            numbers = sorted((m.key, m.value) for m in model.metrics or ())
            models.setdefault(model.name, []).append([str(model.status), numbers])
        return {"runs": runs, "models": models}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    home = tmp_path_factory.mktemp("a home & co")
    store = Store(home / "store")
    made = {
        "fp32": conversions.publish(store, conversions.model(2.0)),
        "int8": conversions.publish(store, conversions.model(2.01, external=True)),
    }
    faster = conversions.measurement(0.5, 1.9, (1.8, 2.0))
    rows = [
        conversions.variant("fp32", digest=made["fp32"][0].digest),
        conversions.variant("int8", digest=made["int8"][0].digest, result=faster),
        conversions.variant("fp16", status="refused"),
        conversions.variant("int8-static", status="failed", metric=None),
    ]
    models = {name: folder for name, (_, folder) in made.items()}
    return World(connect(None, home), models, conversions.report("m", *rows))


@pytest.fixture(scope="module")
def whole(world: World) -> tuple[Logged, list[str]]:
    """An uninterrupted conversion, and its points of progress."""
    seen: list[str] = []
    return world.log("whole", seen=seen), seen


def test_every_number_setting_and_file_is_there(world: World, whole: tuple[Logged, list[str]]) -> None:
    logged, client = whole[0], world.tracking.client()
    assert set(logged.run_ids) == {"fp32", "int8", "fp16", "int8-static"}
    assert set(logged.model_ids) == {"fp32", "int8"}
    run = client.get_run(logged.run_ids["int8"])
    assert run.data.metrics["latency_p50_ms.cpu"] == 0.5
    assert run.data.metrics["speedup_low.cpu"] == 1.8
    assert run.data.metrics["metric"] == 0.99
    names = [name for name in run.data.metrics if name.startswith("parity_max_rel.y_0-")]  # "y:0" is no MLflow name
    assert len(names) == 1
    assert run.data.tags["mlflow.parentRunId"] == logged.parent_run_id
    assert run.data.tags["onnxmill.verdict"] == "passed"
    assert run.info.status == "FINISHED"
    assert client.get_run(logged.run_ids["fp16"]).info.status == "FINISHED"
    assert client.get_run(logged.run_ids["int8-static"]).info.status == "FAILED"
    refused = client.download_artifacts(logged.run_ids["fp16"], "findings.json")
    assert '"GATE003"' in Path(refused).read_text()
    parent = client.get_run(logged.parent_run_id)
    assert parent.data.params["machine.cores"] == "2"
    assert parent.data.metrics["seconds.export"] == 1.5
    long = next(value for name, value in parent.data.params.items() if name == "source.files")
    assert long == "see params/source.files.txt"
    assert "x" * 7000 in Path(client.download_artifacts(logged.parent_run_id, "params/source.files.txt")).read_text()
    assert {f.path for f in client.list_artifacts(logged.parent_run_id)} == {"params", "plots", "report.json"}


def test_a_logged_model_has_the_stores_own_bytes_and_loads(
    world: World, whole: tuple[Logged, list[str]], tmp_path: Path
) -> None:
    for name, external in (("fp32", False), ("int8", True)):
        folder = world.download(whole[0].model_ids[name], tmp_path / name)
        row = next(v for v in world.report.variants if v.name == name)
        assert row.artifact
        assert check_files(folder, row.artifact.digest) == []
        assert (folder / "model.onnx.data").is_file() == external
        assert mlflow_onnx.load_model(str(folder)).graph.node[0].op_type == "Mul"
        described = Model.load(str(folder))
        assert [(i.name, i.type, i.shape) for i in described.signature.inputs] == [("x", np.float32, (-1, 3))]
        assert [i.name for i in described.signature.outputs] == ["y", "sum"]
        assert described.flavors["onnx"]["providers"] == ["CPUExecutionProvider"]
        assert (folder / "input_example.json").is_file()


def test_a_lost_or_changed_file_is_named(world: World, whole: tuple[Logged, list[str]], tmp_path: Path) -> None:
    folder = world.download(whole[0].model_ids["int8"], tmp_path)
    row = next(v for v in world.report.variants if v.name == "int8")
    assert row.artifact
    assert "expected 0000" in check_files(folder, "0000")[0]
    (folder / "model.onnx").write_bytes(b"x")
    (folder / "model.onnx.data").unlink()
    changed, missing = check_files(folder, row.artifact.digest)
    assert changed.startswith("model.onnx was changed: sha256 ")
    assert missing == "model.onnx.data is missing"


def test_logging_again_changes_nothing(world: World, whole: tuple[Logged, list[str]]) -> None:
    before = world.contents("whole")
    assert world.log("whole") == whole[0]
    assert world.contents("whole") == before


def test_interrupted_at_any_point_it_is_finished_once(world: World, whole: tuple[Logged, list[str]]) -> None:
    points = whole[1]
    assert len(points) > 15
    for index, point in enumerate(points):
        name = f"stopped{index}"
        if index % 3 and not point.startswith("int8"):
            continue  # every kind of point once is enough
        with pytest.raises(KeyboardInterrupt):
            world.log(name, stop=point)
        world.log(name)
        assert world.contents(name) == world.contents("whole"), point


KILLED = """
import pickle, sys
world = pickle.load(open(sys.argv[1], "rb"))
world.log("killed", echo=True)
"""


@pytest.mark.integration
def test_killed_in_the_middle_it_is_finished_once(
    world: World, whole: tuple[Logged, list[str]], tmp_path: Path
) -> None:
    """The same command, killed a little after another point each time, that is within MLflow's own work."""
    (tmp_path / "world").write_bytes(pickle.dumps(world))
    for point, delay_s in (("fp32: model files", 0.02), ("int8: numbers", 0.003), ("fp16: files", 0.005)):
        command = [sys.executable, "-c", KILLED, str(tmp_path / "world")]
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert child.stdout
        assert any(line.strip() == point for line in child.stdout)
        time.sleep(delay_s)
        child.kill()
        assert child.wait() == -signal.SIGKILL
        child.stdout.close()
    world.log("killed")
    assert world.contents("killed") == world.contents("whole")


def test_a_lost_answer_makes_no_double(world: World, whole: tuple[Logged, list[str]]) -> None:
    """A create that was sent twice, because the first answer was lost, has made two."""
    with pytest.raises(KeyboardInterrupt):
        world.log("double", stop="int8: model files")
    client = world.tracking.client()
    experiment = client.get_experiment_by_name("onnxmill/double")
    assert experiment
    for run in client.search_runs([experiment.experiment_id]):
        tags = {k: v for k, v in run.data.tags.items() if k.startswith("onnxmill.")}
        client.create_run(experiment.experiment_id, tags=tags, run_name=run.info.run_name)
    for model in client.search_logged_models([experiment.experiment_id]):
        client.create_logged_model(experiment.experiment_id, model.name, model.source_run_id, model.tags)
    world.log("double")
    assert world.contents("double") == world.contents("whole")


def test_a_model_that_is_not_the_reports_is_refused(world: World) -> None:
    with pytest.raises(CorruptStore, match="model of 'fp32' has digest"):
        dataclasses.replace(world, models={"fp32": world.models["int8"]}).log("mixed")


def test_files_can_be_put_in_place_of_others(world: World, whole: tuple[Logged, list[str]]) -> None:
    run_id, client = whole[0].parent_run_id, world.tracking.client()
    attach(world.tracking, run_id, {"report.json": b"{1}"})
    assert Path(client.download_artifacts(run_id, "report.json")).read_text() == "{1}"


# --- connecting ------------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_four_processes_open_a_new_database_at_once(tmp_path: Path) -> None:
    code = "import sys, pathlib; from onnxmill.tasks.track import connect; connect(None, pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path)]
    children = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    errors = [child.communicate()[1] for child in children]
    assert [child.returncode for child in children] == [0] * 4, errors
    assert (tmp_path / "mlflow" / "mlflow.db").is_file()


@pytest.mark.parametrize("address", ["http://me:secret@127.0.0.1:9", "postgresql://me:secret@127.0.0.1:9/mlflow"])
def test_an_unreachable_service_is_said_at_once_without_credentials(address: str, tmp_path: Path) -> None:
    start = time.monotonic()
    expected = r"MLflow at \S+://\*\*\*@127\.0\.0\.1:9\S* cannot be used: .* Next: "
    with pytest.raises(ServiceError, match=expected) as error:
        connect(address, tmp_path)
    assert time.monotonic() - start < 5
    assert "Connection refused" in str(error.value)
    assert "secret" not in str(error.value)
    assert error.value.exit_code == 1


def test_a_server_that_is_no_mlflow_or_refuses_is_said(tmp_path: Path) -> None:
    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401 if self.headers.get("Authorization") else 200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(ServiceError, match="does not answer as an MLflow server does"):
            connect(f"http://127.0.0.1:{server.server_port}", tmp_path)
        with pytest.raises(ServiceError, match=r"refused the credentials \(HTTP 401\)") as error:
            connect(f"http://me:secret@127.0.0.1:{server.server_port}", tmp_path)
        assert "secret" not in str(error.value)
        server.shutdown()


def test_a_database_that_is_none_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("this is no database, but a text that is long enough to be looked at" * 20)
    with pytest.raises(ServiceError, match="file is not a database"):
        connect(f"sqlite:///{tmp_path}/x.db", tmp_path)


def test_an_address_that_is_none_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"MLFLOW_TRACKING_URI: 'ftp://\*\*\*@x': must begin with"):
        connect("ftp://me:secret@x", tmp_path)


def test_a_failing_service_is_one_error(world: World) -> None:
    """What MLflow raises becomes ours, and says what to do."""
    expected = r"logging failed: .* Run the same command again"
    with pytest.raises(ServiceError, match=expected), world.tracking.service("logging"):
        world.tracking.client().get_run("0" * 32)
    assert world.tracking.uri not in repr(dataclasses.replace(world.tracking, shown="***"))
