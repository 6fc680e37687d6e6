"""The audit record: append-only and hash-chained. What was edited, deleted or reordered is found; nothing is lost."""

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxmill.tasks import audit
from onnxmill.tasks.audit_chain import Action, Chain, Plan, Record, Stored, link
from onnxmill.tasks.errors import OnnxmillError
from onnxmill.tasks.registry import Move
from onnxmill.tasks.track import Tracking, attach, connect
from tests.registering import World

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def plan(model: str, why: str = "because", action: Action = "hold", version: int | None = None) -> Plan:
    return Plan(
        model=model, action=action, before=1, after=1, version=version, digest=None, source_digest=None, why=why
    )


def stored(record: Record) -> Stored:
    return Stored(f"run-{record.sha256[:6]}", record.model, record.text, record.sha256, record.text, finished=True)


def made_up(previous: tuple[str, ...], minute: int) -> Record:
    """The `minute`-th record of a chain: intents and outcomes in turn."""
    fields = plan("m", f"reason {minute}", version=2).model_dump() | {"digest": "d" * 64, "source_digest": "s" * 64}
    when = BEGAN + timedelta(minutes=minute)
    return Record(
        **fields, move=f"move {minute // 2}", stage="outcome" if minute % 2 else "intent", done=bool(minute % 2),
        found=False, note="", alias="champion", who="me", began=when, when=when, previous=previous,
    )  # fmt: skip


def chain_of(length: int) -> list[Record]:
    records: list[Record] = []
    for minute in range(length):
        records.append(made_up((records[-1].sha256,) if records else (), minute))
    return records


WHOLE = chain_of(6)
HEADS = [WHOLE[-1].sha256]
CHANGES: dict[type, Callable[[object], object]] = {
    str: lambda old: f"{old}x",
    bool: lambda old: not old,
    int: lambda old: int(str(old)) + 1,
    datetime: lambda old: datetime.fromisoformat(str(old)) + timedelta(seconds=1),
    tuple: lambda old: (*(old if isinstance(old, tuple) else ()), "f" * 64),
}


def test_a_whole_chain_is_in_order_however_it_is_stored() -> None:
    chain = link("m", [stored(record) for record in reversed(WHOLE)], HEADS)
    assert chain == Chain(tuple(WHOLE), tuple(HEADS), ())
    assert chain.verified() is chain
    assert [move.why for move in chain.moves()] == ["reason 1", "reason 3", "reason 5"]
    twice = [stored(record) for record in (*WHOLE, WHOLE[2])]  # a request whose answer was lost is sent again
    assert link("m", twice, HEADS) == chain


@given(
    st.integers(0, len(WHOLE) - 1),
    st.sampled_from(sorted(set(Record.model_fields) - {"stage", "action"})),
    st.sampled_from(["text alone", "text and file", "all with a new sha256"]),
)
def test_any_edit_of_any_field_is_found(index: int, field: str, thorough: str) -> None:
    old = getattr(WHOLE[index], field)
    edited = WHOLE[index].model_copy(update={field: CHANGES[type(old)](old)})
    entries = [stored(record) for record in WHOLE]
    entries[index] = dataclasses.replace(
        entries[index],
        text=edited.text,
        file=entries[index].file if thorough == "text alone" else edited.text,
        digest=edited.sha256 if thorough == "all with a new sha256" else entries[index].digest,
    )
    assert link("m", entries, HEADS).faults


@pytest.mark.parametrize("index", range(len(WHOLE)))
@pytest.mark.parametrize(
    "edit",
    [
        {"stage": "outcome"}, {"stage": "intent"}, {"action": "release"}, {"why": ""}, {"who": "someone else"},
    ],
    ids=str,
)  # fmt: skip
def test_an_edit_to_another_allowed_value_is_found(index: int, edit: dict[str, str]) -> None:
    edited = WHOLE[index].model_copy(update=edit)
    entries = [stored(record) for record in WHOLE]
    entries[index] = stored(edited)
    assert bool(link("m", entries, HEADS).faults) == (edited != WHOLE[index])


@pytest.mark.parametrize("index", range(len(WHOLE)))
def test_a_deleted_record_is_found_and_named(index: int) -> None:
    chain = link("m", [stored(record) for record in WHOLE if record is not WHOLE[index]], HEADS)
    assert [fault for fault in chain.faults if WHOLE[index].sha256[:12] in fault]
    with pytest.raises(OnnxmillError, match=r"audit: record .* is missing or was edited.*mlflow runs restore") as error:
        chain.verified()
    assert error.value.exit_code == 1


def test_a_reordered_or_a_foreign_record_is_found() -> None:
    swapped = [*WHOLE[:2], made_up((WHOLE[3].sha256,), 2), made_up((WHOLE[1].sha256,), 3), *WHOLE[4:]]
    assert link("m", [stored(record) for record in swapped], HEADS).faults
    assert link("other", [stored(WHOLE[0])], []).faults
    assert link("m", [dataclasses.replace(stored(WHOLE[0]), text="{}")], []).faults


def test_the_file_for_people_is_checked_where_its_writer_came_to_it() -> None:
    entry = stored(WHOLE[0])
    assert link("m", [dataclasses.replace(entry, file=entry.text + " ")], []).faults
    assert link("m", [dataclasses.replace(entry, file=None)], []).faults
    assert link("m", [dataclasses.replace(entry, file=None, finished=False)], []).faults == ()


def test_records_written_at_once_are_linked_by_the_next() -> None:
    first = WHOLE[0]
    second, third = made_up((first.sha256,), 1), made_up((first.sha256,), 3)
    last = made_up((second.sha256, third.sha256), 4)
    fork = link("m", [stored(record) for record in (third, first, second)], [])
    assert (fork.records, set(fork.heads), fork.faults) == ((first, second, third), {second.sha256, third.sha256}, ())
    joined = link("m", [stored(record) for record in (last, third, first, second)], [last.sha256])
    assert (joined.heads, joined.faults) == ((last.sha256,), ())


def test_of_two_outcomes_the_process_own_counts() -> None:
    intent = WHOLE[0]
    own = made_up((intent.sha256,), 1)
    guess = own.model_copy(update={"found": True, "done": False, "when": own.when + timedelta(hours=1)})
    for records in ((intent, own, guess), (intent, guess, own)):
        moves = link("m", [stored(record) for record in records], []).moves()
        assert [(move.done, move.found) for move in moves] == [(True, False)]


# --- in a real MLflow ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("home")
    return World(connect(None, folder), folder)


def registered(tracking: Tracking, name: str) -> str:
    tracking.client().create_registered_model(name)
    return name


def nothing(tracking: Tracking, model: str, why: str) -> None:
    audit.carry_out(tracking, plan(model, why), lambda: Move(True, 1, 1, ""))


def test_who_when_and_why_are_on_record(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    model = registered(world.tracking, "plain")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ärzte")
    nothing(world.tracking, model, "too   loud\n" + "x" * 3000)
    monkeypatch.delenv("MLFLOW_TRACKING_USERNAME")
    nothing(world.tracking, model, "again")
    first, second = audit.read(world.tracking, model).verified().moves()
    assert (first.who, first.why[:9], len(first.why)) == ("ärzte", "too loud ", audit.WHY_LENGTH)
    assert second.who not in ("", "ärzte")
    assert datetime.now(UTC) - second.when < timedelta(minutes=5)
    assert model in audit.models(world.tracking)
    tags = world.tracking.client().get_registered_model(model).tags
    assert [name for name in tags if name.startswith(audit.HEAD)] == [audit.HEAD + second.sha256]


@pytest.mark.integration
def test_eight_writers_at_once_lose_nothing(world: World, tmp_path: Path) -> None:
    """Each with a home of its own, as on eight machines: no lock is shared."""
    model = registered(world.tracking, "busy")

    def write(number: int) -> None:
        nothing(dataclasses.replace(world.tracking, home=tmp_path / str(number)), model, f"writer {number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    chain = audit.settle(world.tracking, model)
    assert sorted(move.why for move in chain.moves()) == [f"writer {number}" for number in range(8)]
    assert all(move.done and not move.found for move in chain.moves())
    nothing(world.tracking, model, "the next")
    assert len(audit.read(world.tracking, model).verified().heads) == 1


@pytest.mark.integration
def test_more_heads_than_a_record_can_name_wait_for_the_next(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    model = registered(world.tracking, "wide")
    nothing(world.tracking, model, "first")
    chain = audit.read(world.tracking, model)
    place = world.tracking.client().get_experiment_by_name("onnxmill/audit")
    assert place
    for number in range(5):  # as written at once on five machines
        record = made_up(chain.heads, 2 * number + 1).model_copy(update={"model": model})
        tags = {audit.MODEL: model, audit.TEXT: record.text, audit.DIGEST: record.sha256}
        world.tracking.client().create_run(place.experiment_id, tags=tags)
    monkeypatch.setattr(audit, "LINKS", 2)
    widths = []
    for _ in range(3):
        nothing(world.tracking, model, "next")
        widths.append(len(audit.read(world.tracking, model).verified().heads))
    assert widths == [3, 1, 1]
    assert len(audit.read(world.tracking, model).moves()) == 1 + 5 + 3


@pytest.mark.parametrize("moved", [True, False])
def test_a_move_that_was_killed_gets_its_outcome_from_the_next_command(world: World, moved: bool) -> None:
    model = f"killed-{moved}"
    first, second = world.version(model, 2.0), world.version(model, 3.0)
    assert world.move(model, first, None).moved
    intent = plan(model, "better", "promote", second).model_copy(update={"before": first, "after": second})

    def killed() -> Move:
        if moved:
            world.tracking.client().set_registered_model_alias(model, "champion", str(second))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit.carry_out(world.tracking, intent, killed)
    assert audit.read(world.tracking, model).verified().moves()[-1].stage == "intent"
    last = audit.settle(world.tracking, model).moves()[-1]
    assert (last.stage, last.found, last.done, last.after) == ("outcome", True, moved, second if moved else first)
    assert last.since == last.began < last.when
    assert len(audit.settle(world.tracking, model).records) == 4  # once


def test_a_writer_that_ended_within_a_record_is_no_fault(world: World) -> None:
    model = registered(world.tracking, "half")
    nothing(world.tracking, model, "whole")
    heads = audit.read(world.tracking, model).heads
    half = made_up(heads, 0).model_copy(update={"model": model})
    tags = {audit.MODEL: model, audit.TEXT: half.text, audit.DIGEST: half.sha256}
    place = world.tracking.client().get_experiment_by_name("onnxmill/audit")
    assert place
    world.tracking.client().create_run(place.experiment_id, tags=tags)
    assert [move.found for move in audit.settle(world.tracking, model).moves()] == [False, True]


@pytest.mark.parametrize("how", ["tag", "file", "no file", "deleted", "moved to another model"])
def test_what_is_done_to_a_record_in_mlflow_stops_the_next_move(world: World, how: str) -> None:
    model = registered(world.tracking, f"edited {how}")
    nothing(world.tracking, model, "first")
    nothing(world.tracking, model, "second")
    client = world.tracking.client()
    place = client.get_experiment_by_name("onnxmill/audit")
    assert place
    run = client.search_runs([place.experiment_id], f"tags.`{audit.MODEL}` = '{model}'")[0].info.run_id  # the last
    match how:
        case "tag":
            text = client.get_run(run).data.tags[audit.TEXT]
            client.set_tag(run, audit.TEXT, text.replace("second", "Second"))
        case "file":
            attach(world.tracking, run, {"record.json": b"{}"})
        case "no file":
            next(Path(str(world.tracking.artifacts)).rglob(f"{run}/**/record.json")).unlink()
        case "deleted":
            client.delete_run(run)
        case _:
            client.set_tag(run, audit.MODEL, "plain")
    called = False

    def act() -> Move:
        nonlocal called
        called = True
        return Move(True, 1, 1, "")

    with pytest.raises(OnnxmillError, match=r"audit: .*(was edited|is missing)"):
        audit.carry_out(world.tracking, plan(model), act)
    assert not called
    if how == "deleted":
        client.restore_run(run)
        nothing(world.tracking, model, "third")
    if how == "moved to another model":
        client.set_tag(run, audit.MODEL, model)
