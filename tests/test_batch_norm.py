"""BatchNormalization folded into the operator before it: the same values, and left alone wherever it is not safe."""

from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxmill.tasks.simplify import batch_norm
from tests import evaluated, graphs

PARAMETERS = (
    "float[4] g = {1, 2, -3, 0.5}, float[4] b = {0.1, 0, 1, -1}, "
    "float[4] m = {0.3, -1, 0, 2}, float[4] v = {1, 0.1, 3, 2}"
)


@dataclass(frozen=True)
class Case:
    """An operator, the shape of its weight, and what else it is given."""

    operator: str
    weight: tuple[int, ...]
    attributes: str = ""
    bias: tuple[int, ...] | None = None


CASES = [
    Case("Conv", (4, 2, 3, 3)),
    Case("Conv", (4, 2, 3, 3), bias=(4,)),
    Case("Conv", (4, 1, 3, 3), "<group = 2>", bias=(4,)),
    Case("Conv", (4, 2, 3), bias=(4,)),
    Case("ConvTranspose", (2, 4, 3, 3)),
    Case("ConvTranspose", (2, 2, 3, 3), "<group = 2>", bias=(4,)),
    Case("ConvTranspose", (4, 2, 3), "<group = 2, strides = [2]>", bias=(4,)),
    Case("Gemm", (2, 4), bias=(4,)),
    Case("Gemm", (4, 2), "<transB = 1, alpha = 0.5>", bias=(1, 4)),
    Case("Gemm", (2, 4), bias=()),
]


def built(case: Case, *, opset: int = 18, attributes: str = "<epsilon = 0.01>") -> onnx.ModelProto:
    """The operator, BatchNormalization, Relu."""
    channels = case.weight[0] if case.operator == "ConvTranspose" else 2
    spatial = [5] * (len(case.weight) - 2)
    shape = ", ".join(map(str, ["batch", channels, *spatial]))
    free = ", ".join(["batch", "4", *(f"s{i}" for i in range(len(spatial)))])
    bias = ", c" if case.bias is not None else ""
    model = graphs.parse(
        f"agraph (float[{shape}] x) => (float[{free}] y) <{PARAMETERS}> "
        f"{{ h = {case.operator}{case.attributes}(x, w{bias}) "
        f"n = BatchNormalization{attributes}(h, g, b, m, v) y = Relu(n) }}",
        opset=opset,
    )
    model.graph.initializer.append(numpy_helper.from_array(graphs.normal(case.weight, 1), "w"))
    if case.bias is not None:
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(graphs.normal(case.bias, 2)), "c"))
    return model


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("opset", [9, 14, 18])
def test_it_is_folded_and_the_values_stay(case: Case, opset: int) -> None:
    model = built(case, opset=opset)
    before = evaluated.outputs(model)
    assert batch_norm.batch_norms(model) == f"BatchNormalization folded into {case.operator} 1×"
    assert evaluated.operators(model) == [case.operator, "Relu"]
    (after,) = evaluated.outputs(model)
    np.testing.assert_allclose(after, before[0], rtol=1e-5, atol=1e-5)
    assert batch_norm.batch_norms(model) == ""


def test_a_gemm_without_a_bias_gets_one() -> None:
    model = built(Case("Gemm", (2, 4)))
    before = evaluated.outputs(model)
    assert batch_norm.batch_norms(model) == "BatchNormalization folded into Gemm 1×"
    np.testing.assert_allclose(evaluated.outputs(model)[0], before[0], rtol=1e-5, atol=1e-5)


def test_two_in_a_row_are_both_folded() -> None:
    model = built(CASES[0])
    model.graph.node.insert(2, helper.make_node("BatchNormalization", ["n", "g", "b", "m", "v"], ["n2"]))
    model.graph.node[3].input[0] = "n2"
    before = evaluated.outputs(model)
    assert batch_norm.batch_norms(model) == "BatchNormalization folded into Conv 2×"
    np.testing.assert_allclose(evaluated.outputs(model)[0], before[0], rtol=1e-5, atol=1e-5)


def test_the_type_of_the_weight_stays() -> None:
    text = (
        "agraph (float16[batch, 2] x) => (float16[batch, 2] y) "
        "<float16[2, 2] w = {1, 2, 3, 4}, "
        "float[2] g = {1, 2}, float[2] b = {1, 1}, float[2] m = {1, 2}, float[2] v = {1, 4}> "
        "{ h = Gemm(x, w)  y = BatchNormalization(h, g, b, m, v) }"
    )
    model = graphs.parse(text)
    assert batch_norm.batch_norms(model)
    assert {str(array.dtype) for name, array in evaluated.weights(model).items() if name not in "gbmv"} == {"float16"}


def refused(model: onnx.ModelProto) -> None:
    before = model.SerializeToString(deterministic=True)
    onnx.checker.check_model(model)
    assert batch_norm.batch_norms(model) == ""
    assert model.SerializeToString(deterministic=True) == before


def test_not_in_training() -> None:
    model = built(CASES[0], attributes="<training_mode = 1>")
    model.graph.node[1].output.extend(["mean", "var"])
    refused(model)
    refused(built(CASES[0], opset=8, attributes="<spatial = 0>"))


def test_not_where_statistics_are_asked_for() -> None:
    model = built(CASES[0], opset=9)
    model.graph.node[1].output.extend(["mean", "var", "saved_mean", "saved_var"])
    refused(model)


def test_not_where_the_result_is_used_elsewhere() -> None:
    twice = built(CASES[0])
    twice.graph.node[2].CopyFrom(helper.make_node("Add", ["n", "h"], ["y"]))
    refused(twice)
    output = built(CASES[0])
    output.graph.output.add().CopyFrom(helper.make_tensor_value_info("h", 1, ["batch", 4, 3, 3]))
    refused(output)
    body = built(CASES[0])
    branch = helper.make_graph(
        [helper.make_node("Neg", ["h"], ["r"])], "b", [], [helper.make_tensor_value_info("r", 1, None)]
    )
    body.graph.input.add().CopyFrom(helper.make_tensor_value_info("which", onnx.TensorProto.BOOL, []))
    body.graph.node.append(helper.make_node("If", ["which"], ["z"], then_branch=branch, else_branch=branch))
    body.graph.output.add().CopyFrom(helper.make_tensor_value_info("z", 1, ["batch", 4, 3, 3]))
    refused(body)


@pytest.mark.parametrize("name", ["w", "c", "g", "v"])
def test_not_with_what_a_caller_may_set(name: str) -> None:
    model = built(CASES[1])
    (tensor,) = (t for t in model.graph.initializer if t.name == name)
    model.graph.input.append(helper.make_tensor_value_info(name, 1, list(tensor.dims)))
    refused(model)


@pytest.mark.parametrize("name", ["w", "g"])
def test_not_with_values_in_a_file_beside_the_model(name: str) -> None:
    model = built(CASES[1])
    (tensor,) = (t for t in model.graph.initializer if t.name == name)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), name))
    onnx.external_data_helper.set_external_data(tensor, "weights")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    assert batch_norm.batch_norms(model) == ""


def test_not_with_a_weight_that_another_node_uses_too() -> None:
    model = built(CASES[0])
    model.graph.node.append(helper.make_node("ReduceSum", ["w"], ["z"], keepdims=0))
    model.graph.output.add().CopyFrom(helper.make_tensor_value_info("z", 1, []))
    refused(model)


def test_not_with_a_weight_that_is_quantized() -> None:
    model = built(CASES[0])
    weight = model.graph.initializer[-1]
    weight.CopyFrom(numpy_helper.from_array(np.ones((4, 2, 3, 3), np.int8), "wq"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.1, np.float32), "s"))
    model.graph.node.insert(0, helper.make_node("DequantizeLinear", ["wq", "s"], ["w"]))
    refused(model)


@pytest.mark.parametrize(
    "case",
    [Case("Gemm", (2, 4), "<beta = 0.5>", (4,)), Case("Gemm", (2, 4), bias=(3, 1)), Case("Gemm", (2, 4), bias=(3, 4))],
    ids=str,
)
def test_not_with_a_bias_that_is_not_one_value_a_channel(case: Case) -> None:
    refused(built(case))


def test_not_where_the_result_would_not_be_finite() -> None:
    model = built(CASES[0])
    for tensor in model.graph.initializer:
        if tensor.name == "v":
            tensor.CopyFrom(numpy_helper.from_array(np.array([1, -1, 1, 1], np.float32), "v"))
    refused(model)


def test_not_across_another_operator_nor_without_one() -> None:
    model = built(CASES[0])
    model.graph.node.insert(1, helper.make_node("Relu", ["h"], ["k"]))
    model.graph.node[2].input[0] = "k"
    refused(model)
    text = f"<{PARAMETERS}> {{ y = BatchNormalization(x, g, b, m, v) }}"
    refused(graphs.parse(f"agraph (float[batch, 4] x) => (float[batch, 4] y) {text}"))


def test_a_body_is_folded_within_itself_and_names_never_clash() -> None:
    text = f"""
    agraph (float[batch, 2] x, bool[1] which) => (float[batch, 4] y) <float[4] Gemm_0_bias = {{1, 2, 3, 4}}> {{
      y = If (which) <
        then_branch = yes () => (float[batch, 4] t) <float[2, 4] w = {{1, 2, 3, 4, 5, 6, 7, 8}}, {PARAMETERS}>
          {{ h = Gemm(x, w)  t = BatchNormalization(h, g, b, m, v) }},
        else_branch = no () => (float[batch, 4] e) <float[2, 4] k = {{1, 2, 3, 4, 5, 6, 7, 8}}>
          {{ e = Gemm(x, k, Gemm_0_bias) }}
      >
    }}"""
    model = graphs.parse(text)
    branch = model.graph.node[0].attribute[0].g
    branch.node[0].name = "Gemm_0"
    before = evaluated.outputs(model)
    assert batch_norm.batch_norms(model) == "BatchNormalization folded into Gemm 1×"
    assert list(branch.node[0].input) == ["x", "w", "Gemm_0_bias_"]
    np.testing.assert_allclose(evaluated.outputs(model)[0], before[0], rtol=1e-5, atol=1e-5)
