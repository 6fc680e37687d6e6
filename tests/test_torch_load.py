"""Torch models from files: what is opened, what fits, and that no file's pickle ever runs."""

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from onnxmill.tasks.errors import InputError
from onnxmill.tasks.export import SourceSettings
from onnxmill.tasks.export.torch import Torch
from onnxmill.tasks.export.torch import load as load_source
from onnxmill.tasks.export.torch_call import Program
from onnxmill.tasks.export.torch_load import FORCE_WEIGHTS_ONLY
from onnxmill.tasks.spec import parse
from tests import graphs
from tests.exporting import exported, interface, judged

LOADER = """
from torch import nn

def load():
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
"""


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).state_dict()


def load(folder: Path, **settings: Any) -> Torch:
    with graphs.user_code(folder) as code:
        (code / "net.py").write_text(LOADER)
        return load_source(SourceSettings(framework="torch", **settings))


def load_weights(folder: Path, name: str) -> Torch:
    return load(folder, loader="net.py:load", state_dict=name)


class Planted:
    """A pickle that creates a file when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


# --- loaders ----------------------------------------------------------------------------------------------------------


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
            load_source(SourceSettings(framework="torch", loader="net.py:load"))
    assert raised.value.key == "source.loader"


# --- weights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", ["", "state_dict", "model", "ema"])
@pytest.mark.parametrize("zipped", [True, False])
def test_weights_are_loaded_and_unwrapped(tmp_path: Path, wrap: str, zipped: bool) -> None:
    held = {wrap: weights(), "epoch": 3, "optimizer": {"state": {}}, "name": "n"} if wrap else weights()
    torch.save(held, tmp_path / "w.pt", _use_new_zipfile_serialization=zipped)
    found = load_weights(tmp_path, "w.pt").model.state_dict()
    assert all(torch.equal(found[key], value) for key, value in weights().items())


def test_safetensors(tmp_path: Path) -> None:
    save_file(weights(), tmp_path / "w.safetensors")
    found = load_weights(tmp_path, "w.safetensors").model.state_dict()
    assert all(torch.equal(found[key], value) for key, value in weights().items())


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"0.weight": None}, "lacks '0.weight'"),
        ({"2.weight": torch.ones(1)}, "has '2.weight', which the module does not have"),
        ({"0.weight": None, "0.wieght": torch.ones(2, 2)}, "lacks '0.weight'; has '0.wieght'"),
        ({f"{i}.w": torch.ones(1) for i in range(5, 10)}, "has '5.w', '6.w', '7.w' and 2 more"),
        ({"1.bias": torch.ones(7)}, r"1\.bias.*7"),
    ],
)
def test_weights_that_do_not_fit_are_named(tmp_path: Path, suffix: str, change: Any, message: str) -> None:
    held = {key: value for key, value in {**weights(), **change}.items() if value is not None}
    path = tmp_path / f"w.{suffix}"
    save_file(held, path) if suffix == "safetensors" else torch.save(held, path)
    with pytest.raises(InputError, match=message) as raised:
        load_weights(tmp_path, path.name)
    assert raised.value.key == "source.state_dict"


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ({"model": weights(), "ema": weights()}, r"holds weights of the module in \['model', 'ema'\]"),
        ({"a": {"b": torch.ones(1)}}, "lacks '0.bias', '0.weight', '1.bias' and 1 more; has 'a'"),
        ([torch.ones(1)], "must hold a dict of tensors; it holds a list"),
        (torch.ones(1), "it holds a Tensor"),
        (nn.Linear(2, 2), r"holds more than weights, and is not opened: .*Linear"),
        (np.float64, "holds more than weights"),
    ],
)
def test_what_is_no_state_dict_is_refused_with_the_way_out(tmp_path: Path, held: Any, message: str) -> None:
    torch.save(held, tmp_path / "w.pt")
    with pytest.raises(InputError, match=message) as raised:
        load_weights(tmp_path, "w.pt")
    assert raised.value.key == "source.state_dict"
    assert "\n" not in str(raised.value)
    assert "\x1b" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"not a pickle", b"PK\x03\x04 half a zip", pickle.dumps({"a": 1})[:5]])
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, suffix: str) -> None:
    (tmp_path / f"w.{suffix}").write_bytes(content)
    with pytest.raises(InputError) as raised:
        load_weights(tmp_path, f"w.{suffix}")
    assert (raised.value.key, raised.value.value) == ("source.state_dict", f"w.{suffix}")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("key", ["state_dict", "path"])
def test_a_pickle_that_runs_code_is_refused_and_does_not_run(tmp_path: Path, zipped: bool, key: str) -> None:
    trap = tmp_path / "trap"
    torch.save({**weights(), "x": Planted(trap)}, tmp_path / "w.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(InputError) as raised:
        load(tmp_path, **({"path": "w.pt"} if key == "path" else {"loader": "net.py:load", "state_dict": "w.pt"}))
    assert raised.value.key == f"source.{key}"
    assert "state_dict" in raised.value.fix
    assert not trap.exists()
    torch.load(tmp_path / "w.pt", weights_only=False)
    assert trap.exists()  # it would have


# --- files of models --------------------------------------------------------------------------------------------------


class Branch(nn.Module):
    """Control flow on data, which TorchScript keeps."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        if x.sum() > 0:
            x = self.linear(x)
        return x - scale


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": self.linear(x) * mask, "x_again": x}


def script(path: Path) -> bytes:
    torch.jit.script(Branch()).save(str(path))
    return path.read_bytes()


def program(path: Path) -> bytes:
    batch = torch.export.Dim("batch")
    shapes = {"x": {0: batch}, "mask": {0: batch}}
    example = torch.ones(2, 4), torch.ones(2, 3)
    made = torch.export.export(Masked().eval(), example[:1], {"mask": example[1]}, dynamic_shapes=shapes)
    torch.export.save(made, path)
    return path.read_bytes()


def asked(path: str, inputs: str, more: str = "") -> Any:
    return parse(f"""
    version: 1
    name: net
    source: {{framework: torch, path: {path}, {more}}}
    inputs: {inputs}
    """)


X = "{x: {shape: [batch, 4]}}"
MASK = "{mask: {shape: [batch, 3]}, x: {shape: [batch, 4]}}"

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.integration
def test_a_torchscript_file_keeps_its_control_flow(tmp_path: Path) -> None:
    _, result = exported(
        tmp_path / "w", asked("m.pt", X, "constants: {scale: 3.0}"), {"m.pt": script(tmp_path / "m.pt")}
    )
    assert judged(result) == []
    assert result.note == "torchscript"
    assert interface(tmp_path / "w") == (["x[batch, 4]"], ["output_0[batch, 4]"])
    assert "If" in graphs.ops(tmp_path / "w/export/out")


@pytest.mark.integration
def test_a_program_is_exported_by_dynamo(tmp_path: Path) -> None:
    _, result = exported(tmp_path / "w", asked("m.pt2", MASK), {"m.pt2": program(tmp_path / "m.pt2")})
    assert judged(result) == []
    assert result.note == "dynamo"
    assert interface(tmp_path / "w") == (["mask[batch, 3]", "x[batch, 4]"], ["y[batch, 3]", "x_again[batch, 4]"])


@pytest.mark.parametrize(("make", "name", "exporter"), [(script, "m.pt", "dynamo"), (program, "m.pt2", "torchscript")])
def test_an_exporter_that_does_not_apply_is_refused(tmp_path: Path, make: Any, name: str, exporter: str) -> None:
    make(tmp_path / name)
    source = load(tmp_path, path=name, exporter=exporter)
    with pytest.raises(InputError, match=r"source\.exporter: .* is exported by \w+ only"):
        source.routes(asked(name, X).contract, 18)


@pytest.mark.parametrize("held", [weights(), nn.Linear(2, 2)])
def test_another_pickle_as_a_model_is_refused_with_the_way_out(tmp_path: Path, held: Any) -> None:
    torch.save(held, tmp_path / "m.pt")
    with pytest.raises(InputError, match="neither a TorchScript file nor") as raised:
        load(tmp_path, path="m.pt")
    assert raised.value.key == "source.path"
    assert "source.loader" in raised.value.fix


def test_a_program_with_a_pickle_that_runs_code_is_refused_and_does_not_run(tmp_path: Path) -> None:
    trap, buffer = tmp_path / "trap", io.BytesIO()
    program(tmp_path / "m.pt2")
    torch.save((Planted(trap), {}), buffer)
    with zipfile.ZipFile(tmp_path / "m.pt2") as before, zipfile.ZipFile(tmp_path / "bad.pt2", "w") as after:
        for name in before.namelist():
            after.writestr(name, buffer.getvalue() if "sample_inputs" in name else before.read(name))
    with pytest.raises(InputError) as raised:
        load(tmp_path, path="bad.pt2")
    assert raised.value.key == "source.path"
    assert not trap.exists()
    assert FORCE_WEIGHTS_ONLY not in os.environ
    assert isinstance(load(tmp_path, path="m.pt2").model, Program)


MAPPED = """
import torch
from torch import nn

def load():
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    return {given}
"""


def loaded_with(folder: Path, given: str) -> Torch:
    """The model with the weights of `weights.pt`: 1 to 8 of the matrix, a bias of 0."""
    linear = nn.Linear(4, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.arange(1.0, 9.0).reshape(2, 4))
        linear.bias.zero_()
    saved = nn.Sequential(linear, nn.BatchNorm1d(2))
    with graphs.user_code(folder) as place:
        (place / "net.py").write_text(MAPPED.format(given=given))
        torch.save(saved.state_dict(), place / "weights.pt")
        return load_source(SourceSettings(framework="torch", loader="net.py:load", state_dict="weights.pt"))


def mapped(model: Torch) -> bool:
    """Whether the first weight's bytes lie in a mapping of the file."""
    address = next(model.model.parameters()).data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(part, 16) for part in line.split()[0].split("-"))
        if low <= address < high:
            return line.endswith("weights.pt")
    raise AssertionError("the weight lies nowhere")


@pytest.mark.parametrize(
    ("given", "is_mapped"),
    [
        ("model", True),
        ("model.to('meta')", True),  # a module without memory of its own
        ("model.double().float()", True),
        ("model.to(torch.bfloat16)", False),  # the module's dtype stays
        ("torch.jit.script(model)", False),
    ],
)
def test_the_weights_are_the_files(tmp_path: Path, given: str, is_mapped: bool) -> None:
    model = loaded_with(tmp_path / "model", given)
    assert mapped(model) == is_mapped
    parameter = next(model.model.parameters())
    assert parameter.flatten().tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert parameter.dtype == (torch.bfloat16 if "bfloat16" in given else torch.float32)
    if "bfloat16" not in given:
        ((_, array),) = model.predict({"input" if "script" in given else "x": np.ones((1, 4), np.float32)})
        assert array.round(2).tolist() == [[10, 26]]
