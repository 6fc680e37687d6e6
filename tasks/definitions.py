"""What onnx's own table of operators says of two opsets: whether a node means the same at both."""

from collections.abc import Iterable
from functools import cache

import onnx
from onnx import AttributeProto, NodeProto

from onnxmill.tasks.graph import ONNX_DOMAINS

GROWN: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), (14,)),  # more element types
    "BatchNormalization": (14, 15),  # training_mode; more element types
    "Loop": (16,),  # more element types
    "LpPool": (18,),  # ceil_mode, dilations
    "Pad": (18,),  # axes
    "ReduceMax": (20,),  # more element types
    "ReduceMin": (20,),
    "Reshape": (14,),  # allowzero
    "Shape": (15,),  # start, end
    "Split": (18,),  # num_outputs
}
"""Operators whose definition only grew at an opset, by element types, optional inputs or attributes, and which the
converter cannot bring below it: a node that uses nothing of that means the same before."""
NEWER_CHOICES = {("Pad", b"wrap"): 19}
"""Choices of an attribute that came later than the attribute, which the checker does not know."""


def standard_nodes(nodes: Iterable[NodeProto]) -> list[NodeProto]:
    """Those of ONNX's own domain."""
    return [node for node in nodes if node.domain in ONNX_DOMAINS]


def moved(nodes: Iterable[NodeProto], before: int, after: int) -> set[str]:
    """Operators that need more than another number between two opsets."""
    return {
        node.op_type
        for node in standard_nodes(nodes)
        if not _alike(node.op_type, before, after) and not _uses_nothing_new(node, before, after)
    }


@cache
def _alike(operator: str, before: int, after: int) -> bool:
    """Whether an operator is defined alike at two opsets, but for the element types that it takes."""
    old, new = schema_of(operator, before), schema_of(operator, after)
    if old is None or new is None:
        return old is new
    return old.since_version == new.since_version or _text(old) == _text(new)


def _text(schema: onnx.defs.OpSchema) -> object:
    """Everything that a definition says but for element types."""
    values = [
        [(p.name, p.option, p.is_homogeneous, p.min_arity) for p in side] for side in (schema.inputs, schema.outputs)
    ]
    attributes = {
        name: (a.type, a.required, a.default_value.SerializeToString(), a.description.split())
        for name, a in schema.attributes.items()
    }
    return values, attributes, schema.deprecated, (schema.doc or "").split()


def _uses_nothing_new(node: NodeProto, before: int, after: int) -> bool:
    """Whether a `GROWN` operator goes below opsets at which it grew, and no others; and the node needs nothing new."""
    grown, schema = GROWN.get(node.op_type, ()), schema_of(node.op_type, after)
    steps = [opset for opset in range(after, before) if since(node.op_type, opset) != since(node.op_type, opset + 1)]
    if schema is None or not all(opset + 1 in grown or _alike(node.op_type, opset + 1, opset) for opset in steps):
        return False
    used = max((i + 1 for i, name in enumerate(node.input) if name), default=0)
    return (
        bool(steps)
        and used <= len(schema.inputs)
        and all(
            attribute.name in schema.attributes or says_the_default(node, attribute, before)
            for attribute in node.attribute
        )
    )


def says_the_default(node: NodeProto, attribute: AttributeProto, opset: int) -> bool:
    """Whether an attribute's value is the one that the operator has without it."""
    schema = schema_of(node.op_type, opset)
    known = schema.attributes.get(attribute.name) if schema else None
    return known is not None and known.default_value == attribute


@cache
def schema_of(operator: str, opset: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(operator, opset, "")
    except onnx.defs.SchemaError:
        return None


def since(operator: str, opset: int) -> int:
    """The opset that the definition of an operator at `opset` dates from; 0 where there is none."""
    schema = schema_of(operator, opset)
    return schema.since_version if schema else 0
