"""Publish a step's model: clean it, stamp it, check the contract, compare with the reference. Every step ends here."""

import re
from pathlib import Path
from typing import Any

import onnx
from pydantic import BaseModel, ConfigDict

from onnxmill.tasks import cases as cases_module
from onnxmill.tasks import contract as contract_module
from onnxmill.tasks import graph, parity
from onnxmill.tasks.findings import Finding, refused
from onnxmill.tasks.graph import MODEL
from onnxmill.tasks.parity import Parity
from onnxmill.tasks.spec import Contract

STAMP_VERSION = "1"
"""Of the stamp's form. Not onnxmill's own version: the same weights keep their digest through an upgrade."""
OWN_METADATA = re.compile(r"(?!pkg\.|onnx\.|onnxruntime|onnxsim)[\w.-]+$")
"""Keys of a model's metadata that are a user's, such as `names`: not those of exporters and quantizers."""


class Stamp(BaseModel):
    """What a model says of its origin: the spec's name and the digest of the source part of its pack."""

    model_config = ConfigDict(frozen=True)

    name: str
    source: str


class Proof(BaseModel):
    """What a step's model is and how it compares. `real` is the parity on real samples alone, null without any.

    `findings` hold what the contract refuses; limits on the parity's numbers are the gate's business.
    `note` says what the step chose.
    """

    model_config = ConfigDict(frozen=True)

    findings: tuple[Finding, ...]
    parity: Parity | None
    real: Parity | None
    opset: int
    ir_version: int
    nodes: int
    size_bytes: int
    note: str = ""
    quantized_nodes: int = 0
    quantizable_nodes: int = 0


def publish(
    raw: Path,
    out: Path,
    contract: Contract,
    stamp: Stamp,
    reference: Path,
    *,
    opset: int | None,
    note: str = "",
    findings: tuple[Finding, ...] = (),
    quantized: tuple[int, int] = (0, 0),
) -> Proof:
    """Write the model at `raw` to `out`/model.onnx, cleaned and stamped, and prove it.

    `opset` is the pin, null before there is one. `findings` are the step's own; `quantized` is (quantized,
    quantizable) nodes. Weights in files beside `raw` go with it.
    """
    model = graph.load(raw)
    normalise(model, contract, stamp)
    path = out / MODEL
    graph.save(model, path, beside=raw.parent)
    cases = list(cases_module.read(reference))
    faults, outputs = contract_module.check(path, contract, cases, opset=opset)
    everything = real = None
    if outputs or not refused(faults):  # without a case nothing was run: the comparison refuses that
        names = contract.output_names
        everything, more = parity.compare(names, [c.outputs for c in cases], outputs)
        faults += more
        chosen = [i for i, case in enumerate(cases) if case.kind == "real"]
        if chosen:
            real, _ = parity.compare(names, [cases[i].outputs for i in chosen], [outputs[i] for i in chosen])
    return Proof(
        findings=(*findings, *faults),
        parity=everything,
        real=real,
        opset=graph.opset_of(model),
        ir_version=model.ir_version,
        nodes=len(model.graph.node),
        size_bytes=sum(p.stat().st_size for p in out.iterdir()),
        note=note,
        quantized_nodes=quantized[0],
        quantizable_nodes=quantized[1],
    )


def faults(proof: Proof) -> tuple[Finding, ...]:
    """Why a graph before any recipe (exported, pinned, simplified) does not pass; empty when it does."""
    judged = parity.judge(proof.parity, parity.DEFAULT_GATES["fp32"]) if proof.parity else []
    found = (*proof.findings, *judged)
    return found if refused(found) else ()


def adopt(trial: Path, out: Path) -> None:
    """Move the files that `publish` wrote to the folder `trial` to `out`."""
    for file in trial.iterdir():
        file.replace(out / file.name)


def nothing(*why: Finding) -> Proof:
    """The proof of a step that gave no model."""
    return Proof(findings=why, parity=None, real=None, opset=0, ir_version=0, nodes=0, size_bytes=0)


def normalise(model: onnx.ModelProto, contract: Contract, stamp: Stamp) -> None:
    """Edit `model` in place: no paths or stack traces (a user's own metadata of
    the model stays), one opset entry a domain, the lowest IR version, the contract's
    names for dims, the stamp."""
    own = {entry.key: entry.value for entry in model.metadata_props if OWN_METADATA.match(entry.key)}
    _strip(model)
    graph.one_entry_a_domain(model)
    model.ir_version = graph.lowest_ir(model)
    for values, tensors in ((model.graph.input, contract.inputs), (model.graph.output, contract.outputs)):
        for value in values:
            want, tensor = tensors.get(value.name), value.type.tensor_type
            if want and not tensor.HasField("shape"):  # some tools leave an output's shape open
                tensor.shape.dim.extend(onnx.TensorShapeProto.Dimension() for _ in want.shape)
            if want and len(want.shape) == len(tensor.shape.dim):
                for dim, name in zip(tensor.shape.dim, want.shape, strict=True):
                    if dim.dim_value > 0:  # a fixed size stays; 0 and -1 are some tools' word for an open one
                        continue
                    if isinstance(name, str):
                        dim.dim_param = name
                    else:
                        dim.dim_value = name
    onnx.helper.set_model_props(
        model,
        {
            **own,
            "onnxmill.name": stamp.name,
            "onnxmill.source": stamp.source,
            "onnxmill.version": STAMP_VERSION,
        },
    )


def _strip(message: Any) -> None:
    """Clear `metadata_props` and `doc_string` everywhere in a protobuf message: exporters put local paths there."""
    for field, value in message.ListFields():
        if field.name in ("metadata_props", "doc_string"):
            message.ClearField(field.name)
        elif field.type == field.TYPE_MESSAGE:
            for part in value if field.is_repeated else [value]:
                if isinstance(part, onnx.TensorProto):  # listing its fields would copy its weights
                    part.ClearField("doc_string")
                    part.ClearField("metadata_props")
                else:
                    _strip(part)
