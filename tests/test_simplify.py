"""Simplifying: what is dead goes, and whatever a simplifier breaks or bloats stays as it was, with the reason."""

from pathlib import Path

import onnx
import pytest

from onnxmill.tasks import parity, proof, simplify
from onnxmill.tasks.proof import MODEL, Proof
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
{ i = Identity(x)  y = Mul(i, w) }
"""


def run(ready: graphs.Ready) -> Proof:
    return simplify.simplify(ready.settings, ready.model, ready.reference, ready.out())


def assert_kept(ready: graphs.Ready, result: Proof, reason: str) -> None:
    (finding,) = result.findings
    assert (finding.code, finding.severity) == ("SIM001", "info")
    assert reason in finding.message
    assert result.note == "kept as it was"
    before, after = (onnx.load(str(p)) for p in (ready.model / MODEL, ready.folder / "step/out" / MODEL))
    assert [n.op_type for n in after.graph.node] == [n.op_type for n in before.graph.node]
    assert [i.name for i in after.graph.input] == [i.name for i in before.graph.input]


def test_dead_and_constant_nodes_go_and_dims_stay_symbolic(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, DEAD)
    result = run(ready)
    assert result.findings == ()
    assert result.parity
    assert parity.judge(result.parity, parity.DEFAULT_GATES["fp32"]) == []
    assert set(graphs.ops(tmp_path / "step/out")) <= {"MatMul", "Add", "Gemm"}
    assert result.nodes <= 2
    assert result.note == f"onnxsim: {result.nodes} nodes, {5 - result.nodes} fewer"
    published = onnx.load(str(tmp_path / "step/out" / MODEL))
    for value in (*published.graph.input, *published.graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"


def test_a_graph_that_would_grow_is_kept(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, GROWS)
    result = run(ready)
    assert_kept(ready, result, "bytes, ")
    assert result.size_bytes < 1000


def test_an_input_with_a_default_is_not_dropped(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, OVERRIDABLE)
    assert ready.contract.input_names == ("x",)
    assert_kept(ready, run(ready), "dropped input w")


def test_a_graph_that_does_not_run_is_kept_with_the_reason(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, DEAD)
    custom = graphs.parse(DEAD.replace("Identity(x)", "own.Odd(x)"), domains=', "own": 1')
    proof.save(custom, ready.model / MODEL)
    result = run(ready)
    assert graphs.codes(result) == ["CON002", "SIM001"]  # it did not run before either, and that is said
    assert "Odd" in result.findings[0].message
    assert "own" in {n.domain for n in onnx.load(str(tmp_path / "step/out" / MODEL)).graph.node}


def test_a_graph_with_wrong_values_shows_in_the_parity(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, DEAD)
    proof.save(graphs.parse(DEAD.replace("{3, 4}", "{30, 40}")), ready.model / MODEL)
    result = run(ready)
    assert result.parity
    assert "GATE001" in [f.code for f in parity.judge(result.parity, parity.DEFAULT_GATES["fp32"])]


def test_all_files_of_a_model_come_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = graphs.ready(tmp_path, DEAD)

    def beside(model: onnx.ModelProto, path: Path) -> None:
        for weight in model.graph.initializer:  # only raw bytes can be moved
            weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight), weight.name))
        onnx.save(model, str(path), save_as_external_data=True, location=f"{path.name}.data", size_threshold=0)

    beside(onnx.load(str(ready.model / MODEL)), ready.model / MODEL)  # as for a model above 2 GB
    monkeypatch.setattr(proof, "save", beside)
    result = run(ready)
    assert result.parity
    assert result.findings == ()
    out = tmp_path / "step/out"
    assert sorted(p.name for p in out.iterdir()) == [MODEL, f"{MODEL}.data"]
    onnx.checker.check_model(str(out / MODEL))


def test_the_bytes_repeat(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, DEAD)
    for name in ("first", "second"):
        simplify.simplify(ready.settings, ready.model, ready.reference, ready.out(name))
    assert (tmp_path / "first/out" / MODEL).read_bytes() == (tmp_path / "second/out" / MODEL).read_bytes()
