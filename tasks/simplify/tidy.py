"""What is done to every graph before and after each pass: it changes no value, and makes two graphs comparable."""

from collections import Counter
from collections.abc import Collection

import onnx

from onnxmill.tasks.graph import graphs_of, name_nodes, nodes_of, one_entry_a_domain, with_bodies


def tidy(model: onnx.ModelProto, shapes: Collection[str]) -> str:
    """One entry a domain, a name for each node, nothing unused; of the inferred shapes only those of `shapes`.

    Edits `model`. Returns what was removed, for the proof's note.
    """
    one_entry_a_domain(model)
    name_nodes(model)
    dead = drop_unused(model)
    made = {name for node in nodes_of(model.graph) for name in node.output} & set(shapes)
    kept = [value for value in model.graph.value_info if value.name in made]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
    return f"unused node removed {dead}×" if dead else ""


def uses(model: onnx.ModelProto) -> Counter[str]:
    """How often each name is used: by nodes, those of bodies included, and as an output of a graph or body."""
    read = Counter(name for node in nodes_of(model.graph) for name in node.input)
    read.update(value.name for graph in graphs_of(model) for value in graph.output)
    return read


def drop_unused(model: onnx.ModelProto) -> int:
    """Remove the nodes, then the initializers, that nothing uses; an initializer that is an input too stays.

    Edits `model`. Returns the number of removed nodes.
    """
    used, removed = uses(model), 0
    graphs = graphs_of(model)
    for graph in reversed(graphs):  # bodies first: what they used may be dead after them
        for index in reversed(range(len(graph.node))):
            node = graph.node[index]
            if node.output and not any(used[name] for name in node.output if name):
                used.subtract(name for inner in with_bodies(node) for name in inner.input)
                del graph.node[index]
                removed += 1
    for graph in graphs:
        inputs = {value.name for value in graph.input}
        for index in reversed(range(len(graph.initializer))):
            name = graph.initializer[index].name
            if not used[name] and name not in inputs:
                del graph.initializer[index]
    return removed


def fresh(model: onnx.ModelProto, name: str) -> str:
    """`name`, or `name` with underscores where the model has a value of that name."""
    taken = {n for node in nodes_of(model.graph) for n in (*node.input, *node.output)}
    for graph in graphs_of(model):
        taken |= {tensor.name for tensor in graph.initializer} | {value.name for value in graph.input}
    while name in taken:
        name += "_"
    return name
