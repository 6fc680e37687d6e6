"""The example, converted for real: its numbers, and the same network with a planted fault, which must be refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from onnxmill.tasks.report import Report
from tests.flow.command import environment
from tests.flow.conftest import World
from tests.planted import MNIST, write_planted

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def world(prefect_api: str, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A home with the example's trained weights and its digits."""
    world = World(tmp_path_factory.mktemp("mnist") / "home", prefect_api)
    subprocess.run([sys.executable, MNIST / "train.py"], env=environment(world.home), check=True, timeout=300)
    return world


def test_example(world: World, tmp_path: Path) -> None:
    ended = world.convert(MNIST / "spec.yaml", "--out", tmp_path / "out", "--json")
    assert ended.code == 0, ended.err
    report = Report.model_validate_json(ended.out)
    rows = {row.name: row for row in report.variants}
    fp32, int8 = rows["fp32"], rows["int8-static"]
    assert fp32.artifact
    assert int8.artifact
    assert int8.metric
    assert int8.status == "passed"
    assert int8.metric.samples >= 4000
    assert int8.metric.source - int8.metric.variant <= 0.005
    assert int8.artifact.size_bytes <= 0.30 * fp32.artifact.size_bytes
    assert int8.quantized_nodes == int8.quantizable_nodes > 0
    assert [(d.cause, d.version, d.alias) for d in report.decisions] == [("first", 1, "champion")]


@pytest.mark.parametrize("variants", [["int8-static"], ["fp32", "int8-static"]])
def test_planted_fault_is_refused(variants: list[str], world: World, tmp_path: Path) -> None:
    trained = world.home / "examples" / "mnist"
    spec = write_planted(tmp_path / "spec", trained, variants=variants, require=["int8-static"])
    ended = world.convert(spec, "--out", tmp_path / "out", "--json")
    assert ended.code == 3, ended.err
    report = Report.model_validate_json(ended.out)
    rows = {row.name: row for row in report.variants}
    reasons = {f.code: f for f in rows["int8-static"].findings if f.severity == "refuse"}
    assert "logits" in reasons["GATE003"].where
    assert reasons["GATE003"].measured is not None
    assert reasons["GATE003"].limit is not None
    assert reasons["GATE003"].measured < reasons["GATE003"].limit
    assert [row.status for row in report.variants if row.name == "fp32"] == ["passed"] * (len(variants) - 1)
    assert [(d.cause, d.version) for d in report.decisions] == [("none", None)]
