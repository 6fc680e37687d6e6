"""Recipes: from the proven fp32 graph to a variant. A table maps a recipe's name to its step.

Each is a function (settings, model, reference[, calibration], out) -> Proof that runs in a child.
"""

from pathlib import Path

import onnx
from pydantic import BaseModel, ConfigDict

from onnxmill.tasks.errors import InputError, close_match
from onnxmill.tasks.proof import Stamp
from onnxmill.tasks.spec import Contract, RecipeName, Variant
from onnxmill.tasks.step import Step

TOOLS = ("onnxruntime", "onnx", "numpy")

STEPS: dict[RecipeName, Step] = {
    "fp16": Step("quantize-fp16", 1, "onnxmill.tasks.quantize.half:convert", tools=TOOLS),
    "int8-dynamic": Step("quantize-int8-dynamic", 1, "onnxmill.tasks.quantize.int8:dynamic", tools=TOOLS),
    "int8-static": Step("quantize-int8-static", 1, "onnxmill.tasks.quantize.int8:static", tools=TOOLS),
}
"""fp32 is not here: it is the graph itself."""


class RecipeSettings(BaseModel):
    """What a recipe's output depends on; neither the variant's name nor its gate."""

    model_config = ConfigDict(frozen=True)

    contract: Contract
    stamp: Stamp
    method: str
    per_channel: bool
    exclude: tuple[str, ...]


def recipe_settings(variant: Variant, contract: Contract, stamp: Stamp) -> RecipeSettings:
    static, integer = variant.recipe == "int8-static", variant.recipe != "fp16"
    return RecipeSettings(
        contract=contract,
        stamp=stamp,
        method=variant.method if static else "",
        per_channel=variant.per_channel and integer,
        exclude=variant.exclude,
    )


def load_for(settings: RecipeSettings, path: Path) -> onnx.ModelProto:
    """The graph to quantize, with a name for every node. Raises `InputError` for an unknown name in `exclude`."""
    model = onnx.load(str(path))
    name_nodes(model)
    names = [node.name for node in nodes_of(model.graph)]
    for name in settings.exclude:
        if name not in names:
            raise InputError("variants.exclude", name, f"no such node; {close_match(name, names)}")
    return model


def name_nodes(model: onnx.ModelProto) -> None:
    """Give every node without a name, or with one that is taken, a name of its own. Edits `model`.

    A name that the model gives stays with the first node that has it: it is what `exclude` means.
    """
    given = {node.name for node in nodes_of(model.graph)}
    seen: set[str] = set()
    for index, node in enumerate(nodes_of(model.graph)):
        if not node.name or node.name in seen:
            node.name = f"{node.op_type}_{index}"
            while node.name in given | seen:
                node.name += "_"
        seen.add(node.name)


def nodes_of(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """All nodes, those of If and Loop bodies included."""
    return [found for node in graph.node for found in with_bodies(node)]


def with_bodies(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A node and all nodes of its bodies."""
    bodies = [body for attribute in node.attribute for body in (attribute.g, *attribute.graphs)]
    return [node, *(found for body in bodies for found in nodes_of(body))]
