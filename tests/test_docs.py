"""The generated pages of docs/ are what the code gives now."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from onnxmill.tasks.findings import CODES

SCRIPT = Path(__file__).resolve().parents[1] / "docs" / "generate.py"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    loader = importlib.util.spec_from_file_location("docs_generate", SCRIPT)
    assert loader is not None
    assert loader.loader is not None
    module = importlib.util.module_from_spec(loader)
    loader.loader.exec_module(module)
    return module


def test_pages_are_up_to_date(generate: ModuleType) -> None:
    assert generate.outdated(SCRIPT.parent) == [], "run `python docs/generate.py`"


def test_a_changed_and_a_missing_page_are_found(generate: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "findings.md").write_text(generate.findings_page() + "by hand\n", encoding="utf-8")
    assert generate.outdated(tmp_path) == ["cli.md", "findings.md", "spec.md"]


def test_findings_page_has_a_row_for_every_code(generate: ModuleType) -> None:
    rows = [line for line in generate.findings_page().splitlines() if line.startswith("| ")]
    assert len(rows) == len(CODES) + 1  # and the heading
    assert all(line.replace("\\|", "").count("|") == 5 for line in rows)


def test_cli_page_has_every_command_and_its_options(generate: ModuleType) -> None:
    page = generate.cli_page()
    for command in ("calibrate", "convert", "doctor", "history", "hold", "init", "release", "rollback", "verify"):
        assert f"## onnxmill {command}" in page
    assert "| `SPEC` | required | The spec, a YAML file. |" in page
    assert "| `--out` | `spec.yaml` | The spec to write. |" in page


def test_spec_page_holds_keys_of_every_level_with_type_default_and_meaning(generate: ModuleType) -> None:
    page = generate.spec_page()
    for row in (
        "| `samples` | integer ≥ 1, ≤ 1,000,000 | `256` | how many calibration samples at most |",
        "| `max_drop` | number ≥ 0 | `0.01` | largest accepted drop against the source framework |",
        "| `min_sqnr_db` | number |  | lowest signal to quantization noise ratio, dB |",
        "| `name` | string | required |",
    ):
        assert row in page


def test_unknown_argument_is_refused() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--chekc"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "--check" in done.stderr
