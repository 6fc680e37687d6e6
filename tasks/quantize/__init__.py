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
    names = [node.name for node in model.graph.node]
    for name in settings.exclude:
        if name not in names:
            raise InputError("variants.exclude", name, f"no such node; {close_match(name, names)}")
    return model


def name_nodes(model: onnx.ModelProto) -> None:
    """Give every node without a name, or with one that is taken, a name of its own. Edits `model`."""
    taken: set[str] = set()
    for index, node in enumerate(model.graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}_{index}"
        taken.add(node.name)
