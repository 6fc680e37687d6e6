"""PyTorch as a source: exported from eval mode, by either exporter, proven at sizes and values that were not traced."""

from pathlib import Path

import numpy as np
import pytest
import torch

from onnxmill.tasks import graph
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.export.torch import Torch, example_of
from onnxmill.tasks.findings import Finding, refused
from onnxmill.tasks.graph import MODEL
from onnxmill.tasks.proof import Proof
from onnxmill.tasks.reference import Reference, parity_inputs
from onnxmill.tasks.spec import Spec, parse
from tests import graphs
from tests.exporting import exported, interface, judged

NET = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.linear = nn.Linear(4, 4)
        self.part = {part}
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, {takes}):
        {body}

def load():
    return Net()
"""
TRAINING = """
import torch
from torch import nn

def load():
    torch.manual_seed(5)
    norm = nn.BatchNorm2d(3)
    norm.running_mean += torch.tensor([1.0, -2.0, 3.0])
    norm.running_var *= 4.0
    model = nn.Sequential(nn.Conv2d(1, 3, 3), norm, nn.Dropout(0.5), nn.Flatten(), nn.Linear(48, 2))
    return model.train()  # as it came from training
"""
TWO_INPUTS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.table = nn.Embedding(10, 4)

    def forward(self, ids, weight):
        rows = self.table(ids) * weight
        return {"rows": rows, "total": rows.sum(dim=1), "again": rows}

def load():
    return Net()
"""


def net(body: str, takes: str = "x", part: str = "None") -> str:
    return NET.format(body=body, takes=takes, part=part)


def spec(inputs: str, *, outputs: str = "[]", opset: int = 18, dims: str = "{}", source: str = "") -> Spec:
    return parse(f"""
    version: 1
    name: net
    source: {{framework: torch, {source or "loader: net.py:load"}}}
    inputs: {inputs}
    outputs: {outputs}
    dims: {dims}
    opset: {opset}
    """)


def export(folder: Path, code: str, asked: Spec) -> tuple[Reference, Proof]:
    return exported(folder, asked, {"net.py": code})


def refusal(result: Proof) -> Finding:
    """The first finding that refuses: one line, without an exporter's colours or advice."""
    found = next(finding for finding in result.findings if refused([finding]))
    assert len(found.message) < 500
    assert not {"\n", "\x1b"} & set(found.message)
    return found


X = "{x: {shape: [batch, 4]}}"
XM = "{x: {shape: [batch, 4]}, mask: {shape: [batch, 4]}}"
MX = "{mask: {shape: [batch, 4]}, x: {shape: [batch, 4]}}"
PARTS = (
    "{batch.x: {shape: [b, 4]}, batch.ids: {dtype: int64, shape: [b, 4], range: [2, 5]}, "
    "pair.0: {shape: [b, 4]}, pair.1: {dtype: bool, shape: [b, 4]}}"
)
RANGES = (
    "{a: {shape: [n, m], range: [5, 6]}, b: {dtype: int32, shape: [n, m], range: [7, 9]}, c: {dtype: bool, shape: []}}"
)
SEQUENCE = "{x: {shape: [batch, length, 8]}}"
IMAGE = "{image: {shape: [batch, 1, 6, 6]}}"
IDS = "{ids: {dtype: int64, shape: [batch, length], range: [0, 10]}, weight: {shape: [batch, length, 4]}}"
BOTH = pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
BY = {name: f"loader: net.py:load, exporter: {name}" for name in ("auto", "dynamo", "torchscript")}

pytestmark = pytest.mark.filterwarnings("ignore")  # the exporters' own; a step sends them to its log


# --- routes and opsets ------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_a_model_in_train_mode_is_exported_from_eval_with_equal_bytes_in_any_folder(tmp_path: Path) -> None:
    for place in ("here", "a much longer/place"):
        _, result = export(tmp_path / place, TRAINING, spec(IMAGE, outputs="[logits]"))
        assert judged(result) == []
        assert result.findings == ()
        assert (result.opset, result.note) == (18, "dynamo")
        assert interface(tmp_path / place) == (["image[batch, 1, 6, 6]"], ["logits[batch, 2]"])
        assert "Dropout" not in graphs.ops(tmp_path / place / "export/out")
    written = [(tmp_path / place / "export/out" / MODEL).read_bytes() for place in ("here", "a much longer/place")]
    assert written[0] == written[1]
    assert str(tmp_path).encode() not in written[0]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("exporter", "opset", "route", "given"),
    [
        ("auto", 13, "torchscript", 13),
        ("auto", 17, "torchscript", 17),
        ("auto", 21, "dynamo", 21),
        ("dynamo", 17, "dynamo", 18),  # the next step pins it
        ("torchscript", 18, "torchscript", 18),
        ("torchscript", 21, "torchscript", 20),
    ],
)
def test_the_exporter_that_gives_the_pin_comes_first(
    tmp_path: Path, exporter: str, opset: int, route: str, given: int
) -> None:
    asked = spec(IMAGE, outputs="[logits]", opset=opset, source=BY[exporter])
    _, result = export(tmp_path, TRAINING, asked)
    assert judged(result) == []
    assert (result.note, result.opset) == (route, given)
    assert interface(tmp_path) == (["image[batch, 1, 6, 6]"], ["logits[batch, 2]"])
    assert result.parity
    assert result.parity.cases == 4


@pytest.mark.integration
@pytest.mark.parametrize(
    ("body", "part", "opset", "first", "second"),
    [  # what the one exporter cannot, the other one can
        ("return self.part(x)", "nn.LSTM(8, 4, batch_first=True)", 18, "dynamo: CON006", "torchscript"),
        ("return F.scaled_dot_product_attention(x, x, x)", "None", 18, "dynamo: EXP001", "torchscript"),
        (
            "return self.part(x)",
            "nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)",
            15,
            "torchscript: CON003",  # the length is baked in
            "dynamo",
        ),
        (
            "return torch.cond(x.sum() > 0, lambda v: v * 2, lambda v: v - 1, (x,))",
            "None",
            17,
            "torchscript: EXP001",
            "dynamo",
        ),
    ],
)
def test_under_auto_the_other_exporter_is_tried_and_the_note_says_why(
    tmp_path: Path, body: str, part: str, opset: int, first: str, second: str
) -> None:
    _, result = export(tmp_path, net(body, part=part), spec(SEQUENCE, opset=opset))
    assert judged(result) == []
    assert result.findings == ()
    assert result.note.startswith(f"{second}; not {first}")


@pytest.mark.integration
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_an_operator_that_one_exporter_lacks_is_named_in_one_line(tmp_path: Path, dtype: str) -> None:
    inputs = f"{{x: {{shape: [batch, 4]}}, mask: {{dtype: {dtype}, shape: [batch, 4], range: [0, 2]}}}}"
    code = net("return (1.0 - mask) * x", "x, mask")
    _, alone = export(tmp_path / "alone", code, spec(inputs, source=BY["dynamo"]))
    assert judged(alone) == ["EXP002"]
    assert refusal(alone).where == "aten::sub"
    _, both = export(tmp_path / "both", code, spec(inputs))
    assert judged(both) == []
    assert both.note.startswith("torchscript; not dynamo: EXP002 aten::sub")


@pytest.fixture(scope="module")
def acme() -> torch.library.Library:
    """A library of operators of its own, which has `acme::twice`; it is gone with the last reference."""
    library = torch.library.Library("acme", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    return library


@pytest.mark.integration
@BOTH
@pytest.mark.parametrize(
    ("body", "operator"),
    [
        ("return torch.linalg.qr(x)[0]", "aten::linalg_qr"),
        ("return torch.ops.acme.twice(x)", "acme::twice"),
    ],
)
def test_an_operator_that_no_exporter_has_is_refused_by_name(
    acme: torch.library.Library, tmp_path: Path, exporter: str, body: str, operator: str
) -> None:
    _, result = export(tmp_path, net(body), spec("{x: {shape: [4, 4]}}", source=BY[exporter]))
    assert judged(result) == ["EXP002"]
    assert refusal(result).where == operator
    assert not result.size_bytes


@pytest.mark.parametrize(("domain", "codes"), [("aten", ["EXP002"]), ("com.acme", ["EXP002"]), ("", [])])
def test_operators_that_are_not_of_onnx_are_refused(tmp_path: Path, domain: str, codes: list[str]) -> None:
    code = f"""
import torch
from torch import nn
from torch.onnx import symbolic_helper

class Neg(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return -x

    @staticmethod
    def symbolic(g, x):
        return g.op("{domain + "::" if domain else ""}Neg", x)

class Net(nn.Module):
    def forward(self, x):
        return Neg.apply(x)

def load():
    return Net()
"""
    _, result = export(tmp_path, code, spec(X, source=BY["torchscript"]))
    assert judged(result) == codes
    if codes:
        assert refusal(result).where == f"{domain}::Neg"


@pytest.mark.integration
def test_weights_of_a_large_model_stay_in_a_file_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "EXTERNAL_BYTES", 4 * 4 * 400)
    _, result = export(tmp_path, net("return self.part(x)", part="nn.Linear(4, 400)"), spec(X, source=BY["dynamo"]))
    assert judged(result) == []
    assert (tmp_path / "export/route-0/exported.onnx.data").stat().st_size >= 4 * 4 * 400  # as the exporter wrote them
    assert (tmp_path / "export/out" / MODEL).stat().st_size < 4 * 4 * 400


# --- control flow that is baked in ------------------------------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.parametrize(
    "body",
    [
        "return x * 2 if x.sum() > 0 else x - 1",
        "return self.linear(x) if bool((x > 1).any()) else x",
        "return x[: int((x[:, 0] > 0).sum()) + 1 if x.mean() > 0 else 1]",
    ],
)
def test_control_flow_on_data_is_refused_with_the_line_and_the_way_out(tmp_path: Path, body: str) -> None:
    asked = spec(X, outputs="{y: {shape: [rows, 4]}}" if "[:" in body else "[]", source=BY["dynamo"])
    _, result = export(tmp_path, net(body), asked)
    assert judged(result) == ["EXP001"]
    found = refusal(result)
    assert found.where == "net.py:15"
    assert "data-dependent control flow" in found.message
    assert "torch.cond" in found.fix
    assert not list((tmp_path / "export/out").iterdir())


@pytest.mark.parametrize(
    ("body", "codes"),
    [
        ("return x * 2 if x.sum() > 0 else x - 1", {"GATE001"}),  # a branch was baked in
        ("return x * float(x.sum())", {"GATE001"}),  # a value
        ("return x + torch.arange(int(x.shape[0])).reshape(-1, 1)", {"CON003", "GATE008", "CON006"}),  # a size
        ("return torch.stack([row * i for i, row in enumerate(x)])", {"CON003", "GATE008", "CON006", "CON001"}),
    ],
)
def test_what_torchscript_bakes_in_is_refused_by_values(tmp_path: Path, body: str, codes: set[str]) -> None:
    _, result = export(tmp_path, net(body), spec(X, source=BY["torchscript"]))
    assert codes & set(judged(result))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("body", "codes"),
    [
        ("return x * 2 if x.sum() > 0 else x - 1", ["EXP001", "GATE001"]),
        ("return self.linear(x) if x.shape[0] == 3 else x", ["CON006"]),
        ("return torch.stack([row * i for i, row in enumerate(x)])", ["CON006"]),
    ],
)
def test_where_neither_exporter_is_right_the_reasons_of_both_are_given(
    tmp_path: Path, body: str, codes: list[str]
) -> None:
    _, result = export(tmp_path, net(body), spec(X))
    assert set(codes) <= set(judged(result))
    assert "; not dynamo: " in result.note


# --- inputs -----------------------------------------------------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.parametrize("exporter", BY)
def test_an_input_that_the_model_ignores_is_kept(tmp_path: Path, exporter: str) -> None:
    """TorchScript leaves it out; a caller gives what the spec says."""
    code = net("return self.linear(x)", "x, mask")
    _, result = export(tmp_path, code, spec(XM, opset=18, source=BY[exporter]))
    assert judged(result) == []
    assert interface(tmp_path)[0] == ["x[batch, 4]", "mask[batch, 4]"]


@pytest.mark.integration
@pytest.mark.parametrize("exporter", BY)
def test_a_value_of_the_graph_may_have_the_name_of_an_output(tmp_path: Path, exporter: str) -> None:
    code = net("x = self.part(x)\n        return x * 1, self.linear(x), x + 1", part="nn.Linear(4, 4)")
    _, result = export(tmp_path, code, spec(X, outputs="[part, linear, add]", source=BY[exporter]))
    assert judged(result) == []
    assert [value.partition("[")[0] for value in interface(tmp_path)[1]] == ["part", "linear", "add"]


@pytest.mark.integration
@BOTH
@pytest.mark.parametrize(
    ("takes", "inputs", "body", "constants"),
    [
        ("x, mask, n: int, flag: bool", MX, "x - mask * n if flag else x", "n: 3, flag: true"),
        ("batch, pair", PARTS, "torch.where(pair[1], batch['x'] * batch['ids'], pair[0])", ""),
        ("x, **more", MX, "x - more['mask'] * more['n']", "n: 3"),
        ("x, a=None, *, mode='max', n=1", X, "getattr(torch, 'a' + mode)(x, 1) * n + (a or 0)", "n: 2.5, mode: min"),
    ],
)
def test_arguments_of_every_kind(
    tmp_path: Path, exporter: str, takes: str, inputs: str, body: str, constants: str
) -> None:
    opset = 17 if exporter == "torchscript" else 18
    asked = spec(inputs, opset=opset, source=f"{BY[exporter]}, constants: {{{constants}}}")
    _, result = export(tmp_path, net(f"return {body}", takes), asked)
    assert judged(result) == []
    assert [text.partition("[")[0] for text in interface(tmp_path)[0]] == list(asked.inputs)


def test_the_example_differs_from_the_parity_inputs_and_has_no_size_of_one() -> None:
    asked = spec(X, dims="{batch: [1, 2]}").contract
    (example,) = example_of(asked)
    assert example.shape == (2, 4)  # 1 would be specialised
    for _, inputs in parity_inputs(asked, None):
        assert not np.isin(example.numpy(), inputs["x"]).any()


def test_the_example_keeps_to_ranges_and_gives_each_dim_its_own_size() -> None:
    a, b, c = example_of(spec(RANGES, dims="{n: [1, 2, 3], m: [3, 2]}").contract)
    assert a.shape == b.shape == (3, 2)
    assert 5 <= a.min() <= a.max() < 6
    assert set(b.flatten().tolist()) <= {7, 8}
    assert (c.shape, c.dtype) == ((), torch.bool)


# --- outputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.integration
@BOTH
@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("return self.table, x", ["a", "b"]),
        ("return x", ["a"]),
        ("return self.linear(x), x, self.linear.weight", ["a", "b", "c"]),
        ("y = self.linear(x); return [y, (y, None, torch.ones(3))]", ["a", "b", "c"]),
    ],
)
def test_outputs_that_are_constants_inputs_or_there_twice(
    tmp_path: Path, exporter: str, body: str, names: list[str]
) -> None:
    _, result = export(tmp_path, net(body), spec(X, outputs=f"[{', '.join(names)}]", source=BY[exporter]))
    assert judged(result) == []
    inputs, outputs = interface(tmp_path)
    assert inputs == ["x[batch, 4]"]
    assert [text.partition("[")[0] for text in outputs] == names


@pytest.mark.integration
@BOTH
def test_outputs_of_a_dict_in_the_order_of_the_spec_one_of_them_twice(tmp_path: Path, exporter: str) -> None:
    asked = spec(IDS, outputs="[total, again, rows]", opset=20, source=BY[exporter])
    reference, result = export(tmp_path, TWO_INPUTS, asked)
    assert reference.contract.outputs["total"].shape == ("batch", 4)
    assert judged(result) == []
    assert result.opset == 20
    assert interface(tmp_path) == (
        ["ids[batch, length]", "weight[batch, length, 4]"],
        ["total[batch, 4]", "again[batch, length, 4]", "rows[batch, length, 4]"],
    )


@pytest.mark.parametrize(
    ("body", "outputs", "message"),
    [
        ("return x, x + 1", "[a, b, c]", r"gives 2 output\(s\), the spec names 3"),
        ("return x, x + 1", "[a]", r"gives 2 output\(s\), the spec names 1"),
        ("return x, 3", "[]", "must return tensors; an output is of type int"),
        ("return {'y': x, 'label': 'cat'}", "[]", "output 'label' is of type str"),
        ("return {'y': [x, object()]}", "[]", "output 'y.1' is of type object"),
        ("return {'y': x.bfloat16()}", "[]", "'y': is a bfloat16 tensor"),
        ("return {'y': x.to(torch.complex64)}", "[]", "'y': is a complex64 tensor"),
        ("return {'y': x.to_sparse()}", "[]", "'y': is a tensor of layout torch.sparse_coo"),
    ],
)
def test_outputs_that_cannot_be_are_named(tmp_path: Path, body: str, outputs: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        export(tmp_path, net(body), spec(X, outputs=outputs))


def test_the_input_arrays_are_not_edited() -> None:
    class Edits(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1)

    x = np.ones((1, 2), np.float32)
    assert Torch(Edits()).predict({"x": x})[0][1].tolist() == [[2, 2]]
    assert x.tolist() == [[1, 1]]
