"""The registry: one version a digest, proven after a download in a fresh process, then the alias `champion`.

What a decision needs of a version is in the version's own tags (`Standing`), so that any machine can decide later.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnxruntime
from pydantic import BaseModel, JsonValue, ValidationError

from onnxmill.tasks import cases, isolate
from onnxmill.tasks.artifact import CorruptStore, canonical_json
from onnxmill.tasks.cases import Case
from onnxmill.tasks.decide import Champion, Live, Standing
from onnxmill.tasks.errors import OnnxmillError
from onnxmill.tasks.findings import Finding, refused
from onnxmill.tasks.graph import MODEL
from onnxmill.tasks.model_files import check_files
from onnxmill.tasks.parity import Arrays, compare, judge
from onnxmill.tasks.spec import Gate
from onnxmill.tasks.step import child_limits
from onnxmill.tasks.track import TAG, Tracking, connect, download

from mlflow import MlflowClient, MlflowException, pyfunc  # isort: skip (track sets what mlflow reads on import)
from mlflow.entities.model_registry import ModelVersion  # isort: skip

ALIAS = "champion"
VALIDATION = "validation_status"
HELD, REJECTED = TAG + "held", TAG + "rejected"
"""Tags that a person's `hold` sets on the model, `rollback` on the version."""


def live(tracking: Tracking, model: str) -> Live:
    """What the registry says of `model` right now: champion, hold, rejected digests. All empty for an unknown name."""
    with tracking.service(f"reading the registered model '{model}'"):
        client = tracking.client()
        registered = client.search_registered_models(f"name = '{model}'")
        if not registered:
            return Live()
        versions = all_versions(client, model)
        rejected = {v.tags.get(TAG + "artifact_digest", "") for v in versions if REJECTED in v.tags}
        current = _current(client, model)
        champion = Champion(current, _standing(client.get_model_version(model, str(current)))) if current else None
        return Live(champion, HELD in registered[0].tags, frozenset(rejected - {""}))


def register(tracking: Tracking, model: str, standing: Standing, run_id: str, model_id: str) -> int:
    """The version of `model` that holds `standing`'s digest: the one that is there, or a new one of the LoggedModel.

    Its tags hold the standing; `validation_status` is "pending" until `prove` has seen it.
    """
    tags = {TAG + name: str(value) for name, value in standing.model_dump(exclude_none=True).items()}
    with tracking.lock(), tracking.service(f"registering {standing.variant} as '{model}'"):
        client = tracking.client()
        if not client.search_registered_models(f"name = '{model}'"):
            try:
                client.create_registered_model(model)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another machine was first, or the answer was lost
                    raise
        same = _same_digest(client, model, standing)
        if not same:
            # an address models:/<id> would be resolved by MLflow's global settings, in SQLite's case ./mlflow.db
            source = client.get_logged_model(model_id).artifact_location
            new = {**tags, VALIDATION: "pending"}
            made = client.create_model_version(model, source, run_id, new, model_id=model_id)
            link = canonical_json([{"name": model, "version": made.version}]).decode()
            client.set_logged_model_tags(model_id, {"mlflow.modelVersions": link})  # what the model's page shows
            same = _same_digest(client, model, standing)
        version = same[0]
        for name, value in tags.items():
            if version.tags.get(name) != value:  # the same bytes, measured anew
                client.set_model_version_tag(model, version.version, name, value)
        return int(version.version)


class LoadedBack(BaseModel):
    """What a fresh process saw of a version: faults of its files, findings on its outputs."""

    faults: list[str]
    findings: list[Finding]


def prove(
    tracking: Tracking,
    model: str,
    version: int,
    *,
    digest: str,
    reference: Path,
    gate: Gate,
    real_only: bool,
) -> list[Finding]:
    """Load the version back from the registry in a fresh process, and compare it with the parity cases in `reference`,
    or, with `real_only`, with those of real samples where there are any: as the gate before did.

    Its files must have `digest`; ONNX Runtime's and mlflow.pyfunc's outputs must meet `gate`. The result is written
    to the tag `validation_status`. Raises `CorruptStore` where the files are not those that were logged.
    """
    reply = in_child(
        tracking,
        "onnxmill.tasks.registry:load_back",
        {"home": tracking.home.parent, "model": model, "version": version, "digest": digest}
        | {"reference": reference, "gate": gate, "real_only": real_only},
        step="load back from the registry",
    )
    seen = LoadedBack.model_validate(reply)
    passed = not seen.faults and not refused(seen.findings)
    with tracking.service(f"tagging version {version} of '{model}'"):
        tracking.client().set_model_version_tag(model, str(version), VALIDATION, "passed" if passed else "refused")
    if seen.faults:
        raise CorruptStore(
            f"registry: version {version} of '{model}' is not what was logged: {'; '.join(seen.faults)}. "
            f"No alias was moved. Delete that version in MLflow and run the same command again"
        )
    return seen.findings


def in_child(tracking: Tracking, function: str, arguments: Mapping[str, object], *, step: str) -> JsonValue:
    """What `function` ("module:name") gives in a fresh process that may talk to the same MLflow."""
    names = ("MLFLOW_", "AWS_", "AZURE_", "GOOGLE_")
    settings = {name: value for name, value in os.environ.items() if name.startswith(names)}
    environment = {**settings, "MLFLOW_TRACKING_URI": tracking.uri}
    return isolate.run(function, arguments, step=step, limits=child_limits(), environment=environment).value


def load_back(
    home: Path, model: str, version: int, digest: str, reference: Path, gate: Gate, real_only: bool
) -> LoadedBack:
    """In the child: download, compare the files, run every parity case by ONNX Runtime and by mlflow.pyfunc."""
    tracking = connect(os.environ["MLFLOW_TRACKING_URI"], home)
    read = list(cases.read(reference))
    chosen = [case for case in read if case.kind == "real" or not real_only] or read
    with tracking.workspace() as temporary:
        with tracking.service(f"downloading version {version} of '{model}'"):
            folder = download(tracking, f"models:/{model}/{version}", temporary)
        if faults := check_files(folder, digest):
            return LoadedBack(faults=faults, findings=[])
        plain = _plain(folder / MODEL, chosen)  # its session ends here: two of a large model may not fit into memory
        served = pyfunc.load_model(str(folder))
        wrapped: list[Arrays] = [served.predict(dict(case.inputs)) for case in chosen]
    references: list[Arrays] = [case.outputs for case in chosen]
    findings = _compare("ONNX Runtime", references, plain, gate) + _compare("mlflow.pyfunc", references, wrapped, gate)
    return LoadedBack(faults=[], findings=findings)


def _plain(path: Path, chosen: list[Case]) -> list[Arrays]:
    """ONNX Runtime's outputs on each case."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return [dict(zip(names, session.run(names, dict(case.inputs)), strict=True)) for case in chosen]


@dataclass(frozen=True)
class Move:
    """Whether the alias now names the version, which it named just before and names now, and why not if not."""

    moved: bool
    before: int | None
    now: int | None
    why: str


def set_champion(tracking: Tracking, model: str, version: int, expected: int | None) -> Move:
    """Give the alias `champion` to a proven version, if it still names `expected` (null: nothing), the one that the
    decision saw; read it back. An alias that someone else moved is left, and reported. Call `prove` just before."""
    with tracking.lock(), tracking.service(f"moving the alias '{ALIAS}' of '{model}'"):
        client = tracking.client()
        tags = client.get_model_version(model, str(version)).tags
        status = tags.get(VALIDATION)
        if status != "passed":
            raise OnnxmillError(
                f"version {version} of '{model}': {VALIDATION} is {status}, must be passed: prove it first"
            )
        if HELD in client.get_registered_model(model).tags:  # since the decision
            return Move(False, expected, expected, f"'{model}' is held: nothing moves")
        if REJECTED in tags:
            return Move(False, expected, expected, f"version {version} was rejected: {tags[REJECTED]}")
        before = _current(client, model)
        if before != expected:
            return Move(False, before, before, _taken(before, expected))
        client.set_registered_model_alias(model, ALIAS, str(version))
        now = _current(client, model)
        return Move(now == version, before, now, "" if now == version else _taken(now, version))


def _taken(found: int | None, expected: int | None) -> str:
    """MLflow has no compare-and-set: reading the alias before and after at least shows that someone else moved it."""
    names = [f"version {v}" if v else "nothing" for v in (found, expected)]
    return f"someone else moved the alias '{ALIAS}': it names {names[0]}, expected {names[1]}; run the command again"


def _current(client: MlflowClient, model: str) -> int | None:
    """The version that the alias names now. (`search_model_versions` gives no aliases.)"""
    try:
        return int(client.get_model_version_by_alias(model, ALIAS).version)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):  # the latter: no such alias
            return None
        raise


def _standing(version: ModelVersion) -> Standing | None:
    fields = {n: version.tags[TAG + n] for n in Standing.model_fields if TAG + n in version.tags}
    try:
        return Standing.model_validate(fields)
    except ValidationError:
        return None  # not one of ours: the decision says so


def all_versions(client: MlflowClient, model: str) -> list[ModelVersion]:
    """All versions, the oldest first."""
    found: list[ModelVersion] = []
    token: str | None = None
    while True:
        page = client.search_model_versions(f"name = '{model}'", page_token=token)
        found += page
        token = page.token
        if not token:
            return sorted(found, key=lambda v: int(v.version))


def _same_digest(client: MlflowClient, model: str, standing: Standing) -> list[ModelVersion]:
    return [v for v in all_versions(client, model) if v.tags.get(TAG + "artifact_digest") == standing.artifact_digest]


def _compare(how: str, references: list[Arrays], outputs: list[Arrays], gate: Gate) -> list[Finding]:
    names = list(references[0]) if references else []
    parity, faults = compare(names, references, outputs)
    return [f.model_copy(update={"where": f"{f.where}, loaded back by {how}"}) for f in [*faults, *judge(parity, gate)]]
