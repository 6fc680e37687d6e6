"""ONNX as a source: what a file says of its inputs, and files that are no source."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from onnxmill.tasks.errors import InputError
from onnxmill.tasks.export import onnx as onnx_source
from onnxmill.tasks.export import steps as export
from onnxmill.tasks.export.steps import DescribeSettings, ExportSettings
from onnxmill.tasks.graph import MODEL
from onnxmill.tasks.opset import Pin
from onnxmill.tasks.proof import Proof
from tests import graphs


def exported(ready: graphs.Ready) -> Proof:
    settings = ExportSettings(source=graphs.SOURCE, contract=ready.contract, stamp=graphs.STAMP, opset=18)
    with graphs.user_code(ready.model):
        return export.export(settings, ready.model, ready.reference, ready.out())


@pytest.mark.parametrize("opset", [13, 17, 21])
def test_the_file_is_taken_as_it_is_whatever_the_pin(tmp_path: Path, opset: int) -> None:
    ready = graphs.ready(tmp_path, graphs.parse(graphs.GEMM, opset=opset), opset=18)
    result = exported(ready)
    assert result.findings == ()
    assert (result.opset, result.note) == (opset, "as it is")
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
    ((name, array),) = source.predict({"x": np.ones((1, 4), np.float32)})
    assert (name, array.tolist()) == ("y", [[17, -21]])


@pytest.mark.parametrize("content", [b"", b"no model", b"\x08\x08"])
def test_a_broken_file_is_the_specs_fault(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MODEL).write_bytes(content)
    with graphs.user_code(tmp_path), pytest.raises(InputError, match=r"^source\.path: 'model\.onnx': is not a valid"):
        export.describe(DescribeSettings(path=MODEL, pin=Pin(opset=None)), tmp_path, tmp_path)


def test_a_cut_file_is_the_specs_fault(tmp_path: Path) -> None:
    content = graphs.parse(graphs.GEMM).SerializeToString()
    (tmp_path / MODEL).write_bytes(content[: len(content) // 2])
    with graphs.user_code(tmp_path), pytest.raises(InputError, match=r"^source\.path"):
        onnx_source.load(graphs.SOURCE)


def refused(folder: Path, model: onnx.ModelProto) -> str:
    """Why the model in `folder` is no source."""
    (folder / MODEL).write_bytes(model.SerializeToString())
    with graphs.user_code(folder), pytest.raises(InputError) as raised:
        onnx_source.load(graphs.SOURCE)
    return str(raised.value)


def test_an_opset_of_the_future_is_the_specs_fault(tmp_path: Path) -> None:
    model = graphs.parse("agraph (float[batch, 4] x) => (float[batch, 4] y) { y = Relu(x) }", opset=99)
    assert refused(tmp_path, model).startswith("source.path: 'model.onnx': ")


@pytest.mark.parametrize("opset", [1, 5, 6])
def test_an_opset_older_than_7_is_refused_by_its_number(tmp_path: Path, opset: int) -> None:
    model = graphs.parse("agraph (float[2, 4] x) => (float[2, 4] y) { y = Relu(x) }", opset=opset)
    assert f"'model.onnx': is at opset {opset}, must be 7 or newer. convert it" in refused(tmp_path, model)


@pytest.mark.parametrize("opset", range(7, 24))
def test_every_opset_from_7_on_is_taken(tmp_path: Path, opset: int) -> None:
    result = exported(graphs.ready(tmp_path, graphs.parse(graphs.GEMM.replace("batch", "2"), opset=opset, ir=4)))
    assert (result.findings, result.opset) == ((), opset)


# --- custom operators ------------------------------------------------------------------------------------------------

IN_BODY = """
agraph (bool c, float[2] x) => (float[2] y) {
  y = If(c) <then_branch = one () => (float[2] a) { a = own.Odd(x) },
             else_branch = two () => (float[2] b) { b = Neg(x) }>
}
"""


@pytest.mark.parametrize(
    ("text", "operator"),
    [
        ("agraph (float[2] x) => (float[2] y) { y = own.Odd(x) }", "own::Odd"),
        ("agraph (float[2] x) => (float[2] y) { r = Relu(x)  y = com.microsoft.Odd(r) }", "com.microsoft::Odd"),
        ("agraph (float[2] x) => (float[2] y) { y = org.pytorch.aten.ATen(x) }", "org.pytorch.aten::ATen"),
        (IN_BODY, "own::Odd"),
    ],
)
def test_an_operator_that_nothing_here_knows_is_named_with_the_way_out(
    tmp_path: Path, text: str, operator: str
) -> None:
    domains = ', "own": 1, "com.microsoft": 1, "org.pytorch.aten": 1'
    told = refused(tmp_path, graphs.parse(text, domains=domains))
    assert told.startswith(f"source.path: 'model.onnx': {operator} is a custom operator that no runtime here knows. ")
    assert "standard operators" in told


@pytest.mark.parametrize("operator", ["Gelu", "QuickGelu", "FastGelu"])
def test_an_operator_of_onnx_runtime_goes_on_and_is_recorded(tmp_path: Path, operator: str) -> None:
    text = f"agraph (float[batch, 4] x) => (float[batch, 4] y) {{ g = com.microsoft.{operator}(x)  y = Relu(g) }}"
    result = exported(graphs.ready(tmp_path, graphs.parse(text, domains=', "com.microsoft": 1')))
    assert result.findings == ()
    assert result.note == f"as it is; no shape inference beyond com.microsoft::{operator}"


def test_an_operator_with_a_body_in_the_file_is_no_custom_one(tmp_path: Path) -> None:
    body = '<opset_import: ["": 18], domain: "own"> f (a) => (b) { t = Relu(a)  b = Neg(t) }'
    text = "agraph (float[batch, 4] x) => (float[batch, 4] y) { y = own.f(x) }"
    result = exported(graphs.ready(tmp_path, graphs.parse(text, domains=', "own": 1', functions=body)))
    assert (result.findings, result.note) == ((), "as it is")


# --- quantized already -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "form"), [(graphs.QDQ, "QDQ"), (graphs.INTEGER, "QOperator")])
def test_a_quantized_model_passes_and_is_recognised(tmp_path: Path, text: str, form: str) -> None:
    result = exported(graphs.ready(tmp_path, text))
    assert result.findings == ()
    assert result.note == f"as it is; quantized already ({form})"


# --- weights ---------------------------------------------------------------------------------------------------------


def test_weights_that_an_old_file_lists_as_inputs_are_constants(tmp_path: Path) -> None:
    text = graphs.GEMM.replace("float[batch, 4] x", "float[2, 4] x, float[4, 2] w, float[2] b").replace("batch", "2")
    old = graphs.parse(text, opset=8, ir=3)
    content = old.SerializeToString()
    ready = graphs.ready(tmp_path, old)
    (ready.model / MODEL).write_bytes(content)
    assert exported(ready).findings == ()
    written = onnx.load(str(tmp_path / "step/out" / MODEL))
    assert [value.name for value in written.graph.input] == ["x"]
    assert [tensor.name for tensor in written.graph.initializer] == ["w", "b"]


def test_an_input_with_a_default_stays_one(tmp_path: Path) -> None:
    text = graphs.GEMM.replace("float[batch, 4] x", "float[batch, 4] x, float[2] b")
    assert exported(graphs.ready(tmp_path, text)).findings == ()
    assert [i.name for i in onnx.load(str(tmp_path / "step/out" / MODEL)).graph.input] == ["x", "b"]


def external(*locations: str, length: int = 16) -> onnx.ModelProto:
    """A model with a weight of 16 bytes in each of the files."""
    names = [f"w{index}" for index in range(len(locations))]
    model = graphs.parse(f"agraph (float[4] x) => (float[4] y) {{ y = Sum(x, {', '.join(names)}) }}")
    for name, location in zip(names, locations, strict=True):
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
        for key, value in (("location", location), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)
        model.graph.initializer.append(tensor)
    return model


def test_weights_in_several_files_are_taken(tmp_path: Path) -> None:
    for index, name in enumerate(("a.bin", "deep/b.bin")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        np.full(4, index + 1, np.float32).tofile(tmp_path / name)
    (tmp_path / MODEL).write_bytes(external("a.bin", "deep/b.bin").SerializeToString())
    with graphs.user_code(tmp_path):
        source = onnx_source.load(graphs.SOURCE)
    assert source.predict({"x": np.zeros(4, np.float32)})[0][1].tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize("present", ["a.bin", "b.bin"])
def test_a_missing_file_of_weights_is_named(tmp_path: Path, present: str) -> None:
    np.ones(4, np.float32).tofile(tmp_path / present)
    missing = {"a.bin", "b.bin"} - {present}
    assert refused(tmp_path, external("a.bin", "b.bin")) == (
        f"source.files: '{missing.pop()}': is missing: the model's weights lie in it. declare it there"
    )


OUTSIDE = ["../secret.bin", "deep/../../secret.bin", "/etc/hostname", "..\\secret.bin", "C:\\secret.bin", "link.bin"]


@pytest.mark.parametrize("location", OUTSIDE)
def test_weights_outside_of_the_models_folder_are_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    (folder / "deep").mkdir(parents=True)
    np.ones(4, np.float32).tofile(tmp_path / "secret.bin")
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    told = refused(folder, external(location))
    assert told.startswith("source.path: 'model.onnx': its external file '")
    assert "lies outside of the model's folder. save the model with its weights beside it" in told


@pytest.mark.parametrize("length", [8, 1 << 40])
def test_a_cut_file_of_weights_is_the_specs_fault(tmp_path: Path, length: int) -> None:
    np.ones(2, np.float32).tofile(tmp_path / "a.bin")
    assert refused(tmp_path, external("a.bin", length=length)).startswith("source.path: 'model.onnx': ")


# --- the description -------------------------------------------------------------------------------------------------


def test_the_description_has_dtypes_and_dims(tmp_path: Path) -> None:
    (tmp_path / MODEL).write_bytes(
        graphs.parse("""
            agraph (float[batch, 3] a, double[1] b, int64[N, M, 2] c, float16[3] d, bool[2, 2] e, uint8 f, float[3] w)
                => (float[batch, 3] y) <float[3] w = {1, 2, 3}> { y = Mul(a, w) }
        """).SerializeToString()
    )
    with graphs.user_code(tmp_path):
        found = export.describe(DescribeSettings(path=MODEL, pin=Pin(opset=None)), tmp_path, tmp_path)
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
    with pytest.raises(
        InputError, match=r"inputs\.x\.dtype: '(string|bfloat16|complex64)': must be one of float16.*cut"
    ):
        onnx_source.describe(tmp_path / MODEL)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("(seq(float[2]) x) => (int64 y) { y = SequenceLength(x) }", r"inputs\.x: 'sequence': must be a tensor\. cut"),
        ("(float[2] x) => (seq(float[2]) y) { y = SequenceConstruct(x) }", r"outputs\.y: 'sequence': must be a tensor"),
        ("(optional(float[2]) x) => (float[2] y) { y = OptionalGetElement(x) }", r"inputs\.x: 'optional': must be a"),
        ("(float[2] x) => (string[2] y) { y = Cast<to = 8>(x) }", r"outputs\.y\.dtype: 'string': must be one of .*cut"),
    ],
)
def test_what_is_no_tensor_of_numbers_is_named_with_the_way_out(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / MODEL).write_bytes(graphs.parse(f"agraph {text}").SerializeToString())
    with graphs.user_code(tmp_path), pytest.raises(InputError, match=f"^{told}"):
        export.describe(DescribeSettings(path=MODEL, pin=Pin(opset=None)), tmp_path, tmp_path)


def test_an_input_without_a_shape_must_be_given_in_the_spec(tmp_path: Path) -> None:
    model = graphs.parse(graphs.GEMM)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    (tmp_path / MODEL).write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match=r"inputs\.x: the file gives no shape for it\. give `inputs:`"):
        onnx_source.describe(tmp_path / MODEL)
