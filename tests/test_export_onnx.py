"""ONNX as a source: what a file says of its inputs, and files that are no source."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from onnxmill.tasks import export
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.export import DescribeSettings, ExportSettings
from onnxmill.tasks.export import onnx as onnx_source
from onnxmill.tasks.proof import MODEL, Proof
from tests import graphs


def exported(ready: graphs.Ready) -> Proof:
    settings = ExportSettings(source=graphs.SOURCE, contract=ready.contract, stamp=graphs.STAMP)
    with graphs.user_code(ready.model):
        return export.export(settings, ready.model, ready.reference, ready.out())


@pytest.mark.parametrize("opset", [13, 17, 21])
def test_the_file_is_taken_as_it_is_whatever_the_pin(tmp_path: Path, opset: int) -> None:
    ready = graphs.ready(tmp_path, graphs.parse(graphs.GEMM, opset=opset), opset=18)
    result = exported(ready)
    assert result.findings == ()
    assert (result.opset, result.note) == (opset, f"taken as it is, opset {opset}")
    assert result.parity
    assert result.parity.outputs[0].max_rel is not None
    assert result.parity.outputs[0].max_rel < 1e-6
    props = {p.key for p in onnx.load(str(tmp_path / "step/out" / MODEL)).metadata_props}
    assert "onnxmill.source" in props


def test_an_old_file_whose_weights_are_no_inputs_is_taken(tmp_path: Path) -> None:
    result = exported(graphs.ready(tmp_path, graphs.parse(graphs.GEMM, opset=8, ir=4)))
    assert result.findings == ()
    assert (result.opset, result.ir_version) == (8, 4)


def test_its_oracle_is_onnx_runtime_without_optimisation(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, graphs.GEMM)
    with graphs.user_code(ready.model):
        source = onnx_source.load(graphs.SOURCE)
    ((name, array),) = onnx_source.predict(source, {"x": np.ones((1, 4), np.float32)})
    assert (name, array.tolist()) == ("y", [[17, -21]])


@pytest.mark.parametrize("content", [b"", b"no model", b"\x08\x08"])
def test_a_broken_file_is_the_specs_fault(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MODEL).write_bytes(content)
    with graphs.user_code(tmp_path), pytest.raises(InputError, match=r"^source\.path: 'model\.onnx': is not a valid"):
        export.describe(DescribeSettings(path=MODEL), tmp_path, tmp_path)


def test_a_cut_file_is_the_specs_fault(tmp_path: Path) -> None:
    content = graphs.parse(graphs.GEMM).SerializeToString()
    (tmp_path / MODEL).write_bytes(content[: len(content) // 2])
    with graphs.user_code(tmp_path), pytest.raises(InputError, match=r"^source\.path"):
        onnx_source.load(graphs.SOURCE)


@pytest.mark.parametrize(
    ("operator", "domains", "opset"), [("own.Odd", ', "own": 1', 18), ("Relu", "", 99)], ids=["custom", "future"]
)
def test_a_file_that_no_session_opens_is_the_specs_fault(
    tmp_path: Path, operator: str, domains: str, opset: int
) -> None:
    text = f"agraph (float[batch, 4] x) => (float[batch, 4] y) {{ y = {operator}(x) }}"
    (tmp_path / MODEL).write_bytes(graphs.parse(text, opset=opset, domains=domains).SerializeToString())
    with graphs.user_code(tmp_path), pytest.raises(InputError, match=r"^source\.path: 'model\.onnx': "):
        onnx_source.load(graphs.SOURCE)


def test_the_description_has_dtypes_and_dims(tmp_path: Path) -> None:
    (tmp_path / MODEL).write_bytes(
        graphs.parse("""
            agraph (float[batch, 3] a, double[1] b, int64[N, M, 2] c, float16[3] d, bool[2, 2] e, uint8 f, float[3] w)
                => (float[batch, 3] y) <float[3] w = {1, 2, 3}> { y = Mul(a, w) }
        """).SerializeToString()
    )
    with graphs.user_code(tmp_path):
        found = export.describe(DescribeSettings(path=MODEL), tmp_path, tmp_path)
    assert {name: (t.dtype, t.shape) for name, t in found.items()} == {
        "a": ("float32", ("batch", 3)),
        "b": ("float64", (1,)),
        "c": ("int64", ("N", "M", 2)),
        "d": ("float16", (3,)),
        "e": ("bool", (2, 2)),
        "f": ("uint8", ()),
    }  # w has a default: it is no input of the contract


@pytest.mark.parametrize(
    ("axis", "dim", "expected"),
    [
        (0, "batch_size", "batch_size"),
        (0, "unk__12", "unk__12"),
        (0, "2*n + 1", "dim_2_n___1"),
        (0, "größe", "gr__e"),
        (1, "::", "__"),
        (0, "", "batch"),
        (1, "", "dim_1"),
        (0, -1, "batch"),
        (1, 0, "dim_1"),
        (1, 7, 7),
    ],
)
def test_dims_become_names_that_a_spec_allows(tmp_path: Path, axis: int, dim: int | str, expected: int | str) -> None:
    model = graphs.parse("agraph (float[1, 1] x) => (float[1, 1] y) { y = Relu(x) }")
    value = model.graph.input[0].type.tensor_type.shape.dim[axis]
    value.Clear()
    if isinstance(dim, int):
        value.dim_value = dim
    elif dim:
        value.dim_param = dim
    (tmp_path / MODEL).write_bytes(model.SerializeToString())
    assert onnx_source.describe(tmp_path / MODEL)["x"].shape[axis] == expected


@pytest.mark.parametrize("dtype", [TensorProto.STRING, TensorProto.BFLOAT16, TensorProto.COMPLEX64])
def test_a_dtype_that_a_spec_does_not_have_is_named(tmp_path: Path, dtype: int) -> None:
    value = onnx.helper.make_tensor_value_info("x", dtype, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", [value], [])
    (tmp_path / MODEL).write_bytes(onnx.helper.make_model(graph).SerializeToString())
    with pytest.raises(InputError, match=r"inputs\.x\.dtype: '(string|bfloat16|complex64)': must be one of float16"):
        onnx_source.describe(tmp_path / MODEL)


def test_an_input_without_a_shape_must_be_given_in_the_spec(tmp_path: Path) -> None:
    model = graphs.parse(graphs.GEMM)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    (tmp_path / MODEL).write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match=r"inputs\.x: the file gives no shape for it\. give `inputs:`"):
        onnx_source.describe(tmp_path / MODEL)
