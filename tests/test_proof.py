"""Publishing a model: cleaned, stamped, the same bytes for the same model, and proven by values."""

from pathlib import Path

import onnx
import pytest

from onnxmill.tasks import cases, graph, proof
from onnxmill.tasks.findings import finding
from onnxmill.tasks.graph import MODEL
from tests import graphs

SECRET = "/home/someone/secret"
RELU = "agraph (float[batch, 4] x) => (float[batch, 4] y) { y = Relu(x) }"
NESTED = """
agraph (float[batch, 4] x) => (float[batch, 4] y) <bool yes = {1}, float[1] two = {2}> {
  a = own.twice(x)
  y = If (yes) <
    then_branch = then_graph () => (float[batch, 4] t) { t = Mul(a, two) },
    else_branch = else_graph () => (float[batch, 4] e) { e = Neg(a) }
  >
}
"""
TWICE = '<opset_import: ["": 18], domain: "own"> twice (a) => (b) { b = Add(a, a) }'


def _spoil(message: object, text: str) -> None:
    """Put `text` wherever a part of a model has room for a remark."""
    if hasattr(message, "doc_string"):
        message.doc_string = text
    if hasattr(message, "metadata_props"):
        message.metadata_props.add(key=text, value=text)
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        if field.type == field.TYPE_MESSAGE and field.message_type.name != "StringStringEntryProto":
            for part in value if field.is_repeated else [value]:
                _spoil(part, text)


def test_remarks_with_paths_go_everywhere_and_the_digest_does_not_depend_on_them(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, graphs.parse(NESTED, domains=', "own": 1', functions=TWICE))
    written = []
    for place in (SECRET, "/elsewhere"):
        model = onnx.load(str(ready.model / MODEL))
        _spoil(model, place)
        assert model.SerializeToString().count(place.encode()) > 20
        result = ready.publish(model, place.strip("/").replace("/", "-"))
        assert result.findings == ()
        written.append((ready.folder / place.strip("/").replace("/", "-") / "out" / MODEL).read_bytes())
    assert written[0] == written[1]
    assert SECRET.encode() not in written[0]


def test_the_stamp_says_name_source_and_version(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, RELU)
    model = onnx.load(str(ready.model / MODEL))
    onnx.helper.set_model_props(model, {"author": "someone", "pkg.torch.onnx.trace": "/home", "onnx.infer": "x"})
    ready.publish(model)
    props = {p.key: p.value for p in onnx.load(str(tmp_path / "candidate/out" / MODEL)).metadata_props}
    assert sorted(props) == ["author", "onnxmill.name", "onnxmill.source", "onnxmill.version"]
    assert props["author"] == "someone"  # a user's own stays
    assert props["onnxmill.name"] == "tiny"
    assert props["onnxmill.source"] == "0" * 64


def test_a_domain_that_is_listed_twice_becomes_one_entry_and_ir_the_lowest(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, RELU)
    model = graphs.parse(RELU, opset=13, ir=10)
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx", 18))
    model.opset_import.append(onnx.helper.make_opsetid("", 17))
    result = ready.publish(model)
    published = onnx.load(str(tmp_path / "candidate/out" / MODEL))
    assert [(o.domain, o.version) for o in published.opset_import] == [("", 18)]
    assert (result.findings, result.opset, result.ir_version) == ((), 18, 8)


@pytest.mark.parametrize("value", [None, 0, -1])
def test_dims_get_the_names_of_the_contract(tmp_path: Path, value: int | None) -> None:
    ready = graphs.ready(tmp_path, RELU)
    model = graphs.parse(RELU)
    for tensor in (*model.graph.input, *model.graph.output):
        dim = tensor.type.tensor_type.shape.dim[0]
        dim.Clear()
        if value is not None:  # some tools' word for "any size"
            dim.dim_value = value
    model.graph.output[0].type.tensor_type.ClearField("shape")  # others leave an output's shape open
    assert ready.publish(model).findings == ()
    published = onnx.load(str(tmp_path / "candidate/out" / MODEL))
    for tensor in (*published.graph.input, *published.graph.output):
        assert [d.dim_param or d.dim_value for d in tensor.type.tensor_type.shape.dim] == ["batch", 4]


def test_a_fixed_size_is_not_renamed_away(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, RELU)
    assert graphs.codes(ready.publish(graphs.parse(RELU.replace("batch", "1")))) == ["CON006", "CON006"]


def test_the_input_is_not_edited_and_bytes_repeat(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, RELU)
    before = (ready.model / MODEL).read_bytes()
    outs = [ready.out("first"), ready.out("second")]
    results = [
        proof.publish(ready.model / MODEL, out, ready.contract, graphs.STAMP, ready.reference, opset=18) for out in outs
    ]
    assert (ready.model / MODEL).read_bytes() == before
    assert (outs[0] / MODEL).read_bytes() == (outs[1] / MODEL).read_bytes()
    assert results[0] == results[1]
    assert results[0].size_bytes == (outs[0] / MODEL).stat().st_size


def test_files_of_weights_go_with_the_model_under_names_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = graphs.ready(tmp_path, graphs.GEMM)
    monkeypatch.setattr(graph, "EXTERNAL_BYTES", 24)
    monkeypatch.setattr(graph, "SMALL_BYTES", 8)
    written = []
    for place in ("one", "other/folder"):
        raw, out = tmp_path / place / "raw.onnx", ready.out(f"{place}-out")
        raw.parent.mkdir(parents=True)
        model = onnx.load(str(ready.model / MODEL))
        for tensor in model.graph.initializer:
            graphs.externalise(tensor, raw.parent, f"{raw.parent.name}.bin")
        raw.write_bytes(model.SerializeToString())
        result = proof.publish(raw, out, ready.contract, graphs.STAMP, ready.reference, opset=18)
        assert proof.faults(result) == ()
        assert result.parity
        written.append({path.name: path.read_bytes() for path in out.iterdir()})
        assert result.size_bytes == sum(map(len, written[-1].values()))
    assert sorted(written[0]) == [MODEL, f"{MODEL}.data"]
    assert written[0] == written[1]


def test_without_a_parity_case_nothing_passes(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, RELU)
    (ready.reference / cases.FILE).write_bytes(b"PK\x05\x06" + bytes(18))  # a zip without entries
    assert graphs.codes(ready.publish(graphs.parse(RELU))) == ["GATE007"]


def test_wrong_values_show_in_the_parity(tmp_path: Path) -> None:
    ready = graphs.ready(tmp_path, RELU)
    result = ready.publish(graphs.parse(RELU.replace("Relu", "Abs")))
    assert result.findings == ()  # the contract holds
    assert result.parity
    assert result.parity.outputs[0].max_rel
    assert result.parity.outputs[0].max_rel > 0.1


def test_real_cases_have_a_parity_of_their_own(tmp_path: Path) -> None:
    real = graphs.write_samples(tmp_path / "real", [{"x": abs(graphs.normal((1, 4), i))} for i in range(8)])
    ready = graphs.ready(tmp_path / "graph", graphs.parse(RELU), real=real)
    result = ready.publish(graphs.parse(RELU.replace("Relu", "Abs")))  # the same on what is real: no sample is negative
    assert result.parity
    assert result.real
    assert (result.parity.cases, result.real.cases) == (12, 8)
    assert result.real.outputs[0].max_abs == 0.0


def test_the_step_of_no_model_has_its_reason() -> None:
    result = proof.nothing(finding("EXP001", "export", "cannot"))
    assert graphs.codes(result) == ["EXP001"]
    assert result.parity is None
