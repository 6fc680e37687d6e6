"""docs/data.md: its code runs, its specs take samples of what the code made, its errors are those that are raised."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from onnxmill.tasks import conversion
from onnxmill.tasks.spec import parse

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "data.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
MODEL = {"version": 1, "name": "n", "source": {"framework": "torch", "loader": "model.py:load"}, "variants": ["fp32"]}


def blocks(section: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", SECTIONS[section], re.MULTILINE | re.DOTALL)


def run(code: str, folder: Path) -> str:
    """Run a block in `folder`, or write it there where it begins with a file's name; what it printed."""
    if code.startswith("# data.py\n"):
        (folder / "data.py").write_text(code)
        return ""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SAMPLES = {
    "Callables": (100, 1000),
    "Arrays": (256, 200),
    "Recorded requests": (7, None),
    "Images": (20, None),
    "Text": (None, 50),
}


def test_every_section_with_a_spec_is_tried() -> None:
    assert [name for name in SECTIONS if blocks(name, "yaml")] == list(SAMPLES)


@pytest.mark.integration
@pytest.mark.parametrize("section", SAMPLES)
def test_the_spec_takes_what_the_code_made(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "spec"
    folder.mkdir()
    monkeypatch.setenv("ONNXMILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ONNXMILL_LOADER_ROOTS", str(folder))
    (folder / "model.py").write_text("def load(): ...")
    (code,), (text,) = blocks(section, "python"), blocks(section, "yaml")
    run(code, folder)
    (folder / "spec.yaml").write_text(yaml.safe_dump(MODEL | yaml.safe_load(text), sort_keys=False))
    taken = conversion.samples(conversion.prepare(folder / "spec.yaml"))
    counts = [done.value if done else None for done in (taken.calibration, taken.evaluation)]
    assert tuple(counts) == SAMPLES[section]


@pytest.mark.integration
def test_the_reader_works_with_onnxruntimes_quantizer(tmp_path: Path) -> None:
    (code,) = blocks("Readers", "python")
    assert run(code, tmp_path).strip().endswith("8 batches of 64 samples")
    assert (tmp_path / "int8.onnx").is_file()


def test_the_yaml_blocks_are_specs() -> None:
    for section in SAMPLES:
        for text in blocks(section, "yaml"):
            parse(yaml.safe_dump(MODEL | yaml.safe_load(text), sort_keys=False))
