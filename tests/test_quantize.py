"""Recipes: what was quantized is counted, what cannot be is named, and nothing is quantized without effect."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from onnxmill.calibration import samples, tables
from onnxmill.calibration.methods import METHODS
from onnxmill.calibration.methods_scheme import Range
from onnxmill.tasks import graph, parity, quantize
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.graph import MODEL, name_nodes, nodes_of
from onnxmill.tasks.proof import Proof
from onnxmill.tasks.quantize import half, int8, load_for, prepare, recipe_settings
from onnxmill.tasks.spec import Variant
from tests import graphs

Weights = dict[str, npt.NDArray[np.generic]]


def build(text: str, weights: Weights, *, opset: int = 18) -> onnx.ModelProto:
    """A model of ONNX text with random weights that would be long in it."""
    model = graphs.parse(text, opset=opset)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(w), name) for name, w in weights.items())
    return model


TWO_LAYERS = """
agraph (float[batch, 8] x) => (float[batch, 4] y) {
  h = MatMul(x, w1)
  r = Relu(h)
  y = MatMul(r, w2)
}
"""
BRANCH = """
agraph (float[batch, 8] x) => (float[batch, 4] y) <float zero = {0}> {
  s = ReduceSum<keepdims = 0>(x)
  p = Greater(s, zero)
  y = If (p) <
    then_branch = t () => (float[batch, 4] a) { a = MatMul(x, w) },
    else_branch = e () => (float[batch, 4] b) { m = MatMul(x, w)  b = Neg(m) }
  >
}
"""


@pytest.fixture
def layers(tmp_path: Path) -> graphs.Ready:
    model = build(TWO_LAYERS, {"w1": graphs.normal((8, 6), 1), "w2": graphs.normal((6, 4), 2)})
    for index, name in enumerate(("first", "relu", "second")):
        model.graph.node[index].name = name
    return graphs.ready(tmp_path / "layers", model)


def calibration(ready: graphs.Ready, count: int = 40) -> Path:
    """Normal samples of the model's inputs."""
    samples = [
        {
            name: graphs.normal(tuple(1 if isinstance(d, str) else d for d in tensor.shape), seed)
            for name, tensor in ready.contract.inputs.items()
        }
        for seed in range(100, 100 + count)
    ]
    return graphs.write_samples(ready.folder / "calibration", samples)


def static(ready: graphs.Ready, **settings: tuple[str, ...] | str | bool) -> Proof:
    recipe = ready.recipe().model_copy(update=settings)
    return graphs.static(ready, recipe, calibration(ready))


def dynamic(ready: graphs.Ready, **settings: tuple[str, ...] | str | bool) -> Proof:
    recipe = ready.recipe().model_copy(update=settings)
    return int8.dynamic(recipe, ready.model, ready.reference, ready.out())


def fp16(ready: graphs.Ready, *, exclude: tuple[str, ...] = ()) -> Proof:
    return half.convert(ready.recipe(exclude=exclude), ready.model, ready.reference, ready.out())


def judged(result: Proof, limits: str = "int8-static") -> list[str]:
    assert result.parity
    gates = {str(name): gate for name, gate in parity.DEFAULT_GATES.items()}
    return [f.code for f in (*result.findings, *parity.judge(result.parity, gates[limits])) if f.severity == "refuse"]


def counts(result: Proof) -> tuple[int, int]:
    return result.quantized_nodes, result.quantizable_nodes


# --- fp16 ------------------------------------------------------------------------------------------------------------


def test_fp16_halves_the_weights_and_keeps_the_interface(layers: graphs.Ready) -> None:
    result = fp16(layers)
    assert judged(result, "fp16") == []
    assert result.findings == ()
    model = onnx.load(str(layers.folder / "step/out" / MODEL))
    assert {i.data_type for i in model.graph.initializer} == {TensorProto.FLOAT16}
    assert {v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)} == {TensorProto.FLOAT}


def test_fp16_keeps_a_constant_out_of_range_in_float_and_names_it(tmp_path: Path) -> None:
    model = graphs.parse("""
        agraph (float[batch, 2] x) => (float[batch, 2] y, float[batch, 2] z)
        <float[2] wide = {1000000, 0.000000001}, float[2] two = {2, 4}> { z = Mul(x, two)  y = Mul(z, wide) }
    """)
    model.graph.node[1].name = "scale"
    ready = graphs.ready(tmp_path, model)
    result = fp16(ready)
    (finding,) = result.findings
    assert (finding.code, finding.severity, finding.where) == ("QNT003", "warn", "node scale")
    assert finding.measured == 1e6
    assert judged(result, "fp16") == []
    assert result.parity
    assert max(o.max_rel or 0 for o in result.parity.outputs) < 1e-2
    kept = {i.name: i.data_type for i in onnx.load(str(tmp_path / "step/out" / MODEL)).graph.initializer}
    assert kept == {"wide": TensorProto.FLOAT, "two": TensorProto.FLOAT16}


@pytest.mark.parametrize(
    ("value", "offends"),
    [
        ([1e6, 1e-9], True),
        ([70000.0], True),
        ([-7e4, 1.0], True),
        ([1e-9, -1e-8], True),
        ([65504.0, 1e-9], False),
        ([0.0], False),
        ([], False),
        ([6.2e-8], False),
        ([1.0], False),
    ],
)
@pytest.mark.parametrize("kind", ["initializer", "Constant", "value_floats"])
def test_constants_are_scanned_wherever_they_are(value: list[float], offends: bool, kind: str) -> None:
    model = graphs.parse("agraph (float[batch, 2] x) => (float[batch, 2] y) { y = Mul(x, c) }")
    model.graph.node[0].name = "scale"
    array = np.asarray(value, np.float32)
    if kind == "initializer":
        model.graph.initializer.append(numpy_helper.from_array(array, "c"))
    elif kind == "Constant" or not value:  # an attribute that is a list is never empty
        model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(array)))
    else:
        model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["c"], value_floats=value))
    found = half.out_of_range(model)
    assert [name for name, _ in found] == (["scale"] if offends else [])


def test_constants_of_branches_are_scanned(tmp_path: Path) -> None:
    weight = graphs.normal((8, 4), 1)
    weight[0, 0] = 1e6
    model = build(BRANCH, {"w": weight})
    ready = graphs.ready(tmp_path, model)
    result = fp16(ready)
    assert [f.where for f in result.findings if f.code == "QNT003"] == ["node MatMul_3", "node MatMul_4"]
    assert judged(result, "fp16") == []


def test_fp16_of_a_cast_and_of_a_branch_over_an_outer_weight(tmp_path: Path) -> None:
    cast = """
    agraph (int64[batch, 4] i, float[batch, 4] x) => (float[batch, 4] y) { c = Cast<to = 1>(i)  y = Mul(c, x) }
    """
    ready = graphs.ready(tmp_path / "cast", cast, ranges={"i": (0, 9)})
    assert judged(fp16(ready), "fp16") == []
    branch = graphs.ready(tmp_path / "branch", build(BRANCH, {"w": graphs.normal((8, 4), 1)}))
    assert judged(fp16(branch), "fp16") == []


def test_fp16_excludes_by_name_and_orders_its_casts(layers: graphs.Ready) -> None:
    result = fp16(layers, exclude=("second",))
    assert judged(result, "fp16") == []
    model = onnx.load(str(layers.folder / "step/out" / MODEL))
    kept = {i.name: i.data_type for i in model.graph.initializer}
    assert kept == {"w1": TensorProto.FLOAT16, "w2": TensorProto.FLOAT}
    known = {v.name for v in model.graph.input} | {i.name for i in model.graph.initializer}
    for node in model.graph.node:  # each is after what it needs
        assert set(node.input) <= known
        known |= set(node.output)


# --- int8 ------------------------------------------------------------------------------------------------------------


def test_int8_dynamic_counts_and_holds(layers: graphs.Ready) -> None:
    result = dynamic(layers)
    assert judged(result, "int8-dynamic") == []
    assert counts(result) == (2, 2)
    assert result.findings == ()
    assert graphs.ops(layers.folder / "step/out").count("MatMulInteger") == 2


def test_int8_static_counts_and_holds(layers: graphs.Ready) -> None:
    result = static(layers)
    assert judged(result) == []
    assert counts(result) == (2, 2)
    model = onnx.load(str(layers.folder / "step/out" / MODEL))
    weights = [i for i in model.graph.initializer if i.name.endswith("_quantized")]
    assert {i.data_type for i in weights} == {TensorProto.INT8}
    scale = next(i for i in model.graph.initializer if i.name == "w1_scale")
    assert list(scale.dims) == [6]  # a scale for each output channel
    points = [i for i in model.graph.initializer if i.name.endswith("_zero_point") and not i.name.startswith("w")]
    assert {i.data_type for i in points} == {TensorProto.UINT8}


@pytest.mark.parametrize("method", METHODS)
def test_samples_may_have_several_shapes(tmp_path: Path, method: str) -> None:
    text = "g (float[batch,seq,4] x) => (float[batch,seq,3] y) { y = MatMul(x, w) }"
    model = graphs.parse(text)
    model.graph.initializer.append(numpy_helper.from_array(graphs.normal((4, 3), 1), "w"))
    layers = graphs.ready(tmp_path, model)
    ragged = tmp_path / "ragged"
    ragged.mkdir()
    items = [{"x": graphs.normal((1, 2 + n % 3, 4), n)} for n in range(40)]
    expected = {"x": samples.Expected("float32", ("batch", "seq", 4))}
    samples.write("data", items, expected, ragged, limit=None, labelled=False)
    recipe = layers.recipe().model_copy(update={"method": method})
    found = graphs.static(layers, recipe, ragged)
    assert graphs.codes(found) == []
    assert counts(found) == (1, 1)


@pytest.mark.parametrize("method", METHODS)
def test_every_calibration_method_runs(layers: graphs.Ready, method: str) -> None:
    assert counts(static(layers, method=method)) == (2, 2)


@pytest.mark.parametrize("quantizer", [static, dynamic])
def test_an_excluded_node_stays_float_and_is_counted(layers: graphs.Ready, quantizer: Callable[..., Proof]) -> None:
    result = quantizer(layers, exclude=("first",))
    assert counts(result) == (1, 2)
    (finding,) = result.findings
    assert (finding.code, finding.severity) == ("QNT002", "info")
    assert "1 of 2 quantized; in float: first" in finding.message


@pytest.mark.parametrize("quantizer", [static, dynamic])
def test_an_excluded_gemm_stays_float(tmp_path: Path, quantizer: Callable[..., Proof]) -> None:
    weights: Weights = {"w1": graphs.normal((8, 6), 1), "w2": graphs.normal((6, 4), 2), "b": graphs.normal((4,), 3)}
    model = build(TWO_LAYERS.replace("MatMul(r, w2)", "Gemm(r, w2, b)"), weights)
    model.graph.node[2].name = "head"
    ready = graphs.ready(tmp_path, model)
    assert counts(quantizer(ready, exclude=("head",))) == (1, 2)


@pytest.mark.parametrize("quantizer", [static, dynamic, fp16])
def test_an_unknown_name_to_exclude_is_the_specs_fault(layers: graphs.Ready, quantizer: Callable[..., Proof]) -> None:
    with pytest.raises(InputError, match=r"variants\.exclude: 'frist': no such node; did you mean 'first'"):
        quantizer(layers, exclude=("frist",))


CONV = "agraph (float[batch, 3, 8, 8] x) => (float[batch, 4, 6, 6] y) { y = Conv(x, w, b) }"


def test_int8_dynamic_of_a_lone_conv_quantizes_nothing_and_is_refused(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, build(CONV, {"w": graphs.normal((4, 3, 3, 3), 1), "b": graphs.normal((4,), 2)}))
    result = dynamic(ready)
    assert judged(result) == ["QNT001"]
    assert counts(result) == (0, 1)
    assert "1 quantizable nodes" in result.findings[0].message


def test_a_conv_with_tiny_weights_keeps_its_biases(tmp_path: Path) -> None:
    weights: Weights = {"w": 1e-8 * graphs.normal((4, 3, 3, 3), 1), "b": np.array([5, -4.5, 3, -2], np.float32)}
    result = static(graphs.ready(tmp_path, build(CONV, weights)))
    assert result.parity
    error = result.parity.outputs[0].max_rel
    assert error is not None
    assert error <= 0.01 or judged(result)


@pytest.mark.parametrize("quantizer", [static, dynamic])
def test_nothing_in_a_branch_is_quantized_silently(tmp_path: Path, quantizer: Callable[..., Proof]) -> None:
    result = quantizer(graphs.ready(tmp_path, build(BRANCH, {"w": graphs.normal((8, 4), 1)})))
    assert [f.code for f in result.findings] == ["QNT001"]
    assert "2 quantizable nodes" in result.findings[0].message  # both are counted


GEMM = "agraph (float[batch, 8] x) => (float[batch, 10] y) { y = Gemm(x, w, b) }"


@pytest.mark.parametrize("shape", [(10,), (1, 10), (1,), (1, 1), ()])
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_a_gemm_takes_a_bias_of_any_shape(
    tmp_path: Path, shape: tuple[int, ...], per_channel: bool, transposed: bool
) -> None:
    text = GEMM.replace("Gemm", "Gemm<transB = 1>") if transposed else GEMM
    weight = graphs.normal((10, 8) if transposed else (8, 10), 1)
    ready = graphs.ready(tmp_path, build(text, {"w": weight, "b": 3 + graphs.normal(shape, 2)}))
    result = static(ready, per_channel=per_channel)
    assert judged(result) == []
    assert counts(result) == (1, 1)
    assert result.parity
    assert (result.parity.outputs[0].sqnr_db or 0) > 25


def test_a_gemm_with_a_bias_for_each_row_stays_float(tmp_path: Path) -> None:
    text = TWO_LAYERS.replace("batch", "2").replace("MatMul(r, w2)", "Gemm(r, w2, b)")
    weights: Weights = {"w1": graphs.normal((8, 6), 1), "w2": graphs.normal((6, 4), 2), "b": graphs.normal((2, 1), 3)}
    ready = graphs.ready(tmp_path, build(text, weights))
    samples = graphs.write_samples(tmp_path / "rows", [{"x": graphs.normal((2, 8), i)} for i in range(40)])
    result = graphs.static(ready, ready.recipe(), samples)
    assert judged(result) == []
    assert counts(result) == (1, 2)
    assert "Gemm_2" in result.findings[0].message


def test_a_bias_that_is_shared_is_broadcast_for_each(tmp_path: Path) -> None:
    text = """
    agraph (float[batch, 8] x) => (float[batch, 10] y) { h = Gemm(x, w, b)  y = Gemm(h, v, b) }
    """
    weights: Weights = {"w": graphs.normal((8, 6), 1), "v": graphs.normal((6, 10), 2), "b": graphs.normal((), 3)}
    ready = graphs.ready(tmp_path, build(text, weights))
    assert judged(static(ready)) == []


def test_few_samples_are_warned_of(layers: graphs.Ready) -> None:
    few = calibration(layers, 5)
    result = graphs.static(layers, layers.recipe(), few)
    assert graphs.codes(result) == ["QNT004"]
    assert (result.findings[0].measured, result.findings[0].limit) == (5, int8.FEW_SAMPLES)


@pytest.mark.parametrize("again", [static, dynamic])
@pytest.mark.parametrize("before", [static, dynamic])
def test_a_quantized_model_is_not_quantized_again(
    layers: graphs.Ready, before: Callable[..., Proof], again: Callable[..., Proof]
) -> None:
    before(layers)
    quantized = graphs.Ready(layers.folder / "again", layers.folder / "step/out", layers.reference, layers.contract, 18)
    result = again(quantized)
    (finding,) = result.findings
    assert (finding.code, finding.severity) == ("QNT001", "refuse")
    assert "the model is quantized already (" in finding.message
    assert result.parity is None
    assert not list(quantized.folder.rglob(MODEL))


@pytest.mark.parametrize("text", [graphs.QDQ, graphs.INTEGER], ids=["QDQ", "integer"])
@pytest.mark.parametrize("recipe", [half.convert, int8.dynamic])
def test_a_source_that_is_quantized_is_refused_by_every_recipe(
    tmp_path: Path, recipe: Callable[..., Proof], text: str
) -> None:
    ready = graphs.ready(tmp_path, text)
    result = recipe(ready.recipe(), ready.model, ready.reference, ready.out())
    (finding,) = result.findings
    assert (finding.code, finding.severity) == ("QNT001", "refuse")
    assert "the model is quantized already (" in finding.message
    assert "fp32" in finding.fix


@pytest.mark.parametrize("recipe", [static, dynamic, fp16])
def test_a_model_whose_weights_stay_in_files_is_refused(
    layers: graphs.Ready, recipe: Callable[..., Proof], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.load(str(layers.model / MODEL))
    path = str(layers.model / MODEL)
    onnx.save(model, path, save_as_external_data=True, location=f"{MODEL}.data", size_threshold=0)
    monkeypatch.setattr(graph, "EXTERNAL_BYTES", 16)
    monkeypatch.setattr(graph, "SMALL_BYTES", 0)
    assert graphs.codes(recipe(layers)) == ["QNT006"]


IN_HALF = {
    "weight behind a cast": "agraph (float[batch, 4] x) => (float[batch, 2] y) "
    "{ w = Cast<to = 1>(h)  y = MatMul(x, w) }",
    "arithmetic": "agraph (float[batch, 4] x) => (float[batch, 2] y) "
    "{ c = Cast<to = 10>(x)  m = MatMul(c, h)  y = Cast<to = 1>(m) }",
    "everything": "agraph (float16[batch, 4] x) => (float16[batch, 2] y) { y = MatMul(x, h) }",
}


@pytest.mark.parametrize("text", IN_HALF.values(), ids=IN_HALF)
def test_int8_of_a_float16_model_says_what_it_needs(tmp_path: Path, text: str) -> None:
    ready = graphs.ready(tmp_path, build(text, {"h": graphs.normal((4, 2), 1).astype(np.float16)}))
    result = dynamic(ready)
    (finding,) = result.findings
    assert (finding.code, finding.severity, finding.fix) == ("QNT001", "refuse", "give the source in float32")
    assert "1 quantizable nodes take float16" in finding.message
    assert judged(half.convert(ready.recipe(), ready.model, ready.reference, ready.out("half"))) == []


def test_float16_at_the_edge_alone_is_no_obstacle(tmp_path: Path) -> None:
    text = "agraph (float16[batch, 4] x) => (float[batch, 2] y) { c = Cast<to = 1>(x)  y = MatMul(c, w) }"
    ready = graphs.ready(tmp_path, build(text, {"w": graphs.normal((4, 2), 1)}))
    assert judged(dynamic(ready)) == []


def test_a_3d_weight_of_int8_dynamic_runs(tmp_path: Path) -> None:
    text = "agraph (float[2, 3, 8] x) => (float[2, 3, 4] y) { y = MatMul(x, w) }"
    ready = graphs.ready(tmp_path, build(text, {"w": graphs.normal((2, 8, 4), 1)}))
    assert judged(dynamic(ready)) == []


@pytest.mark.parametrize("quantizer", [static, dynamic, fp16])
def test_the_bytes_repeat_and_the_input_is_not_edited(layers: graphs.Ready, quantizer: Callable[..., Proof]) -> None:
    before = (layers.model / MODEL).read_bytes()
    quantizer(layers)
    other = graphs.Ready(layers.folder / "again", layers.model, layers.reference, layers.contract, 18)
    quantizer(other)
    written = [(ready.folder / "step/out" / MODEL).read_bytes() for ready in (layers, other)]
    assert written[0] == written[1]
    assert (layers.model / MODEL).read_bytes() == before


# --- names -----------------------------------------------------------------------------------------------------------


def test_every_node_gets_a_name_of_its_own_and_given_names_stay() -> None:
    model = build(BRANCH, {"w": graphs.normal((8, 4), 1)})
    nodes = nodes_of(model.graph)
    for index, name in enumerate(("a", "", "a", "Greater_1", "", "a")):
        nodes[index].name = name
    assert [n.op_type for n in nodes] == ["ReduceSum", "Greater", "If", "MatMul", "MatMul", "Neg"]
    name_nodes(model)
    assert [n.name for n in nodes_of(model.graph)] == ["a", "Greater_1_", "If_2", "Greater_1", "MatMul_4", "Neg_5"]


@pytest.mark.parametrize("quantizer", [static, dynamic])
def test_nodes_of_one_name_are_quantized_each(layers: graphs.Ready, quantizer: Callable[..., Proof]) -> None:
    model = onnx.load(str(layers.model / MODEL))
    for node in model.graph.node:
        node.name = "same"
    (layers.model / MODEL).write_bytes(model.SerializeToString())
    result = quantizer(layers)
    assert counts(result) == (2, 2)
    assert judged(result) == []


def test_excluding_a_name_means_the_node_that_has_it(layers: graphs.Ready) -> None:
    model = onnx.load(str(layers.model / MODEL))
    for node, name in zip(model.graph.node, ("", "", "MatMul_0"), strict=True):
        node.name = name
    (layers.model / MODEL).write_bytes(model.SerializeToString())
    static(layers, exclude=("MatMul_0",))
    kept = onnx.load(str(layers.folder / "step/out" / MODEL))
    assert "w2" in {i.name for i in kept.graph.initializer}
    assert "w1" not in {i.name for i in kept.graph.initializer}


def test_a_recipes_settings_hold_what_its_output_depends_on(layers: graphs.Ready) -> None:
    def settings(**words: object) -> quantize.RecipeSettings:
        return recipe_settings(Variant.model_validate(words), layers.contract, graphs.STAMP, 18)

    assert settings(recipe="int8-static", name="a") == settings(recipe="int8-static", name="b")
    assert settings(recipe="int8-static", gate={"max_rel": 0.5}) == settings(recipe="int8-static")
    assert settings(recipe="int8-static", method="entropy") != settings(recipe="int8-static")
    percentile = {"recipe": "int8-static", "method": "percentile"}
    assert settings(**percentile, percentile=99.9) != settings(**percentile)
    assert settings(recipe="int8-static", ranges="table.json").method is None
    assert settings(recipe="int8-dynamic", per_channel=False) != settings(recipe="int8-dynamic")
    for recipe in quantize.STEPS:
        assert settings(recipe=recipe, exclude=["n"]) != settings(recipe=recipe)


def test_loading_names_the_nodes(layers: graphs.Ready) -> None:
    model = onnx.load(str(layers.model / MODEL))
    model.graph.node[0].name = ""
    (layers.model / MODEL).write_bytes(model.SerializeToString())
    assert [n.name for n in load_for((), layers.model / MODEL).graph.node] == [
        "MatMul_0",
        "relu",
        "second",
    ]


def table(folder: Path, ranges: dict[str, tuple[float, float]], form: str = "onnxruntime") -> Path:
    """A folder with a calibration table, as a pack has it."""
    folder.mkdir()
    found = {name: Range(low, high) for name, (low, high) in ranges.items()}
    tables.write(found, folder / tables.FORMS[form].file_name, form)
    return folder


def from_table(ready: graphs.Ready, calibration: Path) -> Proof:
    prepared = ready.out("prepare")
    prepare.prepare(ready.settings, ready.model, ready.reference, prepared)
    recipe = ready.recipe().model_copy(update={"method": None})
    return int8.static(recipe, prepared, ready.reference, calibration, ready.out())


@pytest.mark.parametrize("form", ["onnxruntime", "tensorrt"])
def test_ranges_may_come_from_a_calibration_table(layers: graphs.Ready, tmp_path: Path, form: str) -> None:
    wide = {"x": (-4.0, 4.0), "r": (-12.0, 12.0), "y": (-30.0, 30.0), "another": (-1.0, 1.0)}
    result = from_table(layers, table(tmp_path / "table", wide, form))
    assert graphs.codes(result) == []
    assert counts(result) == (2, 2)
    model = onnx.load(str(layers.folder / "step/out" / MODEL))
    scales = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    assert scales["r_scale"] == pytest.approx(24 / 255)


def test_a_table_that_lacks_a_tensor_is_refused(layers: graphs.Ready, tmp_path: Path) -> None:
    given = table(tmp_path / "table", {"x": (-4.0, 4.0), "yy": (-30.0, 30.0)})
    expected = r"variants\.ranges: 'calibration_cache\.json': lacks 2 of 3 tensors, first 'r'"
    with pytest.raises(InputError, match=expected):
        from_table(layers, given)
