"""The user's samples as a step: taken once, from the packed code, and calibration apart from evaluation."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from onnxmill.calibration import samples
from onnxmill.tasks import data
from onnxmill.tasks.artifact import Store
from onnxmill.tasks.data import SampleSettings, calibration_settings, check_apart, collect, evaluation_settings
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.loader import ROOTS_SETTING
from onnxmill.tasks.pack import pack
from onnxmill.tasks.pack_data import DataPaths
from onnxmill.tasks.spec import Spec, parse
from onnxmill.tasks.step import execute

SPEC = """
version: 1
name: tiny
source: {framework: torch, loader: model.py:load}
inputs: {x: {shape: [batch, 3]}}
data: {calibration: data.py:calibration, evaluation: data.py:evaluation, files: [x.npy], samples: 4}
"""
DATA = """
from pathlib import Path
import numpy as np
X = np.load(Path(__file__).with_name("x.npy"))
def calibration():
    for row in X[:6]:
        yield {"x": row[None]}
def evaluation():
    for index, row in enumerate(X[6:]):
        yield {"x": row[None]}, index
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spec:
    """A spec in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(ROOTS_SETTING, str(tmp_path))
    (tmp_path / "model.py").write_text("def load(): ...")
    (tmp_path / "data.py").write_text(DATA)
    np.save(tmp_path / "x.npy", np.arange(30, dtype=np.float32).reshape(10, 3))
    (tmp_path / "out").mkdir()
    return parse(SPEC)


@pytest.fixture
def clean_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test imports of its own folder is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    del sys.modules["data"]


def calibrating(spec: Spec) -> SampleSettings:
    settings = calibration_settings(spec.data, spec.contract, DataPaths())
    assert settings
    return settings


@pytest.mark.usefixtures("clean_imports")
def test_calibration_samples_up_to_the_limit(spec: Spec, tmp_path: Path) -> None:
    assert collect(calibrating(spec), tmp_path, tmp_path / "out") == 4
    kept = list(samples.read(tmp_path / "out"))
    assert [sample.inputs["x"].tolist()[0][0] for sample in kept] == [0, 3, 6, 9]
    assert {sample.label for sample in kept} == {None}


@pytest.mark.usefixtures("clean_imports")
def test_all_evaluation_samples_with_their_labels(spec: Spec, tmp_path: Path) -> None:
    settings = evaluation_settings(spec.data, spec.contract, DataPaths())
    assert settings
    assert collect(settings, tmp_path, tmp_path / "out") == 4
    assert [int(sample.label) for sample in samples.read(tmp_path / "out") if sample.label is not None] == [0, 1, 2, 3]


DATASET = """
import numpy as np
class Dataset:
    def __init__(self, size): self.size = size
    def __len__(self): return self.size
    def __getitem__(self, index):
        return {"x": np.full((1, 3), 1 / (index - BAD), np.float32)}
def calibration(): return Dataset(40)
"""


@pytest.mark.usefixtures("clean_imports")
def test_of_a_sequence_the_seed_chooses(spec: Spec, tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text(DATASET.replace("BAD", "0.5"))
    settings = calibrating(spec)
    taken = []
    for seed in (0, 0, 1):
        assert collect(settings.model_copy(update={"seed": seed}), tmp_path, tmp_path / "out") == 4
        taken.append([0.5 + 1 / float(s.inputs["x"][0, 0]) for s in samples.read(tmp_path / "out")])
        del sys.modules["data"]
    assert taken[0] == taken[1] != taken[2]
    assert all(each == sorted(each) for each in taken)
    assert max(max(each) for each in taken) > 4  # not the first ones
    assert collect(settings, tmp_path, tmp_path / "out") == 4  # for the fixture, which forgets the module


@pytest.mark.usefixtures("clean_imports")
def test_a_bad_item_of_a_sequence_has_its_index_there(spec: Spec, tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text(DATASET.replace("BAD", "37"))
    settings = calibrating(spec).model_copy(update={"limit": 40})
    with pytest.raises(InputError, match=r"taking sample 37 of it raised ZeroDivisionError at data\.py:7"):
        collect(settings, tmp_path, tmp_path / "out")


@pytest.mark.usefixtures("clean_imports")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def calibration():\n    yield from ()", "yielded no sample"),
        ("def calibration():\n    return None", "'data.py:calibration': returned None. yield samples"),
        ("def calibration():\n    yield {'x': 1}", "sample 0, input 'x' has dtype int64, must be float32"),
        ("def calibration():\n    yield {'x': 1 / 0}", "taking sample 0 of it raised ZeroDivisionError at data.py:2"),
    ],
)
def test_a_bad_callable_is_the_keys_fault(spec: Spec, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "data.py").write_text(text)
    with pytest.raises(InputError) as caught:
        collect(calibrating(spec), tmp_path, tmp_path / "out")
    assert caught.value.key == "data.calibration"
    assert words in str(caught.value)


def test_the_step_takes_samples_from_the_packed_files_alone(spec: Spec, tmp_path: Path) -> None:
    store = Store(tmp_path / "home" / "store")
    part = pack(spec, tmp_path, store).data
    assert part is not None
    settings = calibrating(spec)
    first = execute(data.CALIBRATION, store, settings, {"data": part.artifact}, tools=part.tools)
    assert first.record.value == 4
    assert first.record.artifact is not None
    assert sorted(first.record.artifact.files) == [samples.MANIFEST, samples.FILE]
    assert execute(data.CALIBRATION, store, settings, {"data": part.artifact}, tools=part.tools).cached

    undeclared = parse(SPEC.replace("files: [x.npy], ", ""))
    part = pack(undeclared, tmp_path, store).data
    assert part is not None
    with pytest.raises(InputError, match=r"importing it raised FileNotFoundError at data.py:4.*declared in `files:`"):
        execute(data.CALIBRATION, store, settings, {"data": part.artifact}, tools=part.tools)


def hashed(folder: Path, hashes: list[str]) -> Path:
    folder.mkdir()
    (folder / samples.MANIFEST).write_text(json.dumps(hashes))
    return folder


def test_sets_that_share_nothing_pass(tmp_path: Path) -> None:
    check_apart(hashed(tmp_path / "c", ["a", "b"]), hashed(tmp_path / "e", ["c", "d", "d"]))


def test_an_overlap_is_counted_and_named_by_its_indices(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        check_apart(hashed(tmp_path / "c", ["a", "b", "c"]), hashed(tmp_path / "e", ["x", "c", "y", "a"]))
    assert str(caught.value) == (
        "data.evaluation: shares 2 sample(s) with data.calibration (calibration sample 2 is evaluation sample 1). "
        "split them, for example by the hash of each sample"
    )
