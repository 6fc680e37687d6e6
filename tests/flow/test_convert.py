"""A conversion from end to end: what it leaves behind, what a second one does, what a change does again."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnxruntime
import pytest
import yaml

from onnxmill.tasks.artifact import Store
from onnxmill.tasks.report import SCHEMA_FILE, Report
from tests import bad_input
from tests.bad_input import Fault
from tests.flow.conftest import Converted, World
from tests.planted import write_tiny

pytestmark = pytest.mark.integration

children: list[str] = []
"""Commands of the child processes that this process started: the audit hook, once installed, stays."""


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen":
        children.append(" ".join(map(str, arguments[1])))


sys.addaudithook(_audit)


def report_of(text: str) -> Report:
    return Report.model_validate_json(text)


def rerun(report: Report) -> list[str]:
    """The steps that this conversion ran, as "step" or "step variant"."""
    return sorted(f"{row.step} {row.variant or ''}".strip() for row in report.steps if not row.cached)


def test_report_and_models(converted: Converted) -> None:
    report = report_of(converted.ended.out)
    jsonschema.validate(json.loads(converted.ended.out), json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))
    assert converted.ended.out == (converted.out / "report.json").read_text(encoding="utf-8")
    assert report.sentence in (converted.out / "report.html").read_text(encoding="utf-8")
    assert [(row.name, row.status) for row in report.variants] == [("fp32", "passed"), ("int8-static", "passed")]
    for row in report.variants:
        assert row.artifact
        assert row.metric
        assert row.metric.samples == 200
        assert [result.status for result in row.results] == ["measured"] or row.results[0].status == "unstable"
        model = converted.out / row.artifact.path
        assert model.stat().st_size == row.artifact.size_bytes
    assert [row.step for row in report.steps if row.cached] == ["opset"]  # the export is at opset 18 already
    assert not Path(report.spec).is_absolute()
    assert Path(report.spec).resolve() == converted.spec.resolve()
    assert Store(converted.world.home / "store").check() == []
    assert list((converted.world.home / "store" / "tmp").iterdir()) == []


PREDICT = """
import sys
import numpy as np
from mlflow import pyfunc
uri, samples, out = sys.argv[1:]
images = np.load(samples)["evaluation"]
session_inputs = [{"image": image[np.newaxis]} for image in images]
served = pyfunc.load_model(uri)
np.save(out, np.concatenate([served.predict(x)["logits"] for x in session_inputs]))
"""


def test_champion_gives_the_same_predictions_in_a_fresh_process(converted: Converted, tmp_path: Path) -> None:
    report = report_of(converted.ended.out)
    (decision,) = report.decisions
    assert (decision.cause, decision.version, decision.alias) == ("first", 1, "champion")
    assert decision.variant
    samples, out = converted.spec.parent / "samples.npz", tmp_path / "predictions.npy"
    subprocess.run(
        [sys.executable, "-c", PREDICT, "models:/tiny-onnx@champion", str(samples), str(out)],
        env={**os.environ, "MLFLOW_TRACKING_URI": converted.world.tracking_uri, "MLFLOW_DISABLE_TELEMETRY": "true"},
        check=True,
        cwd=tmp_path,
        timeout=120,
    )
    session = onnxruntime.InferenceSession(converted.out / decision.variant / "model.onnx")
    with np.load(samples) as arrays:
        images, labels = arrays["evaluation"], arrays["labels"]
    expected = np.concatenate([session.run(["logits"], {"image": image[np.newaxis]})[0] for image in images])
    np.testing.assert_allclose(np.load(out), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(np.load(out).argmax(axis=1), labels)


def test_same_again_runs_nothing(converted: Converted, tmp_path: Path) -> None:
    """Also from another folder: paths are in no key."""
    spec = write_tiny(tmp_path / "elsewhere")
    actions = {path: path.stat().st_mtime_ns for path in converted.world.home.glob("store/actions/*")}
    children.clear()
    ended = converted.world.convert(spec, "--out", tmp_path / "out", "--json")
    assert ended.code == 0
    assert [command for command in children if "onnxmill" in command] == []
    first, second = report_of(converted.ended.out), report_of(ended.out)
    assert rerun(second) == []
    assert {path: path.stat().st_mtime_ns for path in converted.world.home.glob("store/actions/*")} == actions
    assert digests(second) == digests(first)
    assert second.mlflow_run_id == first.mlflow_run_id
    assert [row.mlflow_run_id for row in second.variants] == [row.mlflow_run_id for row in first.variants]
    assert [(d.cause, d.version) for d in second.decisions] == [("none", 1)]


def digests(report: Report) -> dict[str, str | None]:
    models = {row.name: row.artifact.digest if row.artifact else None for row in report.variants}
    return {"source": report.digests.source, "data": report.digests.data, **models}


# --- one change at a time --------------------------------------------------------------------------------------------

SAMPLES = ["calibration-samples", "evaluation-samples"]
SOURCE = ["evaluate-source", "export", "reference", "simplify"]
FP32 = ["benchmark fp32", "evaluate fp32"]
QUANTIZE = "quantize-int8-static int8-static"
INT8 = ["benchmark int8-static", "evaluate int8-static", QUANTIZE, "score int8-static"]


def append(name: str, text: str) -> Callable[[Path], None]:
    """Lengthen a file, or make it."""

    def change(folder: Path) -> None:
        with (folder / name).open("a") as file:
            file.write(text)

    return change


def set_entry(key: str, value: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        spec = yaml.safe_load((folder / "spec.yaml").read_text())
        (folder / "spec.yaml").write_text(yaml.safe_dump(spec | {key: value}, sort_keys=False))

    return change


def one_byte_of_the_weights(folder: Path) -> None:
    import torch

    state = torch.load(folder / "weights.pt", weights_only=True)
    state["logits.bias"].view(torch.uint8)[0] ^= 1
    torch.save(state, folder / "weights.pt")


def one_byte_of_a_sample(folder: Path) -> None:
    """It changes no bin and no extreme: what is observed is the same, and so is the model."""
    with np.load(folder / "samples.npz") as arrays:
        samples = dict(arrays)
    samples["calibration"].view(np.uint8).reshape(-1)[0] ^= 1
    np.savez(folder / "samples.npz", allow_pickle=False, **samples)


def darker_samples(folder: Path) -> None:
    with np.load(folder / "samples.npz") as arrays:
        samples = dict(arrays)
    np.savez(folder / "samples.npz", allow_pickle=False, **{**samples, "calibration": samples["calibration"] * 0.9})


def finer_int8(**settings: object) -> Callable[[Path], None]:
    return set_entry("variants", ["fp32", {"recipe": "int8-static", **settings}])


FLOAT, BOTH = ["fp32"], ["fp32", "int8-static"]
CHANGES: dict[str, tuple[list[str], Callable[[Path], None], list[str]]] = {
    # what is changed: (variants, the change, the steps that it runs again)
    "weights": (FLOAT, one_byte_of_the_weights, [*SOURCE, *FP32, "score", "score fp32"]),
    # the same code in other words: a score is a function of outputs, which stay the same
    "the model's code": (FLOAT, append("model.py", "\n# one more line\n"), [*SOURCE, *FP32]),
    "a module that it imports": (FLOAT, append("parts.py", "\n"), [*SOURCE, *FP32]),
    "the data's code": (BOTH, append("data.py", "\n"), [*SAMPLES, "score", "score fp32", "score int8-static"]),
    "one byte of a calibration sample": (BOTH, one_byte_of_a_sample, [*SAMPLES, "calibrate"]),
    "all calibration samples": (BOTH, darker_samples, [*SAMPLES, "calibrate", *INT8]),
    "the calibration method": (BOTH, finer_int8(method="mse"), INT8),
    "a variant's setting": (BOTH, finer_int8(per_channel=False), INT8),
    "a variant's name": (BOTH, finer_int8(name="small"), []),
    "a gate": (BOTH, finer_int8(gate={"min_sqnr_db": 9}), []),
    "a limit": (BOTH, set_entry("metric", {"fn": "data.py:correct", "max_drop": 0.5}), []),
    "a file that is not declared": (BOTH, append("notes.txt", "x"), []),
}


SLOW = ["the model's code", "a module that it imports", "all calibration samples"]
"""Those that take 10 s and more, and show little that the others do not."""


@pytest.mark.parametrize("what", [pytest.param(w, marks=pytest.mark.full) if w in SLOW else w for w in CHANGES])
def test_a_change_runs_what_depends_on_it(what: str, converted: Converted, tmp_path: Path) -> None:
    variants, change, expected = CHANGES[what]
    spec = write_tiny(tmp_path / "spec", variants=variants)
    change(spec.parent)
    ended = converted.world.convert(spec, "--out", tmp_path / "out", "--json")
    assert ended.code == 0, ended.err
    assert rerun(report_of(ended.out)) == sorted(expected)


@pytest.mark.full
def test_fresh_runs_everything_and_gives_the_same(converted: Converted, tmp_path: Path) -> None:
    spec = write_tiny(tmp_path / "spec", variants=FLOAT)
    ended = converted.world.convert(spec, "--out", tmp_path / "out", "--json", "--fresh")
    assert ended.code == 0
    report = report_of(ended.out)
    assert rerun(report) == sorted([*SAMPLES, *SOURCE, *FP32, "score", "score fp32"])
    assert digests(report).items() <= digests(report_of(converted.ended.out)).items()


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        bad_input.PACK["missing weights"],
        bad_input.PACK["loader linked outside"],
        bad_input.DATA["not finite"],
        bad_input.DATA["overlap"],
        bad_input.MODEL["returns None"],
        bad_input.MODEL["broken onnx"],
    ],
    ids=["missing file", "outside the roots", "not finite", "overlap", "loader returns None", "broken onnx"],
)
def test_bad_input_ends_the_run(fault: Fault, converted: Converted, tmp_path: Path) -> None:
    change, key, words = fault
    world, out = converted.world, tmp_path / "out"
    runs = mlflow_runs(world)
    ended = world.convert(bad_input.written(tmp_path, change), "--out", out)
    assert ended.code == 2
    assert ended.error.startswith(f"error: {key}:")
    for word in words:
        assert word in ended.error
    assert "Traceback" not in ended.err + ended.out
    assert mlflow_runs(world) == runs
    assert list(out.glob("*")) == []
    assert Store(world.home / "store").check() == []
    assert list((world.home / "store" / "tmp").iterdir()) == []


def mlflow_runs(world: World) -> int:
    from mlflow import MlflowClient

    client = MlflowClient(world.tracking_uri)
    return len(client.search_runs([e.experiment_id for e in client.search_experiments()]))
