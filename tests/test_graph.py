"""ONNX files and graphs: versions by domain, names of nodes, weights in files beside the model."""

from pathlib import Path

import onnx
import pytest

from onnxmill.tasks import graph
from tests import graphs


def test_opset_is_read_by_domain_and_ir_never_asks_for_weights_as_inputs() -> None:
    model = graphs.parse(graphs.GEMM, domains=', "ai.onnx.ml": 3, "my": 99')
    model.opset_import.append(onnx.helper.make_opsetid("", 13))
    assert graph.opset_of(model) == 18
    assert graph.lowest_ir(model) == 8
    assert graph.lowest_ir(graphs.parse(graphs.GEMM, opset=8)) == 4
    del model.opset_import[:]
    assert graph.opset_of(model) == 0


def external(folder: Path, **names: str) -> Path:
    """A model whose weights lie beside it, each in the file that is named for it."""
    folder.mkdir(parents=True, exist_ok=True)
    model = graphs.parse(graphs.GEMM)
    for tensor in model.graph.initializer:
        graphs.externalise(tensor, folder, names[tensor.name])
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def weights(path: Path) -> list[list[float]]:
    return [onnx.numpy_helper.to_array(t).ravel().tolist() for t in graph.load(path).graph.initializer]


WEIGHTS = [[1, -2, 3, -4, 5, -6, 7, -8], [1, -1]]


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of 24 bytes is large, a constant of 4 bytes small."""
    monkeypatch.setattr(graph, "EXTERNAL_BYTES", 24)
    monkeypatch.setattr(graph, "SMALL_BYTES", 4)


@pytest.mark.parametrize("linked", [False, True])
def test_external_weights_below_the_limit_are_read_and_written_inline(tmp_path: Path, linked: bool) -> None:
    path = external(tmp_path / "in", w="both", b="both")
    if linked:  # as in the store; onnx refuses to read such files
        (tmp_path / "other").hardlink_to(tmp_path / "in/both")
    assert graph.external_files(path) == ["both"]
    model = graph.load(path)
    assert not graph.is_large(model)
    (tmp_path / "out").mkdir()
    graph.save(model, tmp_path / "out/model.onnx")
    assert files(tmp_path / "out") == ["model.onnx"]
    onnx.checker.check_model(str(tmp_path / "out/model.onnx"))
    assert weights(tmp_path / "out/model.onnx") == WEIGHTS


@pytest.mark.parametrize(
    ("given", "names"),
    [({"w": "all.bin", "b": "all.bin"}, ["data"]), ({"w": "z/w.bin", "b": "a"}, ["data.0", "data.1"])],
)
@pytest.mark.usefixtures("small_limits")
def test_weights_above_the_limit_stay_in_files_that_the_model_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], names: list[str]
) -> None:
    path = external(tmp_path / "in", **given)
    model = graph.load(path)
    assert graph.external_names(model) == list(dict.fromkeys(given.values()))
    assert all(not tensor.raw_data for tensor in model.graph.initializer)
    before = model.SerializeToString()
    for folder in ("out", "again"):
        (tmp_path / folder).mkdir()
    graph.save(model, tmp_path / "out/model.onnx", beside=path.parent)
    assert model.SerializeToString() == before
    assert files(tmp_path / "out") == ["model.onnx", *(f"model.onnx.{name}" for name in names)]
    graph.save(graph.load(tmp_path / "out/model.onnx"), tmp_path / "again/model.onnx", beside=tmp_path / "out")
    for name in files(tmp_path / "out"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
    monkeypatch.setattr(graph, "EXTERNAL_BYTES", 10_000)
    assert weights(tmp_path / "again/model.onnx") == WEIGHTS


@pytest.mark.usefixtures("small_limits")
def test_the_bytes_do_not_depend_on_the_names_of_the_files(tmp_path: Path) -> None:
    written = []
    for folder, name in (("one", "weights.bin"), ("other", "deep/er/w")):
        path = external(tmp_path / folder, w=name, b=name)
        out = tmp_path / folder / "out"
        out.mkdir()
        graph.save(graph.load(path), out / "model.onnx", beside=path.parent)
        written.append({name: (out / name).read_bytes() for name in files(out)})
    assert written[0] == written[1]


@pytest.mark.usefixtures("small_limits")
def test_a_model_is_saved_in_place(tmp_path: Path) -> None:
    path = external(tmp_path, w="w.bin", b="b.bin")
    model = graph.load(path)
    model.producer_name = "me"
    graph.save(model, path, beside=tmp_path)
    assert files(tmp_path) == ["b.bin", "model.onnx", "w.bin"]
    assert onnx.load(str(path)).producer_name == "me"


def test_constants_that_passes_read_are_in_the_model_whatever_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = external(tmp_path, w="all.bin", b="all.bin")
    monkeypatch.setattr(graph, "EXTERNAL_BYTES", 24)
    monkeypatch.setattr(graph, "SMALL_BYTES", 8)
    large, small = graph.load(path).graph.initializer
    assert large.data_location == onnx.TensorProto.EXTERNAL
    assert onnx.numpy_helper.to_array(small).tolist() == [1, -1]


def test_bytes_of_the_model_itself_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = external(tmp_path, w="all.bin", b="all.bin")
    monkeypatch.setattr(graph, "SMALL_BYTES", 4)
    monkeypatch.setattr(graph, "EXTERNAL_BYTES", path.stat().st_size + 40)
    assert graph.is_large(graph.load(path))
    monkeypatch.setattr(graph, "EXTERNAL_BYTES", path.stat().st_size + 41)
    assert not graph.is_large(graph.load(path))


@pytest.mark.parametrize("limit", [24, 10_000])
def test_missing_weights_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    path = external(tmp_path, w="here.bin", b="gone.bin")
    (tmp_path / "gone.bin").unlink()
    monkeypatch.setattr(graph, "EXTERNAL_BYTES", limit)
    monkeypatch.setattr(graph, "SMALL_BYTES", 4)
    (tmp_path / "out").mkdir()
    with pytest.raises(FileNotFoundError, match=r"gone\.bin"):
        graph.save(graph.load(path), tmp_path / "out/model.onnx", beside=tmp_path)


def test_a_file_that_is_no_model_names_no_files(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no protobuf at all")
    assert graph.external_files(tmp_path / "model.onnx") == []
