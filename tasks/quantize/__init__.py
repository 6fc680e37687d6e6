"""Recipes: from the proven fp32 graph to a variant. A table maps a recipe's name to its step.

Each is a function (settings, model, reference[, calibration], out) -> Proof that runs in a child. int8-static has two
steps before it that its variants share: simplify -> prepare -> calibrate -> adjust -> quantize.
"""

from pathlib import Path

import onnx
from pydantic import BaseModel, ConfigDict

from onnxmill.tasks import graph
from onnxmill.tasks.errors import InputError, close_match
from onnxmill.tasks.findings import Finding, finding
from onnxmill.tasks.graph import ONNX_DOMAINS, name_nodes, nodes_of
from onnxmill.tasks.proof import Stamp
from onnxmill.tasks.spec import Contract, Method, RecipeName, Variant
from onnxmill.tasks.step import Step

TOOLS = ("onnxruntime", "onnx", "numpy")

QUANTIZABLE = ("Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM")
"""Operators that carry nearly all of a network's weights and work: what "quantized / quantizable" counts."""

STEPS: dict[RecipeName, Step] = {
    "fp16": Step("quantize-fp16", 1, "onnxmill.tasks.quantize.half:convert", tools=TOOLS),
    "int8-dynamic": Step("quantize-int8-dynamic", 1, "onnxmill.tasks.quantize.int8:dynamic", tools=TOOLS),
    "int8-static": Step("quantize-int8-static", 2, "onnxmill.tasks.quantize.int8:static", tools=TOOLS),
}
"""fp32 is not here: it is the graph itself."""
PREPARE = Step("prepare-int8", 1, "onnxmill.tasks.quantize.prepare:prepare", tools=TOOLS)
CALIBRATE = Step("calibrate", 1, "onnxmill.tasks.quantize.calibrate:calibrate", tools=(*TOOLS, "numba", "cpu"))


class RecipeSettings(BaseModel):
    """What a recipe's output depends on; neither the variant's name nor its gate. Without a method, static int8 takes
    its ranges from a table."""

    model_config = ConfigDict(frozen=True)

    contract: Contract
    stamp: Stamp
    opset: int
    method: Method | None
    percentile: float
    per_channel: bool
    exclude: tuple[str, ...]


class CalibrationSettings(BaseModel):
    """Nodes that stay in float need no range: what is observed depends on them, and on no method.

    `shard` (number, of) observes one part of the samples, a run of neighbours: (1, 1) all of them.
    """

    model_config = ConfigDict(frozen=True)

    exclude: tuple[str, ...]
    shard: tuple[int, int] = (1, 1)


class Observed(BaseModel):
    """What a calibration gave: of how many tensors and samples; or why none."""

    model_config = ConfigDict(frozen=True)

    findings: tuple[Finding, ...]
    tensors: int
    samples: int


def recipe_settings(variant: Variant, contract: Contract, stamp: Stamp, opset: int) -> RecipeSettings:
    static, integer = variant.recipe == "int8-static", variant.recipe != "fp16"
    return RecipeSettings(
        contract=contract,
        stamp=stamp,
        opset=opset,
        method=variant.method if static and not variant.ranges else None,
        percentile=variant.percentile,
        per_channel=variant.per_channel and integer,
        exclude=variant.exclude,
    )


def load_for(exclude: tuple[str, ...], path: Path) -> onnx.ModelProto:
    """The graph to quantize, with a name for every node. Raises `InputError` for an unknown name in `exclude`."""
    model = graph.load(path)
    name_nodes(model)
    names = [node.name for node in nodes_of(model.graph)]
    for name in exclude:
        if name not in names:
            raise InputError("variants.exclude", name, f"no such node; {close_match(name, names)}")
    return model


def refusal(model: onnx.ModelProto) -> Finding | None:
    """Why a graph is not to be quantized: it is already, and two errors would stack without a word; or its weights are
    in files beside it, which the quantizers would read into memory as a whole."""
    if graph.is_large(model):
        return finding("QNT006", "model", "it has 2 GB or more")
    done = sum(_works_on_integers(node) for node in nodes_of(model.graph))
    if not done:
        return None
    detail, fix = f"the model is quantized already ({done} nodes)", "take fp32 (the graph as it is), or a float source"
    return finding("QNT001", "model", detail, measured=0, limit=1, fix=fix)


def quantizable(model: onnx.ModelProto) -> int:
    """How many nodes a recipe could quantize, bodies included."""
    return sum(node.op_type in QUANTIZABLE for node in nodes_of(model.graph))


def nothing_quantized(model: onnx.ModelProto) -> Finding:
    """The refusal of a float graph in which no node was, or can be, quantized."""
    return finding("QNT001", "model", f"{quantizable(model)} quantizable nodes", measured=0, limit=1)


def _works_on_integers(node: onnx.NodeProto) -> bool:
    """Whether a node is the mark of a quantizer: between QuantizeLinear and DequantizeLinear, or integer itself."""
    integer = node.op_type.startswith("QLinear") or node.op_type in ("MatMulInteger", "ConvInteger")
    standard = integer or node.op_type in ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
    contrib = node.domain == "com.microsoft" and ("Quantize" in node.op_type or node.op_type.endswith("NBits"))
    return (standard and node.domain in ONNX_DOMAINS) or contrib
