"""`doctor`: says what works and what does not, and never raises."""

import os
import socket
from pathlib import Path

import pytest

from onnxmill.tasks import doctor
from onnxmill.tasks.doctor import Check, checks
from onnxmill.tasks.loader import ROOTS_SETTING
from onnxmill.tasks.step import installed_version

LINES = [
    "home",
    "child processes",
    "machine",
    "torch sources",
    "tf sources",
    "sklearn sources",
    "jax sources",
    "onnx sources",
    "target cpu",
    "loader roots",
    "MLflow",
    "Prefect",
]


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new home, and no service set."""
    monkeypatch.setenv("ONNXMILL_HOME", str(tmp_path / "home"))
    for name in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL", ROOTS_SETTING, "ONNXMILL_STEP_TIMEOUT_S"):
        monkeypatch.delenv(name, raising=False)


def line(what: str) -> Check:
    return next(row for row in checks() if row.what == what)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def test_a_sound_machine(tmp_path: Path) -> None:
    rows = checks()
    assert [row.what for row in rows] == LINES
    assert [row for row in rows if row.level == "broken"] == []
    found = {row.what: row.found for row in rows}
    assert found["home"] == f"{tmp_path / 'home'} is writable"
    assert found["child processes"].startswith("start, with ")
    assert "cores" in found["machine"]
    assert f"onnxruntime {installed_version('onnxruntime')}" in found["onnx sources"]
    assert "made by the first run" in found["MLflow"]
    assert "the folder of the spec" in found["loader roots"]
    assert list((tmp_path / "home").iterdir()) == []  # it leaves nothing


def test_a_framework_that_is_not_installed_is_a_note() -> None:
    # torch may be installed where this runs: a distribution that surely is not stands for it
    assert doctor._framework("torch", ("no-such-distribution", "onnx")) == Check(
        "torch sources", "note", "not possible here: pip install 'onnxmill[torch]'"
    )


def test_a_home_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ONNXMILL_HOME", str(tmp_path / "file"))
    assert line("home").level == "broken"
    assert str(tmp_path / "file") in line("home").found


def test_a_bad_setting_breaks_the_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXMILL_STEP_TIMEOUT_S", "soon")
    row = line("child processes")
    assert row.level == "broken"
    assert row.found == "ONNXMILL_STEP_TIMEOUT_S: 'soon': must be a number of seconds above 0"


def test_roots_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROOTS_SETTING, f"{tmp_path}/a{os.pathsep}{tmp_path}/b")
    assert line("loader roots").found == f"{tmp_path}/a, {tmp_path}/b ({ROOTS_SETTING})"


@pytest.mark.parametrize(
    "url", ["http://me:hunter2@127.0.0.1:{port}/api", "http://me:hunter2@127.0.0.1:none/api", "nonsense"]
)
def test_a_prefect_that_does_not_answer(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", url.format(port=free_port()))
    row = doctor._guarded("Prefect", doctor._prefect)
    assert row.level == "broken"
    assert "does not answer" in row.found
    assert "hunter2" not in row.found


def test_an_embedded_mlflow_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "home" / "mlflow").mkdir(parents=True)
    (tmp_path / "home" / "mlflow" / "mlflow.db").write_text("")
    assert doctor._guarded("MLflow", doctor._mlflow).found.endswith("(is there)")


def test_an_mlflow_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:hunter2@127.0.0.1:{free_port()}")
    row = doctor._guarded("MLflow", doctor._mlflow)
    assert row.level == "broken"
    assert "127.0.0.1" in row.found
    assert "hunter2" not in row.found
