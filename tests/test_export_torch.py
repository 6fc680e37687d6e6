"""PyTorch as a source: exported from eval mode, by either exporter, proven at sizes and values that were not traced."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from onnxmill.tasks import export, parity
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.export import ExportSettings, SourceSettings
from onnxmill.tasks.export import torch as torch_source
from onnxmill.tasks.findings import refused
from onnxmill.tasks.proof import MODEL, Proof
from onnxmill.tasks.reference import Reference, ReferenceSettings, compute, parity_inputs
from onnxmill.tasks.spec import Contract, parse
from tests import graphs

SOURCE = SourceSettings(framework="torch", loader="net.py:load", path=None)

HEAD = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
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


def contract(inputs: str, *, outputs: str = "[]", opset: int = 18, dims: str = "{}") -> Contract:
    text = f"""
    version: 1
    name: net
    source: {{framework: torch, loader: net.py:load}}
    inputs: {inputs}
    outputs: {outputs}
    dims: {dims}
    opset: {opset}
    """
    return parse(text).contract


X = "{x: {shape: [batch, 4]}}"
IMAGE = "{image: {shape: [batch, 1, 6, 6]}}"
IDS = "{ids: {dtype: int64, shape: [batch, length], range: [0, 10]}, weight: {shape: [batch, length, 4]}}"


def exported(folder: Path, code: str, asked: Contract) -> tuple[Reference, Proof]:
    """Reference and export of `code`, as the flow runs them, each with a copy of the sources of its own."""
    for step in ("reference", "export"):
        (folder / step / "source").mkdir(parents=True)
        (folder / step / "source/net.py").write_text(code)
        (folder / step / "out").mkdir()
    source, out = folder / "reference/source", folder / "reference/out"
    with graphs.user_code(source):
        reference = compute(ReferenceSettings(source=SOURCE, contract=asked), source, out)
    source = folder / "export/source"
    with graphs.user_code(source):
        settings = ExportSettings(source=SOURCE, contract=reference.contract, stamp=graphs.STAMP)
        return reference, export.export(settings, source, out, folder / "export/out")


def judged(result: Proof) -> list[str]:
    """Every code that refuses the model."""
    faults = [*result.findings, *(parity.judge(result.parity, parity.DEFAULT_GATES["fp32"]) if result.parity else [])]
    return [fault.code for fault in faults if refused([fault])]


def interface(folder: Path) -> tuple[list[str], list[str]]:
    """Names of inputs and outputs, each with its dims: "x[batch, 4]"."""
    graph = onnx.load(str(folder / "export/out" / MODEL)).graph

    def text(value: onnx.ValueInfoProto) -> str:
        return f"{value.name}[{', '.join(d.dim_param or str(d.dim_value) for d in value.type.tensor_type.shape.dim)}]"

    return [text(v) for v in graph.input], [text(v) for v in graph.output]


# --- export: each is 1 to 4 s -----------------------------------------------------------------------------------------


@pytest.mark.integration
def test_a_model_in_train_mode_is_exported_from_eval_with_equal_bytes_in_any_folder(tmp_path: Path) -> None:
    for place in ("here", "a much longer/place"):
        _, result = exported(tmp_path / place, TRAINING, contract(IMAGE, outputs="[logits]"))
        assert judged(result) == []
        assert result.findings == ()
        assert (result.opset, result.note) == (18, "dynamo exporter")
        assert interface(tmp_path / place) == (["image[batch, 1, 6, 6]"], ["logits[batch, 2]"])
        assert "Dropout" not in graphs.ops(tmp_path / place / "export/out")
    written = [(tmp_path / place / "export/out" / MODEL).read_bytes() for place in ("here", "a much longer/place")]
    assert written[0] == written[1]
    assert str(tmp_path).encode() not in written[0]


@pytest.mark.integration
def test_outputs_of_a_dict_in_the_order_of_the_spec_one_of_them_twice(tmp_path: Path) -> None:
    asked = contract(IDS, outputs="[total, again, rows]", opset=20)
    reference, result = exported(tmp_path, TWO_INPUTS, asked)
    assert reference.contract.outputs["total"].shape == ("batch", 4)
    assert judged(result) == []
    assert result.opset == 20
    assert interface(tmp_path) == (
        ["ids[batch, length]", "weight[batch, length, 4]"],
        ["total[batch, 4]", "again[batch, length, 4]", "rows[batch, length, 4]"],
    )


@pytest.mark.integration
@pytest.mark.parametrize(
    ("body", "code", "names"),
    [
        ("return x * 2 if x.sum() > 0 else x - 1", "EXP001", "data-dependent"),
        ("return self.linear(x) if x.shape[0] == 3 else x", "CON006", "[3, 4], must be ['batch', 4]"),
    ],
)
def test_control_flow_on_data_or_size_is_refused_with_dynamo(tmp_path: Path, body: str, code: str, names: str) -> None:
    _, result = exported(tmp_path, HEAD.format(body=body), contract(X))
    assert set(judged(result)) == {code}
    assert names in result.findings[0].message
    assert bool(result.size_bytes) is any((tmp_path / "export/out").iterdir())


@pytest.mark.integration
def test_dynamo_keeps_an_input_that_is_not_used(tmp_path: Path) -> None:
    code = HEAD.replace("self, x", "self, x, mask").format(body="return self.linear(x)")
    _, result = exported(tmp_path, code, contract("{x: {shape: [batch, 4]}, mask: {shape: [batch, 4]}}"))
    assert judged(result) == []
    assert interface(tmp_path)[0] == ["x[batch, 4]", "mask[batch, 4]"]


def test_torchscript_below_18_is_proven_as_well(tmp_path: Path) -> None:
    _, result = exported(tmp_path, TRAINING, contract(IMAGE, outputs="[logits]", opset=15))
    assert judged(result) == []
    assert result.opset == 15
    assert "TorchScript" in result.note
    assert interface(tmp_path) == (["image[batch, 1, 6, 6]"], ["logits[batch, 2]"])
    assert result.parity
    assert result.parity.cases == 4


def test_torchscript_puts_outputs_in_the_order_of_the_spec(tmp_path: Path) -> None:
    _, result = exported(tmp_path, TWO_INPUTS, contract(IDS, outputs="[total, again, rows]", opset=15))
    assert judged(result) == []
    assert [name.partition("[")[0] for name in interface(tmp_path)[1]] == ["total", "again", "rows"]


@pytest.mark.parametrize(
    ("body", "codes"),
    [
        ("return x * 2 if x.sum() > 0 else x - 1", {"GATE001"}),  # a branch was baked in
        ("return x + torch.arange(int(x.shape[0])).reshape(-1, 1)", {"CON003", "GATE008", "CON006"}),  # a size
        ("return torch.stack([row * i for i, row in enumerate(x)])", {"CON003", "GATE008", "CON006", "CON001"}),
    ],
)
def test_what_torchscript_bakes_in_is_refused_by_values(tmp_path: Path, body: str, codes: set[str]) -> None:
    _, result = exported(tmp_path, HEAD.format(body=body), contract(X, opset=15))
    assert codes & set(judged(result))


def test_torchscript_drops_an_input_that_is_not_used_and_is_refused(tmp_path: Path) -> None:
    code = HEAD.replace("self, x", "self, x, mask").format(body="return self.linear(x)")
    asked = contract("{x: {shape: [batch, 4]}, mask: {shape: [batch, 4]}}", opset=15)
    _, result = exported(tmp_path, code, asked)
    assert judged(result) == ["CON004"]
    assert "['x'], the contract ['x', 'mask']" in result.findings[0].message


# --- load and predict -------------------------------------------------------------------------------------------------


class Returns(nn.Module):
    """Gives whatever `make` makes of its input."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: torch.Tensor) -> Any:
        return self.make(x)


@pytest.mark.parametrize(
    ("make", "names", "factors"),
    [
        (lambda x: x, [""], [1]),
        (lambda x: (x, x * 2), ["", ""], [1, 2]),
        (lambda x: [x, (x * 2, None)], ["", ""], [1, 2]),
        (lambda x: {"a": x, "none": None, "b": x * 2}, ["a", "b"], [1, 2]),
        (lambda x: (x, x), ["", ""], [1, 1]),
    ],
)
def test_predict_flattens_what_a_model_returns(make: Any, names: list[str], factors: list[int]) -> None:
    x = np.ones((1, 2), np.float32)
    found = torch_source.predict(Returns(make), {"x": x})
    assert [name for name, _ in found] == names
    assert [array[0, 0] for _, array in found] == factors


@pytest.mark.parametrize("value", ["text", 3, object()])
def test_predict_refuses_what_is_no_tensor(value: object) -> None:
    with pytest.raises(InputError, match="must return tensors"):
        torch_source.predict(Returns(lambda x: (x, value)), {"x": np.ones((1, 2), np.float32)})


class Three(nn.Module):
    def forward(self, x: torch.Tensor, scale: Any = None, mask: Any = None) -> torch.Tensor:
        return x if mask is None else x * mask


@pytest.mark.parametrize("names", [["mask", "x"], ["x", "mask"], ["scale", "x", "mask"]])
def test_inputs_named_as_parameters_must_be_in_their_places(names: list[str]) -> None:
    with pytest.raises(InputError, match=r"forward's parameters are \['x', 'scale', 'mask'\]"):
        torch_source.predict(Three(), {name: np.ones((1, 2), np.float32) for name in names})


@pytest.mark.parametrize("names", [["x"], ["x", "scale"], ["image"], ["image", "mask_2"], ["a", "b", "c"]])
def test_other_names_are_given_by_position(names: list[str]) -> None:
    assert torch_source.predict(Three(), {name: np.ones((1, 2), np.float32) for name in names})


def test_the_input_arrays_are_not_edited() -> None:
    x = np.ones((1, 2), np.float32)
    torch_source.predict(Returns(lambda t: t.add_(1)), {"x": x})
    assert x.tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def load(): return None", "returned None"),
        ("def load(): return {'weights': 1}", r"must return a torch\.nn\.Module; it returned a dict"),
        ("def load(): raise RuntimeError('no weights')", r"raised RuntimeError at net\.py:1: no weights"),
        ("def lod(): pass", "did you mean 'lod'"),
        ("import nowhere_at_all", "ModuleNotFoundError"),
    ],
)
def test_a_loader_that_gives_no_module_is_named(tmp_path: Path, code: str, message: str) -> None:
    with graphs.user_code(tmp_path / "source") as folder:
        (folder / "net.py").write_text(code)
        with pytest.raises(InputError, match=message) as raised:
            torch_source.load(SOURCE)
    assert raised.value.key == "source.loader"


def test_the_example_differs_from_the_parity_inputs_and_has_no_size_of_one() -> None:
    asked = contract(X, dims="{batch: [1, 2]}")
    (example,) = torch_source._example(asked)
    assert example.shape == (2, 4)  # 1 would be specialised
    for _, inputs in parity_inputs(asked, None):
        assert not np.isin(example.numpy(), inputs["x"]).any()
