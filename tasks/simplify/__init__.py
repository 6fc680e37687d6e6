"""Simplify a graph: a list of passes, each kept only where it does no harm. See `PORTFOLIO` for what is done, in order.

A pass is kept where values and contract hold, the interface stays (inputs with a default included), no quantized pair
is lost, and neither nodes nor bytes grow. Bytes may grow for two passes whose purpose is another: `half_weights` and
`batch_norms` say why. What is counted is the graph without what is unused and with a name for each node.
"""

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import onnx
from google.protobuf.message import Message

from onnxmill.tasks import graph, proof
from onnxmill.tasks.findings import finding
from onnxmill.tasks.graph import MODEL, nodes_of
from onnxmill.tasks.isolate import report_progress
from onnxmill.tasks.opset import GraphSettings
from onnxmill.tasks.proof import Proof
from onnxmill.tasks.simplify import batch_norm, passes, tidy
from onnxmill.tasks.step import Step

Proto = TypeVar("Proto", bound=Message)

STEP = Step(
    "simplify",
    2,
    "onnxmill.tasks.simplify:simplify",
    tools=("onnxsim", "onnxslim", "onnx", "onnxruntime", "numpy", "cpu"),
)
SMALL_BYTES = 1024
"""The largest constant that a tool may compute in its second try, when the first made the model grow."""


def onnxsim(model: onnx.ModelProto) -> str:
    """onnxsim's own list of rewrites, and every constant that can be computed."""
    import onnxsim as tool  # here, in the child: it imports torch where it finds it

    return _with("onnxsim", model, lambda given: tool.simplify(given)[0])


def onnxsim_small(model: onnx.ModelProto) -> str:
    """As `onnxsim`, without constants above `SMALL_BYTES`."""
    import onnxsim as tool  # as above

    limit = f"{SMALL_BYTES}B"
    return _with("onnxsim", model, lambda given: tool.simplify(given, tensor_size_threshold=limit)[0])


def onnxslim(model: onnx.ModelProto) -> str:
    """onnxslim's rewrites, without constants above `SMALL_BYTES`."""
    import onnxslim as tool  # here, in the child: it is slow to import

    return _with("onnxslim", model, lambda given: tool.slim(given, size_threshold=SMALL_BYTES))


def _with(name: str, model: onnx.ModelProto, tool: Callable[[onnx.ModelProto], onnx.ModelProto]) -> str:
    """Put a tool's result in the place of `model`, without its notes on itself. "" where it has as many nodes.

    An input with a default is shown to the tool as a plain input: tools drop it or compute with the default.
    """
    before, inputs = len(nodes_of(model.graph)), {value.name for value in model.graph.input}
    defaults = [_copy(tensor) for tensor in model.graph.initializer if tensor.name in inputs]
    for index in reversed(range(len(model.graph.initializer))):
        if model.graph.initializer[index].name in inputs:
            del model.graph.initializer[index]
    result = tool(model)
    after = len(nodes_of(result.graph))
    if before == after:
        return ""
    result.graph.initializer.extend(defaults)
    notes = [index for index, entry in enumerate(result.metadata_props) if entry.key.startswith(name)]
    for index in reversed(notes):
        del result.metadata_props[index]
    model.CopyFrom(result)
    return f"{name}: {before} → {after} nodes"


@dataclass(frozen=True)
class Pass:
    """`run` edits the model that it is given and returns what it did, "" for nothing."""

    name: str
    run: Callable[[onnx.ModelProto], str]
    bytes_may_grow: bool = False
    weights_in_memory: bool = False


PORTFOLIO: tuple[tuple[Pass, ...], ...] = (
    (Pass("Constant nodes", passes.constant_nodes),),
    (Pass("half-precision weights", passes.half_weights, bytes_may_grow=True),),  # else onnxsim is refused for them
    (
        Pass("onnxsim", onnxsim, weights_in_memory=True),
        Pass("onnxsim, small constants", onnxsim_small, weights_in_memory=True),
        Pass("onnxslim", onnxslim, weights_in_memory=True),
    ),
    (Pass("small constants", passes.small_constants),),
    (Pass("BatchNormalization", batch_norm.batch_norms, bytes_may_grow=True),),
    (Pass("Sum", passes.sums),),
)
"""What is done, in order. Of each line the first that is kept is taken."""


@dataclass
class Result:
    """The model so far, what was done to it, and what was not and why."""

    model: onnx.ModelProto
    done: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def simplify(settings: GraphSettings, model: Path, reference: Path, out: Path) -> Proof:
    """The model after all passes that are kept. Finding SIM001 says what was tried and not kept, and why.

    All are proven together; only where that proof fails, one by one.
    """
    original = graph.load(model / MODEL)
    removed = tidy.tidy(original, [value.name for value in original.graph.value_info])
    raw, trial = out.parent / "simplified.onnx", out.parent / "trial"

    def prove(candidate: onnx.ModelProto) -> Proof:
        shutil.rmtree(trial, ignore_errors=True)
        trial.mkdir()
        graph.save(candidate, raw, beside=model)
        return proof.publish(raw, trial, settings.contract, settings.stamp, reference, opset=settings.opset)

    def unproven(candidate: onnx.ModelProto) -> str:
        return "; ".join(map(str, proof.faults(prove(candidate))))

    result = _apply(original, lambda candidate: "")
    proved = prove(result.model)
    if result.done and (faults := proof.faults(proved)):
        if proof.faults(prove(original)):  # nothing that is done here would mend it
            result = Result(original, refused=[*result.refused, "; ".join(map(str, faults))])
        else:
            result = _apply(original, unproven)
        proved = prove(result.model)
    proof.adopt(trial, out)
    note = "; ".join(filter(None, [removed, *result.done])) or "kept as it was"
    why = (finding("SIM001", "simplify", "; ".join(result.refused)),) if result.refused else ()
    return proved.model_copy(update={"note": note, "findings": (*proved.findings, *why)})


def _apply(original: onnx.ModelProto, objection: Callable[[onnx.ModelProto], str]) -> Result:
    """Every line of the portfolio on a copy; `objection` says why a candidate that does not grow is not kept."""
    result = Result(original)
    for position, alternatives in enumerate(PORTFOLIO):
        for step in alternatives:
            if step.weights_in_memory and graph.is_large(original):
                continue
            report_progress(step.name, position, len(PORTFOLIO))
            candidate = _copy(result.model)
            try:
                did = step.run(candidate)
            except (OSError, MemoryError):
                raise  # these say nothing of the model
            except Exception as error:  # noqa: BLE001  tools raise whatever their C++ throws; no pass is needed
                result.refused.append(f"{step.name} failed: {' '.join(str(error).split())}")
                continue
            if not did:
                break
            tidy.tidy(candidate, [value.name for value in original.graph.value_info])
            why = _harm(result.model, candidate, bytes_may_grow=step.bytes_may_grow) or objection(candidate)
            if not why:
                result.model = candidate
                result.done.append(did)
                break
            result.refused.append(f"{step.name}: {why}")
    return result


def _harm(before: onnx.ModelProto, after: onnx.ModelProto, *, bytes_may_grow: bool) -> str:
    """What a pass did that no values show; empty where nothing."""
    lost = sorted(_interface(before) - _interface(after))
    if lost:
        return f"lost or changed {', '.join(lost)}"
    if _quantization(before) != _quantization(after):
        return "changed nodes that quantize"
    if (now := len(nodes_of(after.graph))) > (then := len(nodes_of(before.graph))):
        return f"{now} nodes, {then} before"
    if not bytes_may_grow and (now := after.ByteSize()) > (then := before.ByteSize()):
        return f"{now} bytes, {then} before"
    return ""


def _interface(model: onnx.ModelProto) -> set[str]:
    """Inputs, those with a default as such, and outputs."""
    defaults = {tensor.name for tensor in model.graph.initializer}
    inputs = {f"input {i.name}" + (" with its default" if i.name in defaults else "") for i in model.graph.input}
    return inputs | {f"output {output.name}" for output in model.graph.output}


def _quantization(model: onnx.ModelProto) -> Counter[str]:
    """The number of nodes of each operator that quantizes, dequantizes or computes on integers."""
    operators = (node.op_type for node in nodes_of(model.graph))
    return Counter(op for op in operators if "quantize" in op.lower() or "QLinear" in op or op.endswith("Integer"))


def _copy(message: Proto) -> Proto:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
