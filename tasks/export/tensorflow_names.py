"""One spelling of a graph that tf2onnx wrote. Its names and its order differ from process to process (they come from
counters, addresses and the order of sets; of two equal nodes either may stay), and equal models must give equal bytes.
"""

import re
from collections.abc import Mapping, Sequence

import onnx

from onnxmill.tasks import graph

COUNTER = re.compile(r"__\d+|\d{9,}")
"""What tf2onnx adds to names: a counter of the process, or an address."""


def respell(model: onnx.ModelProto, inputs: Mapping[str, str], outputs: Sequence[str]) -> None:
    """Order nodes and weights by their use, from the outputs back, and name everything in that order. Edits `model`.

    `inputs` maps the inputs to their new names, `outputs` are the new names of the outputs. Nodes with weights keep the
    source's names, by which people know them; others are called by their operator, tensors by the nodes that make them
    or use them first.
    """
    bodies = graph.graphs_of(model)
    for body in reversed(bodies):  # inner ones first: what they use decides the order of the outer ones
        _settle_aliases(body)
        _sort(body)
    _name_nodes(bodies)
    tensors = {**inputs, **dict(zip((value.name for value in model.graph.output), outputs, strict=True))}
    taken = set(tensors.values())

    def call(tensor: str, wanted: str) -> None:
        if tensor and tensor not in tensors:
            tensors[tensor] = _unique(wanted, taken)

    constants = {tensor.name for body in bodies for tensor in body.initializer}
    for number, body in enumerate(bodies):
        body.name = f"graph_{number}"
        for index, value in enumerate(body.input):
            call(value.name, f"{body.name}_input_{index}")
        for node in body.node:
            for index, name in enumerate(node.input):
                if name in constants:
                    call(name, f"{node.name}_constant_{index}")
            for index, name in enumerate(node.output):
                call(name, f"{node.name}_{index}")
    for body in bodies:
        del body.value_info[:]
        body.ClearField("doc_string")  # it holds a counter
        for tensor in body.initializer:
            call(tensor.name, f"{body.name}_constant")  # an output that is one
            tensor.name = tensors[tensor.name]
        for value in (*body.input, *body.output):
            value.name = tensors[value.name]
            for dim in value.type.tensor_type.shape.dim:
                dim.ClearField("dim_param")  # so does this
        for node in body.node:
            node.input[:] = [name and tensors[name] for name in node.input]
            node.output[:] = [name and tensors[name] for name in node.output]
            if not node.domain:
                node.ClearField("domain")  # given as "" or not at all


def _settle_aliases(body: onnx.GraphProto) -> None:
    """Of two outputs of one value, one is an Identity of the other: let it be the later one."""
    sources = {node.output[0]: node.input[0] for node in body.node if node.op_type == "Identity"}
    for index, value in enumerate(body.output):
        for later in body.output[index + 1 :]:
            if later.name == sources.get(value.name):
                value.name, later.name = later.name, value.name


def _name_nodes(bodies: list[onnx.GraphProto]) -> None:
    taken: set[str] = set()
    for body in bodies:
        weights = {tensor.name for tensor in body.initializer if len(tensor.dims) > 1}
        for node in body.node:
            known = node.name and not weights.isdisjoint(node.input)
            node.name = _unique(COUNTER.sub("", node.name) if known else node.op_type, taken)


def _sort(body: onnx.GraphProto) -> None:
    makers = {name: index for index, node in enumerate(body.node) for name in node.output if name}
    uses = [_uses(node) for node in body.node]
    places: dict[int, int] = {}
    pending = [makers[value.name] for value in reversed(body.output) if value.name in makers]
    while pending:
        waiting = [makers[name] for name in uses[pending[-1]] if name in makers and makers[name] not in places]
        if waiting:
            pending += reversed(waiting)
        else:
            places.setdefault(pending.pop(), len(places))
    used = [name for index in places for name in uses[index]]
    first = {name: place for place, name in reversed(list(enumerate(used)))}
    order = {_key(body.node[index]): place for index, place in places.items()}
    body.node.sort(key=lambda node: order.get(_key(node), len(order)))
    body.initializer.sort(key=lambda tensor: first.get(tensor.name, len(used)))


def _key(node: onnx.NodeProto) -> str:
    return next(filter(None, node.output))


def _uses(node: onnx.NodeProto) -> list[str]:
    """What a node reads, its bodies included (whose own tensors have no maker outside)."""
    return [name for inner in graph.with_bodies(node) for name in inner.input if name] + [
        value.name for attribute in node.attribute for value in attribute.g.output
    ]


def _unique(name: str, taken: set[str]) -> str:
    """The name; with a number where that is taken."""
    found = next(n for n in (name, *(f"{name}_{i}" for i in range(2, len(taken) + 3))) if n not in taken)
    taken.add(found)
    return found
