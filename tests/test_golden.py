"""Golden digests: a step whose output changes must raise its version, or stores would serve what it no longer gives.

The inputs are small whole numbers, on which every kernel of every machine is exact. `python -m tests.test_golden
--update` writes the file anew.
"""

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from pydantic import BaseModel, TypeAdapter

from onnxmill.tasks import data, metric, opset, quantize, reference, simplify
from onnxmill.tasks.export import SourceSettings
from onnxmill.tasks.export import steps as export
from onnxmill.tasks.export.steps import DescribeSettings, ExportSettings
from onnxmill.tasks.graph import MODEL
from onnxmill.tasks.metric import ModelOutputsSettings, ScoreSettings, SourceOutputsSettings
from onnxmill.tasks.opset import GraphSettings, Pin, PinSettings
from onnxmill.tasks.pack_data import DataPaths
from onnxmill.tasks.proof import Proof
from onnxmill.tasks.quantize import calibrate, half, int8, prepare
from onnxmill.tasks.reference import ReferenceSettings
from onnxmill.tasks.spec import RecipeName, Variant, parse
from onnxmill.tasks.step import Step, installed_version
from tests import graphs

GOLDEN = Path(__file__).with_name("golden.json")
PINNED = 20
"""The opset that the exported model, of opset 18, is converted to."""

SPEC = """
version: 1
name: golden
source: {framework: torch, loader: user.py:load}
inputs: {x: {dtype: int64, shape: [batch, 4], range: [-8, 8]}}
outputs: [logits]
data: {calibration: "user.py:calibration", evaluation: "user.py:evaluation"}
metric: {fn: "user.py:correct"}
"""
USER = '''
import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    """Whole numbers in, whole numbers out."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)
        with torch.no_grad():
            for count, parameter in enumerate(self.parameters()):
                values = torch.arange(parameter.numel()) * 5 + count
                parameter.copy_((values % 9 - 4).reshape(parameter.shape).float())

    def forward(self, x):
        return self.second(torch.relu(self.first(x.float())))


def load():
    return Net()


def samples(start, count):
    for index in range(start, start + count):
        yield np.array([[index * factor % 16 - 8 for factor in (1, 3, 5, 7)]], dtype=np.int64)


def calibration():
    for x in samples(0, 16):
        yield {"x": x}


def evaluation():
    for index, x in enumerate(samples(100, 8)):
        yield {"x": x}, index % 3


def correct(outputs, label):
    return float(outputs["logits"].argmax() == label)
'''


class Entry(BaseModel):
    """What one step gave: the version that it says it has, its libraries, the digest of files and value."""

    version: int
    tools: dict[str, str]
    digest: str


def complaint(name: str, golden: Entry | None, now: Entry) -> str:
    """What is wrong with a step's entry and what to do about it; empty where nothing is."""
    update = "`python -m tests.test_golden --update`"
    if golden is None:
        return f"{name} has no golden digest: {update}"
    if golden.version != now.version:
        return f"{name} has version {now.version}, golden.json is of version {golden.version}: {update}"
    if golden.digest == now.digest:
        return ""
    libraries = [f"{t} {golden.tools.get(t)} -> {v}" for t, v in now.tools.items() if golden.tools.get(t) != v]
    if libraries:
        return (
            f"{name} gives another output, and a library changed ({', '.join(libraries)}), which is part of its key: "
            f"see that the difference is the library's, then {update}"
        )
    return f"{name} gives another output with the same VERSION {now.version}: raise VERSION of the step, then {update}"


def digest(out: Path, value: object) -> str:
    """Of all files of `out` and of what the step returned.

    Left out: the stamp of onnxmill's own version, so that a release changes nothing, with the size that holds it;
    and the parity of a proof, whose numbers depend on the kernels of the machine where a model is not exact.
    """
    if isinstance(value, Proof):
        value = value.model_dump(mode="json", exclude={"parity", "real", "size_bytes"})
    total = hashlib.sha256(TypeAdapter(object).dump_json(value))
    for file in sorted(out.rglob("*")):
        content = file.read_bytes()
        if file.name == MODEL:
            model = onnx.load_from_string(content)
            props = {p.key: p.value for p in model.metadata_props if p.key != "onnxmill.version"}
            onnx.helper.set_model_props(model, props)
            content = model.SerializeToString(deterministic=True)
        total.update(f"\n{file.relative_to(out)} {len(content)}\n".encode() + content)
    return total.hexdigest()


def compute(folder: Path) -> dict[str, Entry]:
    """Run every step once, each on what the one before it gave, as the flow does."""
    user = folder / "user"
    entries: dict[str, Entry] = {}

    def run(step: Step, call: Callable[[Path], object]) -> tuple[Path, object]:
        out = folder / step.name / "out"
        out.mkdir(parents=True)
        with graphs.user_code(user):
            value = call(out)
        tools = {tool: installed_version(tool) for tool in step.tools if tool != "cpu"}  # of this machine alone
        entries[step.name] = Entry(version=step.version, tools=tools, digest=digest(out, value))
        return out, value

    user.mkdir()
    (user / "user.py").write_text(USER)
    spec = parse(SPEC)
    contract, source = spec.contract, SourceSettings(framework="torch", loader=spec.source.loader)
    taking = data.calibration_settings(spec.data, contract, DataPaths())
    assert taking
    calibration, _ = run(data.CALIBRATION, lambda out: data.collect(taking, user, out))
    judging = data.evaluation_settings(spec.data, contract, DataPaths())
    assert judging
    evaluation, _ = run(data.EVALUATION, lambda out: data.collect(judging, user, out))

    asked = ReferenceSettings(source=source, contract=contract)
    cases, seen = run(reference.reference_step("torch"), lambda out: reference.compute(asked, user, out, evaluation))
    assert isinstance(seen, reference.Reference)
    contract = seen.contract
    exporting = ExportSettings(source=source, contract=contract, stamp=graphs.STAMP, opset=18)
    model, _ = run(export.export_step("torch"), lambda out: export.export(exporting, user, cases, out))
    pin = PinSettings(contract=contract, stamp=graphs.STAMP, pin=Pin(opset=PINNED))
    pinned, _ = run(opset.STEP, lambda out: opset.pin(pin, model, cases, out))
    graph = GraphSettings(contract=contract, stamp=graphs.STAMP, opset=PINNED)
    small, _ = run(simplify.STEP, lambda out: simplify.simplify(graph, pinned, cases, out))

    def recipe(name: RecipeName) -> quantize.RecipeSettings:
        return quantize.recipe_settings(Variant(recipe=name), contract, graphs.STAMP, PINNED)

    run(quantize.STEPS["fp16"], lambda out: half.convert(recipe("fp16"), small, cases, out))
    run(quantize.STEPS["int8-dynamic"], lambda out: int8.dynamic(recipe("int8-dynamic"), small, cases, out))
    prepared, _ = run(quantize.PREPARE, lambda out: prepare.prepare(graph, small, cases, out))
    passing = quantize.CalibrationSettings(exclude=())
    observed, _ = run(quantize.CALIBRATE, lambda out: calibrate.calibrate(passing, prepared, calibration, out))
    run(
        quantize.STEPS["int8-static"],
        lambda out: int8.static(recipe("int8-static"), prepared, cases, observed, out),
    )
    asking = SourceOutputsSettings(source=source, contract=contract)
    run(metric.source_outputs_step("torch"), lambda out: metric.source_outputs(asking, user, evaluation, out))
    outputs, _ = run(
        metric.MODEL_OUTPUTS,
        lambda out: metric.model_outputs(ModelOutputsSettings(contract=contract), small, evaluation, out),
    )
    run(metric.SCORE, lambda out: metric.score(ScoreSettings(fn="user.py:correct"), user, outputs, evaluation, out))
    (user / MODEL).write_bytes((small / MODEL).read_bytes())
    run(export.DESCRIBE, lambda out: export.describe(DescribeSettings(path=MODEL, pin=Pin(opset=PINNED)), user, out))
    return entries


def read() -> dict[str, Entry]:
    return TypeAdapter(dict[str, Entry]).validate_json(GOLDEN.read_bytes())


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Entry]:
    return compute(tmp_path_factory.mktemp("golden"))


@pytest.mark.integration
@pytest.mark.parametrize("name", list(read()))
def test_a_step_whose_output_changed_has_another_version(name: str, entries: dict[str, Entry]) -> None:
    assert complaint(name, read()[name], entries[name]) == ""


@pytest.mark.integration
def test_every_step_is_here_and_gives_the_same_elsewhere(entries: dict[str, Entry], tmp_path: Path) -> None:
    assert sorted(entries) == sorted(read())
    assert compute(tmp_path) == entries


BEFORE = Entry(version=1, tools={"onnx": "1.20"}, digest="a")


@pytest.mark.parametrize(
    ("golden", "change", "says"),
    [
        (BEFORE, {}, ""),
        (BEFORE, {"tools": {"onnx": "1.21"}}, ""),
        (BEFORE, {"digest": "b"}, "with the same VERSION 1: raise VERSION of the step, then `python -m"),
        (BEFORE, {"digest": "b", "tools": {"onnx": "1.21"}}, "a library changed (onnx 1.20 -> 1.21)"),
        (BEFORE, {"digest": "b", "version": 2}, "has version 2, golden.json is of version 1: `python -m"),
        (None, {}, "has no golden digest"),
    ],
)
def test_complaints(golden: Entry | None, change: dict[str, object], says: str) -> None:
    text = complaint("simplify", golden, BEFORE.model_copy(update=change))
    assert says in text
    assert bool(text) is bool(says)


def test_the_digest_sees_files_and_value_but_not_our_own_version(tmp_path: Path) -> None:
    model = graphs.parse(graphs.GEMM)

    def of(props: dict[str, str], value: object, other: str = "") -> str:
        onnx.helper.set_model_props(model, props)
        (tmp_path / MODEL).write_bytes(model.SerializeToString())
        (tmp_path / "other.json").write_text(other)
        return digest(tmp_path, value)

    base = of({"onnxmill.name": "a", "onnxmill.version": "1"}, {"n": 1})
    assert base == of({"onnxmill.name": "a", "onnxmill.version": "2.0"}, {"n": 1})
    assert base != of({"onnxmill.name": "b", "onnxmill.version": "1"}, {"n": 1})
    assert base != of({"onnxmill.name": "a"}, {"n": 2})
    assert base != of({"onnxmill.name": "a"}, {"n": 1}, "more")


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit("usage: python -m tests.test_golden --update")
    with tempfile.TemporaryDirectory() as made:
        found = compute(Path(made))
    text = json.dumps({name: entry.model_dump() for name, entry in sorted(found.items())}, indent=2)
    GOLDEN.write_text(text + "\n", encoding="utf-8")
