"""A source in another environment: loaded, run and exported there, proven here."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from onnxmill.tasks.errors import InputError
from onnxmill.tasks.export import SourceSettings, elsewhere
from tests import graphs
from tests.exporting import exported, judged
from tests.test_export_torch import X, net, spec

SOURCE = SourceSettings(framework="torch", loader="net.py:load")


def test_the_environment_is_listed_with_its_versions() -> None:
    found = elsewhere.environment(Path(sys.executable))
    assert found["numpy"] == np.__version__
    assert found["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 3", "does not run"),
        ("echo nothing like JSON", "is no Python interpreter"),
        ('echo \'{"python": "3.12", "numpy": "2.0"}\'', "lacks onnx, psutil, pydantic, PyYAML"),
        ("echo 'is Python 3.9; 3.11 or later is needed' >&2; exit 1", "3.11 or later"),
    ],
)
def test_an_interpreter_that_is_none_or_lacks_something_is_named(tmp_path: Path, script: str, message: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    with pytest.raises(InputError, match=message) as raised:
        elsewhere.environment(python)
    assert raised.value.key == "source.python"
    assert raised.value.fix


def test_a_missing_interpreter_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not run"):
        elsewhere.environment(tmp_path / "nowhere/python")


@pytest.mark.integration
def test_it_gives_what_this_interpreter_gives(tmp_path: Path) -> None:
    """The other environment here is a second interpreter of the same one, without its way to onnxmill."""
    asked = spec(X, outputs="[logits]")
    files = {"net.py": net("return self.linear(x)")}
    here, _ = exported(tmp_path / "here", asked, files)
    there, result = exported(tmp_path / "there", asked, files, python=sys.executable)
    assert judged(result) == []
    assert result.note == "dynamo"
    assert there == here
    assert (tmp_path / "here/export/out/model.onnx").read_bytes() == (
        tmp_path / "there/export/out/model.onnx"
    ).read_bytes()
    assert (tmp_path / "here/reference/out/cases.npz").read_bytes() == (
        tmp_path / "there/reference/out/cases.npz"
    ).read_bytes()


@pytest.mark.integration
def test_the_users_faults_and_the_exporters_come_through(tmp_path: Path) -> None:
    with graphs.user_code(tmp_path / "source") as folder:
        (folder / "net.py").write_text("def load(): raise RuntimeError('no weights')")
        raised = pytest.raises(InputError, match=r"^source\.loader: 'net\.py:load': calling it raised RuntimeError")
        with raised, elsewhere.opened(SOURCE, sys.executable):
            pass
    body = "return x * 2 if x.sum() > 0 else x - 1"
    asked = spec(X, source="loader: net.py:load, exporter: dynamo")
    _, result = exported(tmp_path / "branch", asked, {"net.py": net(body)}, python=sys.executable)
    assert "EXP001" in judged(result)


@pytest.mark.integration
def test_its_process_ends_with_the_block(tmp_path: Path) -> None:
    with graphs.user_code(tmp_path / "source") as folder:
        code = net("return self.linear(x)")
        loading = "def load():\n    open('pid', 'w').write(str(os.getpid()))"
        (folder / "net.py").write_text("import os\n" + code.replace("def load():", loading))
        with elsewhere.opened(SOURCE, sys.executable) as model:
            pid = int((folder / "pid").read_text())
            assert pid != os.getpid()
            ((name, array),) = model.predict({"x": np.ones((2, 4), np.float32)})
            assert (name, array.shape) == ("", (2, 4))
        assert subprocess.run(["kill", "-0", str(pid)], check=False, capture_output=True).returncode != 0
