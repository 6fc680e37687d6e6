"""The registry on a real, SQLite-backed MLflow: one version a digest, proven before the alias, never moved blindly."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from onnxmill.tasks.artifact import CorruptStore
from onnxmill.tasks.decide import Live
from onnxmill.tasks.errors import OnnxmillError, ServiceError
from onnxmill.tasks.registry import ALIAS, live, register, set_champion
from onnxmill.tasks.track import connect
from tests.registering import World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("home")
    return World(connect(None, folder), folder)


FETCH = """
import sys, numpy as np
from mlflow import pyfunc
print(pyfunc.load_model(sys.argv[1]).predict({"x": np.ones((2, 3), np.float32)})["y"].tolist())
"""


@pytest.mark.integration
def test_proven_then_champion_then_served_to_a_fresh_process(world: World) -> None:
    made = world.make("good", 2.0, external=True)
    assert live(world.tracking, "good-onnx") == Live()
    version = world.register("good-onnx", made)
    assert version == 1
    client = world.tracking.client()
    with pytest.raises(OnnxmillError, match="validation_status is pending, must be passed"):
        set_champion(world.tracking, "good-onnx", version, None)
    assert world.prove("good-onnx", version, made) == []
    assert client.get_model_version("good-onnx", "1").tags["validation_status"] == "passed"
    assert world.alias("good-onnx") is None
    move = set_champion(world.tracking, "good-onnx", version, None)
    assert (move.moved, move.before, move.now) == (True, None, 1)
    now = live(world.tracking, "good-onnx")
    assert now.champion
    assert (now.champion.version, now.champion.standing) == (1, made.standing)
    environment = {**os.environ, "MLFLOW_TRACKING_URI": world.tracking.uri}
    done = subprocess.run(
        [sys.executable, "-c", FETCH, "models:/good-onnx@champion"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == str([[2.0, 2.0, 2.0]] * 2)


def test_one_version_a_digest(world: World) -> None:
    made = world.make("once", 3.0)
    assert world.register("once-onnx", made) == world.register("once-onnx", made) == 1
    again = made.standing.model_copy(update={"p50_ms": 9.0, "machine_digest": "other"})
    assert register(world.tracking, "once-onnx", again, made.run_id, made.model_id) == 1
    other = world.make("once", 3.5)
    assert world.register("once-onnx", other) == 2
    client = world.tracking.client()
    assert client.get_model_version("once-onnx", "1").tags["onnxmill.p50_ms"] == "9.0"
    assert len(client.search_model_versions("name = 'once-onnx'")) == 2


@pytest.mark.integration
def test_a_changed_byte_or_other_outputs_leave_the_alias(world: World, tmp_path: Path) -> None:
    first, second = world.make("bad", 4.0), world.make("bad", 5.0)
    good = world.register("bad-onnx", first)
    assert world.prove("bad-onnx", good, first) == []
    assert set_champion(world.tracking, "bad-onnx", good, None).moved
    version = world.register("bad-onnx", second)
    # the outputs of another model as reference: refused, with the output's name, for both ways to run it
    codes = world.prove("bad-onnx", version, second, first.reference)
    assert codes == [
        f"GATE001 output {name}, loaded back by {how}"
        for how in ("ONNX Runtime", "mlflow.pyfunc")
        for name in ("y", "sum")
    ]
    with pytest.raises(OnnxmillError, match="validation_status is refused"):
        set_champion(world.tracking, "bad-onnx", version, good)
    # one byte of the weights
    location = world.tracking.client().get_logged_model(second.model_id).artifact_location
    path = Path(location.removeprefix("file://")) / "model.onnx"
    data = path.read_bytes()
    five = np.float32(5).tobytes()
    assert five in data
    path.write_bytes(data.replace(five, np.float32(5.0001).tobytes(), 1))
    with pytest.raises(CorruptStore, match=r"version 2 of 'bad-onnx' .* model\.onnx was changed: sha256") as error:
        world.prove("bad-onnx", version, second)
    assert error.value.exit_code == 1
    with pytest.raises(OnnxmillError, match="validation_status is refused"):
        set_champion(world.tracking, "bad-onnx", version, good)
    assert world.alias("bad-onnx") == good


def test_an_alias_that_someone_else_moved_is_left(world: World) -> None:
    client = world.tracking.client()
    for scale in (6.0, 7.0):
        version = world.register("race-onnx", world.make("race", scale))
        client.set_model_version_tag("race-onnx", str(version), "validation_status", "passed")
    client.set_registered_model_alias("race-onnx", ALIAS, "1")
    move = set_champion(world.tracking, "race-onnx", 2, None)
    assert (move.moved, move.before, move.now) == (False, 1, 1)
    assert "it names version 1, expected nothing" in move.why
    assert world.alias("race-onnx") == 1
    assert set_champion(world.tracking, "race-onnx", 2, 1).moved
    assert world.alias("race-onnx") == 2


def test_holds_rollbacks_and_foreign_versions_are_read(world: World) -> None:
    made = world.make("tags", 8.0)
    version = world.register("tags-onnx", made)
    client = world.tracking.client()
    client.set_registered_model_tag("tags-onnx", "onnxmill.held", "me: incident 7")
    client.set_model_version_tag("tags-onnx", str(version), "onnxmill.rejected", "me: worse on Mondays")
    assert live(world.tracking, "tags-onnx") == Live(None, True, frozenset([made.standing.artifact_digest]))
    foreign = client.create_model_version("tags-onnx", client.get_logged_model(made.model_id).artifact_location)
    client.set_registered_model_alias("tags-onnx", ALIAS, foreign.version)
    champion = live(world.tracking, "tags-onnx").champion
    assert champion
    assert champion.standing is None


def test_an_unknown_version_is_an_error_that_names_the_model(world: World) -> None:
    with pytest.raises(ServiceError, match="moving the alias 'champion' of 'nowhere' failed"):
        set_champion(world.tracking, "nowhere", 1, None)


@pytest.mark.integration
def test_a_hold_since_the_decision_keeps_the_alias(world: World) -> None:
    made = world.make("held", 2.0)
    version = world.register("held-onnx", made)
    assert world.prove("held-onnx", version, made) == []
    world.tracking.client().set_registered_model_tag("held-onnx", "onnxmill.held", "since just now")
    move = set_champion(world.tracking, "held-onnx", version, None)
    assert (move.moved, move.why) == (False, "'held-onnx' is held: nothing moves")
    assert world.alias("held-onnx") is None
