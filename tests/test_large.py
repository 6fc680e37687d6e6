"""Models above 2 GB: a stand-in, which is called large, through every step; a real one, whose memory is measured."""

import contextlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxmill.tasks import contract, graph, opset, proof, registry, simplify, track
from onnxmill.tasks.artifact import CorruptStore, Store
from onnxmill.tasks.cases import read
from onnxmill.tasks.decide import Live, Policy, decide
from onnxmill.tasks.export import SourceSettings
from onnxmill.tasks.export import torch as torch_source
from onnxmill.tasks.export.steps import ExportSettings, export
from onnxmill.tasks.graph import MODEL
from onnxmill.tasks.model_files import check_files
from onnxmill.tasks.proof import Proof
from onnxmill.tasks.spec import Gate, Promote, load, parse
from tests import conversions, graphs
from tests.exporting import exported, judged

DATA = f"{MODEL}.data"
NET = """
agraph (float[batch, 4] x) => (float[batch, 1] y)
<float[4, 2] w = {1, -2, 3, -4, 5, -6, 7, -8}, int64[1] one = {1}> {
  h = MatMul(x, w)
  r = Relu(h)
  i = Identity(r)
  y = ReduceMean <axes = [1], keepdims = 1> (i)
}
"""
"""ReduceMean is another operator at opset 18."""


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> graphs.Ready:
    """A model at opset 17 whose weight lies beside it, and is too large to be in it: the limits are moved."""
    ready = graphs.ready(tmp_path, graphs.parse(NET, opset=17), opset=18)
    model = onnx.load(str(ready.model / MODEL))
    graphs.externalise(model.graph.initializer[0], ready.model, "weights.bin")
    (ready.model / MODEL).write_bytes(model.SerializeToString())
    monkeypatch.setattr(graph, "EXTERNAL_BYTES", 24)
    monkeypatch.setattr(graph, "SMALL_BYTES", 8)
    return ready


Made = dict[str, tuple[Proof, Path]]


def through(ready: graphs.Ready, store: Store) -> Made:
    """Export, pin, simplify; each step on what the store opens of the step before."""
    settings = ExportSettings(source=graphs.SOURCE, contract=ready.contract, stamp=graphs.STAMP, opset=18)

    def export_it(model: Path, out: Path) -> Proof:
        with graphs.user_code(model):
            return export(settings, model, ready.reference, out)

    steps: dict[str, Callable[[Path, Path], Proof]] = {
        "export": export_it,
        "opset": lambda model, out: opset.pin(ready.pin, model, ready.reference, out),
        "simplify": lambda model, out: simplify.simplify(ready.settings, model, ready.reference, out),
    }
    made: Made = {}
    model = ready.model
    for name, step in steps.items():
        out = ready.out(name)
        proved = step(model, out)
        model = store.open(store.publish(out))
        made[name] = (proved, model)
    return made


def test_it_is_exported_pinned_and_simplified_with_its_weights_beside_it(large: graphs.Ready) -> None:
    made = through(large, Store(large.folder / "store"))
    for name, (proved, folder) in made.items():
        assert proof.faults(proved) == (), name
        assert proved.parity, name
        assert sorted(path.name for path in folder.iterdir()) == [MODEL, DATA], name
        assert (folder / DATA).read_bytes() == (large.model / "weights.bin").read_bytes()
        assert graph.is_large(graph.load(folder / MODEL)), name
    assert [made[name][0].opset for name in made] == [17, 18, 18]
    assert made["simplify"][0].note
    (blob,) = {(folder / DATA).stat().st_ino for _, folder in made.values()}  # on the disk once
    assert blob


def test_it_is_logged_and_loaded_back(large: graphs.Ready, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(large.folder / "store")
    _, folder = through(large, store)["simplify"]
    artifact = store.publish(_copied(folder, large.folder / "copy"))
    tracking = track.connect(None, large.folder)
    row = conversions.variant("fp32", digest=artifact.digest, size_bytes=artifact.size_bytes)
    report = conversions.report("large", row)
    example = next(read(large.reference)).inputs
    logged = track.log(
        tracking, report, conversions.spec("large"), key="0" * 64, models={"fp32": folder}, files={}, example=example
    )
    location = tracking.client().get_logged_model(logged.model_ids["fp32"]).artifact_location
    back = track.download(tracking, location, large.folder / "back")
    assert check_files(back, artifact.digest) == []
    read_by_onnx = onnx.load(str(back / MODEL)).graph.initializer[0]  # as a user reads it: onnx refuses linked files
    assert onnx.numpy_helper.to_array(read_by_onnx).shape == (4, 2)
    standing = decide(report, Live(), Policy(min_speedup=1.02, max_metric_regression=0, max_slowdown=0.1), Promote())
    assert standing.standing
    ids = logged.run_ids["fp32"], logged.model_ids["fp32"]
    version = registry.register(tracking, "large-onnx", standing.standing, *ids)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking.uri)
    arguments = (large.folder, "large-onnx", version, artifact.digest, large.reference, Gate(max_rel=1e-4), False)
    seen = registry.load_back(*arguments)
    assert (seen.faults, seen.findings) == ([], [])
    (Path(location.removeprefix("file://")) / DATA).unlink()
    assert registry.load_back(*arguments).faults == [f"{DATA} is missing"]
    assert list((store.root / "tmp").iterdir()) == []


def _copied(folder: Path, target: Path) -> Path:
    return Path(shutil.copytree(folder, target))


def test_a_lost_file_of_weights_is_named(large: graphs.Ready) -> None:
    store = Store(large.folder / "store")
    out = large.out()
    graph.save(graph.load(large.model / MODEL), out / MODEL, beside=large.model)
    artifact = store.publish(out)
    folder = store.open(artifact)
    (store.root / "blobs" / artifact.files[DATA].sha256[:2] / artifact.files[DATA].sha256).unlink()
    with pytest.raises(CorruptStore, match=f"{DATA} of artifact .* is missing"):
        store.verify(artifact)
    (folder / DATA).chmod(0o644)
    (folder / DATA).unlink()
    findings, outputs = contract.check(folder / MODEL, large.contract, list(read(large.reference)), opset=17)
    assert [finding.code for finding in findings] == ["CON001"]
    assert DATA in findings[0].message
    assert outputs == []


TORCH = """
import os
import torch
from torch import nn

def load():
    open("pids", "a").write(f"{os.getpid()} ")
    torch.manual_seed(1)
    return nn.Linear(4, 2)
"""


@pytest.mark.integration
@pytest.mark.parametrize(("limit", "apart"), [(graph.EXTERNAL_BYTES, False), (100, True)])
def test_a_large_source_is_exported_by_a_process_that_ends_before_the_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, apart: bool
) -> None:
    monkeypatch.setattr(graph, "EXTERNAL_BYTES", limit)
    text = "version: 1\nname: a\nsource: {framework: torch, loader: net.py:load}\ninputs: {x: {shape: [batch, 4]}}"
    _, result = exported(tmp_path, parse(text), {"net.py": TORCH})
    assert judged(result) == []
    (pid,) = (tmp_path / "export/source/pids").read_text().split()
    assert (int(pid) != os.getpid()) == apart


@pytest.fixture(scope="module")
def script() -> Any:
    """benchmarks/large.py as a module."""
    path = Path(__file__).resolve().parents[1] / "benchmarks" / "large.py"
    spec = importlib.util.spec_from_file_location("large", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["large"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_benchmarks_model_is_sound_and_keeps_its_values_in_range(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "WIDTH", 64)
    assert script.make(tmp_path, "onnx", 3) == 3 * 4 * 64**2
    onnx.checker.check_model(str(tmp_path / MODEL), full_check=True)
    session = contract.open_session(tmp_path / MODEL)
    outputs = session.run(None, {"x": np.ones((2, 64), np.float32)})
    assert [output.shape for output in outputs] == [(2, 64), (2, 1)]
    assert 0.01 < outputs[1].min() < 10


def test_the_benchmarks_torch_model_fits_its_weights(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "WIDTH", 64)
    with graphs.user_code(tmp_path / "source") as folder:
        assert script.make(folder, "torch", 3) == 3 * 4 * 64**2
        assert sorted(path.name for path in folder.iterdir()) == ["model.py", "spec.yaml", "weights.pt"]
        given = load(folder / "spec.yaml").source
        source = torch_source.load(SourceSettings(framework="torch", loader=given.loader, state_dict=given.state_dict))
        ((_, hidden), (_, mean)) = source.predict({"x": np.ones((2, 64), np.float32)})
    assert hidden.shape == (2, 64)
    assert 0.01 < mean.min() < 10


def test_too_little_room_is_told_before_anything_is_written(script: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        script.main(["--folder", str(tmp_path), "--layers", "10000000"])
    assert ended.value.code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_a_model_of_more_than_2_gb_takes_no_more_than_half_its_size_on_top(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = script.LAYERS * 4 * script.WIDTH**2
    assert size >= 2.2e9
    if shutil.disk_usage(tmp_path).free < script.COPIES * size:
        pytest.skip(f"{script.COPIES * size / 1e9:.1f} GB of disk are needed")
    with contextlib.chdir(tmp_path):
        assert script.main(["--framework", "onnx", "--folder", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    steps = ("describe", "reference", "export", "opset", "simplify", "benchmark")
    for row in (*(f"step {step} " for step in steps), "convert: largest of all its processes"):
        assert row in shown
