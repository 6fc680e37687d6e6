"""What a person marks in the registry: a model that is held, a digest that is rejected; and a version tried alone."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
from pydantic import BaseModel

from onnxmill.calibration.samples import Array
from onnxmill.tasks.artifact import CorruptStore
from onnxmill.tasks.errors import InputError, close_match
from onnxmill.tasks.graph import MODEL
from onnxmill.tasks.model_files import check_files
from onnxmill.tasks.registry import HELD, REJECTED, VALIDATION, all_versions, in_child
from onnxmill.tasks.track import TAG, Tracking, connect, download

from mlflow import MlflowException  # isort: skip (track sets what mlflow reads on import)
from mlflow.models import Model  # isort: skip

NUMPY_TYPES = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(string)": "object"}
"""ONNX Runtime's names that are not numpy's in brackets."""


@dataclass(frozen=True)
class Version:
    """A registered version as its tags have it. `digest` is null where onnxmill did not register it; `rejected` says
    who rejected it and why, null where nobody did."""

    number: int
    digest: str | None
    source_digest: str | None
    variant: str | None
    status: str | None
    rejected: str | None

    def __str__(self) -> str:
        state = "rejected" if self.rejected is not None else self.status or "not onnxmill's"
        return f"{self.number} ({f'{self.variant}, ' if self.variant else ''}{state})"


def versions(tracking: Tracking, model: str) -> list[Version]:
    """All versions of a model, the oldest first. `InputError` for a name that is not registered."""
    with tracking.service(f"reading the registered model '{model}'"):
        client = tracking.client()
        try:
            client.get_registered_model(model)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            names = [found.name for found in client.search_registered_models()]
            known = close_match(model, names) if names else "nothing is registered yet"
            raise InputError("NAME", model, "is no registered model", known) from error
        return [
            Version(
                int(found.version),
                found.tags.get(TAG + "artifact_digest"),
                found.tags.get(TAG + "source_digest"),
                found.tags.get(TAG + "variant"),
                found.tags.get(VALIDATION),
                found.tags.get(REJECTED),
            )
            for found in all_versions(client, model)
        ]


def mark_held(tracking: Tracking, model: str, text: str | None) -> None:
    """Hold the model with `text` as the reason; null lifts the hold."""
    with tracking.lock(), tracking.service(f"holding or releasing '{model}'"):
        client = tracking.client()
        if text is not None:
            client.set_registered_model_tag(model, HELD, text)
        elif HELD in client.get_registered_model(model).tags:
            client.delete_registered_model_tag(model, HELD)


def mark_rejected(tracking: Tracking, model: str, version: Version, text: str | None) -> None:
    """Reject every version with the digest of `version`, with `text` as the reason; null lifts the rejection."""
    with tracking.lock(), tracking.service(f"marking version {version.number} of '{model}'"):
        client = tracking.client()
        for other in all_versions(client, model):
            same = version.digest is not None and other.tags.get(TAG + "artifact_digest") == version.digest
            if not same and int(other.version) != version.number:
                continue
            if text is not None:
                client.set_model_version_tag(model, other.version, REJECTED, text)
            elif REJECTED in other.tags:
                client.delete_model_version_tag(model, other.version, REJECTED)


class Tried(BaseModel):
    """Faults of a version's files, as a fresh process saw them after a download."""

    faults: list[str]


def try_out(tracking: Tracking, model: str, version: Version) -> None:
    """Download a version in a fresh process, compare its files with its digest, and run it once in ONNX Runtime.

    Raises `CorruptStore` where its files are not those of the digest, `StepError` where it does not run.
    """
    reply = in_child(
        tracking,
        "onnxmill.tasks.registry_marks:try_files",
        {"home": tracking.home.parent, "model": model, "version": version.number, "digest": version.digest or ""},
        step=f"try version {version.number} of '{model}'",
    )
    if faults := Tried.model_validate(reply).faults:
        raise CorruptStore(
            f"registry: version {version.number} of '{model}' is not what was logged: {'; '.join(faults)}. "
            f"No alias was moved. Give another version: --to"
        )


def try_files(home: Path, model: str, version: int, digest: str) -> Tried:
    """In the child: download, compare the files, run the stored input example, or zeros where there is none."""
    tracking = connect(os.environ["MLFLOW_TRACKING_URI"], home)
    with tracking.workspace() as temporary:
        with tracking.service(f"downloading version {version} of '{model}'"):
            folder = download(tracking, f"models:/{model}/{version}", temporary)
        faults = check_files(folder, digest)
        if not faults:
            session = onnxruntime.InferenceSession(folder / MODEL, providers=["CPUExecutionProvider"])
            session.run(None, inputs(session, folder))
    return Tried(faults=faults)


def inputs(session: onnxruntime.InferenceSession, folder: Path) -> dict[str, Array]:
    """For each input of a model the stored example of the MLflow model in `folder`, else zeros, 1 for a free dim."""
    stored: object = Model.load(str(folder)).load_input_example(str(folder))  # (mlflow declares text)
    example = stored if isinstance(stored, dict) else {}
    made: dict[str, Array] = {}
    for value in session.get_inputs():
        dtype = np.dtype(NUMPY_TYPES.get(value.type, value.type.removeprefix("tensor(").removesuffix(")")))
        shape = [dim if isinstance(dim, int) and dim > 0 else 1 for dim in value.shape]
        made_up = np.full(shape, "" if dtype.kind == "O" else 0, dtype)
        made[value.name] = np.asarray(example[value.name]).astype(dtype) if value.name in example else made_up
    return made
