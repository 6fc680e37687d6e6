"""Real models, each converted by its spec: what packages carry (tests/models), and small ones made from a seed."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnxmill.tasks.report import Report
from tests.flow.command import Ended, environment, kept_environment, run
from tests.models import fetch

pytestmark = pytest.mark.full

MODELS = Path(fetch.__file__).parent
FETCHED = {
    "efficientnet_lite0": "dynamo",
    "minilm_l6": "dynamo",
    "speaker_encoder": "dynamo",
    "crepe_tiny": "dynamo",
    "dog_breeds": "tf2onnx",
    "basic_pitch": "tf2onnx",
    "magika": "as it is",
    "silero_sequence": "as it is",
    "ocr_detection": "as it is",
    "ocr_recognition": "as it is",
    "ocr_direction": "as it is",
    "text_detection": "as it is",
}
MADE = {
    "keras_transformer": "tf2onnx",
    "forest": "skl2onnx",
    "logistic": "skl2onnx",
    "scaled_pipeline": "skl2onnx",
    "flax_mlp": "jax2onnx",
}
"""Each model's folder, with the beginning of the route by which it must be exported."""
LARGEST_ERROR = 1e-4
"""Of a proven export, relative to the output's range, at every size of every dim."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One home for all: its databases are made once."""
    return tmp_path_factory.mktemp("real-models")


@pytest.fixture(scope="module")
def prefect_api(home: Path) -> Iterator[str]:
    """A server for all, as `convert` starts one for itself."""
    from onnxmill.flows import prefect_server

    with contextlib.ExitStack() as server:
        with kept_environment():
            settings = environment(home)
            os.environ.clear()
            os.environ.update(settings)
            url = server.enter_context(prefect_server.api(home))()
        yield url


def convert(folder: Path, home: Path, prefect_api: str, out: Path) -> Report:
    ended: Ended = run(
        "convert", folder / "spec.yaml", "--out", out, home=home, settings={"PREFECT_API_URL": prefect_api}
    )
    assert ended.code == 0, ended.out + ended.err
    return Report.model_validate_json((out / "report.json").read_text(encoding="utf-8"))


def check(report: Report, route: str) -> None:
    """The model is proven, as it must be, by the route that is the first choice for its framework."""
    (fp32,) = report.variants
    assert fp32.status == "passed"
    assert fp32.parity
    assert fp32.parity.outputs
    for output in fp32.parity.outputs:
        assert output.max_rel is not None
        assert output.max_rel <= LARGEST_ERROR
    (note,) = [step.note for step in report.steps if step.step == "export"]
    assert note.startswith(route)


@pytest.mark.parametrize("name", FETCHED)
def test_fetched(name: str, home: Path, prefect_api: str, tmp_path: Path) -> None:
    fetch.fetch([name])
    check(convert(fetch.CACHE / name, home, prefect_api, tmp_path / "out"), FETCHED[name])


@pytest.mark.parametrize("name", MADE)
def test_made(name: str, home: Path, prefect_api: str, tmp_path: Path) -> None:
    check(convert(MODELS / name, home, prefect_api, tmp_path / "out"), MADE[name])


def test_every_fetched_model_is_converted() -> None:
    assert set(FETCHED) == set(fetch.FILES)
    assert set(FETCHED) | set(MADE) <= set(fetch.names())


def test_fetching_again_mends_what_was_changed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fetch.fetch(["magika"])
    shutil.copytree(fetch.CACHE / "magika", tmp_path / "magika")
    fetch.fetch(["magika"], tmp_path)
    capfd.readouterr()
    fetch.fetch(["magika"], tmp_path)
    assert "fetching" not in capfd.readouterr().err  # all is there
    model = tmp_path / "magika" / "model.onnx"
    whole = model.read_bytes()
    model.write_bytes(whole[:1000])
    fetch.fetch(["magika"], tmp_path)
    assert model.read_bytes() == whole


def test_unknown_package_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = fetch.File("magika==0.0.0.0", "model.onnx", "")
    monkeypatch.setitem(fetch.FILES, "magika", (unknown,))
    with pytest.raises(fetch.FetchError, match=r"magika==0\.0\.0\.0: pip cannot fetch it"):
        fetch.fetch(["magika"], tmp_path)


def test_other_content_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first, *_) = fetch.FILES["crepe_tiny"]
    changed = fetch.File("magika==1.0.3", fetch.FILES["magika"][1].member, first.sha256)
    monkeypatch.setitem(fetch.FILES, "crepe_tiny", (changed,))
    with pytest.raises(fetch.FetchError, match=rf"config\.min\.json has sha256 ae24c7.*expected {first.sha256}"):
        fetch.fetch(["crepe_tiny"], tmp_path)
    assert not (tmp_path / "crepe_tiny" / "config.min.json").exists()
