"""Undo on a real, SQLite-backed MLflow: back to what served, rejected until released; nothing moves what is broken."""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from mlflow import onnx as mlflow_onnx

from onnxmill.tasks import audit, registry_marks, undo
from onnxmill.tasks.artifact import CorruptStore
from onnxmill.tasks.errors import InputError, OnnxmillError, StepError
from onnxmill.tasks.registry import live, register
from onnxmill.tasks.track import connect
from tests import conversions
from tests.flow.command import Ended, invoke, run
from tests.registering import World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("home")
    return World(connect(None, folder), folder)


def back(world: World, model: str, to: int | None = None) -> int | None:
    """Roll back, and say what serves then."""
    move = undo.rollback(world.tracking, undo.way_back(world.tracking, model, to), "worse on Mondays")
    assert move.moved, move.why
    return world.alias(model)


@pytest.mark.integration
def test_five_conversions_leave_a_rolled_back_digest_alone_and_a_release_lets_it_back(world: World) -> None:
    model = "life-onnx"
    assert world.convert("life", 2.0, "s1").cause == "first"
    assert world.convert("life", 3.0, "s2").cause == "new_source"
    assert world.alias(model) == 2
    assert back(world, model) == 1
    for _ in range(5):
        decision = world.convert("life", 3.0, "s2")
        assert (decision.cause, decision.version) == ("none", 1)
        assert "was rolled back; `onnxmill release` lets it back" in decision.why
    assert world.alias(model) == 1
    undo.release(world.tracking, model, 2, "fixed upstream")
    assert world.alias(model) == 1  # a release moves nothing
    decision = world.convert("life", 3.0, "s2")
    assert (decision.cause, decision.version) == ("new_source", 2)
    assert world.alias(model) == 2
    moves = audit.read(world.tracking, model).verified().moves()
    assert [(m.action, m.before, m.after, m.version, m.done) for m in moves] == [
        ("promote", None, 1, 1, True),
        ("promote", 1, 2, 2, True),
        ("rollback", 2, 1, 2, True),
        ("release", 1, 1, 2, True),
        ("promote", 1, 2, 2, True),
    ]
    assert moves[2].why == "worse on Mondays"
    assert moves[2].digest == moves[1].digest != moves[0].digest
    assert {move.source_digest for move in moves} == {"s1", "s2"}
    chain = audit.read(world.tracking, model)
    times = [move.when for move in moves]
    served = [undo.served_at(chain, at) for at in (times[0] - timedelta(seconds=1), *times)]
    assert [move.after if move else None for move in served] == [None, 1, 2, 1, 1, 2]


@pytest.mark.integration
def test_it_goes_back_to_what_served_not_to_the_number_below(world: World) -> None:
    model = "order-onnx"
    for scale in (2.0, 3.0, 4.0):
        world.version(model, scale)
    assert world.move(model, 1, None).moved
    assert world.move(model, 3, 1).moved  # 2 never served
    assert undo.way_back(world.tracking, model).back.number == 1
    assert back(world, model) == 1
    with pytest.raises(InputError, match=r"has no earlier version than 1 \(fp32, passed\).*2 \(fp32, passed\), 3 \("):
        undo.way_back(world.tracking, model)
    assert back(world, model, to=2) == 2
    with pytest.raises(InputError, match="has no earlier version than 2"):
        undo.way_back(world.tracking, model)  # 1 and 3 are rejected now
    undo.release(world.tracking, model, 1, "was right after all")
    assert undo.way_back(world.tracking, model).back.number == 1  # by its number: no promotion of 2 is on record


@pytest.mark.parametrize(
    ("to", "key", "words"),
    [
        (9, "--to", "is no version of 'wrong-onnx'"),
        (3, "--to", "is what serves now as champion"),
        (2, "--to", r"has not passed as loaded back from the registry \(validation_status: pending\)"),
        (1, "--to", r"was rejected \(me: slow\)"),
        (None, "NAME", "has no earlier version than 3 "),
    ],
)
def test_a_version_that_may_not_serve_is_one_error_with_what_there_is(
    world: World, to: int | None, key: str, words: str
) -> None:
    model = "wrong-onnx"
    client = world.tracking.client()
    if not client.search_registered_models(f"name = '{model}'"):
        world.version(model, 2.0)
        client.set_model_version_tag(model, "1", "onnxmill.rejected", "me: slow")
        world.register(model, world.make(model, 3.0))
        assert world.move(model, world.version(model, 4.0), None).moved
    with pytest.raises(InputError, match=words) as error:
        undo.way_back(world.tracking, model, to)
    assert error.value.key == key
    assert "versions 1 (fp32, rejected), 2 (fp32, pending), 3 (fp32, passed)" in str(error.value)
    assert world.alias(model) == 3


@pytest.mark.integration
@pytest.mark.parametrize("fault", ["a byte", "a missing file", "another digest", "no ONNX model"])
def test_a_version_that_is_not_what_was_logged_is_found_before_the_alias_moves(world: World, fault: str) -> None:
    model = f"{fault.replace(' ', '-')}-onnx"
    made = world.make(model, 5.0)
    world.register(model, made)
    client = world.tracking.client()
    client.set_model_version_tag(model, "1", "validation_status", "passed")
    world.move(model, 1, None)
    world.move(model, world.version(model, 6.0), 1)
    folder = Path(client.get_logged_model(made.model_id).artifact_location.removeprefix("file://"))
    path = folder / "model.onnx"
    words = {
        "a byte": r"model\.onnx was changed: sha256",
        "a missing file": r"model\.onnx is missing",
        "another digest": "its files have digest .*, expected dddd",
        "no ONNX model": r"model\.onnx was changed",
    }
    match fault:
        case "a byte":
            path.write_bytes(path.read_bytes().replace(np.float32(5).tobytes(), np.float32(5.1).tobytes(), 1))
        case "a missing file":
            path.unlink()
        case "another digest":
            client.set_model_version_tag(model, "1", "onnxmill.artifact_digest", "d" * 64)
        case _:
            path.write_bytes(b"")
    with pytest.raises(CorruptStore, match=f"version 1 of .* is not what was logged: .*{words[fault]}"):
        back(world, model)
    assert world.alias(model) == 2
    assert live(world.tracking, model).rejected == frozenset()
    assert [move.action for move in audit.read(world.tracking, model).moves()] == ["promote", "promote"]


def test_inputs_are_made_up_for_any_type(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18]>
        agraph (float16[n, 3] a, string[2] b, bool c, int64[n, m] d, double[1] e)
            => (float16[n, 3] f, string[2] g, bool h, int64[n, m] i, double[1] j)
        { f = Identity(a) g = Identity(b) h = Identity(c) i = Identity(d) j = Identity(e) }
    """)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (tmp_path / "MLmodel").write_text("flavors: {}\n", encoding="utf-8")
    made = registry_marks.inputs(session, tmp_path)
    assert {name: (value.shape, str(value.dtype)) for name, value in made.items()} == {
        "a": ((1, 3), "float16"), "b": ((2,), "object"), "c": ((), "bool"), "d": ((1, 1), "int64"),
        "e": ((1,), "float64"),
    }  # fmt: skip
    session.run(None, made)


def test_a_stored_example_comes_first(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18]>
        agraph (float[n, m] x, int64[k] ids) => (float[2, 3] y, int64[k] z)
        <int64[2] shape = {2, 3}> { y = Reshape(x, shape) z = Identity(ids) }
    """)
    example = {"x": np.full((3, 2), 7, np.float32), "ids": np.array([4, 5])}
    mlflow_onnx.save_model(proto, str(tmp_path / "model"), input_example=example)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    made = registry_marks.inputs(session, tmp_path / "model")
    assert {name: value.tolist() for name, value in made.items()} == {"x": [[7, 7]] * 3, "ids": [4, 5]}
    session.run(None, made)


@pytest.mark.integration
def test_a_version_that_does_not_run_is_found_before_the_alias_moves(world: World) -> None:
    model = "crash-onnx"
    proto = conversions.model(2.0)
    proto.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.array([7]), "last"))  # there is no axis 7
    report, logged, _ = world.log(model, proto)
    row = report.variants[0]
    assert row.artifact
    standing = world.make(model, 2.0).standing.model_copy(update={"artifact_digest": row.artifact.digest})
    register(world.tracking, model, standing, logged.run_ids["fp32"], logged.model_ids["fp32"])
    world.tracking.client().set_model_version_tag(model, "1", "validation_status", "passed")
    world.move(model, 1, None)
    world.move(model, world.version(model, 3.0), 1)
    with pytest.raises(StepError, match=r"try version 1 of 'crash-onnx': .*axis"):
        back(world, model)
    assert (world.alias(model), live(world.tracking, model).rejected) == (2, frozenset())


@pytest.mark.integration
def test_a_held_model_moves_for_nobody_until_it_is_released(world: World) -> None:
    model = "still-onnx"
    assert world.convert("still", 2.0, "s1").cause == "first"
    undo.hold(world.tracking, model, "incident 7")
    assert world.convert("still", 3.0, "s2").cause == "held"
    with pytest.raises(InputError, match=r"is held: nothing moves. First `onnxmill release still-onnx --reason …`"):
        undo.way_back(world.tracking, model)
    with pytest.raises(InputError, match="is held already"):
        undo.hold(world.tracking, model, "again")
    undo.release(world.tracking, model, None, "over")
    with pytest.raises(InputError, match="is not held"):
        undo.release(world.tracking, model, None, "over")
    with pytest.raises(InputError, match=r"is no rejected version of 'still-onnx'. Rejected: none"):
        undo.release(world.tracking, model, 1, "why not")
    assert world.convert("still", 3.0, "s2").cause == "new_source"
    assert [m.action for m in audit.read(world.tracking, model).moves()] == ["promote", "hold", "release", "promote"]


@pytest.mark.integration
def test_an_alias_that_someone_else_moved_in_between_is_left(world: World) -> None:
    model = "meanwhile-onnx"
    for scale in (2.0, 3.0, 4.0):
        world.version(model, scale)
    world.move(model, 1, None)
    world.move(model, 2, 1)
    way = undo.way_back(world.tracking, model)
    world.tracking.client().set_registered_model_alias(model, "champion", "3")
    move = undo.rollback(world.tracking, way, "worse")
    assert (move.moved, world.alias(model)) == (False, 3)
    last = audit.read(world.tracking, model).moves()[-1]
    assert (last.action, last.done, last.after) == ("rollback", False, 3)
    assert "someone else moved the alias" in last.note


@pytest.mark.integration
def test_an_edited_record_stops_rollback_and_promotion(world: World) -> None:
    model = "edited-onnx"
    world.convert("edited", 2.0, "s1")
    client = world.tracking.client()
    run_id = client.search_runs(
        [str(client.get_experiment_by_name("onnxmill/audit").experiment_id)],  # type: ignore[union-attr]  # it is there
        f"tags.`{audit.MODEL}` = '{model}'",
    )[0].info.run_id
    text = client.get_run(run_id).data.tags[audit.TEXT]
    client.set_tag(run_id, audit.TEXT, text.replace('"version":1', '"version":9'))
    calls: list[Callable[[], object]] = [
        lambda: undo.way_back(world.tracking, model),
        lambda: world.convert("edited", 3.0, "s2"),
    ]
    for call in calls:
        with pytest.raises(OnnxmillError, match=f"audit: the record in run {run_id} was edited"):
            call()
    assert world.alias(model) == 1


@pytest.mark.parametrize("reason", ["", "  ", "two\nlines", "x" * 1001])
def test_a_reason_is_one_line(world: World, reason: str) -> None:
    with pytest.raises(InputError, match=r"--reason: .*must be one line of 1 to 1000 characters"):
        undo.hold(world.tracking, "any", reason)


def test_a_name_that_is_none_is_told_with_close_ones(world: World) -> None:
    world.version("resnet-onnx", 2.0)
    calls: list[Callable[[], object]] = [
        lambda: undo.hold(world.tracking, "resnet-onx", "x"),
        lambda: undo.release(world.tracking, "resnet-onx", None, "x"),
        lambda: undo.way_back(world.tracking, "resnet-onx"),
    ]
    for call in calls:
        with pytest.raises(InputError, match=r"'resnet-onx': is no registered model. did you mean 'resnet-onnx'"):
            call()
    with pytest.raises(InputError, match="is no registered model"):
        undo.hold(world.tracking, "it's", "x")


@pytest.mark.parametrize(
    ("text", "end", "expected"),
    [
        ("2026-01-31", False, datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31", True, datetime(2026, 1, 31, 23, 59, 59, 999999, UTC)),
        ("2026-01-31T18:00", True, datetime(2026, 1, 31, 18, tzinfo=UTC)),
        ("2026-01-31T18:00+01:00", False, datetime(2026, 1, 31, 17, tzinfo=UTC)),
    ],
)
def test_dates(text: str, end: bool, expected: datetime) -> None:
    assert undo.instant("--at", text, end_of_day=end) == expected


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "", "2026-01-32"])
def test_what_is_no_date(text: str) -> None:
    with pytest.raises(InputError, match=r"--at: .*must be a date or time such as 2026-01-31"):
        undo.instant("--at", text, end_of_day=True)


def on_a_bare_machine(world: World, *arguments: str) -> Ended:
    """A command in a process, and children, in which no framework and no Prefect can be imported."""
    block = world.folder / "block"
    block.mkdir(exist_ok=True)
    for name in ("torch", "prefect", "tensorflow", "keras", "sklearn", "jax"):
        (block / f"{name}.py").write_text(f"raise ImportError('{name} is not here')\n", encoding="utf-8")
    return run(
        *arguments, home=world.folder, settings={"PYTHONPATH": str(block), "PREFECT_API_URL": "http://127.0.0.1:9"}
    )


@pytest.mark.integration
def test_the_commands_work_without_torch_and_with_prefect_down(world: World) -> None:
    model = "bare-onnx"
    for scale in (2.0, 3.0):
        world.version(model, scale)
    world.move(model, 1, None)
    world.move(model, 2, 1)
    started = time.monotonic()
    ended = on_a_bare_machine(world, "rollback", model, "--reason", "worse on Mondays")
    assert time.monotonic() - started < 60
    assert (ended.code, ended.err) == (0, "")
    assert "bare-onnx: version 1 serves again; version 2 is rejected" in ended.out
    assert world.alias(model) == 1
    ended = on_a_bare_machine(world, "rollback", model, "--reason", "again")
    assert ended.code == 2
    assert re.match(r"error: NAME: 'bare-onnx': has no earlier version than 1 \(fp32, passed\)", ended.error)


@pytest.mark.integration
def test_every_model_that_was_promoted_since(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    world = World(connect(None, folder), folder)
    for model in ("a-onnx", "b-onnx", "c-onnx", "first-onnx"):
        for scale in (2.0, 3.0):
            world.version(model, scale)
        world.move(model, 1, None)
    world.move("c-onnx", 2, 1)
    since = datetime.now(UTC)
    world.move("a-onnx", 2, 1)
    world.move("b-onnx", 2, 1)
    world.tracking.client().set_registered_model_alias("b-onnx", "champion", "1")  # by hand since
    world.version("new-onnx", 2.0)
    world.move("new-onnx", 1, None)
    ways = undo.promoted_since(world.tracking, since)
    assert [(w.model, w.now.number, w.back.number) for w in ways if isinstance(w, undo.Way)] == [("a-onnx", 2, 1)]
    assert [w.value for w in ways if isinstance(w, InputError)] == ["b-onnx", "new-onnx"]
    listed = invoke("rollback", "--promoted-since", since.isoformat(), "--reason", "bad data", home=folder)
    assert listed.code == 1
    assert "a-onnx: version 2 (fp32, passed) would go back to version 1 (fp32, passed)" in listed.out
    assert "nothing moved. next: the same command with --yes" in listed.out
    assert world.alias("a-onnx") == 2
    done = invoke("rollback", "--promoted-since", since.isoformat(), "--reason", "bad data", "--yes", home=folder)
    assert done.code == 1
    assert "a-onnx: version 1 serves again" in done.out
    assert "'new-onnx': has no earlier version than 1" in done.out
    assert [world.alias(m) for m in ("a-onnx", "b-onnx", "c-onnx", "new-onnx")] == [1, 1, 2, 1]
