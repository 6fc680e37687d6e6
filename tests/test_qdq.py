"""Which tensors need a range; and that given ONNX Runtime's own ranges, its quantizer gives the same graph."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationMethod, QuantType, quantize_static

from onnxmill.calibration import methods, statistics
from onnxmill.calibration.methods_scheme import Range
from onnxmill.calibration.readers import BatchReader
from onnxmill.calibration.samples import Array
from onnxmill.tasks.quantize import int8, qdq
from tests import graphs

CONV = """
agraph (float[batch, 2, 6, 6] x) => (float[batch, 3, 2, 2] y) {
  c = Conv(x, w)
  r = Relu(c)
  m = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)
  y = Conv(m, v)
}
"""
CLIP = """
agraph (float[batch, 2, 6, 6] x) => (float[batch, 4, 4, 3] y) <float low = {0}, float high = {6}> {
  c = Conv(x, w)
  h = Clip(c, low, high)
  y = Transpose<perm = [0, 2, 3, 1]>(h)
}
"""
SHARED = """
agraph (float[batch, 4] x) => (float[batch, 4] y) {
  h = MatMul(x, s)
  r = Relu(h)
  a = Add(r, h)
  p = Softmax(a)
  y = MatMul(p, s)
}
"""
CHAIN = """
agraph (float[batch, 4] x) => (float[batch, 4] y) <float low = {-2}, float high = {6}> {
  h = MatMul(x, s)
  r = Relu(h)
  k = Clip(r, low, high)
  y = MatMul(k, s)
}
"""
JOINED = """
agraph (float[batch, 4] x, float[batch, 4] z) => (float[batch, 8] y) {
  a = MatMul(x, s)
  b = MatMul(z, s)
  y = Concat<axis = 1>(a, b)
}
"""
NEEDED = {
    CONV: ["x", "r", "y"],  # Relu takes Conv's place, MaxPool has its range
    CLIP: ["x", "h"],
    SHARED: ["x", "h", "r", "a", "y"],  # h has two takers; Softmax is known to be in 0 to 1
    CHAIN: ["x", "k", "y"],
    JOINED: ["x", "a", "z", "b", "y"],
}
CASES = pytest.mark.parametrize("text", NEEDED, ids=["conv", "clip", "shared", "chain", "joined"])


def whole(shape: tuple[int, ...], seed: int) -> Array:
    """Whole numbers: what is computed of them is exact, whichever kernels a session takes."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def build(text: str) -> onnx.ModelProto:
    model = graphs.parse(text)
    weights = {"w": (3 if text == CONV else 4, 2, 3, 3), "v": (3, 3, 1, 1), "s": (4, 4)}
    used = {name for node in model.graph.node for name in node.input}
    for seed, (name, shape) in enumerate(weights.items()):
        if name in used:
            model.graph.initializer.append(numpy_helper.from_array(whole(shape, seed), name))
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{index}"
    return model


def feeds(model: onnx.ModelProto) -> list[dict[str, Array]]:
    shapes = {
        value.name: tuple(dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim) for value in model.graph.input
    }
    return [{name: whole(shape, 10 + seed) for name, shape in shapes.items()} for seed in range(20)]


@CASES
def test_tensors_that_carry_a_range_of_their_own_are_observed(text: str) -> None:
    assert qdq.tensors_to_observe(build(text), ()) == NEEDED[text]


def test_a_relu_that_stays_float_leaves_the_node_before_its_own_range() -> None:
    assert qdq.tensors_to_observe(build(CONV), ("Relu_1",)) == ["x", "c", "m", "y"]


def test_nothing_is_observed_around_what_stays_float() -> None:
    model = build(CHAIN)
    assert qdq.tensors_to_observe(model, tuple(node.name for node in model.graph.node)) == []


def test_ranges_follow_to_what_is_folded() -> None:
    found = qdq.adjusted(build(CHAIN), {"x": Range(-1, 1), "k": Range(0, 6), "y": Range(-9, 9)}, ())
    assert found == {"x": Range(-1, 1), "k": Range(0, 6), "y": Range(-9, 9), "h": Range(0, 6), "r": Range(0, 6)}


@CASES
@pytest.mark.parametrize("per_channel", [True, False])
def test_min_max_gives_the_graph_of_onnx_runtimes_quantize_static(tmp_path: Path, text: str, per_channel: bool) -> None:
    model, path = build(text), tmp_path / "model.onnx"
    onnx.save(model, str(path))
    quantize_static(
        path, tmp_path / "theirs.onnx", BatchReader(lambda: feeds(model)), per_channel=per_channel,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, calibrate_method=CalibrationMethod.MinMax,
    )  # fmt: skip
    theirs = onnx.load(str(tmp_path / "theirs.onnx"))
    seen = statistics.collect(model, qdq.tensors_to_observe(model, ()), feeds(model), threads=1)
    ranges = {n: methods.minmax(histogram, int8.ACTIVATIONS) for n, histogram in seen.histograms.items()}
    ours = qdq.quantized(model, qdq.adjusted(model, ranges, ()), per_channel=per_channel, exclude=())
    assert {t.name: t.SerializeToString() for t in ours.graph.initializer} == {
        t.name: t.SerializeToString() for t in theirs.graph.initializer
    }
    assert [n.SerializeToString() for n in ours.graph.node] == [n.SerializeToString() for n in theirs.graph.node]
