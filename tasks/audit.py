"""The audit record: every move of an alias, hold and release, append-only and hash-chained, as MLflow runs.

A record is a run of the experiment `onnxmill/audit`, made with all that it says in one request: nobody's writing
loses another's. It names the sha256 of the records before it (`previous`), and a tag of the registered model names
the last: an edited, deleted or reordered record no longer fits. Records written at once on several machines name
the same `previous`; the next one names them all. Before a move an intent is written, after it the outcome: where a
process ended in between, the next command for the model writes the outcome that it finds.
"""

import getpass
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from filelock import FileLock, Timeout

from onnxmill.tasks import registry
from onnxmill.tasks.audit_chain import FILE, Chain, Plan, Record, Stored, link
from onnxmill.tasks.errors import ServiceError, shorten
from onnxmill.tasks.registry import ALIAS, Move
from onnxmill.tasks.track import AGAIN, LOCK_SECONDS, TAG, Tracking, attach, download, experiment

from mlflow import MlflowException  # isort: skip (track sets what mlflow reads on import)
from mlflow.entities import Run  # isort: skip

MODEL, TEXT, DIGEST = TAG + "audit.model", TAG + "audit.record", TAG + "audit.sha256"
HEAD = TAG + "audit.head."
"""Begins the tag of the registered model that names a last record."""
WHY_LENGTH = 1500
LINKS = 60
"""`previous` names at most so many: the record must fit into a tag (8,000 characters), the rest wait for the next."""
READERS = 8
"""Files that are downloaded at once: a server may take 50 ms for each, and a model may have hundreds."""


def read(tracking: Tracking, model: str) -> Chain:
    """The records of `model`, verified or not: `Chain.faults`."""
    with tracking.service(f"reading the audit record of '{model}'"):
        anchors = _anchors(tracking, model)  # first: a record that is written meanwhile is then no fault
        runs = _runs(tracking, f"tags.`{MODEL}` = '{model}'")
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(READERS) as pool:
            stored = pool.map(lambda run: _stored(tracking, run, Path(folder) / run.info.run_id), runs)
            return link(model, list(stored), anchors)


def models(tracking: Tracking) -> list[str]:
    """The names of all models that have records."""
    with tracking.service("reading the audit record"):
        return sorted({run.data.tags[MODEL] for run in _runs(tracking, f"tags.`{MODEL}` != ''")})


def settle(tracking: Tracking, model: str) -> Chain:
    """The verified records of `model`, once every move that was left unfinished has the outcome that is found now."""
    with _turn(tracking):
        return _settled(tracking, model)


def carry_out(tracking: Tracking, plan: Plan, act: Callable[[], Move]) -> Move:
    """Do `act`, with the intent on record before it and the outcome after it. Verifies the records first."""
    with _turn(tracking):
        chain = _settled(tracking, plan.model)
        why = shorten(" ".join(plan.why.split()), WHY_LENGTH)
        now = datetime.now(UTC)
        intent = Record(
            **plan.model_copy(update={"why": why}).model_dump(),
            move=uuid4().hex,
            stage="intent",
            done=False,
            found=False,
            note="",
            alias=ALIAS,
            who=who(),
            began=now,
            when=now,
            previous=chain.heads[:LINKS],
        )
        _write(tracking, intent)
        move = act()
        _write(tracking, _outcome(intent, move, False, (intent.sha256, *chain.heads[LINKS:])[:LINKS]))
        return move


def who() -> str:
    """The name under which MLflow knows this user, else that of the operating system."""
    name = os.environ.get("MLFLOW_TRACKING_USERNAME")
    if name:
        return name
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"uid {os.getuid()}"


# --- details ---------------------------------------------------------------------------------------------------------


def _settled(tracking: Tracking, model: str) -> Chain:
    chain = read(tracking, model).verified()
    unfinished = [move for move in chain.moves() if move.stage == "intent"]
    if not unfinished:
        return chain
    heads = chain.heads[:LINKS]
    for intent in unfinished:
        outcome = _outcome(intent, _found(tracking, intent), True, heads)
        _write(tracking, outcome)
        heads = (outcome.sha256,)
    return read(tracking, model).verified()


def _found(tracking: Tracking, intent: Record) -> Move:
    """What came of a move whose process ended before it wrote that down, by what the registry says now."""
    live = registry.live(tracking, intent.model)
    now = live.champion.version if live.champion else None
    match intent.action:
        case "promote" | "rollback":
            done = now == intent.after
        case "hold":
            done = live.held
        case "release":
            done = not live.held if intent.version is None else intent.digest not in live.rejected
    note = f"its process ended before it was on record: as found by the next command, of {who()}"
    return Move(done, intent.before, now, note)


def _outcome(intent: Record, move: Move, found: bool, previous: tuple[str, ...]) -> Record:
    return intent.model_copy(
        update={"stage": "outcome", "done": move.moved, "found": found, "after": move.now}
        | {"note": shorten(move.why, WHY_LENGTH), "when": datetime.now(UTC), "previous": previous}
    )


def _write(tracking: Tracking, record: Record) -> None:
    """The run with the whole record; the registered model's tag that names it; the file for people."""
    with tracking.service(f"writing the audit record of '{record.model}'"):
        client = tracking.client()
        tags = {MODEL: record.model, TEXT: record.text, DIGEST: record.sha256, "mlflow.user": record.who}
        name = f"{record.model}: {record.action}, {record.stage}"
        run_id = client.create_run(experiment(client, tracking, "audit"), tags=tags, run_name=name).info.run_id
        client.set_registered_model_tag(record.model, HEAD + record.sha256, f"{record.when:%Y-%m-%d %H:%M} {run_id}")
        for digest in set(_anchors(tracking, record.model)) & set(record.previous):
            client.delete_registered_model_tag(record.model, HEAD + digest)
        attach(tracking, run_id, {FILE: record.text.encode()})
        client.set_terminated(run_id)


def _anchors(tracking: Tracking, model: str) -> list[str]:
    found = tracking.client().search_registered_models(f"name = '{model}'")
    return [name.removeprefix(HEAD) for name in (found[0].tags if found else {}) if name.startswith(HEAD)]


def _runs(tracking: Tracking, query: str) -> list[Run]:
    client = tracking.client()
    place = client.get_experiment_by_name("onnxmill/audit")
    if place is None:
        return []
    found: list[Run] = []
    token: str | None = None
    while True:
        page = client.search_runs([place.experiment_id], query, max_results=1000, page_token=token)
        found += page
        token = page.token
        if not token:
            return found


def _stored(tracking: Tracking, run: Run, folder: Path) -> Stored:
    """The record of a run. Its file is looked at where its writer came to its end: before, it may be half there."""
    tags, file, finished = run.data.tags, None, run.info.status == "FINISHED"
    if finished:
        folder.mkdir()
        try:
            path = download(tracking, f"{run.info.artifact_uri}/{FILE}", folder)
            file = path.read_bytes().decode(errors="replace")
        except (MlflowException, OSError):
            if any(found.path == FILE for found in tracking.client().list_artifacts(run.info.run_id)):
                raise  # it is there: the download failed
    return Stored(run.info.run_id, tags[MODEL], tags.get(TEXT, ""), tags.get(DIGEST, ""), file, finished)


@contextmanager
def _turn(tracking: Tracking) -> Iterator[None]:
    """One process of this home at a time moves something. (`Tracking.lock` is taken within.)"""
    tracking.home.mkdir(parents=True, exist_ok=True)
    path = tracking.home / "moves.lock"
    try:
        with FileLock(path, timeout=LOCK_SECONDS):
            yield
    except Timeout as error:
        raise ServiceError(
            f"MLflow: another process has moved aliases for {LOCK_SECONDS} s ({path}). {AGAIN}"
        ) from error
