"""Prepared for static int8: masks stay in float, biases get their full shape, and the values stay the same."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxmill.tasks import proof
from onnxmill.tasks.graph import MODEL
from onnxmill.tasks.quantize.prepare import left_in_float, prepare
from tests import graphs

ATTENTION = """
agraph (float[batch, 4, 8] q, bool[batch, 1, 4] keep) => (float[batch, 4, 8] y)
<float zero = {0}, float lowest = {LOWEST}> {
  k = Transpose<perm = [0, 2, 1]>(q)
  scores = MatMul(q, k)
  mask = Where(keep, zero, lowest)
  wide = Identity(mask)
  masked = Add(scores, wide)
  p = Softmax(masked)
  h = Add(p, zero)
  y = MatMul(h, q)
}
"""
MULTIPLIED = """
agraph (float[batch, 4] x, float[batch, 4] keep) => (float[batch, 4] y) {
  one = Constant<value = float {1}>()
  lowest = Constant<value = float {LOWEST}>()
  none = Sub(one, keep)
  mask = Mul(none, lowest)
  masked = Add(x, mask)
  y = Softmax(masked)
}
"""


def named(text: str, lowest: str) -> onnx.ModelProto:
    model = graphs.parse(text.replace("LOWEST", lowest))
    for node in model.graph.node:
        node.name = f"node_{node.output[0]}"
    return model


@pytest.mark.parametrize("lowest", ["-3.4028234663852886e38", "-1e9", "-10000", "-65504"])
def test_a_mask_stays_in_float_up_to_its_softmax(lowest: str) -> None:
    assert left_in_float(named(ATTENTION, lowest)) == ["node_mask", "node_wide", "node_masked", "node_p"]
    assert left_in_float(named(MULTIPLIED, lowest)) == ["node_mask", "node_masked", "node_y"]


def test_minus_infinity_is_a_mask() -> None:
    model = named(ATTENTION, "0")
    lowest = next(tensor for tensor in model.graph.initializer if tensor.name == "lowest")
    lowest.CopyFrom(numpy_helper.from_array(np.array(-np.inf, np.float32), "lowest"))
    assert left_in_float(model) == ["node_mask", "node_wide", "node_masked", "node_p"]


def test_ordinary_constants_are_no_mask() -> None:
    assert left_in_float(named(ATTENTION, "-100")) == []


def test_the_prepared_graph_names_every_node_and_keeps_its_values(tmp_path: Path) -> None:
    model = graphs.parse(graphs.GEMM)
    ready = graphs.ready(tmp_path, model)
    out = ready.out()
    assert proof.faults(prepare(ready.settings, ready.model, ready.reference, out)) == ()
    assert [node.name for node in onnx.load(str(out / MODEL)).graph.node] == ["Gemm_0"]
