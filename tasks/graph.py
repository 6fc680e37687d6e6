"""ONNX files and graphs: read, write, walk. No runtime is used here.

Weights lie in the model's own file as long as protobuf holds them. Above that they stay in files beside it and are
never read into memory as a whole: a model is then its graph with references, which every function here keeps.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto

MODEL = "model.onnx"
ONNX_DOMAINS = ("", "ai.onnx")
STANDARD_DOMAINS = (*ONNX_DOMAINS, "ai.onnx.ml")
EXTERNAL_BYTES = 2**31 - 2**26
"""A model of this size or more has its weights in files of their own: protobuf holds less than 2 GB."""
SMALL_BYTES = 2**14
"""Constants of at most so many bytes are always in the model itself: axes, shapes, scales, which graph passes read."""


def load(path: Path) -> onnx.ModelProto:
    """The model at `path`; its external weights in memory, unless the whole has `EXTERNAL_BYTES` or more: then those
    above `SMALL_BYTES` stay where they are.

    Raises `DecodeError` for a file that is no model, `OSError` for weights that are not there.
    """
    model = onnx.load(str(path), load_external_data=False)
    sizes = [(tensor, _external_bytes(tensor, path.parent)) for tensor in tensors_of(model) if _is_external(tensor)]
    large = path.stat().st_size + sum(size for _, size in sizes) >= EXTERNAL_BYTES
    for tensor, size in sizes:
        if not large or size <= SMALL_BYTES:
            _read(tensor, path.parent, size)
    return model


def save(model: onnx.ModelProto, path: Path, beside: Path | None = None) -> None:
    """Write `model` in one spelling: equal models give equal bytes, wherever their weights came from.

    Weights that protobuf's 2 GB would not hold go to `<path>.data`, and `model` is left without them. Where the model
    refers to files of weights in the folder `beside`, these are linked (or copied) to the new place, as `<path>.data`
    or, several, as `<path>.data.0`, …
    """
    if names := external_names(model):
        assert beside, names
        places = {name: f"{path.name}.data.{index}" for index, name in enumerate(names)}
        if len(names) == 1:
            places = {names[0]: f"{path.name}.data"}
        if not beside.samefile(path.parent):  # in place, they are there
            for name, place in places.items():
                link((beside / name).resolve(), path.parent / place)
            model = _moved(model, places)
    weights = sum(len(tensor.raw_data) for tensor in model.graph.initializer)  # protobuf cannot even measure 2 GB
    if weights < EXTERNAL_BYTES:
        path.write_bytes(model.SerializeToString(deterministic=True))
    else:
        onnx.save(model, str(path), save_as_external_data=True, location=f"{path.name}.data")


def _moved(model: onnx.ModelProto, places: Mapping[str, str]) -> onnx.ModelProto:
    """A copy that refers to its files of weights by their new names."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in filter(_is_external, tensors_of(copy)):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = places[entry.value]
    return copy


def link(source: Path, target: Path) -> None:
    """Put the file `source` at `target`, in the place of what is there, without a copy of its bytes where that can be.
    Neither may be written to afterwards."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def is_large(model: onnx.ModelProto) -> bool:
    """Whether weights of the model are in files beside it, as `load` leaves those of a large one."""
    return bool(external_names(model))


def external_files(path: Path) -> list[str]:
    """The files beside a model that hold its weights, as the model names them. None for a file that is no model."""
    try:
        return external_names(onnx.load(str(path), load_external_data=False))
    except DecodeError:
        return []


def external_names(model: onnx.ModelProto) -> list[str]:
    """The files of weights that a model in memory refers to, in the order of its tensors."""
    return list(
        dict.fromkeys(_external(tensor).get("location", "") for tensor in tensors_of(model) if _is_external(tensor))
    )


def _is_external(tensor: TensorProto) -> bool:
    return tensor.data_location == TensorProto.EXTERNAL


def _external(tensor: TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _external_bytes(tensor: TensorProto, folder: Path) -> int:
    entries = _external(tensor)
    if "length" in entries:
        return int(entries["length"])
    return (folder / entries["location"]).stat().st_size - int(entries.get("offset", 0))


def _read(tensor: TensorProto, folder: Path, size: int) -> None:
    """Take a tensor's bytes into the model. (onnx's own function refuses a file with several hard links, as those of
    the store are.)"""
    entries = _external(tensor)
    with (folder / entries["location"]).open("rb") as stream:
        stream.seek(int(entries.get("offset", 0)))
        tensor.raw_data = stream.read(size)
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


# --- versions --------------------------------------------------------------------------------------------------------


def opset_of(model: onnx.ModelProto) -> int:
    """The opset of ONNX's own domain, by name; the highest where a file lists the domain twice. 0 if it lists none."""
    return max((entry.version for entry in model.opset_import if entry.domain in ONNX_DOMAINS), default=0)


def lowest_ir(model: onnx.ModelProto) -> int:
    """The lowest IR version that the model's opsets allow: runtimes refuse what is newer than they are.

    Never below 4: older ones want every initializer to be an input too. The model's own where its opset is unknown
    here: whether it runs is then the session's word.
    """
    known = [entry for entry in model.opset_import if entry.domain in STANDARD_DOMAINS]
    try:
        return max(4, onnx.helper.find_min_ir_version_for(known))
    except ValueError:
        return model.ir_version


def one_entry_a_domain(model: onnx.ModelProto) -> None:
    """Give each domain one opset, the highest that the file lists for it. Edits `model`."""
    highest: dict[str, int] = {}
    for entry in model.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        highest[domain] = max(entry.version, highest.get(domain, 0))
    del model.opset_import[:]
    model.opset_import.extend(onnx.helper.make_opsetid(d, v) for d, v in sorted(highest.items()))


# --- nodes and tensors -----------------------------------------------------------------------------------------------


def nodes_of(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """All nodes, those of If and Loop bodies included."""
    return [found for node in graph.node for found in with_bodies(node)]


def with_bodies(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A node and all nodes of its bodies."""
    bodies = [body for attribute in node.attribute for body in (attribute.g, *attribute.graphs)]
    return [node, *(found for body in bodies for found in nodes_of(body))]


def graphs_of(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    """The graph and all bodies of If, Loop and Scan."""
    nodes = nodes_of(model.graph)
    return [
        model.graph,
        *(a.g for n in nodes for a in n.attribute if a.type == a.GRAPH),
        *(g for n in nodes for a in n.attribute if a.type == a.GRAPHS for g in a.graphs),
    ]


def tensors_of(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Every constant: initializers of all graphs, and tensors in the attributes of nodes."""
    for graph in graphs_of(model):
        yield from graph.initializer
    for node in (*nodes_of(model.graph), *(n for function in model.functions for n in function.node)):
        for attribute in node.attribute:
            if attribute.type == attribute.TENSOR:
                yield attribute.t
            yield from attribute.tensors


def name_nodes(model: onnx.ModelProto) -> None:
    """Give every node without a name, or with one that is taken, a name of its own. Edits `model`.

    A name that the model gives stays with the first node that has it: it is what `exclude` means.
    """
    given = {node.name for node in nodes_of(model.graph)}
    seen: set[str] = set()
    for index, node in enumerate(nodes_of(model.graph)):
        if not node.name or node.name in seen:
            node.name = f"{node.op_type}_{index}"
            while node.name in given | seen:
                node.name += "_"
        seen.add(node.name)
