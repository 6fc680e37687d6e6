"""Sources from end to end: an ONNX file with all that goes with it, and exports that crash or hang."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml

from onnxmill.tasks.report import Report
from tests import graphs
from tests.flow.command import run, start
from tests.flow.conftest import World

pytestmark = pytest.mark.integration


def test_an_onnx_file_with_its_reference_sidecars_and_oldest_runtime(prefect_api: str, tmp_path: Path) -> None:
    world, folder = World(tmp_path / "home", prefect_api), tmp_path / "spec"
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "tokenizer/vocab.txt").write_text("a b c")
    (folder / "labels.json").write_text('["cat", "dog"]')
    (folder / "net.onnx").write_bytes(graphs.parse(graphs.GEMM, opset=21, ir=10).SerializeToString())
    x, y = np.ones((2, 4), np.float32), np.array([[17, -21], [17, -21]], np.float32)
    np.savez(folder / "outputs.npz", allow_pickle=False, **{"input/x": x, "output/y": y})
    spec = {
        "version": 1,
        "name": "gemm",
        "source": {"framework": "onnx", "path": "net.onnx", "reference": "outputs.npz"},
        "opset": "auto",
        "max_runtime": "onnxruntime==1.20",
        "sidecars": ["tokenizer/vocab.txt", "labels.json"],
        "variants": ["fp32", "int8-dynamic"],
        "promote": {"objective": "size", "register_as": "gemm-onnx"},
    }
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    ended = world.convert(folder / "spec.yaml", "--out", tmp_path / "out", "--json")
    assert ended.code == 0, ended.err
    report = Report.model_validate_json(ended.out)
    notes = {row.step: row.note for row in report.steps if row.variant is None}
    assert notes["reference"] == "proven against outputs.npz"
    assert (report.opset, notes["opset"]) == (
        13,
        "opset 13, the lowest that the recipes allow; exported at 21",
    )
    for row in report.variants:
        assert row.artifact
        folder_out = tmp_path / "out" / row.name
        assert sorted(str(p.relative_to(folder_out)) for p in folder_out.rglob("*") if p.is_file()) == [
            "labels.json",
            "model.onnx",
            "tokenizer/vocab.txt",
        ]
        assert row.artifact.size_bytes == (folder_out / "model.onnx").stat().st_size + 5 + 14
        assert onnx.load(folder_out / "model.onnx").opset_import[0].version in (13, 1)

    from mlflow import MlflowClient, artifacts

    client = MlflowClient(tracking_uri=world.tracking_uri, registry_uri=world.tracking_uri)
    version = client.get_model_version_by_alias("gemm-onnx", "champion")
    registered = Path(
        artifacts.download_artifacts(version.source, dst_path=str(tmp_path / "back"), tracking_uri=world.tracking_uri)
    )
    assert json.loads((registered / "labels.json").read_text()) == ["cat", "dog"]
    assert (registered / "tokenizer/vocab.txt").read_text() == "a b c"


BREAKS = """
import ctypes
import time
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        if torch.compiler.is_exporting() or torch.jit.is_tracing():
            {body}
        return self.linear(x)

def load():
    return Net()
"""


def write_breaking(folder: Path, body: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "net.py").write_text(BREAKS.format(body=body))
    spec = {
        "version": 1,
        "name": "breaks",
        "source": {"framework": "torch", "loader": "net.py:load"},
        "inputs": {"x": {"shape": ["batch", 4]}},
        "variants": ["fp32"],
    }
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    return folder / "spec.yaml"


@pytest.mark.full
@pytest.mark.parametrize(
    ("body", "message"),
    [("ctypes.string_at(0)", "export: its process was killed by SIGSEGV"), ("time.sleep(600)", "no answer after 20 s")],
    ids=["crash", "hang"],
)
def test_an_export_that_breaks_ends_alone(prefect_api: str, tmp_path: Path, body: str, message: str) -> None:
    """Beside it, in the same home at the same time, a sound spec is converted."""
    home, settings = tmp_path / "home", {"PREFECT_API_URL": prefect_api}
    sound = write_breaking(tmp_path / "sound", "pass")
    log = tmp_path / "sound.log"
    other = start("convert", sound, "--out", tmp_path / "out", home=home, log=log, settings=settings)
    broken = write_breaking(tmp_path / "broken", body)
    ended = run("convert", broken, home=home, settings={**settings, "ONNXMILL_STEP_TIMEOUT_S": "20"}, timeout_s=180)
    assert ended.code == 1, ended.err
    assert message in ended.error
    assert other.wait(timeout=180) == 0, log.read_text()
    assert (tmp_path / "out/fp32/model.onnx").is_file()
    assert list((home / "store/tmp").iterdir()) == []
