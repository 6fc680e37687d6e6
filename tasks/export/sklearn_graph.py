"""What skl2onnx's graphs lack to be what an estimator gives. Each function edits a model, its outputs by place."""

import onnx
from onnx import NodeProto, TensorProto, helper

FLOAT_ONLY = ("TreeEnsembleClassifier", "TreeEnsembleRegressor", "SVMClassifier", "SVMRegressor")
"""Operators of ai.onnx.ml whose last output is float32, whatever their input is."""


def index(proto: onnx.ModelProto, classes: list[str]) -> None:
    """The first output, names of classes, becomes their places in `classes`."""
    label = proto.graph.output[0]
    node = helper.make_node("LabelEncoder", [label.name], ["label_index"], domain="ai.onnx.ml", keys_strings=classes)
    node.attribute.append(helper.make_attribute("values_int64s", range(len(classes))))
    proto.graph.node.append(node)
    label.name, label.type.tensor_type.elem_type = "label_index", TensorProto.INT64


def keep_column(proto: onnx.ModelProto, column: int) -> None:
    """Of the second output [batch, n], one column: [batch, 1]."""
    scores = proto.graph.output[1]
    proto.graph.initializer.append(helper.make_tensor("column", TensorProto.INT64, [1], [column]))
    proto.graph.node.append(helper.make_node("Gather", [scores.name, "column"], ["score"], axis=1))
    scores.name = "score"


def flatten(proto: onnx.ModelProto) -> None:
    """The first output, [batch, 1], becomes [batch]."""
    label = proto.graph.output[0]
    proto.graph.initializer.append(helper.make_tensor("flat", TensorProto.INT64, [1], [-1]))
    proto.graph.node.append(helper.make_node("Reshape", [label.name, "flat"], ["label_flat"]))
    label.name = "label_flat"


def widen(proto: onnx.ModelProto, *, trees_in_float32: bool) -> None:
    """Where the inputs are float64: cast what trees and SVMs give to it, which skl2onnx takes for float64; and round
    what goes into trees to float32, as scikit-learn's own trees do (histogram gradient boosting does not)."""
    if not any(v.type.tensor_type.elem_type == TensorProto.DOUBLE for v in proto.graph.input):
        return
    nodes: list[NodeProto] = []
    for node in proto.graph.node:
        if node.op_type.startswith("TreeEnsemble") and trees_in_float32:
            rounded, again = f"{node.output[-1]}_rounded", f"{node.output[-1]}_input"
            nodes.append(helper.make_node("Cast", [node.input[0]], [rounded], to=TensorProto.FLOAT))
            nodes.append(helper.make_node("Cast", [rounded], [again], to=TensorProto.DOUBLE))
            node.input[0] = again
        nodes.append(node)
        if node.op_type in FLOAT_ONLY:
            name = node.output[-1]
            node.output[-1] = f"{name}_float32"
            nodes.append(helper.make_node("Cast", [node.output[-1]], [name], to=TensorProto.DOUBLE))
    edited = onnx.GraphProto(node=nodes)
    del proto.graph.node[:]
    proto.graph.node.extend(edited.node)
