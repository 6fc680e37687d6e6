"""The contract's check: each finding has a model that must get it."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxmill.tasks import cases, contract
from tests import graphs

SUM = "agraph (float[batch, 4] a, float[batch, 4] b) => (float[batch, 4] y) { y = Sub(a, b) }"
NOISE = """
agraph (float[batch, 4] x) => (float[batch, 4] y) { noise = RandomNormalLike(x)  y = Add(x, noise) }
"""


def check(ready: graphs.Ready, model: onnx.ModelProto, *, opset: int | None = 18) -> list[str]:
    """Findings of `model` against the contract of `ready`, as text; nothing normalises it before."""
    path = ready.folder / "checked.onnx"
    path.write_bytes(model.SerializeToString())
    findings, outputs = contract.check(path, ready.contract, list(cases.read(ready.reference)), opset=opset)
    assert bool(outputs) == all(f.code == "CON009" for f in findings)
    return [str(finding) for finding in findings]


@pytest.fixture
def gemm(tmp_path: Path) -> graphs.Ready:
    return graphs.ready(tmp_path, graphs.GEMM)


def test_a_sound_model_has_no_findings_and_gives_its_outputs(gemm: graphs.Ready) -> None:
    read = list(cases.read(gemm.reference))
    findings, outputs = contract.check(gemm.model / "model.onnx", gemm.contract, read, opset=18)
    assert findings == []
    assert len(outputs) == len(read) == 4
    for case, output in zip(read, outputs, strict=True):
        assert np.allclose(output["y"].astype(np.float64), case.outputs["y"].astype(np.float64), atol=1e-5)


@pytest.mark.parametrize("content", [b"no protobuf at all", b""])
def test_a_broken_file_is_refused(gemm: graphs.Ready, content: bytes) -> None:
    path = gemm.folder / "broken.onnx"
    path.write_bytes(content)
    findings, outputs = contract.check(path, gemm.contract, list(cases.read(gemm.reference)), opset=18)
    assert [f.code for f in findings] == ["CON001"]
    assert outputs == []


X, Y = "float[batch, 4] x", "float[batch, 2] y"
WEIGHT = "<float[4, 2] w = {1, 1, 1, 1, 1, 1, 1, 1}>"


@pytest.mark.parametrize(
    ("code", "named", "graph"),
    [
        ("CON001", "nowhere", f"agraph ({X}) => ({Y}) {{ y = Relu(nowhere) }}"),
        (  # its second row is missing at a batch of 1
            "CON003",
            "x [1, 4]",
            f"agraph ({X}) => ({Y}) <int64[1] i = {{1}}, float[4, 2] w = {{1, 1, 1, 1, 1, 1, 1, 1}}>"
            "{ row = Gather(x, i)  s = Add(x, row)  y = MatMul(s, w) }",
        ),
        ("CON004", "'z'", f"agraph (float[batch, 4] z) => ({Y}) {WEIGHT} {{ y = MatMul(z, w) }}"),
        ("CON004", "'q'", f"agraph ({X}) => (float[batch, 2] q) {WEIGHT} {{ q = MatMul(x, w) }}"),
        ("CON004", "'u'", f"agraph ({X}, float[1] u) => ({Y}) {WEIGHT} {{ y = MatMul(x, w) }}"),
        ("CON004", "'m'", f"agraph ({X}) => ({Y}, float[batch, 2] m) {WEIGHT} {{ y = MatMul(x, w) m = Neg(y) }}"),
        (
            "CON005",
            "input x: an input's or output's dtype differs from the contract: float64, must be float32",
            f"agraph (double[batch, 4] x) => ({Y}) {WEIGHT} {{ f = Cast<to = 1>(x) y = MatMul(f, w) }}",
        ),
        ("CON006", "input x", f"agraph (float[1, 4] x) => (float[1, 2] y) {WEIGHT} {{ y = MatMul(x, w) }}"),
        (
            "CON006",
            "[7, 2], must be ['batch', 2]",
            f"agraph ({X}) => (float[7, 2] y) {WEIGHT} {{ y = MatMul(x, w) }}",
        ),
    ],
)
def test_each_fault_is_refused_by_its_code(gemm: graphs.Ready, code: str, named: str, graph: str) -> None:
    found = check(gemm, graphs.parse(graph))
    assert found
    assert all(text.startswith(code) for text in found)
    assert named in " ".join(found)


def test_a_model_without_a_runtime_opens_no_session(gemm: graphs.Ready) -> None:
    custom = graphs.parse(f"agraph ({X}) => ({Y}) {{ y = my.Foo(x) }}", domains=', "my": 1')
    (found,) = check(gemm, custom)
    assert found.startswith("CON002")
    assert "Foo" in found


def test_inputs_in_another_order_are_refused(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, SUM)
    swapped = SUM.replace("float[batch, 4] a, float[batch, 4] b", "float[batch, 4] b, float[batch, 4] a")
    (found,) = check(ready, graphs.parse(swapped))
    assert found.startswith("CON004 inputs")
    assert "['b', 'a'], the contract ['a', 'b']" in found


def test_opset_and_ir_version_are_the_pinned_ones(gemm: graphs.Ready) -> None:
    assert check(gemm, graphs.parse(graphs.GEMM, opset=17)) == [
        "CON007 opset: opset or IR version is not the pinned one: opset 17"
    ]
    assert check(gemm, graphs.parse(graphs.GEMM, opset=17), opset=None) == []
    (found,) = check(gemm, graphs.parse(graphs.GEMM, ir=10))  # a runtime for IR 8 would not load it
    assert found.startswith("CON007 IR version")


def test_an_opset_that_nothing_here_knows_is_refused(gemm: graphs.Ready) -> None:
    found = check(gemm, graphs.parse(graphs.GEMM, opset=99), opset=None)
    assert found
    assert found[0].startswith(("CON001", "CON002"))


@pytest.fixture
def external(gemm: graphs.Ready) -> graphs.Ready:
    """The model with its weights in a file that has a second name, as those of the store have."""
    model = onnx.load(str(gemm.model / "model.onnx"))
    for tensor in model.graph.initializer:
        graphs.externalise(tensor, gemm.model, "weights/all.bin")
    (gemm.model / "model.onnx").write_bytes(model.SerializeToString())
    (gemm.folder / "blob").hardlink_to(gemm.model / "weights/all.bin")
    return gemm


def found_in(ready: graphs.Ready) -> list[str]:
    read = list(cases.read(ready.reference))
    findings, outputs = contract.check(ready.model / "model.onnx", ready.contract, read, opset=18)
    assert bool(outputs) == (not findings)
    return [str(finding) for finding in findings]


def test_weights_in_a_file_beside_the_model_are_checked_with_it(external: graphs.Ready) -> None:
    assert found_in(external) == []


def test_a_missing_file_of_weights_is_named(external: graphs.Ready) -> None:
    (external.model / "weights/all.bin").unlink()
    (found,) = found_in(external)
    assert found.startswith("CON001")
    assert "weights/all.bin" in found


def test_a_cut_file_of_weights_is_refused(external: graphs.Ready) -> None:
    (external.model / "weights/all.bin").write_bytes(bytes(20))
    (found,) = found_in(external)
    assert found.startswith("CON002")
    assert "External initializer: b" in found


def test_the_graph_around_external_weights_is_checked(external: graphs.Ready) -> None:
    model = onnx.load(str(external.model / "model.onnx"), load_external_data=False)
    model.graph.initializer[0].dims[:] = [2, 4]  # what shape inference must see
    (external.model / "model.onnx").write_bytes(model.SerializeToString())
    (found,) = found_in(external)
    assert found.startswith("CON001")


@pytest.mark.parametrize("operator", ["Log", "Reciprocal"])
def test_values_that_are_not_finite_are_refused(tmp_path: Path, operator: str) -> None:
    ready = graphs.ready(tmp_path, "agraph (float[batch, 4] x) => (float[batch, 4] y) { y = Relu(x) }")
    bad = graphs.parse(
        f"agraph (float[batch, 4] x) => (float[batch, 4] y) {{ r = Relu(x) n = Neg(r) y = {operator}(n) }}"
    )
    proof = ready.publish(bad)
    assert "CON008" in graphs.codes(proof)
    assert proof.parity
    assert proof.parity.outputs[0].max_abs is None


def test_two_runs_that_disagree_are_refused_unless_the_spec_says_so(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, graphs.parse(NOISE))
    assert check(ready, graphs.parse(NOISE)) == ["CON009 output y: two runs of one session disagree"]
    allowed = graphs.ready(tmp_path / "allowed", graphs.parse(NOISE), nondeterministic=True)
    assert check(allowed, graphs.parse(NOISE)) == []
