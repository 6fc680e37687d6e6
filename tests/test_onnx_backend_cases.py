"""The opset pin on onnx's own backend tests: single-operator cases and the nine `light_*` graphs, to 17 and to 21.

A *start* is a case at an opset: the one that it has, and every older one, from 7 on, at which a definition of its
operator begins (cases that are expanded functions keep theirs); with its data as inputs, and once more with all but the
first input as constants, as weights are.
It counts where the checker accepts it and ONNX Runtime without optimisation, the oracle of ONNX sources, gives the
values that the case expects. All others are no sources of onnxmill, and are counted by the reason.

Each start goes through `opset.pin` with the case's expected outputs as the reference, and is then

- proven: nothing refuses, and a session without optimisation on the published file gives the expected values (1e-4 of
  their range; integers, booleans and shapes exactly), compared here and not by the code under test,
- refused, with the reason,
- wrong: nothing refuses and the values differ. There must be none.

"Both ends": the opset that is pinned still has every operator of the start; whether a converter or a kernel is there
does not matter. `python -m tests.test_onnx_backend_cases --update` writes the counts to docs/opsets.md; a page with
other counts fails the test.
"""

import re
import sys
import tempfile
import warnings
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, checker, numpy_helper
from onnx.backend.test.loader import load_node_model_tests
from pydantic import ValidationError

from onnxmill.calibration.samples import Array
from onnxmill.tasks import cases, graph, opset, proof
from onnxmill.tasks.cases import Case
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.export import onnx as onnx_source
from onnxmill.tasks.findings import CODES
from onnxmill.tasks.graph import MODEL
from onnxmill.tasks.opset import Pin, PinSettings
from onnxmill.tasks.spec import Contract, Tensor
from tests import graphs

PAGE = Path(__file__).parents[1] / "docs/opsets.md"
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
TARGETS = (17, 21)
OLDEST = 7
RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
"""Operators whose cases expect no particular values."""
FILLED_ELEMENTS = 30_000_000
"""`light_*` graphs with fewer weights are also run with random ones: as they are, all weights are alike, and so are all
outputs, which proves little."""


@dataclass(frozen=True)
class Start:
    name: str
    model: onnx.ModelProto
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]

    @property
    def opset(self) -> int:
        return graph.opset_of(self.model)


class NoSource(Exception):
    """A start that onnxmill does not take, and why."""


# --- starts ----------------------------------------------------------------------------------------------------------


def operators(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in graph.nodes_of(model.graph) if node.domain in graph.ONNX_DOMAINS}


def beginnings() -> dict[str, set[int]]:
    """Operator -> the opsets at which a definition of it begins."""
    found = defaultdict(set)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            found[schema.name].add(schema.since_version)
    return found


def at_opset(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """The model with another number: for an older definition of its operator this is another model, or none."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for entry in copy.opset_import:
        if entry.domain in graph.ONNX_DOMAINS:
            entry.version = version
    copy.ir_version = graph.lowest_ir(copy)
    return copy


def with_constants(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> onnx.ModelProto:
    """The model with all but its first input as constants."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    rest = [value.name for value in model.graph.input[1:]]
    del copy.graph.input[1:]
    copy.graph.initializer.extend(numpy_helper.from_array(inputs[name], name) for name in rest)
    return copy


def as_array(value: Any) -> Array:
    array = numpy_helper.to_array(value) if isinstance(value, TensorProto) else value
    if not isinstance(array, np.ndarray | np.generic):
        raise NoSource("not a tensor")
    return np.asarray(array)


def node_starts() -> Iterator[Start | str]:
    """Every start of every single-operator case; or why there is none."""
    since = beginnings()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cases of casts overflow on purpose
        found = load_node_model_tests()
    for case in found:
        model = case.model
        assert model is not None
        assert case.data_sets
        if operators(model) & RANDOM:
            yield "random by definition"
            continue
        try:
            given, expected = ([as_array(value) for value in side] for side in case.data_sets[0])
        except NoSource as error:
            yield str(error)
            continue
        inputs = {value.name: array for value, array in zip(model.graph.input, given, strict=True)}
        outputs = {value.name: array for value, array in zip(model.graph.output, expected, strict=True)}
        own = graph.opset_of(model)
        single = len(model.graph.node) == 1  # the others are bodies of functions, written for their own opset
        older = {v for op in operators(model) for v in since[op] if single and OLDEST <= v < own}
        for version in sorted({own, *older} - {0}):
            start = Start(case.name, at_opset(model, version), inputs, outputs)
            yield start
            if len(inputs) > 1:
                first = {name: inputs[name] for name in list(inputs)[:1]}
                yield Start(case.name, with_constants(start.model, inputs), first, outputs)


def light_starts() -> Iterator[Start]:
    for path in sorted(LIGHT.glob("*.onnx")):
        model = onnx.load(str(path))
        weights = {tensor.name for tensor in model.graph.initializer}
        (image,) = (value for value in model.graph.input if value.name not in weights)
        shape = tuple(dim.dim_value for dim in image.type.tensor_type.shape.dim)
        expected = as_array(onnx.load_tensor(str(path).replace(".onnx", "_output_0.pb")))
        name = model.graph.output[0].name
        yield Start(path.stem, model, {image.name: np.ones(shape, np.float32)}, {name: expected})
        if filled(model):
            pixels = {image.name: graphs.normal(shape, seed=1)}
            values = session(model.SerializeToString()).run([name], pixels)[0]
            yield Start(f"{path.stem} with random weights", model, pixels, {name: values})


def filled(model: onnx.ModelProto) -> bool:
    """Give the graph random weights where a `ConstantOfShape` made them; false where they are too many."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    made = [node for node in model.graph.node if node.op_type == "ConstantOfShape"]
    shapes = {node.output[0]: tuple(map(int, constants[node.input[0]])) for node in made}
    if sum(int(np.prod(shape)) for shape in shapes.values()) > FILLED_ELEMENTS:
        return False
    for node in made:
        model.graph.node.remove(node)
    for seed, (name, shape) in enumerate(shapes.items()):
        values = graphs.normal(shape, seed)  # of one axis: scales and variances too, which are positive
        scaled = values * np.sqrt(2 / np.prod(shape[1:])) if len(shape) > 1 else 0.5 + np.abs(values)
        tensor = numpy_helper.from_array(scaled.astype(np.float32), name)
        model.graph.initializer.append(tensor)
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))  # as IR 3 asks
    return True


# --- what becomes of them --------------------------------------------------------------------------------------------


def session(model: bytes | str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def equal(got: Array, expected: Array) -> bool:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    if got.dtype.kind != "f":
        return np.array_equal(got, expected)
    ours, theirs = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(theirs)
    if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True):
        return False
    ours, theirs = ours[finite], theirs[finite]
    if theirs.size == 0:
        return True
    scale = np.ptp(theirs) or np.abs(theirs).max() or 1.0
    return bool(np.abs(ours - theirs).max() <= 1e-4 * scale)


def prepare(start: Start, folder: Path) -> Contract:
    """Write the start as a source with its reference; raises `NoSource` where onnxmill would not take it."""
    path = folder / MODEL
    path.write_bytes(start.model.SerializeToString())
    try:
        checker.check_model(str(path), full_check=True)
    except Exception as error:
        raise NoSource("the checker rejects it") from error
    try:
        inputs = onnx_source.describe(path)
        outputs = {name: Tensor(dtype=str(a.dtype), shape=a.shape) for name, a in start.outputs.items()}
    except (InputError, ValidationError) as error:
        raise NoSource("a type or an empty tensor that no spec describes") from error
    try:
        with graphs.user_code(folder):
            given = dict(onnx_source.load(graphs.SOURCE).predict(start.inputs))
    except Exception as error:
        raise NoSource("ONNX Runtime does not run it") from error
    if not all(equal(given[name], array) for name, array in start.outputs.items()):
        raise NoSource("ONNX Runtime gives other values")
    with zipfile.ZipFile(folder / cases.FILE, "w") as archive:
        cases.append(archive, 0, Case("random", dict(start.inputs), dict(start.outputs)))
    dims = {dim: (1, 3) for tensor in inputs.values() for dim in tensor.shape if isinstance(dim, str)}
    return Contract(
        input_names=tuple(inputs),
        inputs=inputs,
        output_names=tuple(outputs),
        outputs=outputs,
        dims=dims,
        nondeterministic=False,
    )


def outcome(start: Start, contract: Contract, folder: Path, target: int) -> str:
    out = folder / str(target) / "out"
    out.mkdir(parents=True, exist_ok=True)
    settings = PinSettings(contract=contract, stamp=graphs.STAMP, pin=Pin(opset=target))
    result = opset.pin(settings, folder, folder, out)
    faults = proof.faults(result)
    if faults:
        first = faults[0]
        if first.code != "OPS001":
            return f"refused: {first.code}, {CODES[first.code].title}"
        if "cannot pin" not in first.message:
            return "refused: what the way gives is not right"
        assert any(op in first.message for op in operators(start.model)), first
        return "refused: no way there"
    assert result.opset == target
    given = session(str(out / MODEL)).run(list(start.outputs), dict(start.inputs))
    same = all(equal(g, e) for g, e in zip(given, start.outputs.values(), strict=True))
    return "proven" if same else "wrong"


@dataclass(frozen=True)
class Counts:
    """`outcomes`: (target, "up" or "down", outcome) -> starts; `both`: (target, whether proven), of those upward whose
    operators exist at both ends; `none`: why -> starts that are no sources; `names`: the starts of each outcome."""

    outcomes: Counter[tuple[int, str, str]]
    both: Counter[tuple[int, bool]]
    none: Counter[str]
    names: dict[str, list[str]]

    def share(self, target: int) -> float:
        return self.both[target, True] / (self.both[target, True] + self.both[target, False])


def count(starts: Iterator[Start | str]) -> Counts:
    counts = Counts(Counter(), Counter(), Counter(), defaultdict(list))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for start in starts:
            if isinstance(start, str):
                counts.none[start] += 1
                continue
            try:
                contract = prepare(start, folder)
            except NoSource as error:
                counts.none[str(error)] += 1
                continue
            for target in TARGETS:
                if start.opset == target:
                    continue
                direction = "up" if start.opset < target else "down"
                found = outcome(start, contract, folder, target)
                counts.outcomes[target, direction, found] += 1
                counts.names[found].append(f"{start.name} {start.opset} -> {target}")
                if direction == "up" and all(exists(op, target) for op in operators(start.model)):
                    counts.both[target, found == "proven"] += 1
    return counts


def exists(operator: str, version: int) -> bool:
    try:
        return not onnx.defs.get_schema(operator, version, "").deprecated
    except onnx.defs.SchemaError:
        return False


# --- the page --------------------------------------------------------------------------------------------------------


def page(nodes: Counts, light: Counts) -> str:
    columns = [(target, direction) for target in TARGETS for direction in ("up", "down")]
    kinds = sorted({o for *_, o in nodes.outcomes} | {"proven", "wrong"})
    rows = [[kind, *(str(nodes.outcomes[t, d, kind]) for t, d in columns)] for kind in kinds]
    lines = [
        "<!-- made by `python -m tests.test_onnx_backend_cases --update`: change the code, not this page -->",
        "",
        "# Opset pins, proven",
        "",
        f"Counted on the backend tests of onnx {onnx.__version__} with ONNX Runtime {onnxruntime.__version__}.",
        "",
        "## Single operators",
        "",
        "A start is a case at its own opset or an older one of its operator, its data as inputs or as constants.",
        "",
        "| starts | to 17, up | to 17, down | to 21, up | to 21, down |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        "Upward, of the starts whose operators exist at both ends: "
        + ", ".join(f"{100 * nodes.share(t):.1f} % proven to {t}" for t in TARGETS)
        + ".",
        "",
        "| no source | starts |",
        "|---|---|",
        *(f"| {why} | {number} |" for why, number in sorted(nodes.none.items())),
        "",
        "## Graphs",
        "",
        "The nine `light_*` graphs from opset 9, as they are, and those of few weights with random ones too.",
        "",
        "| starts | to 17 | to 21 |",
        "|---|---|---|",
        *(
            f"| {kind} | {light.outcomes[17, 'up', kind]} | {light.outcomes[21, 'up', kind]} |"
            for kind in sorted({o for *_, o in light.outcomes} | {"proven", "wrong"})
        ),
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.full
def test_no_pin_is_wrong_and_the_proven_ones_are_counted() -> None:
    nodes, light = count(node_starts()), count(light_starts())
    for counts in (nodes, light):
        assert counts.names["wrong"] == []
    assert not light.none
    assert {o for *_, o in light.outcomes} == {"proven"}
    assert all(nodes.share(target) >= 0.95 for target in TARGETS)
    now, published = page(nodes, light), PAGE.read_text(encoding="utf-8")
    assert len(proven(published)) == 6  # four of single operators, two of graphs: a page without them proves nothing
    assert all(have >= said for have, said in zip(proven(now), proven(published), strict=True)), now


def proven(text: str) -> list[int]:
    """The counts of the rows "proven" of a page."""
    rows = [line for line in text.splitlines() if line.startswith("| proven |")]
    return [int(cell) for row in rows for cell in re.findall(r"\d+", row)]


def test_values_are_compared_strictly() -> None:
    one, two = np.array([1.0, 2.0], np.float32), np.array([1.0, 2.001], np.float32)
    assert equal(one, one)
    assert not equal(one, two)
    assert not equal(np.array([1, 10_000_000]), np.array([1, 10_000_001]))
    assert not equal(one, one.astype(np.float64))
    assert not equal(one, one[None])
    assert not equal(np.array([1.0, np.nan]), one.astype(np.float64))
    assert equal(np.array([1.0, np.nan]), np.array([1.0, np.nan]))


if __name__ == "__main__" and sys.argv[1:] == ["--update"]:
    PAGE.write_text(page(count(node_starts()), count(light_starts())), encoding="utf-8")
