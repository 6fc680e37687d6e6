"""Tidying: what is unused goes, whatever is used or can be set stays, and every node has a name of its own."""

import onnx

from onnxmill.tasks.graph import graphs_of, nodes_of
from onnxmill.tasks.simplify import tidy
from tests import evaluated, graphs

UNUSED = """
agraph (float[batch, 4] x, float[4] d, float[4] e) => (float[batch, 4] y)
<float[4] d = {1, 2, 3, 4}, float[4] w = {1, 2, 3, 4}, float[4] v = {1, 2, 3, 4}> {
  a = Add(x, w)
  b = Neg(a)
  c = Abs(b)
  y = Mul(x, v)
}
"""
BODY = """
agraph (float[batch, 4] x, bool[1] which) => (float[batch, 4] y) <float[4] w = {1, 2, 3, 4}> {
  captured = Neg(x)
  alone = Abs(x)
  y = If (which) <
    then_branch = yes () => (float[batch, 4] t) <float[4] u = {4, 3, 2, 1}> {
      dead = Mul(alone, u)
      t = Add(captured, w)
    },
    else_branch = no () => (float[batch, 4] e) { e = Identity(captured) }
  >
}
"""


def test_chains_of_unused_nodes_go_with_their_weights_and_inputs_with_a_default_stay() -> None:
    model = graphs.parse(UNUSED)
    before = evaluated.outputs(model)
    assert tidy.tidy(model, []) == "unused node removed 3×"
    assert evaluated.operators(model) == ["Mul"]
    assert [t.name for t in model.graph.initializer] == ["d", "v"]  # d is an input, which a caller may set
    assert [i.name for i in model.graph.input] == ["x", "d", "e"]
    assert (evaluated.outputs(model)[0] == before[0]).all()
    assert tidy.tidy(model, []) == ""


def test_what_a_body_uses_is_used_and_what_only_its_dead_nodes_used_is_not() -> None:
    model = graphs.parse(BODY)
    before = evaluated.outputs(model)
    assert tidy.drop_unused(model) == 2
    assert evaluated.operators(model) == ["Neg", "If"]
    assert [t.name for graph in graphs_of(model) for t in graph.initializer] == ["w"]
    assert (evaluated.outputs(model)[0] == before[0]).all()


def test_names_are_given_once_over_all_graphs_and_a_domain_has_one_entry() -> None:
    model = graphs.parse(BODY, domains=', "": 13, "ai.onnx": 17')
    model.graph.node[1].name = "Neg_0"  # the name that the first one would get
    tidy.tidy(model, [])
    names = [node.name for node in nodes_of(model.graph)]
    assert all(names)
    assert len(set(names)) == len(names)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 18)]


def test_of_the_inferred_shapes_those_that_were_there_stay() -> None:
    model = onnx.shape_inference.infer_shapes(graphs.parse(UNUSED.replace("Mul(x, v)", "Mul(b, v)")))
    assert {value.name for value in model.graph.value_info} >= {"a", "b", "c"}
    tidy.tidy(model, ["b", "c"])
    assert [value.name for value in model.graph.value_info] == ["b"]


def test_a_node_that_gives_one_used_output_of_several_stays() -> None:
    model = graphs.parse("agraph (float[4, 4] x) => (float[2, 4] y) { y, other = Split<num_outputs = 2>(x) }")
    assert tidy.drop_unused(model) == 0


def test_a_fresh_name_is_taken_by_nobody() -> None:
    model = graphs.parse(BODY)
    for taken in ("w", "u", "x", "dead", "captured"):
        assert tidy.fresh(model, taken) == f"{taken}_"
    assert tidy.fresh(model, "free") == "free"
