"""The arithmetic and the forms of benchmarks/calibration*.py, and its contestants on a tiny model."""

import importlib
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from rich.console import Console

from onnxmill.calibration import samples
from onnxmill.calibration.methods import METHODS
from onnxmill.calibration.samples import Expected

pytest.importorskip("tokenizers")

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
NET = """
<ir_version: 10, opset_import: ["" : 18]>
agraph (float[batch, 4] x) => (float[batch, 2] y)
<float[4, 2] w = {1, -2, 3, -4, 5, -6, 7, -8}> {
  h = MatMul(x, w)
  y = Relu(h)
}
"""


@pytest.fixture(scope="module", autouse=True)
def beside() -> Iterator[None]:
    """The scripts import each other as Python lets scripts: from their own folder."""
    sys.path.append(str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


def script(name: str) -> Any:
    return importlib.import_module(name)


def timing() -> Any:
    """calibration.py under another name: another package may be called so."""
    found = importlib.util.spec_from_file_location("calibration_timing", FOLDER / "calibration.py")
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def part(seconds: float, peak_rss_mb: float = 100.0) -> dict[str, float]:
    return {"seconds": seconds, "cores": 1.0, "peak_rss_mb": peak_rss_mb}


def shown(table: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=150).print(table)
    return out.getvalue()


def test_a_ratio_is_to_the_plain_passes_of_the_same_process() -> None:
    runs = [
        ("onnxmill", {"parts": {"minmax": part(3.0), "entropy": part(5.0)}, "plain_s": [1.0, 3.0]}),
        ("onnxruntime-entropy", {"parts": {"entropy": part(40.0)}, "plain_s": [2.0, 2.0]}),
        ("onnxmill", {"parts": {"minmax": part(6.0), "entropy": part(8.0)}, "plain_s": [4.0, 4.0]}),
    ]
    rows = timing().gathered(runs, 10)
    assert list(rows) == ["onnxmill minmax", "onnxmill entropy", "onnxruntime entropy"]
    assert rows["onnxmill minmax"]["ratio"] == [1.5, 1.5]
    assert rows["onnxmill entropy"]["ratio"] == [2.5, 2.0]
    assert rows["onnxmill minmax"]["ms_a_sample"] == [300.0, 600.0]
    assert rows["onnxmill minmax"]["plain_ms"] == [200.0, 400.0]
    assert "2.25 [2.00, 2.50]" in shown(timing().table(rows))


@pytest.mark.parametrize(
    ("minmax", "ours", "theirs", "kept"),
    [(1.9, 3.0, 12.0, [True, True, True]), (1.91, 3.1, 12.0, [False, False, False])],
)
def test_the_limits(minmax: float, ours: float, theirs: float, kept: list[bool]) -> None:
    rows = {
        "onnxmill minmax": {"ratio": [minmax]},
        "onnxmill entropy": {"ratio": [ours]},
        "onnxruntime entropy": {"ratio": [theirs]},
    }
    assert list(timing().verdicts(rows).values()) == kept


@pytest.mark.parametrize(("many", "kept"), [(104.9, True), (105.1, False)])
def test_memory_may_grow_by_a_twentieth(many: float, kept: bool) -> None:
    memory = script("calibration_memory")
    found = memory.growth({32: {"parts": {"mse": part(1.0)}}, 1024: {"parts": {"mse": part(9.0, many)}}})
    assert found["mse"]["kept"] == kept
    assert ("TOO MUCH" in shown(memory.table(found, (32, 1024)))) != kept


def compared(entropy: list[float], others: list[float]) -> Any:
    """Of ours: entropy and others; theirs is right on every second sample by each method."""
    accuracy = script("calibration_accuracy")
    scores = {f"onnxmill {method}": np.array(entropy if method == "entropy" else others) for method in METHODS}
    theirs = {f"onnxruntime {method}": np.tile([1.0, 0.0], 50) for method in accuracy.THEIRS}
    metric = accuracy.TASKS["mnist"].metrics["accuracy"]
    return accuracy.compared(metric, scores | theirs, np.zeros(100))


def test_a_method_that_is_worse_on_many_samples_is_told() -> None:
    found = compared([1.0, 0.0] * 30 + [0.0, 0.0] * 20, [1.0, 0.0] * 50)
    assert not found["pairs"]["entropy"]["kept"]
    assert found["pairs"]["minmax"] == {"difference": 0.0, "interval": [0.0, 0.0], "kept": True}
    assert found["best"]["kept"]
    assert "WORSE" in shown(script("calibration_accuracy").table(found, 4))


def test_the_best_is_judged_by_itself() -> None:
    found = compared([1.0, 0.0] * 49 + [0.0, 0.0], [1.0, 0.0] * 49 + [0.0, 0.0])
    assert all(pair["kept"] for pair in found["pairs"].values())  # one sample of a hundred is within the interval
    assert not found["best"]["kept"]


def test_a_rank_correlation_is_resampled_in_pairs() -> None:
    metric = script("calibration_accuracy").TASKS["minilm"].metrics["WordSim353, Spearman"]
    labels = np.arange(30.0)
    assert metric.value(labels**3, labels) == pytest.approx(1.0)
    low, high = metric.interval(labels, -labels, labels)
    assert low == pytest.approx(2.0)
    assert high == pytest.approx(2.0)


def test_crops_follow_from_the_seed_and_the_photos_are_apart() -> None:
    data = script("calibration_data")
    assert not set(data.CALIBRATION_PHOTOS.values()) & set(data.EVALUATION_PHOTOS.values())
    photo = np.random.default_rng(1).integers(0, 256, (90, 60, 3)).astype(np.uint8)
    first, again, other = (list(data.crops([photo], 3, 32, data.IMAGENET, seed=seed)) for seed in (1, 1, 2))
    assert [crop.shape for crop in first] == [(1, 3, 32, 32)] * 3
    assert first[0].dtype == np.float32
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])


@pytest.mark.integration
@pytest.mark.parametrize(
    ("contestant", "parts"),
    [
        ("onnxmill", ["(the pass alone)", *METHODS]),
        ("onnxruntime-minmax", ["minmax"]),
        ("onnxruntime-entropy", ["entropy"]),
    ],
)
def test_a_contestant_on_a_tiny_model(contestant: str, parts: list[str], tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(NET), tmp_path / "model.onnx")
    (tmp_path / "samples").mkdir()
    random = np.random.default_rng(7)
    given = ({"x": random.standard_normal((1, 4)).astype(np.float32)} for _ in range(8))
    expected = {"x": Expected("float32", (1, 4))}
    samples.write("test", given, expected, tmp_path / "samples", limit=None, labelled=False)
    ran = script("calibration_child").start(
        contestant, tmp_path / "model.onnx", tmp_path / "samples", 1, plain=contestant == "onnxmill"
    )
    assert list(ran["parts"]) == parts
    assert len(ran["plain_s"]) == (2 if contestant == "onnxmill" else 0)
    for measured in ran["parts"].values():
        assert measured["seconds"] > 0
        assert measured["peak_rss_mb"] > 10


@pytest.mark.integration
def test_a_contestant_that_fails_says_why(tmp_path: Path) -> None:
    child = script("calibration_child")
    with pytest.raises(child.Failed, match=r"none\.onnx"):
        child.start("onnxmill", tmp_path / "none.onnx", tmp_path, 1, plain=False)


@pytest.mark.integration
def test_what_is_asked_for_is_checked() -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / "calibration.py", "--rounds", "0"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "--rounds, --samples and --threads must be 1 or more" in done.stderr


def test_results_are_json() -> None:
    found = compared([1.0, 0.0] * 50, [1.0, 0.0] * 50)
    assert json.loads(json.dumps(found)) == found
