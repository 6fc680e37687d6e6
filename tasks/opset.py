"""Pin a model to an opset and to the lowest IR version that it allows. What a conversion gives is proven by values.

The way is walked one opset at a time. Where every operator of the graph means the same on both sides of a step, the
number is changed and nothing else; every other step is onnx's version converter's, which goes up reliably and down
rarely, and whose word is not trusted: the checker sees each of its steps. It never sees large weights.
"""

import re
from pathlib import Path

import onnx
import onnx.inliner
from onnx import NodeProto, TensorProto, checker, shape_inference, version_converter
from pydantic import BaseModel, ConfigDict

from onnxmill.tasks import graph, proof
from onnxmill.tasks.definitions import NEWER_CHOICES, moved, says_the_default, schema_of, since, standard_nodes
from onnxmill.tasks.findings import Finding, finding, refused
from onnxmill.tasks.graph import MODEL, ONNX_DOMAINS, STANDARD_DOMAINS, nodes_of, opset_of
from onnxmill.tasks.proof import Proof, Stamp
from onnxmill.tasks.spec import OPSET_MAX, OPSET_MIN, Contract
from onnxmill.tasks.step import Step

STEP = Step("opset", 2, "onnxmill.tasks.opset:pin", tools=("onnx", "onnxruntime", "numpy", "cpu"))
SMALL = 1024
"""Constants of at most so many elements are shown to the converter: axes, shapes, scales that it turns into others."""
UNSEEN = "onnxmill.unseen"
"""The domain of nodes while the converter, which leaves unknown domains alone, must not see them."""
CONVERTER_ERRORS = (
    RuntimeError,  # the converter's C++ has no class of its own
    ValueError,
    IndexError,
    checker.ValidationError,
    shape_inference.InferenceError,
)


class Pin(BaseModel):
    """Which opset is wanted: `opset`, or null for the lowest that suffices. `floor` is the lowest that the recipes
    allow; `ceiling` and `ceiling_ir` are the highest opset and IR that the oldest runtime reads (null: any)."""

    model_config = ConfigDict(frozen=True)

    opset: int | None
    floor: int = OPSET_MIN
    ceiling: int | None = None
    ceiling_ir: int | None = None


class PinSettings(BaseModel):
    model_config = ConfigDict(frozen=True)

    contract: Contract
    stamp: Stamp
    pin: Pin


class GraphSettings(BaseModel):
    """Settings of a step from model to model, at the pinned opset."""

    model_config = ConfigDict(frozen=True)

    contract: Contract
    stamp: Stamp
    opset: int


class Unreachable(Exception):
    """No way leads to an opset. `operator` is what has none; `nearest` is the closest opset that can be reached."""

    def __init__(self, current: int, wanted: int, operator: str, reason: str, nearest: int) -> None:
        self.wanted, self.operator, self.nearest = wanted, operator, nearest
        direction, workable = ("down", "lowest") if wanted < current else ("up", "highest")
        missing = re.match(r"No (Adapter|Previous Version)", reason) or not reason
        what = f"{operator} has no {direction}-converter" if missing else f"{operator}: {reason.rstrip('.')}"
        super().__init__(f"cannot pin to {wanted} from {current}: {what}; the {workable} workable is {nearest}")


# --- the step --------------------------------------------------------------------------------------------------------


def pin(settings: PinSettings, model: Path, reference: Path, out: Path) -> Proof:
    """The model at the wanted opset. Finding OPS001 where no way leads there: the model then goes on as it is. The
    same finding where a way does, and what it gives is another model.

    Functions of the model are inlined: the converter drops them, and no later step looks into them.
    """
    proto = inlined(graph.load(model / MODEL))
    wanted, why = chosen(proto, settings.pin)
    current, raw = opset_of(proto), out.parent / "pinned.onnx"
    note = f"opset {wanted}" + (f", {why}" if why else "") + (f"; exported at {current}" if current != wanted else "")
    where = f"opset {wanted}"
    findings: tuple[Finding, ...] = ()
    try:
        pinned = at(proto, wanted)
    except Unreachable as error:
        findings = (finding("OPS001", where, str(error), fix=f"pin opset {error.nearest}"),)
    else:
        findings = _too_new(pinned, wanted, settings.pin)
    graph.save(proto if findings else pinned, raw, beside=model)
    opset = None if findings else wanted
    contract, stamp = settings.contract, settings.stamp
    result = proof.publish(raw, out, contract, stamp, reference, opset=opset, note=note, findings=findings)
    faults = proof.faults(result)
    compared = all(fault.code != "GATE007" for fault in faults)  # a reference of no finite value is not the way's fault
    if findings or current == wanted or not faults or not compared:
        return result
    operators = ", ".join(sorted(moved(nodes_of(proto.graph), current, wanted)))
    first = next(str(fault) for fault in faults if refused([fault]))
    detail = f"what {operators or 'the graph'} became on the way from {current} is not right: {first}"
    wrong = finding("OPS001", where, detail, fix=f"pin opset {current}")
    return result.model_copy(update={"findings": (wrong, *result.findings)})


def _too_new(model: onnx.ModelProto, opset: int, pin: Pin) -> tuple[Finding, ...]:
    """What the oldest runtime would not read."""
    limits = (("opset", opset, pin.ceiling), ("IR", graph.lowest_ir(model), pin.ceiling_ir))
    return tuple(
        finding("OPS001", f"opset {opset}", f"{what} {has} is above the {limit} that max_runtime reads",
                measured=has, limit=limit, fix="pin a lower opset, or allow a newer max_runtime")
        for what, has, limit in limits
        if limit and has > limit
    )  # fmt: skip


def inlined(proto: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.inliner.inline_local_functions(proto) if proto.functions else proto


def chosen(proto: onnx.ModelProto, wanted: Pin) -> tuple[int, str]:
    """The opset to pin, and why, where it is not the user's: the lowest at which no operator is another one."""
    if wanted.opset is not None:
        return wanted.opset, ""
    lowest, operator = needs(proto)
    ceiling = wanted.ceiling or max(OPSET_MAX, wanted.floor)
    if max(lowest, wanted.floor) > ceiling:
        return ceiling, "the highest that the runtime reads" if wanted.ceiling else "the highest that is offered"
    if lowest > wanted.floor:
        return lowest, f"the lowest at which {operator} is what it is"
    return wanted.floor, "the lowest that the recipes allow"


def needs(proto: onnx.ModelProto) -> tuple[int, str]:
    """The lowest opset at which every operator has the definition that it has in the model; the one that decides."""
    current = opset_of(proto)
    dates = {node.op_type: since(node.op_type, current) for node in standard_nodes(nodes_of(proto.graph))}
    return max(((version, op) for op, version in dates.items()), default=(1, ""))


# --- the way ---------------------------------------------------------------------------------------------------------


def at(proto: onnx.ModelProto, wanted: int) -> onnx.ModelProto:
    """The model at opset `wanted`, as a new one. Raises `Unreachable`."""
    current = opset_of(proto)
    weights = [tensor for tensor in proto.graph.initializer if _is_hidden(tensor)]
    names = {tensor.name for tensor in weights}
    model = _without(proto, names)
    graph.one_entry_a_domain(model)
    taken = {value.name for value in proto.graph.input}
    shown = [t for t in weights if t.name not in taken]
    model.graph.input.extend(onnx.helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in shown)
    direction = 1 if wanted > current else -1
    for opset in range(current, wanted, direction):
        following = opset + direction
        changed = moved(nodes_of(model.graph), opset, following)
        try:
            if changed:
                model = _converted(model, opset, following)
            else:
                _drop_defaults(_relabelled(model, following), opset, following)
        except CONVERTER_ERRORS as error:
            reason = " ".join(str(error).rpartition("failed: ")[2].split())  # without the place in C++ sources
            named = [op for op in sorted(changed) if re.search(rf"\b{op}\b", reason)]
            raise Unreachable(current, wanted, ", ".join(named or sorted(changed)), reason, opset) from error
    kept = [value for value in model.graph.input if value.name in taken]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(weights)
    return model


def _converted(model: onnx.ModelProto, before: int, after: int) -> onnx.ModelProto:
    """One step of onnx's converter, as far as the checker accepts it. Raises one of `CONVERTER_ERRORS`."""
    if model.graph.sparse_initializer:
        raise ValueError("the converter loses sparse weights")
    try:
        result = version_converter.convert_version(model, after)
    except CONVERTER_ERRORS:
        unmoved = _unmoved(model, before, after)
        if not unmoved:
            raise
        for node in unmoved:
            node.domain = UNSEEN
        model.opset_import.append(onnx.helper.make_opsetid(UNSEEN, 1))
        result = _relabelled(version_converter.convert_version(model, after), after)
    known = {value.name for value in model.graph.value_info}
    kept = [value for value in result.graph.value_info if value.name in known]  # shapes of its own can be wrong
    del result.graph.value_info[:]
    result.graph.value_info.extend(kept)
    _drop_defaults(result, before, after)  # so that the checker sees what is wrong
    standard = all(entry.domain in STANDARD_DOMAINS for entry in result.opset_import)
    checker.check_model(result, full_check=standard)  # shape inference knows no custom operator
    return result


def _drop_defaults(model: onnx.ModelProto, before: int, after: int) -> None:
    """Drop the attributes that are no more and say what is so without them. Edits `model`.

    Raises `ValueError` for one that says something else: the converter leaves them.
    """
    for node in standard_nodes(nodes_of(model.graph)):
        schema = schema_of(node.op_type, after)
        for attribute in list(node.attribute):
            name = attribute.name
            if NEWER_CHOICES.get((node.op_type, attribute.s), after) > after:
                raise ValueError(f"{node.op_type} has no {name} '{attribute.s.decode()}' at opset {after}")
            if schema is None or name in schema.attributes:
                continue
            if not says_the_default(node, attribute, before):
                raise ValueError(f"{node.op_type} has no '{name}' at opset {after}")
            node.attribute.remove(attribute)


def _unmoved(model: onnx.ModelProto, before: int, after: int) -> list[NodeProto]:
    """Nodes that another number suffices for, though their operators are defined anew: the converter may know no way
    for them."""
    nodes = standard_nodes(nodes_of(model.graph))
    changed = moved(nodes, before, after)
    anew = [node for node in nodes if since(node.op_type, before) != since(node.op_type, after)]
    return [node for node in anew if node.op_type not in changed and len(graph.with_bodies(node)) == 1]


def _relabelled(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The same model with another number. Edits `model`."""
    rest = [entry for entry in model.opset_import if entry.domain not in (*ONNX_DOMAINS, UNSEEN)]
    del model.opset_import[:]
    model.opset_import.extend([onnx.helper.make_opsetid("", opset), *rest])
    for node in nodes_of(model.graph):
        node.domain = "" if node.domain == UNSEEN else node.domain
    return model


def _is_hidden(tensor: TensorProto) -> bool:
    """Whether the converter does not see a tensor: it is large, or its values are in a file."""
    elements = 1
    for size in tensor.dims:
        elements *= size
    return elements > SMALL or tensor.data_location == TensorProto.EXTERNAL


def _without(proto: onnx.ModelProto, names: set[str]) -> onnx.ModelProto:
    """A copy without the initializers of these names: their bytes are never copied."""
    light = onnx.ModelProto()
    for message, copy in ((proto, light), (proto.graph, light.graph)):
        for field, value in message.ListFields():
            if field.name in ("graph", "initializer"):
                continue
            if field.is_repeated:
                getattr(copy, field.name).extend(value)
            else:
                setattr(copy, field.name, value)
    light.graph.initializer.extend(t for t in proto.graph.initializer if t.name not in names)
    return light
