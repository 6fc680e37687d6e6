"""`init`: the spec that it writes can be read, and means the model that it was given."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from onnxmill.tasks.errors import InputError
from onnxmill.tasks.initial import initial_spec, parameters
from onnxmill.tasks.spec import Tensor, expand, parse

MODULE = """
class Net:
    def forward(self, image, ids, scale=1.0, *rest, flag=False, **more): ...
def load():
    return Net()
def wrong():
    return 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder; what a test imports of it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    sys.modules.pop("net", None)


def save(path: Path, inputs: str) -> None:
    """A model with these inputs that gives a constant."""
    path.parent.mkdir(parents=True, exist_ok=True)
    graph = f"agraph ({inputs}) => (float[1] y) {{ y = Constant<value = float[1] {{1}}>() }}"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {graph}'), path)


def test_an_onnx_file_of_several_dtypes_and_dynamic_dims(here: Path) -> None:
    save(
        here / "net.onnx",
        "float[N, 3, H, W] image, int64[N, length] ids, bool[N, length] mask, "
        "float16[1, 2] half, double[2] d, uint8[?, 4] u",
    )
    text = initial_spec("net.onnx", "spec.yaml")
    spec = parse(text)
    assert spec.name == "net"
    assert (spec.source.framework, spec.source.path, spec.source.loader) == ("onnx", "net.onnx", None)
    assert spec.inputs == {
        "image": Tensor(dtype="float32", shape=("N", 3, "H", "W")),
        "ids": Tensor(dtype="int64", shape=("N", "length"), range=(0, 100)),
        "mask": Tensor(dtype="bool", shape=("N", "length")),
        "half": Tensor(dtype="float16", shape=(1, 2)),
        "d": Tensor(dtype="float64", shape=(2,)),
        "u": Tensor(dtype="uint8", shape=("batch", 4), range=(0, 100)),
    }
    assert set(spec.dims) == {"N", "H", "W", "length", "batch"}
    assert len({sizes[1] for sizes in spec.dims.values()}) == 5  # a mix-up of two dims shows
    assert "`onnxmill convert spec.yaml`" in text


def test_names_that_yaml_would_read_as_something_else(here: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18]>
        agraph (float[no, 3] a, float[on, 3] b, float[2] c, float[2] d) => (float[1] y)
        { y = Constant<value = float[1] {1}>() }
    """)
    names = ["no", "x:0", "1", "a #b: {c}"]
    for value, name in zip(model.graph.input, names, strict=True):
        value.name = name
    onnx.save(model, here / "2024 #1.onnx")
    spec = parse(initial_spec("2024 #1.onnx", "spec.yaml"))
    assert list(spec.inputs) == names
    assert spec.inputs["no"].shape == ("no", 3)
    assert spec.source.path == "2024 #1.onnx"
    assert spec.name == "2024--1"


@pytest.mark.parametrize(("file", "path"), [("specs/spec.yaml", "../models/1.5.onnx"), ("models/s.yaml", "1.5.onnx")])
def test_the_path_is_relative_to_the_spec(here: Path, file: str, path: str) -> None:
    save(here / "models" / "1.5.onnx", "float[2] x")
    (here / "specs").mkdir()
    spec = parse(initial_spec("models/1.5.onnx", file))
    assert spec.source.path == path
    assert spec.name == "1.5"
    assert expand(path, (here / file).parent) == here / "models" / "1.5.onnx"
    assert spec.dims == {}


def test_files_of_weights_beside_a_model_are_declared(here: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 18]> g (float[N,3] x) => (float[N,3] y) { y = Add(x, w) }'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "w"))
    onnx.save(model, "net.onnx", save_as_external_data=True, location="net.weights", size_threshold=0)
    assert parse(initial_spec("net.onnx", "spec.yaml")).source.files == ("net.weights",)
    Path("net.weights").unlink()
    with pytest.raises(InputError, match=r"source\.files: 'net\.weights': is missing"):
        initial_spec("net.onnx", "spec.yaml")


def test_a_loader_gives_the_names_of_the_inputs(here: Path) -> None:
    (here / "sub").mkdir()
    (here / "sub" / "net.py").write_text(MODULE)
    spec = parse(initial_spec("sub/net.py:load", str(here / "spec.yaml")))
    assert (spec.source.framework, spec.source.loader, spec.source.path) == ("torch", "sub/net.py:load", None)
    assert list(spec.inputs) == ["image", "ids"]
    assert spec.inputs["image"].shape[0] == "batch"
    assert list(spec.dims) == ["batch"]


def test_a_loader_beside_a_spec_elsewhere(here: Path) -> None:
    (here / "sub").mkdir()
    (here / "sub" / "net.py").write_text(MODULE)
    spec = parse(initial_spec("sub/net.py:load", "sub/spec.yaml"))
    assert spec.source.loader == "net.py:load"
    assert spec.name == "sub"


def test_a_loader_above_the_spec_is_refused_with_the_way_out(here: Path) -> None:
    (here / "net.py").write_text(MODULE)
    (here / "sub").mkdir()
    with pytest.raises(InputError, match=r"MODEL: 'net\.py:load': must lie .* --out spec\.yaml"):
        initial_spec("net.py:load", "sub/spec.yaml")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("nowhere.onnx", "MODEL: 'nowhere.onnx': no such file"),
        ("nowhere.py:load", "MODEL: 'nowhere.py:load': no such file; give an .onnx file or file.py:callable"),
        ("model.pt", "MODEL: 'model.pt': must be file.py:callable or package.module:callable"),
    ],
)
def test_what_is_no_model(here: Path, model: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        initial_spec(model, "spec.yaml")
    assert str(caught.value).startswith(words)


def test_a_broken_onnx_file(here: Path) -> None:
    (here / "net.onnx").write_bytes(b"\x08\x07 no model")
    with pytest.raises(InputError, match=r"'net\.onnx': is not a valid ONNX model"):
        initial_spec("net.onnx", "spec.yaml")


def test_parameters_of_forward_that_have_no_default(here: Path) -> None:
    (here / "net.py").write_text(MODULE)
    assert parameters("net.py:load") == ["image", "ids"]


def test_a_loader_that_gives_no_module(here: Path) -> None:
    (here / "net.py").write_text(MODULE)
    with pytest.raises(InputError, match=r"MODEL: 'net\.py:wrong': must return a torch\.nn\.Module; it returned a int"):
        parameters("net.py:wrong")
