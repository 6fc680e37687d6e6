"""Pinning the opset: up, already there, refused by name; and proven by values, because a converter may be wrong."""

import re
from pathlib import Path

import onnx
import pytest

from onnxmill.tasks import graph, opset, parity, runtimes
from onnxmill.tasks.graph import MODEL
from onnxmill.tasks.opset import Pin
from onnxmill.tasks.proof import Proof
from tests import graphs

NET = """
agraph (float[batch, 4] x) => (float[batch, 2] y)
<float[4, 2] w = {1, -2, 3, -4, 5, -6, 7, -8}, int64[1] last = {1}, float[2] b = {1, -1}> {
  h = MatMul(x, w)
  r = Relu(h)
  s = ReduceSum(r, last)
  n = Add(r, s)
  y = Add(n, b)
}
"""
NORM = """
agraph (float[batch, 4] x) => (float[batch, 4] y) <float[4] s = {1, 2, 3, 4}> { y = LayerNormalization(x, s) }
"""
GRID = """
agraph (float[1, 1, 4, 4] x, float[1, 2, 2, 2] g) => (float[1, 1, 2, 2] y) { y = GridSample(x, g) }
"""


def pin(ready: graphs.Ready) -> Proof:
    return opset.pin(ready.pin, ready.model, ready.reference, ready.out())


def assert_equal_values(proof: Proof) -> None:
    assert proof.findings == ()
    assert proof.parity
    assert parity.judge(proof.parity, parity.DEFAULT_GATES["fp32"]) == []


@pytest.mark.parametrize(("before", "after"), [(13, 17), (13, 18), (17, 21), (18, 23), (21, 17)])
def test_converted_and_proven(tmp_path: Path, before: int, after: int) -> None:
    ready = graphs.ready(tmp_path, graphs.parse(NET, opset=before), opset=after)
    result = pin(ready)
    assert_equal_values(result)
    assert result.opset == after
    assert result.note == f"opset {after}; exported at {before}"
    lowest = {17: 8, 18: 8, 21: 10, 23: 11}
    assert result.ir_version == lowest[after]
    published = onnx.load(str(tmp_path / "step/out" / MODEL))
    assert [o.version for o in published.opset_import] == [after]


def test_already_there(tmp_path: Path) -> None:
    result = pin(graphs.ready(tmp_path, NET))
    assert_equal_values(result)
    assert result.note == "opset 18"


@pytest.mark.parametrize(
    ("graph", "before", "wanted", "operator", "nearest"),
    [(NORM, 17, 16, "LayerNormalization", 17), (GRID, 20, 16, "GridSample", 20), (NORM, 21, 13, "LayerNorm", 17)],
)
def test_no_way_down_names_operator_and_the_nearest_opset(
    tmp_path: Path, graph: str, before: int, wanted: int, operator: str, nearest: int
) -> None:
    ready = graphs.ready(tmp_path, graphs.parse(graph, opset=before, ir=8), opset=wanted)
    result = pin(ready)
    (finding,) = result.findings
    assert (finding.code, finding.severity, finding.where) == ("OPS001", "refuse", f"opset {wanted}")
    assert f"cannot pin to {wanted} from {before}" in finding.message
    assert operator in finding.message
    assert ".h:" not in finding.message  # nothing of the converter's own source
    assert finding.fix == f"pin opset {nearest}"
    assert result.opset == before  # the model goes on as it is
    assert result.parity


def test_a_wrong_conversion_is_refused_by_values(tmp_path: Path) -> None:
    good = graphs.ready(tmp_path / "good", graphs.parse(NET, opset=13), opset=18)
    wrong = graphs.ready(tmp_path / "wrong", graphs.parse(NET.replace("Relu(h)", "Abs(h)"), opset=13), opset=18)
    result = opset.pin(good.pin, wrong.model, good.reference, good.out())
    assert result.opset == 18  # a checker is content with it
    (finding,) = result.findings
    assert (finding.code, finding.severity, finding.fix) == ("OPS001", "refuse", "pin opset 13")
    assert "on the way from 13 is not right: GATE001 output y" in finding.message


def test_what_the_converter_makes_wrong_is_refused_with_the_operator(tmp_path: Path) -> None:
    """Until opset 8, Scan has a batch axis: the converter leaves it."""
    text = """
        agraph (float[1, 2] initial, float[1, 3, 2] x) => (float[1, 2] last, float[1, 3, 2] y) {
          last, y = Scan<num_scan_inputs = 1, body = step (float[2] sum, float[2] next) => (float[2] a, float[2] b) {
            a = Add(sum, next)  b = Identity(a)
          }>(, initial, x)
        }
    """
    result = pin(graphs.ready(tmp_path, graphs.parse(text, opset=8), opset=13))
    finding = result.findings[0]
    assert (finding.code, finding.fix) == ("OPS001", "pin opset 8")
    assert "what Scan became on the way from 8 is not right: CON00" in finding.message


BODY = """
agraph (bool c, float[2, 1] x) => (float[2] y) {
  y = If(c) <then_branch = one () => (float[2] a) { a = Squeeze<axes = [1]>(x) },
             else_branch = two () => (float[2] b) { n = Neg(x)  b = Squeeze<axes = [1]>(n) }>
}
"""
LOOP = """
agraph (float[2, 1] x) => (float[2, 1] y) <int64 n = {3}, bool go = {1}> {
  y = Loop(n, go, x) <body = b (int64 i, bool c, float[2, 1] v) => (bool again, float[2, 1] o) {
    again = Identity(c)  s = Squeeze<axes = [1]>(v)  d = Add(s, s)  o = Unsqueeze<axes = [1]>(d)
  }>
}
"""


@pytest.mark.parametrize("text", [BODY, LOOP], ids=["If", "Loop"])
@pytest.mark.parametrize("wanted", [13, 17, 21])
def test_bodies_are_converted_too(tmp_path: Path, text: str, wanted: int) -> None:
    result = pin(graphs.ready(tmp_path, graphs.parse(text, opset=11), opset=wanted))
    assert_equal_values(result)
    assert result.opset == wanted


def test_operators_of_other_domains_are_left_alone(tmp_path: Path) -> None:
    text = """
        agraph (float[batch, 2] x) => (float[batch] y) {
          g = com.microsoft.Gelu(x)
          s = ai.onnx.ml.Scaler<offset = [1.0, 2.0], scale = [2.0, 0.5]>(g)
          y = ReduceSum<axes = [1], keepdims = 0>(s)
        }
    """
    model = graphs.parse(text, opset=11, domains=', "ai.onnx.ml": 3, "com.microsoft": 1')
    assert_equal_values(pin(graphs.ready(tmp_path, model, opset=17)))
    published = onnx.load(str(tmp_path / "step/out" / MODEL))
    assert {o.domain: o.version for o in published.opset_import} == {"": 17, "ai.onnx.ml": 3, "com.microsoft": 1}
    assert {n.op_type: n.domain for n in published.graph.node if n.domain} == {
        "Gelu": "com.microsoft",
        "Scaler": "ai.onnx.ml",
    }


def test_a_model_without_an_operator_of_onnx_itself_is_pinned(tmp_path: Path) -> None:
    model = graphs.parse(
        "agraph (float[batch, 1] x) => (float[batch, 1] y) { y = ai.onnx.ml.Binarizer(x) }", domains=', "ai.onnx.ml": 3'
    )
    del model.opset_import[0]
    assert opset.needs(model) == (1, "")
    assert {o.domain: o.version for o in opset.at(model, 17).opset_import} == {"": 17, "ai.onnx.ml": 3}


@pytest.mark.parametrize(("before", "after"), [(9, 13), (9, 21), (18, 13), (18, 21)])
def test_an_input_with_a_default_and_large_weights_stay(
    before: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opset, "SMALL", 4)
    model = graphs.parse(
        """
        agraph (float[batch, 3, 4] x, float[4] shift) => (float[batch, 3, 2] y)
        <float[4] shift = {1, 2, 3, 4}, float[4, 2] w = {1, -2, 3, -4, 5, -6, 7, -8}>
        { s = Add(x, shift)  h = Softmax<axis = 2>(s)  y = MatMul(h, w) }
        """,
        opset=before,
    )
    large = onnx.helper.make_tensor("wide", onnx.TensorProto.FLOAT, [5], [1, 2, 3, 4, 5])
    model.graph.initializer.append(large)  # an overridable one that the converter must not see
    model.graph.input.append(onnx.helper.make_tensor_value_info("wide", onnx.TensorProto.FLOAT, [5]))
    result = opset.at(model, after)
    onnx.checker.check_model(result, full_check=True)
    assert [value.name for value in result.graph.input] == ["x", "shift", "wide"]
    assert sorted(tensor.name for tensor in result.graph.initializer) == ["shift", "w", "wide"]
    assert graph.opset_of(model) == before  # it was not edited


def test_an_old_file_whose_weights_are_inputs_is_pinned(tmp_path: Path) -> None:
    text = """
        agraph (float[2, 4] x, float[4, 2] w, int64[2] s) => (float[4] y)
        <float[4, 2] w = {1, -2, 3, -4, 5, -6, 7, -8}> { h = MatMul(x, w)  c = Clip<min = 0.0>(h)  y = Flatten(c) }
    """.replace(", int64[2] s", "").replace("float[4] y", "float[2, 2] y")
    assert_equal_values(pin(graphs.ready(tmp_path, graphs.parse(text, opset=8, ir=3), opset=17)))


def test_weights_in_constant_nodes_are_converted(tmp_path: Path) -> None:
    text = """
        agraph (float[batch, 2, 3] x) => (float[batch, 2] y) {
          w = Constant<value = float[3] {1, 2, 3}>()  axes = Constant<value = int64[1] {2}>()
          m = Mul(x, w)  y = ReduceMean<keepdims = 0>(m, axes)
        }
    """
    assert_equal_values(pin(graphs.ready(tmp_path, graphs.parse(text, opset=18), opset=13)))


@pytest.mark.parametrize("wanted", [13, 17, 21, 23])
def test_a_quantized_model_is_pinned(tmp_path: Path, wanted: int) -> None:
    assert_equal_values(pin(graphs.ready(tmp_path, graphs.parse(graphs.QDQ, opset=19, ir=9), opset=wanted)))


@pytest.mark.parametrize("wanted", [13, 17, 19])
def test_a_step_that_only_adds_is_no_obstacle_on_the_way_down(tmp_path: Path, wanted: int) -> None:
    text = """
        agraph (float[batch, 2, 3] x) => (float[batch, 1] y, float[n, 4] z)
        <int64[6] p = {0, 1, 0, 0, 1, 0}, int64[1] axes = {2}, int64[1] last = {1}, int64[2] flat = {-1, 4}> {
          padded = Pad(x, p)  m = ReduceMean<keepdims = 0>(padded, axes)  y = ReduceMax(m, last)
          size = Shape(padded)  ones = ConstantOfShape(size)  sum = Add(padded, ones)
          z = Reshape<allowzero = 0>(sum, flat)
        }
    """
    ready = graphs.ready(tmp_path, graphs.parse(text, opset=20, ir=9), opset=wanted)
    assert_equal_values(pin(ready))  # onnx has no adapter for ReduceMax 20, Pad 18, Shape 15, Add 14


@pytest.mark.parametrize(
    ("text", "before", "wanted", "reason", "nearest"),
    [
        ("y = Pad<mode = \"wrap\">(x, p)", 21, 17, "Pad has no mode 'wrap' at opset 18", 19),
        ("y = Pad(x, p,, a)", 21, 17, "Pad has no down-converter", 18),
        ("y = Resize<axes = [0]>(x,, s)", 18, 13, "Resize: Resize axes is not supported", 18),
        ("y = ReduceMean(x, d)", 18, 17, "ReduceMean: No initializer or constant input", 18),
        ("y = Gelu(x)", 20, 17, "Gelu has no down-converter", 20),
        ("u = Unsqueeze(x, a)  v = Unsqueeze(u, a)  p2 = AveragePool<kernel_shape = [1], dilations = [2]>(v)"
         "  t = Squeeze(p2, a)  y = Squeeze(t, a)", 19, 17, "AveragePool has no 'dilations' at opset 18", 19),
    ],
)  # fmt: skip
def test_why_there_is_no_way_down(text: str, before: int, wanted: int, reason: str, nearest: int) -> None:
    model = graphs.parse(
        f"agraph (float[4] x, int64[1] d) => (float[n] y) "
        f"<int64[2] p = {{1, 1}}, int64[1] a = {{0}}, float[1] s = {{2}}> {{ {text} }}",
        opset=before,
    )
    with pytest.raises(opset.Unreachable, match=re.escape(reason)) as raised:
        opset.at(model, wanted)
    assert raised.value.nearest == nearest
    assert str(raised.value).endswith(f"; the lowest workable is {nearest}")
    opset.at(model, nearest)


def test_sparse_weights_are_not_lost(tmp_path: Path) -> None:
    model = graphs.parse("agraph (float[2, 1] x) => (float[2] y) { y = Squeeze<axes = [1]>(x) }", opset=11)
    sparse = onnx.SparseTensorProto(dims=[4])
    sparse.values.CopyFrom(onnx.helper.make_tensor("sparse", onnx.TensorProto.FLOAT, [1], [1.0]))
    sparse.indices.CopyFrom(onnx.helper.make_tensor("", onnx.TensorProto.INT64, [1], [1]))
    model.graph.sparse_initializer.append(sparse)
    assert len(opset.at(model, 12).graph.sparse_initializer) == 1
    with pytest.raises(opset.Unreachable, match=r"Squeeze: the converter loses sparse weights"):
        opset.at(model, 13)


# --- auto and the oldest runtime -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "before", "asked", "wanted", "why"),
    [
        (NORM, 21, Pin(opset=None), 17, "the lowest at which LayerNormalization is what it is"),
        (NORM, 21, Pin(opset=None, floor=19), 19, "the lowest that the recipes allow"),
        (graphs.GEMM, 9, Pin(opset=None), 13, "the lowest that the recipes allow"),
        (GRID, 20, Pin(opset=None, ceiling=21), 20, "the lowest at which GridSample is what it is"),
        (GRID, 20, Pin(opset=None, ceiling=17), 17, "the highest that the runtime reads"),
        (graphs.GEMM, 21, Pin(opset=15, floor=17, ceiling=19), 15, ""),
    ],
)
def test_auto_is_the_lowest_that_suffices(text: str, before: int, asked: Pin, wanted: int, why: str) -> None:
    assert opset.chosen(graphs.parse(text, opset=before), asked) == (wanted, why)


def test_auto_says_why_in_the_note(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, graphs.parse(NORM, opset=21, ir=10), opset=21)
    settings = ready.pin.model_copy(update={"pin": Pin(opset=None)})
    result = opset.pin(settings, ready.model, ready.reference, ready.out())
    assert_equal_values(result)
    assert result.note == "opset 17, the lowest at which LayerNormalization is what it is; exported at 21"
    assert (result.opset, result.ir_version) == (17, 8)


@pytest.mark.parametrize(
    ("runtime", "wanted", "what"),
    [
        ("onnxruntime==1.20", 23, "opset 23 is above the 21 that max_runtime reads"),
        ("onnxruntime==1.22", 23, "IR 11 is above the 10 that max_runtime reads"),
        ("onnxruntime==1.15", 20, "IR 9 is above the 8 that max_runtime reads"),
    ],
)
def test_a_model_that_the_oldest_runtime_does_not_read_is_refused_with_its_numbers(
    tmp_path: Path, runtime: str, wanted: int, what: str
) -> None:
    ready = graphs.ready(tmp_path, graphs.GEMM, opset=wanted)
    limits = runtimes.reads(runtime)
    asked = Pin(opset=wanted, ceiling=limits.opset, ceiling_ir=limits.ir_version)
    settings = ready.pin.model_copy(update={"pin": asked})
    result = opset.pin(settings, ready.model, ready.reference, ready.out())
    assert {f.code for f in result.findings} == {"OPS001"}
    assert any(what in finding.message for finding in result.findings)
    assert result.opset == 18  # the model goes on as it is, and the finding refuses it


def test_a_newer_ir_of_another_domain_is_refused_too(tmp_path: Path) -> None:
    text = (
        "agraph (float[batch, 1] x) => (float[batch, 1] y) { y = ai.onnx.ml.Scaler<scale = [2.0], offset = [0.0]>(x) }"
    )
    ready = graphs.ready(tmp_path, graphs.parse(text, opset=17, domains=', "ai.onnx.ml": 5'), opset=18)
    settings = ready.pin.model_copy(update={"pin": Pin(opset=18, ceiling=18, ceiling_ir=8)})
    result = opset.pin(settings, ready.model, ready.reference, ready.out())
    (finding,) = result.findings
    assert (finding.code, finding.measured, finding.limit) == ("OPS001", 10, 8)


def test_functions_are_inlined_not_dropped(tmp_path: Path) -> None:
    body = '<opset_import: ["": 17], domain: "own"> f (a) => (b) { t = Relu(a)  b = Neg(t) }'
    text = "agraph (float[batch, 4] x) => (float[batch, 4] y) { y = own.f(x) }"
    model = graphs.parse(text, opset=17, domains=', "own": 1', functions=body)
    ready = graphs.ready(tmp_path, model, opset=18)
    assert_equal_values(pin(ready))
    assert graphs.ops(tmp_path / "step/out") == ["Relu", "Neg"]


def test_the_bytes_repeat(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, graphs.parse(NET, opset=13), opset=17)
    for name in ("first", "second"):
        opset.pin(ready.pin, ready.model, ready.reference, ready.out(name))
    assert (tmp_path / "first/out" / MODEL).read_bytes() == (tmp_path / "second/out" / MODEL).read_bytes()
