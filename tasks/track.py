"""Tracking: one MLflow run a conversion, a child run and a LoggedModel a variant. Idempotent by the conversion's key.

A run that lost its process or its server at any point is finished by logging again under the same key: each thing is
found or made, and what is there already is left alone. Everything goes through a client that is given its address:
MLflow's own global settings would leak into the environment of every child.
"""

import contextlib
import os
import socket
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import onnx
from filelock import FileLock, Timeout
from sqlalchemy.exc import SQLAlchemyError

from onnxmill.tasks.artifact import Artifact, Store, canonical_json, sha256_of
from onnxmill.tasks.errors import InputError, ServiceError, redact, shorten
from onnxmill.tasks.graph import MODEL, link
from onnxmill.tasks.model_files import MANIFEST, check_files, listing
from onnxmill.tasks.parity import Arrays
from onnxmill.tasks.report import Report
from onnxmill.tasks.spec import Spec
from onnxmill.tasks.track_names import conversion_metrics, conversion_params, variant_metrics, variant_params

# MLflow reads these when it is imported (telemetry) and at each request: its own defaults wait for minutes
for _name, _value in {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",
}.items():
    os.environ.setdefault(_name, _value)

from mlflow import MlflowClient, MlflowException, artifacts  # noqa: E402 (after the settings above)
from mlflow import onnx as mlflow_onnx  # noqa: E402
from mlflow.entities import (  # noqa: E402
    LoggedModel,
    LoggedModelOutput,
    LoggedModelStatus,
    Metric,
    Param,
    Run,
    RunTag,
)
from mlflow.models import Model, ModelSignature  # noqa: E402
from mlflow.types import Schema, TensorSpec  # noqa: E402
from mlflow.utils.credentials import get_default_host_creds  # noqa: E402
from mlflow.utils.rest_utils import http_request  # noqa: E402

TAG = "onnxmill."
COMPLETE = TAG + "complete"
CHECK_SECONDS = 10
LOCK_SECONDS = 600
PARAM_LENGTH = 6000
"""MLflow cuts a longer parameter and says nothing."""
DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
AGAIN = "Run the same command again: finished work is kept"

OnProgress = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Tracking:
    """An MLflow that answered. `uri` may hold credentials: print `shown`. `artifacts`: where the embedded one keeps
    them, null for a server, which knows. `home`: where this machine's processes take turns (`lock`)."""

    uri: str = field(repr=False)
    shown: str
    artifacts: Path | None
    home: Path

    def client(self) -> MlflowClient:
        return MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        """An empty folder of the home, which has room for models (a folder for temporary files may be in memory)."""
        with Store(self.home.parent / "store").workspace() as folder:
            yield folder

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """One process of this home at a time writes: MLflow has neither transactions nor compare-and-set."""
        self.home.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.home / "lock", timeout=LOCK_SECONDS):
                yield
        except Timeout as error:
            raise ServiceError(
                f"MLflow: another process has been writing for {LOCK_SECONDS} s ({self.home / 'lock'}). {AGAIN}"
            ) from error

    @contextlib.contextmanager
    def service(self, doing: str) -> Iterator[None]:
        """MLflow's failures as one `ServiceError` that says what was being done, without credentials: so its cause,
        which Prefect would log with the traceback, is not chained to it."""
        try:
            yield
        except (MlflowException, SQLAlchemyError, OSError) as error:  # those of `requests` are OSErrors
            raise ServiceError(f"MLflow at {self.shown}: {doing} failed: {_brief(error)}. {AGAIN}") from None


@dataclass(frozen=True)
class Logged:
    """Ids of what was logged: the parent run, and by variant its run and, where it has a model, its LoggedModel."""

    parent_run_id: str
    run_ids: dict[str, str]
    model_ids: dict[str, str]


# --- connecting ------------------------------------------------------------------------------------------------------


def connect(uri: str | None, home: Path) -> Tracking:
    """The MLflow at `uri` (MLFLOW_TRACKING_URI), or the embedded one under `home`/mlflow, made if it is not there.

    It is asked at once: `ServiceError` within seconds where it does not answer, `InputError` for an address that is
    none. A database is created and migrated by one process at a time: several at once break MLflow's migrations.
    """
    folder = (home / "mlflow").resolve()
    address = uri or f"sqlite:///{folder / 'mlflow.db'}"
    tracking = Tracking(address, redact(address), None if uri else folder / "artifacts", folder)
    scheme = address.partition(":")[0].partition("+")[0].lower()
    if scheme not in ("http", "https", "sqlite", *DATABASE_PORTS):
        raise InputError(
            "MLFLOW_TRACKING_URI", tracking.shown, "must begin with http(s):// or a database's sqlite:///, …"
        )
    try:
        if scheme in ("http", "https"):
            _ask(address)
        elif scheme == "sqlite":
            _open(Path(address.partition("///")[2].partition("?")[0]))
        else:
            parts = urlsplit(address)
            socket.create_connection(
                (parts.hostname or "localhost", parts.port or DATABASE_PORTS[scheme]), CHECK_SECONDS
            ).close()
        if scheme not in ("http", "https"):
            with tracking.lock():
                tracking.client().search_experiments(max_results=1)
    except (MlflowException, SQLAlchemyError, sqlite3.Error, ImportError, OSError) as error:
        hint = "see that it is up and MLFLOW_TRACKING_URI is right, or unset it for the embedded one"
        raise ServiceError(f"MLflow at {tracking.shown} cannot be used: {_brief(error)}. Next: {hint}") from None
    return tracking


def _ask(address: str) -> None:
    """One small request with the user's credentials, proxies and certificates, without retries."""
    path = "/api/2.0/mlflow/experiments/search"
    creds = get_default_host_creds(address)  # type: ignore[no-untyped-call]  # mlflow leaves these two untyped
    answer = http_request(  # type: ignore[no-untyped-call]
        creds, path, "GET", max_retries=0, timeout=CHECK_SECONDS, params={"max_results": 1}, raise_on_status=False
    )
    if answer.status_code in (401, 403):
        raise MlflowException(f"it refused the credentials (HTTP {answer.status_code})")
    if answer.status_code != 200 or "json" not in answer.headers.get("content-type", ""):
        raise MlflowException(f"it does not answer as an MLflow server does (HTTP {answer.status_code})")


def _open(path: Path) -> None:
    """See that SQLite can open or create the file: MLflow would retry for minutes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(path, timeout=CHECK_SECONDS)) as connection:
        connection.execute("PRAGMA schema_version")


def _brief(error: BaseException) -> str:
    """The cause on one line, without credentials: "[Errno 111] Connection refused", not what was wrapped around it."""
    root = error
    while (cause := root.__cause__ or root.__context__) is not None:
        root = cause
    text = " ".join(str(root if isinstance(root, OSError) else error).split())
    return shorten(redact(text) or type(error).__name__, 300).rstrip(".")


# --- logging ---------------------------------------------------------------------------------------------------------


def log(
    tracking: Tracking,
    report: Report,
    spec: Spec,
    *,
    key: str,
    models: Mapping[str, Path],
    files: Mapping[str, bytes | Path],
    example: Arrays | None = None,
    on_progress: OnProgress = lambda _: None,
) -> Logged:
    """Log the conversion `report` of `spec`, or finish what was logged of it under the same `key` (hex) before.

    models: variant -> folder of its artifact, with model.onnx. files: path under the parent run -> content.
    example: inputs of one case. on_progress is told of each part before it is logged. Every model is downloaded
    again and compared before it counts. Raises `ServiceError`; `CorruptStore` where a folder in `models` is not the
    artifact that the report names.
    """
    listings = {row.name: listing(models[row.name], row) for row in report.variants if row.name in models}
    with tracking.lock(), tracking.service(f"logging '{report.name}'"):
        client = tracking.client()
        session = _Session(tracking, client, experiment(client, tracking, report.name), key, on_progress)
        on_progress("conversion: run")
        parent = session.run("", report.name, {"mlflow.note.content": report.sentence})
        run_ids, model_ids = {}, {}
        for row in report.variants:
            on_progress(f"{row.name}: run")
            note = "\n".join(str(finding) for finding in row.findings)
            run = session.run(
                row.name, row.name, {"mlflow.parentRunId": parent.info.run_id, "mlflow.note.content": note}
            )
            run_ids[row.name] = run.info.run_id
            model = None
            if row.name in models:
                model = session.model(run, row.name, models[row.name], listings[row.name], example)
                model_ids[row.name] = model.model_id
            if COMPLETE in run.data.tags:
                continue
            on_progress(f"{row.name}: numbers")
            findings = canonical_json([finding.model_dump(mode="json") for finding in row.findings])
            tags = {"verdict": row.status, "source_digest": report.digests.source}
            if row.artifact:
                tags["artifact_digest"] = row.artifact.digest
            session.numbers(run, variant_metrics(row), variant_params(row, spec), tags, model)
            session.files(run, {"findings.json": findings})
            session.finish(run, "FAILED" if row.status == "failed" else "FINISHED")
        if COMPLETE not in parent.data.tags:
            on_progress("conversion: numbers")
            digests = {f"{k}_digest": v for k, v in report.digests.model_dump().items() if v}
            tags = {**digests, "machine_digest": sha256_of(report.machine), "exit_code": str(report.exit_code)}
            session.numbers(parent, conversion_metrics(report), conversion_params(report, spec), tags, None)
            session.files(parent, files)
            session.finish(parent, "FINISHED")
    return Logged(parent.info.run_id, run_ids, model_ids)


def attach(tracking: Tracking, run_id: str, contents: Mapping[str, bytes | Path]) -> None:
    """Write files under a run, in place of those of the same name: the report once its decision is known."""
    with tracking.service("writing files"), tempfile.TemporaryDirectory() as folder:
        for name, content in contents.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.read_bytes())
        tracking.client().log_artifacts(run_id, folder)


def holds(tracking: Tracking, run_id: str, names: Iterable[str]) -> bool:
    """Whether a run has files of these names at the top of its artifacts."""
    with tracking.service("listing files"):
        found = {file.path for file in tracking.client().list_artifacts(run_id)}
    return found.issuperset(names)


@dataclass(frozen=True)
class _Session:
    """One `log`: each method finds what is there under the key, and makes the rest."""

    tracking: Tracking
    client: MlflowClient
    experiment_id: str
    key: str
    on_progress: OnProgress

    def run(self, variant: str, name: str, tags: dict[str, str]) -> Run:
        """The run of a variant, or of the conversion (variant "")."""
        own = {TAG + "key": self.key, TAG + "kind": "variant" if variant else "conversion", TAG + "variant": variant}

        def find() -> list[Run]:
            runs = self.client.search_runs([self.experiment_id], f"tags.`{TAG}key` = '{self.key}'", max_results=5000)
            ours = [r for r in runs if own.items() <= r.data.tags.items()]
            return sorted(ours, key=lambda r: (r.info.start_time, r.info.run_id))

        return _one(
            find,
            lambda: self.client.create_run(self.experiment_id, tags={**tags, **own}, run_name=name),
            lambda run: self.client.delete_run(run.info.run_id),
        )

    def model(self, run: Run, variant: str, folder: Path, artifact: Artifact, example: Arrays | None) -> LoggedModel:
        """The variant's LoggedModel, READY: its files are there and were compared after a download."""
        own = {TAG + "key": self.key, TAG + "variant": variant, TAG + "artifact_digest": artifact.digest}

        def find() -> list[LoggedModel]:
            models = self.client.search_logged_models([self.experiment_id], f"tags.`{TAG}key` = '{self.key}'")
            ours = [m for m in models if own.items() <= m.tags.items()]
            return sorted(ours, key=lambda m: (m.creation_timestamp, m.model_id))

        self.on_progress(f"{variant}: model")
        model = _one(
            find,
            lambda: self.client.create_logged_model(
                self.experiment_id, variant, run.info.run_id, own, model_type="onnx"
            ),
            lambda extra: self.client.delete_logged_model(extra.model_id),
        )
        outputs = run.outputs.model_outputs if run.outputs else []
        if model.model_id not in {output.model_id for output in outputs}:
            self.client.log_outputs(run.info.run_id, [LoggedModelOutput(model.model_id, 0)])
        if model.status != LoggedModelStatus.READY:
            self.on_progress(f"{variant}: model files")
            with self.tracking.workspace() as temporary:
                _build(temporary / "built", folder, artifact, model, example)
                self.client.log_model_artifacts(model.model_id, str(temporary / "built"))
                self.on_progress(f"{variant}: model check")
                back = download(self.tracking, model.artifact_location, temporary / "back")
                if faults := check_files(back, artifact.digest):
                    raise ServiceError(
                        f"MLflow at {self.tracking.shown} lost what was logged: {'; '.join(faults)}. {AGAIN}"
                    )
            model = self.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
        return model

    def numbers(
        self,
        run: Run,
        metrics: dict[str, float],
        params: dict[str, str],
        tags: dict[str, str],
        model: LoggedModel | None,
    ) -> None:
        """Metrics (of the run and of its model), parameters and tags; a parameter too long for MLflow as a file."""
        stored = run.data.metrics
        on_model = {metric.key for metric in model.metrics or ()} if model else stored.keys()
        new = [
            # with the run's start as its time, and the value that was logged first, an entry made twice is the same one
            Metric(name, stored.get(name, value), run.info.start_time, 0, model_id=model.model_id if model else None)
            for name, value in metrics.items()
            if name not in stored or name not in on_model
        ]
        long = {name: value for name, value in params.items() if len(value) > PARAM_LENGTH}
        self.files(run, {f"params/{name}.txt": value.encode() for name, value in long.items()})
        short = {**params, **{name: f"see params/{name}.txt" for name in long}}
        self.client.log_batch(
            run.info.run_id,
            new,
            [Param(name, value) for name, value in short.items() if name not in run.data.params],
            [RunTag(TAG + name, value) for name, value in tags.items()],
        )

    def files(self, run: Run, contents: Mapping[str, bytes | Path]) -> None:
        if contents:
            self.on_progress(f"{_label(run)}: files")
            attach(self.tracking, run.info.run_id, contents)

    def finish(self, run: Run, status: Literal["FINISHED", "FAILED"]) -> None:
        self.on_progress(f"{_label(run)}: end")
        self.client.set_terminated(run.info.run_id, status)
        self.client.set_tag(run.info.run_id, COMPLETE, "true")


def _label(run: Run) -> str:
    return str(run.data.tags[TAG + "variant"]) or "conversion"


def _one(find: Callable[[], list[T]], create: Callable[[], object], delete: Callable[[T], None]) -> T:
    """What is found, made if there is none. A create whose answer was lost is sent again and makes two: the first
    stays."""
    found = find()
    if not found:
        create()
        found = find()
    for extra in found[1:]:
        delete(extra)
    return found[0]


def experiment(client: MlflowClient, tracking: Tracking, name: str) -> str:
    full = f"onnxmill/{name}"
    found = client.get_experiment_by_name(full)
    if found:
        return str(found.experiment_id)
    location = (tracking.artifacts / name).as_uri() if tracking.artifacts else None
    try:
        return str(client.create_experiment(full, location))
    except MlflowException as error:
        found = client.get_experiment_by_name(full)  # another machine was first, or the answer was lost
        if found is None:
            raise error
        return str(found.experiment_id)


# --- models ----------------------------------------------------------------------------------------------------------


def download(tracking: Tracking, uri: str, folder: Path) -> Path:
    """The files at an artifact location, as a fresh copy under `folder`. (What `models:/…` means, MLflow asks its
    global settings alone: such an address works where MLFLOW_TRACKING_URI is set, as in `registry.load_back`.)"""
    return Path(
        artifacts.download_artifacts(
            artifact_uri=uri, dst_path=str(folder), tracking_uri=tracking.uri, registry_uri=tracking.uri
        )
    )


def _build(target: Path, folder: Path, artifact: Artifact, model: LoggedModel, example: Arrays | None) -> None:
    """An MLflow model around the artifact's own bytes: MLflow's flavor writes its files, then ours replace the ONNX
    file that it serialised anew, external data beside it."""
    proto = onnx.load(folder / MODEL, load_external_data=False)
    mlmodel = Model(
        artifact_path=model.artifact_location,
        run_id=model.source_run_id,
        model_uuid=model.model_id,
        model_id=model.model_id,
    )
    mlflow_onnx.save_model(
        proto,
        str(target),
        mlflow_model=mlmodel,
        signature=_signature(proto),
        input_example=dict(example) if example else None,
        pip_requirements=[f"{name}=={version(name)}" for name in ("mlflow", "numpy", "onnx", "onnxruntime")],
        onnx_execution_providers=["CPUExecutionProvider"],
        save_as_external_data=False,  # its default empties the proto, and writes names of its own
    )
    for name in artifact.files:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        link(folder / name, target / name)  # what MLflow stores is a copy
    (target / MANIFEST).write_text(artifact.model_dump_json(indent=1), encoding="utf-8")
    mlmodel.model_size_bytes = artifact.size_bytes
    mlmodel.save(str(target / "MLmodel"))


def _signature(proto: onnx.ModelProto) -> ModelSignature:
    """The graph's inputs and outputs: names, dtypes, shapes with -1 for a dynamic dim."""
    constants = {initializer.name for initializer in proto.graph.initializer}

    def schema(values: Iterable[onnx.ValueInfoProto]) -> Schema:
        return Schema(
            [
                TensorSpec(
                    onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
                    tuple(d.dim_value or -1 for d in value.type.tensor_type.shape.dim),
                    value.name,
                )
                for value in values
            ]
        )

    inputs = [value for value in proto.graph.input if value.name not in constants]
    return ModelSignature(schema(inputs), schema(proto.graph.output))
