"""The chain of audit records: what a record says, how each names those before it, and what no longer fits."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from graphlib import TopologicalSorter
from hashlib import sha256
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from onnxmill.tasks.artifact import canonical_json
from onnxmill.tasks.errors import OnnxmillError

FILE = "record.json"
"""The artifact with a record's text, for people; the same text is in a tag of its run."""

Action = Literal["promote", "rollback", "hold", "release"]


class Plan(BaseModel):
    """What is to be done, and why: the alias goes from version `before` to `after` (null: names nothing).

    `version`, with the digests of its files and of its source, is what the action is about: the version promoted,
    rolled back or let back in; null for a model's hold and its release.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    action: Action
    before: int | None
    after: int | None
    version: int | None
    digest: str | None
    source_digest: str | None
    why: str


class Record(Plan):
    """One record. The intent and the outcome of a move have the same `move` and `began`; `when` is the record's own.

    Of an outcome, `after` is what the alias names then, and `done` whether that was the intent; `note` says why not.
    `found`: written by the next command from what the registry said then, as the move's process seemed to have ended.
    """

    move: str
    stage: Literal["intent", "outcome"]
    done: bool
    found: bool
    note: str
    alias: str
    who: str
    began: datetime
    when: datetime
    previous: tuple[str, ...]

    @property
    def since(self) -> datetime:
        """From when the alias names `after`: of an outcome that was found later, about when the move began."""
        return self.began if self.found else self.when

    @property
    def text(self) -> str:
        return canonical_json(self.model_dump(mode="json")).decode()

    @property
    def sha256(self) -> str:
        return _sha256(self.text)


@dataclass(frozen=True)
class Stored:
    """A record as MLflow has it: the run's tags and, once its writer `finished`, its file, null where it is missing."""

    run_id: str
    model: str
    text: str
    digest: str
    file: str | None
    finished: bool


@dataclass(frozen=True)
class Chain:
    """The records of one model, each after those that it names; the last ones' sha256; what does not fit."""

    records: tuple[Record, ...]
    heads: tuple[str, ...]
    faults: tuple[str, ...]

    def moves(self) -> list[Record]:
        """Each move's outcome, in the order of the intents: its own process's where there are two (that was slow,
        not dead); the intent where none is known."""
        best: dict[str, Record] = {}
        for record in self.records:
            known = best.get(record.move)
            if known is None or known.stage == "intent" or (known.found and not record.found):
                best[record.move] = record
        return list(best.values())

    def verified(self) -> "Chain":
        """The chain itself, or `OnnxmillError` with its first faults."""
        if not self.faults:
            return self
        more = f" (and {len(self.faults) - 3} more)" if len(self.faults) > 3 else ""
        raise OnnxmillError(
            f"audit: {'; '.join(self.faults[:3])}{more}. No alias was moved. Restore the run in MLflow "
            f"(`mlflow runs restore`) or from its backup; `onnxmill history` shows every record"
        )


def link(model: str, stored: Sequence[Stored], anchors: Sequence[str]) -> Chain:
    """Recompute every hash, and put the records of `model` in order. `anchors`: the last records' sha256 as the
    registered model names them. A pure function."""
    records: dict[str, Record] = {}
    faults = []
    for entry in stored:
        name = f"the record in run {entry.run_id}"
        try:
            record = Record.model_validate_json(entry.text)
        except ValidationError:
            faults.append(f"{name} was edited: it is none any more")
            continue
        found = _sha256(entry.text)
        if found != entry.digest or record.text != entry.text or record.model != entry.model or entry.model != model:
            faults.append(f"{name} was edited: sha256 {found[:12]}, expected {entry.digest[:12] or 'one'} of '{model}'")
        elif entry.file is None and entry.finished:
            faults.append(f"{name} was edited: its {FILE} is missing")
        elif entry.file not in (None, entry.text):
            faults.append(f"{name} was edited: its {FILE} is not what its tag says")
        records[found] = record
    for digest, record in records.items():
        lost = [name for name in record.previous if name not in records]
        faults += [f"record {name[:12]}, which {digest[:12]} comes after, is missing or was edited" for name in lost]
    faults += [f"record {name[:12]}, the last, is missing or was edited" for name in anchors if name not in records]
    named = {name for record in records.values() for name in record.previous}
    return Chain(_ordered(records), tuple(sorted(records.keys() - named)), tuple(faults))


def _sha256(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _ordered(records: dict[str, Record]) -> tuple[Record, ...]:
    """Each record after those that it names; written at once, by their time."""
    sorter = TopologicalSorter({digest: set(record.previous) & records.keys() for digest, record in records.items()})
    sorter.prepare()
    order: list[Record] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=lambda digest: (records[digest].when, digest))
        order += [records[digest] for digest in ready]
        sorter.done(*ready)
    return tuple(order)
