"""Give an exported graph the contract's interface: names, order and dtypes of inputs and outputs.

For exporters that name things themselves, leave out an input that is not used, or give one value out twice.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import NodeProto, ValueInfoProto, helper

from onnxmill.tasks.graph import graphs_of, nodes_of
from onnxmill.tasks.spec import Contract


def conform(model: onnx.ModelProto, contract: Contract, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Edit `model` in place. `inputs` and `outputs` are its own names of the contract's, in the contract's order.

    Shapes stay the exporter's: a size that was baked in is found by the check of the contract. Only an input that
    the graph does not have gets the contract's.
    """
    graph = model.graph
    clash = _fresh({*contract.input_names, *contract.output_names}, model)
    _rename(model, clash)
    inputs, outputs = [clash.get(n, n) for n in inputs], [clash.get(n, n) for n in outputs]
    given, taken = {value.name: value for value in graph.output}, {value.name: value for value in graph.input}
    produced = {name for node in graph.node for name in node.output}
    names: dict[str, str] = {}
    first: list[NodeProto] = []
    last: list[NodeProto] = []
    arguments, results = [], []
    for old, new in zip(inputs, contract.input_names, strict=True):
        want = contract.inputs[new]
        value = taken.get(old) or helper.make_tensor_value_info(old, _element(want.dtype), want.shape)
        if value.type.tensor_type.elem_type == _element(want.dtype):
            names[old] = new
        else:
            first.append(_cast(new, old, value.type.tensor_type.elem_type))
        arguments.append(_value(value, new, want.dtype))
    for old, new in zip(outputs, contract.output_names, strict=True):
        want, value = contract.outputs[new], given[old]
        same = value.type.tensor_type.elem_type == _element(want.dtype)
        if same and old in produced and old not in names:
            names[old] = new
        elif same:  # an input, a constant, or a value that is another output already
            last.append(helper.make_node("Identity", [names.get(old, old)], [new], name=f"give_{new}"))
        else:
            last.append(_cast(names.get(old, old), new, _element(want.dtype)))
        results.append(_value(value, new, want.dtype))
    _rename(model, names)
    nodes = [*first, *graph.node, *last]
    del graph.node[:], graph.input[:], graph.output[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.input.extend(arguments)
    graph.output.extend(results)


def _fresh(names: set[str], model: onnx.ModelProto) -> dict[str, str]:
    """A new name for each value that has one of `names`."""
    used = {name for node in nodes_of(model.graph) for name in (*node.input, *node.output)}
    for graph in graphs_of(model):
        used |= {value.name for value in (*graph.input, *graph.output)} | {tensor.name for tensor in graph.initializer}
    fresh: dict[str, str] = {}
    for name in sorted(names & used):
        fresh[name] = f"{name}_own"
        while fresh[name] in used | names:
            fresh[name] += "_"
    return fresh


def _rename(model: onnx.ModelProto, names: Mapping[str, str]) -> None:
    for node in nodes_of(model.graph):
        for values in (node.input, node.output):
            for index, name in enumerate(values):
                values[index] = names.get(name, name)
    for graph in graphs_of(model):
        for value in (*graph.input, *graph.output, *graph.value_info):
            value.name = names.get(value.name, value.name)
        for tensor in graph.initializer:
            tensor.name = names.get(tensor.name, tensor.name)


def _cast(old: str, new: str, element: int) -> NodeProto:
    return helper.make_node("Cast", [old], [new], name=f"cast_{new}", to=element)


def _value(old: ValueInfoProto, name: str, dtype: str) -> ValueInfoProto:
    value = ValueInfoProto()
    value.CopyFrom(old)
    value.name, value.type.tensor_type.elem_type = name, _element(dtype)
    return value


def _element(dtype: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
