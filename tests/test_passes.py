"""Our own passes on constants and Sum: what each does, what it leaves alone, and that no value changes."""

import numpy as np
import onnx
import pytest

from onnxmill.tasks.graph import graphs_of
from onnxmill.tasks.simplify import passes
from tests import evaluated, graphs

CONSTANTS = """
agraph (float[batch, 2] x) => (float[batch, 2] y, float[2] z) {
  a = Constant<value = float[2] {1, 2}>()
  b = Constant<value_float = 3.5>()
  c = Constant<value_floats = [1.5, 2.5]>()
  d = Constant<value_ints = [-1, 2]>()
  i = Constant<value_int = 1>()
  z = Constant<value_floats = [7.0, 8.0]>()
  s = Add(x, a)
  t = Mul(s, b)
  u = Add(t, c)
  r = Reshape(u, d)
  y = CumSum(r, i)
}
"""
SHAPES = """
agraph (float[batch, 8] x) => (float[batch, 4] y)
<int64[1] start = {0}, int64[1] four = {4}, int64[1] minus = {-1}, int64[2] huge = {4096, 4096}, float zero = {0}> {
  two = Div(four, four)
  shape = Concat<axis = 0>(minus, four)
  pads = ConstantOfShape<value = int64[1] {0}>(four)
  p = Pad(x, pads)
  r = Reshape(p, shape)
  s = Slice(r, start, four, two)
  filled = ConstantOfShape(huge)
  top = ReduceMax<keepdims = 0>(filled)
  m = Add(s, top)
  long = ReduceMax<axes = [1]>(x)
  k = Shape(m)
  same = Reshape(m, k)
  q = Slice(same, start, start, two)
  y = Max(same, zero)
}
"""
HALF = """
agraph (float[batch, 4] x) => (float[batch, 2] y, float[2] z, float16[2] k)
<float[4, 2] w = {1, -2, 3, -4, 5, -6, 7, -8}, float[2] b = {0.5, 1.5}, float[2] o = {1, 2}> {
  wf = Cast<to = 1>(w)
  h = MatMul(x, wf)
  bf = Cast<to = 1>(b)
  again = Cast<to = 1>(b)
  g = Add(h, bf)
  y = Mul(g, again)
  z = Cast<to = 1>(o)
  k = Identity(b)
}
"""
IF = """
agraph (float[batch, 2] x, bool[1] which) => (float[batch, 2] y) {
  y = If (which) <
    then_branch = yes () => (float[batch, 2] t) <float[2] u = {4, 3}> {
      c = Cast<to = 1>(u)  k = Constant<value = float[2] {1, 2}>()  s = Sum(c, k)  t = Add(x, s) },
    else_branch = no () => (float[batch, 2] e) <float[2] u = {2, 1}> { c = Cast<to = 1>(u)  e = Sum(x, c) }
  >
}
"""


def halved(text: str) -> onnx.ModelProto:
    """A model of ONNX text with its float weights in fp16, for which the text has bit patterns only."""
    model = graphs.parse(text)
    for graph in graphs_of(model):
        for tensor in graph.initializer:
            array = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return model


def test_constant_nodes_become_initializers_of_the_same_names_but_an_output_stays_a_node() -> None:
    model = graphs.parse(CONSTANTS)
    before = evaluated.outputs(model)
    assert passes.constant_nodes(model) == "Constant made an initializer 5×"
    assert evaluated.operators(model) == ["Constant", "Add", "Mul", "Add", "Reshape", "CumSum"]
    found = {name: (str(array.dtype), array.shape) for name, array in evaluated.weights(model).items()}
    assert found == {
        "a": ("float32", (2,)),
        "b": ("float32", ()),
        "c": ("float32", (2,)),
        "d": ("int64", (2,)),
        "i": ("int64", ()),
    }
    for one, other in zip(before, evaluated.outputs(model), strict=True):
        assert (one == other).all()
    assert passes.constant_nodes(model) == ""


def test_small_constants_are_computed_and_none_that_is_larger_than_what_it_is_made_of() -> None:
    model = graphs.parse(SHAPES, opset=13)
    before, size = evaluated.outputs(model), model.ByteSize()
    assert passes.small_constants(model) == "small constant computed 3×"
    found = evaluated.weights(model)
    assert found["shape"].tolist() == [-1, 4]
    assert found["two"].tolist() == [1]
    assert found["pads"].tolist() == [0, 0, 0, 0]
    assert "filled" not in found  # 64 MB
    assert model.ByteSize() < size + 100
    assert (evaluated.outputs(model)[0] == before[0]).all()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<int64[1] n = {17}> { c = ConstantOfShape(n)  y = Add(x, c) }", "more elements than TINY"),
        ("<float[5000] w> { c = Neg(w)  y = Add(x, c) }", "a weight"),
        ("<float[64, 1] a, float[1, 64] b> { c = Add(a, b)  d = ReduceMax<keepdims=0>(c)  y = Add(x, d) }", "grows"),
        ("<float[2] a = {1, 2}> { y = Neg(a) }", "an output"),
        ("<float[2] a = {1, 2}> { c = RandomNormalLike(a)  d = ReduceMax<keepdims=0>(c)  y = Add(x, d) }", "random"),
        ("<float s = {0.5}, int8[17] w> { c = DequantizeLinear(w, s)  y = Add(x, c) }", "quantized"),
        ("<float s = {0.5}, float[17] w> { c = QuantizeLinear(w, s)  d = Cast<to=1>(c)  y = Add(x, d) }", "quantizes"),
        ("<float[17] w> { c = Cast<to=16>(w)  d = Cast<to=1>(c)  y = Add(x, d) }", "bf16"),
        ("<string[1] w = {\"a\"}> { c = Identity(w)  d = Shape(c)  e = Cast<to=1>(d)  y = Add(x, e) }", "text"),
    ],
)  # fmt: skip
def test_constants_that_are_left_alone(text: str, why: str) -> None:
    model = graphs.parse(f"agraph (float[17] x) => (float[n] y) {text}")
    for tensor in model.graph.initializer:
        if not any(field.name.endswith("_data") for field, _ in tensor.ListFields()):
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.ones(tuple(tensor.dims), dtype), tensor.name))
    before = model.SerializeToString(deterministic=True)
    assert passes.small_constants(model) == "", why
    assert model.SerializeToString(deterministic=True) == before


def test_an_input_with_a_default_is_no_constant() -> None:
    for dtype in ("float", "float16"):
        model = graphs.parse(
            f"agraph (float[2] x, {dtype}[2] w) => (float[2] y) <{dtype}[2] w = {{1, 2}}> "
            "{ c = Cast<to = 1>(w)  y = Add(x, c) }"
        )
        assert (passes.half_weights(model), passes.small_constants(model)) == ("", "")


def test_half_precision_weights_become_float_and_casts_of_one_share_it() -> None:
    model = halved(HALF)
    before = evaluated.outputs(model)
    assert passes.half_weights(model) == "half-precision weight made float 2×"
    assert evaluated.operators(model) == ["MatMul", "Add", "Mul", "Cast", "Identity"]  # z is an output
    found = evaluated.weights(model)
    assert (str(found["wf"].dtype), found["wf"].tolist()) == ("float32", [[1, -2], [3, -4], [5, -6], [7, -8]])
    assert model.graph.node[2].input == ["g", "bf"]
    for one, other in zip(before, evaluated.outputs(model), strict=True):
        assert (one == other).all()


@pytest.mark.parametrize(("source", "target"), [("float", 10), ("float16", 11), ("double", 1)])
def test_other_casts_stay(source: str, target: int) -> None:
    model = graphs.parse(
        f"agraph (float[2] x) => (float[2] y) <{source}[2] w = {{1, 2}}> "
        f"{{ c = Cast<to = {target}>(w)  d = Cast<to = 1>(c)  y = Add(x, d) }}"
    )
    assert passes.half_weights(model) == ""


def test_a_model_that_would_no_longer_fit_into_one_file_keeps_its_half_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "EXTERNAL_BYTES", 200)
    model = halved(HALF)
    assert model.ByteSize() > 168
    assert passes.half_weights(model) == ""


def test_weights_in_files_beside_the_model_are_left_alone() -> None:
    model = halved(HALF)
    for tensor in model.graph.initializer:
        onnx.external_data_helper.set_external_data(tensor, "weights")
        tensor.data_location = onnx.TensorProto.EXTERNAL
    assert passes.half_weights(model) == ""
    assert passes.small_constants(model) == ""


def test_bodies_are_graphs_of_their_own() -> None:
    model = halved(IF)
    before = evaluated.outputs(model)
    assert passes.constant_nodes(model) == "Constant made an initializer 1×"
    assert passes.half_weights(model) == "half-precision weight made float 2×"
    assert passes.sums(model) == "Sum made Add 2×"
    yes, no = graphs_of(model)[1:]
    assert [n.op_type for n in yes.node] == ["Add", "Add"]
    assert [n.op_type for n in no.node] == ["Add"]
    assert {t.name: onnx.numpy_helper.to_array(t).tolist() for t in no.initializer}["c"] == [2, 1]
    assert (evaluated.outputs(model)[0] == before[0]).all()


def test_sum_of_two_and_of_one_but_not_of_three() -> None:
    model = graphs.parse(
        "agraph (float[batch, 4] x) => (float[batch, 4] y) <float[4] w = {1, 2, 3, 4}> "
        "{ a = Sum(x, w)  b = Sum(a)  c = Sum(x, a, b)  y = Sum(c, w) }"
    )
    before = evaluated.outputs(model)
    assert passes.sums(model) == "Sum made Add 2×; Sum made Identity 1×"
    assert evaluated.operators(model) == ["Add", "Identity", "Sum", "Add"]
    assert (evaluated.outputs(model)[0] == before[0]).all()
    assert passes.sums(model) == ""


def test_another_domains_operators_are_others() -> None:
    text = "agraph (float[2] x) => (float[2] y) <float16[2] w = {1, 2}> { c = own.Cast<to = 1>(w)  y = own.Sum(x, c) }"
    model = graphs.parse(text, domains=', "own": 1')
    assert (passes.half_weights(model), passes.sums(model), passes.small_constants(model)) == ("", "", "")
