"""Simplifying: what is dead goes, what slows comes in its fast form, and whatever would do harm is not kept."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxmill.tasks import graph, parity, simplify
from onnxmill.tasks.graph import MODEL
from onnxmill.tasks.proof import Proof
from onnxmill.tasks.simplify import Pass
from tests import graphs

DEAD = """
agraph (float[batch, 4] x) => (float[batch, 2] y)
<float[4, 2] w = {1, -2, 3, -4, 5, -6, 7, -8}, float[2] a = {1, 2}, float[2] b = {3, 4}> {
  i = Identity(x)
  c = Add(a, b)
  unused = Neg(x)
  h = MatMul(i, w)
  y = Add(h, c)
}
"""
GROWS = """
agraph (float[1] x) => (float[1] y) <int64[2] s = {4096, 4096}, float zero = {0}, int64[1] flat = {1}> {
  filled = ConstantOfShape(s)
  all = Add(filled, x)
  top = ReduceMax<keepdims = 0>(all)
  y = Reshape(top, flat)
}
"""
OVERRIDABLE = """
agraph (float[batch, 4] x, float[4] w) => (float[batch, 4] y) <float[4] w = {1, 2, 3, 4}>
{ i = Identity(x)  n = Neg(w)  y = Mul(i, n) }
"""
SLOW = """
agraph (float[batch, 2, 5] x) => (float[batch, 4] y)
<float[4, 2, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6}, float[4, 4] k =
 {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7}, float[4] g = {1, 2, -3, 0.5}, float[4] b = {0.1, 0, 1, -1},
 float[4] m = {0.3, -1, 0, 2}, float[4] v = {1, 0.1, 3, 2}> {
  c = Conv(x, w)
  n = BatchNormalization(c, g, b, m, v)
  r = Relu(n)
  a = GlobalAveragePool(r)
  p = Flatten(a)
  f = Gemm(p, k)
  o = BatchNormalization(f, g, b, m, v)
  e = Constant<value = float[4] {1, 2, 3, 4}>()
  q = Mul(o, e)
  y = Sum(q, p)
}
"""
QUANTIZED = """
agraph (float[batch, 4] x) => (float[batch, 2] y)
<int8[4, 2] w = {1, -2, 3, -4, 5, -6, 7, -8}, float s = {0.1}, int8 z = {0}, float xs = {0.05}, uint8 xz = {128}> {
  xq = QuantizeLinear(x, xs, xz)
  xd = DequantizeLinear(xq, xs, xz)
  wd = DequantizeLinear(w, s, z)
  h = MatMul(xd, wd)
  hq = QuantizeLinear(h, xs, xz)
  hd = DequantizeLinear(hq, xs, xz)
  y = Sum(hd, hd)
}
"""


def run(ready: graphs.Ready) -> Proof:
    return simplify.simplify(ready.settings, ready.model, ready.reference, ready.out())


def published(ready: graphs.Ready) -> onnx.ModelProto:
    return onnx.load(str(ready.folder / "step/out" / MODEL))


def assert_kept(ready: graphs.Ready, result: Proof, reason: str) -> None:
    (finding,) = result.findings
    assert (finding.code, finding.severity) == ("SIM001", "info")
    assert reason in finding.message
    assert result.note == "kept as it was"
    before, after = onnx.load(str(ready.model / MODEL)), published(ready)
    assert [n.op_type for n in after.graph.node] == [n.op_type for n in before.graph.node]
    assert [i.name for i in after.graph.input] == [i.name for i in before.graph.input]


def assert_proven(result: Proof) -> None:
    assert result.parity
    assert parity.judge(result.parity, parity.DEFAULT_GATES["fp32"]) == []


def test_dead_and_constant_nodes_go_and_dims_stay_symbolic(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, DEAD)
    result = run(ready)
    assert result.findings == ()
    assert_proven(result)
    assert set(graphs.ops(tmp_path / "step/out")) <= {"MatMul", "Add", "Gemm"}
    assert result.nodes <= 2
    assert result.note == f"unused node removed 1×; onnxsim: 4 → {result.nodes} nodes"
    for value in (*published(ready).graph.input, *published(ready).graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"


def test_what_is_slow_gets_its_fast_form(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, SLOW)
    result = run(ready)
    assert result.findings == ()
    assert_proven(result)
    operators = Counter(graphs.ops(tmp_path / "step/out"))
    assert not {"BatchNormalization", "Sum", "Constant"} & set(operators)
    assert operators["Conv"] == operators["Gemm"] == 1
    assert result.note == (
        "Constant made an initializer 1×; onnxsim: 9 → 8 nodes; "  # it folds into Conv alone
        "BatchNormalization folded into Gemm 1×; Sum made Add 1×"
    )
    assert all(node.name for node in published(ready).graph.node)


def test_a_half_precision_weight_is_a_plain_one_afterwards_although_the_file_grows(tmp_path: Path) -> None:
    model = graphs.parse(
        "agraph (float[batch, 64] x) => (float[batch, 64] y) { c = Cast<to = 1>(w)  y = MatMul(x, c) }"
    )
    weight = graphs.normal((64, 64), 1).astype(np.float16)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    ready = graphs.ready(tmp_path, model)
    result = run(ready)
    assert (result.note, result.findings) == ("half-precision weight made float 1×", ())
    assert_proven(result)
    assert graphs.ops(tmp_path / "step/out") == ["MatMul"]
    assert [t.data_type for t in published(ready).graph.initializer] == [onnx.TensorProto.FLOAT]
    assert result.size_bytes > (ready.model / MODEL).stat().st_size


def test_a_quantized_graph_keeps_its_pairs(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, QUANTIZED)
    result = run(ready)
    assert_proven(result)
    operators = Counter(graphs.ops(tmp_path / "step/out"))
    assert operators == {"QuantizeLinear": 2, "DequantizeLinear": 3, "MatMul": 1, "Add": 1}
    assert "Sum made Add 1×" in result.note


def test_a_graph_that_would_grow_is_kept(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, GROWS)
    result = run(ready)
    assert_kept(ready, result, "onnxsim: 6710")
    assert result.size_bytes < 1000


def test_an_input_with_a_default_stays_one_that_a_caller_may_set(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, OVERRIDABLE)
    assert ready.contract.input_names == ("x",)
    result = run(ready)
    assert result.findings == ()
    assert graphs.ops(tmp_path / "step/out") == ["Neg", "Mul"]
    after = published(ready)
    assert [i.name for i in after.graph.input] == ["x", "w"]
    assert [t.name for t in after.graph.initializer] == ["w"]


def test_functions_stay_what_they_are(tmp_path: Path) -> None:
    text = """agraph (float[batch, 4] x) => (float[batch, 4] y) { i = Identity(x)  s = own.Twice(i)  y = Sum(s, i) }"""
    function = """<domain: "own", opset_import: ["": 18]> Twice (a) => (b) { b = Sum(a, a) }"""
    ready = graphs.ready(tmp_path, graphs.parse(text, domains=', "own": 1', functions=function))
    result = run(ready)
    assert_proven(result)
    assert [n.op_type for n in published(ready).functions[0].node] == ["Sum"]
    assert "Sum made Add 1×" in result.note


def test_a_graph_that_does_not_run_is_kept_with_the_reason(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, DEAD)
    custom = graphs.parse(DEAD.replace("Identity(x)", "own.Odd(x)"), domains=', "own": 1')
    graph.save(custom, ready.model / MODEL)
    result = run(ready)
    assert graphs.codes(result) == ["CON002", "SIM001"]  # it did not run before either, and that is said
    assert "Odd" in result.findings[0].message
    assert "own" in {n.domain for n in published(ready).graph.node}


def test_a_graph_with_wrong_values_shows_in_the_parity(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, DEAD)
    graph.save(graphs.parse(DEAD.replace("{3, 4}", "{30, 40}")), ready.model / MODEL)
    result = run(ready)
    assert result.parity
    assert "GATE001" in [f.code for f in parity.judge(result.parity, parity.DEFAULT_GATES["fp32"])]


# --- each gate has a pass that it refuses ----------------------------------------------------------------------------

PLAIN = """
agraph (float[batch, 2] x, float[2] d) => (float[batch, 2] y)
<float[2] d = {1, 2}, float[2] w = {3, 4}, int8[2] q = {1, 2}, float s = {0.5}> {
  k = DequantizeLinear(q, s)
  a = Add(x, d)
  m = Mul(a, w)
  r = Sum(m, k)
  y = Relu(r)
}
"""


def drops_an_input(model: onnx.ModelProto) -> str:
    del model.graph.input[1]
    return "dropped d"


def drops_a_default(model: onnx.ModelProto) -> str:
    del model.graph.initializer[0]
    return "made d an input that must be given"


def adds_a_node(model: onnx.ModelProto) -> str:
    model.graph.node.append(onnx.helper.make_node("Identity", ["y"], ["z"], name="more"))
    model.graph.node[-2].output[0], model.graph.node[-1].input[0] = "z_", "z_"
    model.graph.node[-1].output[0] = "y"
    return "added a node"


def grows_a_weight(model: onnx.ModelProto) -> str:
    model.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.full((1, 2), 3, np.float64), "w"))
    return "grew a weight"


def dequantizes(model: onnx.ModelProto) -> str:
    del model.graph.node[0]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0.5, 1], np.float32), "k"))
    return "dequantized k"


def changes_values(model: onnx.ModelProto) -> str:
    model.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.array([3, 5], np.float32), "w"))
    return "changed w"


def breaks_the_graph(model: onnx.ModelProto) -> str:
    model.graph.node[1].op_type = "Odd"
    return "made an operator that nobody has"


def raises(model: onnx.ModelProto) -> str:
    model.graph.node[1].op_type = "Odd"  # what it had done is forgotten
    raise RuntimeError("no such\n thing")


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (drops_an_input, "harm: lost or changed input d with its default"),
        (drops_a_default, "harm: lost or changed input d with its default"),
        (adds_a_node, "harm: 6 nodes, 5 before"),
        (grows_a_weight, "bytes, "),
        (dequantizes, "harm: changed nodes that quantize"),
        (changes_values, "harm: GATE001"),
        (breaks_the_graph, "Odd"),
        (raises, "harm failed: no such thing"),
    ],
)
def test_a_pass_that_does_harm_is_not_kept_and_the_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[onnx.ModelProto], str], reason: str
) -> None:
    ready = graphs.ready(tmp_path, PLAIN)
    monkeypatch.setattr(simplify, "PORTFOLIO", ((Pass("harm", harm),), *simplify.PORTFOLIO))
    result = run(ready)
    (finding,) = result.findings
    assert finding.code == "SIM001"
    assert reason in finding.message
    assert result.note == "Sum made Add 1×"
    assert_proven(result)
    assert graphs.ops(tmp_path / "step/out") == ["DequantizeLinear", "Add", "Mul", "Add", "Relu"]


def test_of_alternatives_the_first_that_is_kept_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def first(model: onnx.ModelProto) -> str:
        tried.append("first")
        return changes_values(model)

    def second(model: onnx.ModelProto) -> str:
        tried.append("second")
        return simplify.onnxsim(model)

    def third(model: onnx.ModelProto) -> str:
        raise AssertionError("the second was good")

    monkeypatch.setattr(simplify, "PORTFOLIO", (tuple(Pass(f.__name__, f) for f in (first, second, third)),))
    result = run(graphs.ready(tmp_path, DEAD))
    assert tried == ["first", "first", "second"]  # its values are wrong, which only the proof of all shows
    assert "first: " in result.findings[0].message
    assert result.note.startswith("unused node removed 1×; onnxsim: 4 → ")


@pytest.mark.parametrize("error", [OSError("disk full"), MemoryError()])
def test_a_machine_without_room_says_nothing_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(model: onnx.ModelProto) -> str:
        raise error

    monkeypatch.setattr(simplify, "PORTFOLIO", ((Pass("tool", fails),),))
    ready = graphs.ready(tmp_path, DEAD)
    with pytest.raises(type(error)):
        run(ready)


@pytest.mark.parametrize("tool", [simplify.onnxsim, simplify.onnxsim_small, simplify.onnxslim])
def test_every_tool_of_the_list_simplifies(tool: Callable[[onnx.ModelProto], str]) -> None:
    model = graphs.parse(DEAD)
    assert tool(model).split(":")[0] in ("onnxsim", "onnxslim")
    assert len(model.graph.node) <= 2
    assert model.metadata_props == []


# --- files -----------------------------------------------------------------------------------------------------------


def test_weights_beside_a_large_model_stay_there_and_no_tool_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = graphs.ready(tmp_path, SLOW)
    model = onnx.load(str(ready.model / MODEL))
    for weight in model.graph.initializer:  # only raw bytes can be moved
        weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight), weight.name))
    onnx.save(model, str(ready.model / MODEL), save_as_external_data=True, location="weights", size_threshold=0)
    monkeypatch.setattr(graph, "EXTERNAL_BYTES", 64)  # as for a model above 2 GB
    monkeypatch.setattr(graph, "SMALL_BYTES", 0)
    result = run(ready)
    assert result.findings == ()
    assert_proven(result)
    assert result.note == "Constant made an initializer 1×; Sum made Add 1×"
    out = tmp_path / "step/out"
    assert sorted(p.name for p in out.iterdir()) == [MODEL, f"{MODEL}.data"]
    assert (out / f"{MODEL}.data").read_bytes() == (ready.model / "weights").read_bytes()


@pytest.mark.parametrize("text", [DEAD, SLOW, OVERRIDABLE])
def test_the_bytes_repeat_and_the_input_is_not_edited(tmp_path: Path, text: str) -> None:
    ready = graphs.ready(tmp_path, text)
    before = (ready.model / MODEL).read_bytes()
    for name in ("first", "second"):
        simplify.simplify(ready.settings, ready.model, ready.reference, ready.out(name))
    assert (tmp_path / "first/out" / MODEL).read_bytes() == (tmp_path / "second/out" / MODEL).read_bytes()
    assert (ready.model / MODEL).read_bytes() == before
    assert [p.name for p in ready.model.iterdir()] == [MODEL]
