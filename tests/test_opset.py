"""Pinning the opset: up, already there, refused by name; and proven by values, because a converter may be wrong."""

from pathlib import Path

import onnx
import pytest

from onnxmill.tasks import opset, parity
from onnxmill.tasks.findings import refused
from onnxmill.tasks.proof import MODEL, Proof
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
    return opset.pin(ready.settings, ready.model, ready.reference, ready.out())


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
    assert result.note == f"converted from opset {before} to {after}"
    lowest = {17: 8, 18: 8, 21: 10, 23: 11}
    assert result.ir_version == lowest[after]
    published = onnx.load(str(tmp_path / "step/out" / MODEL))
    assert [o.version for o in published.opset_import] == [after]


def test_already_there(tmp_path: Path) -> None:
    result = pin(graphs.ready(tmp_path, NET))
    assert_equal_values(result)
    assert result.note == "already at opset 18"


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
    assert f"from {before} to {wanted}" in finding.message
    assert operator in finding.message
    assert ".h:" not in finding.message  # nothing of the converter's own source
    assert finding.fix == f"pin opset {nearest}"
    assert result.opset == before  # the model goes on as it is
    assert result.parity


def test_a_wrong_conversion_is_caught_by_values(tmp_path: Path) -> None:
    good = graphs.ready(tmp_path / "good", graphs.parse(NET, opset=13), opset=17)
    wrong = graphs.ready(tmp_path / "wrong", graphs.parse(NET.replace("Relu", "Neg"), opset=13), opset=17)
    result = opset.pin(good.settings, wrong.model, good.reference, good.out())
    assert result.findings == ()
    assert result.opset == 17  # a checker is content with it
    assert result.parity
    assert refused(parity.judge(result.parity, parity.DEFAULT_GATES["fp32"]))


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
        opset.pin(ready.settings, ready.model, ready.reference, ready.out(name))
    assert (tmp_path / "first/out" / MODEL).read_bytes() == (tmp_path / "second/out" / MODEL).read_bytes()
