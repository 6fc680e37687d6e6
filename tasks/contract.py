"""The contract: what must be true of a model after each step, and the check.

The checker accepts it, a session opens, it runs; names, order, dtypes and symbolic dims are the spec's, opset and IR
version the pinned ones; outputs are finite where the reference is; two runs of one session agree.
"""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from google.protobuf.message import DecodeError

from onnxmill.calibration.samples import Array
from onnxmill.tasks.cases import Case
from onnxmill.tasks.findings import Finding, finding
from onnxmill.tasks.graph import MODEL, STANDARD_DOMAINS, external_names, lowest_ir, opset_of
from onnxmill.tasks.machine import threads
from onnxmill.tasks.spec import Contract, Tensor

DTYPES = {"float": "float32", "double": "float64"}
"""ONNX Runtime's names of element types where they differ from numpy's."""


def check(
    path: Path, contract: Contract, cases: list[Case], *, opset: int | None
) -> tuple[list[Finding], list[dict[str, Array]]]:
    """Check the model at `path`: what is wrong, and its outputs on every case (none where it does not run).

    `opset` is the one that the model must have; null before it is pinned.
    """
    findings = _static(path, opset)
    if findings:
        return findings, []
    try:
        session = open_session(path)
    except Exception as error:  # noqa: BLE001  ONNX Runtime has no root class of its errors
        return [finding("CON002", "model", " ".join(str(error).split()))], []
    findings = _interface(session, contract)
    if findings:
        return findings, []
    outputs: list[dict[str, Array]] = []
    for case in cases:
        try:
            outputs.append(run(session, contract, case.inputs))
        except Exception as error:  # noqa: BLE001  as above
            sizes = ", ".join(f"{name} {list(array.shape)}" for name, array in case.inputs.items())
            return [finding("CON003", f"inputs {sizes}", " ".join(str(error).split()))], []
    if cases and not contract.nondeterministic:
        again = run(session, contract, cases[0].inputs)
        for name, array in again.items():
            if not np.array_equal(array, outputs[0][name], equal_nan=array.dtype.kind == "f"):
                findings.append(finding("CON009", f"output {name}"))
    return findings, outputs


def open_session(path: Path) -> onnxruntime.InferenceSession:
    """A session as most users open one: CPU, default optimisation; quiet."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # other steps work beside this one
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(session: onnxruntime.InferenceSession, contract: Contract, inputs: dict[str, Array]) -> dict[str, Array]:
    names = list(contract.output_names)
    return dict(zip(names, session.run(names, inputs), strict=True))


def _static(path: Path, opset: int | None) -> list[Finding]:
    try:
        model = onnx.load(str(path), load_external_data=False)
    except (DecodeError, OSError) as error:
        return [finding("CON001", "model", str(error))]
    standard = all(entry.domain in STANDARD_DOMAINS for entry in model.opset_import)
    missing = [name for name in external_names(model) if not (path.parent / name).is_file()]
    if missing:
        return [finding("CON001", "model", f"{', '.join(missing)}, in which its weights lie, is missing")]
    try:
        _checker(path, model, full_check=standard)  # shape inference knows no custom operator
    except Exception as error:  # noqa: BLE001  the checker raises several kinds of its own and of its shape inference
        return [finding("CON001", "model", " ".join(str(error).split()))]
    findings = []
    found, ir = opset_of(model), lowest_ir(model)
    if opset is not None and found != opset:
        findings.append(finding("CON007", "opset", f"opset {found}", measured=found, limit=opset))
    if model.ir_version != ir:
        findings.append(finding("CON007", "IR version", f"IR {model.ir_version}", measured=model.ir_version, limit=ir))
    return findings


def _checker(path: Path, model: onnx.ModelProto, *, full_check: bool) -> None:
    """onnx's checker. It refuses files of weights with several hard links, as those of the store are, and reads
    nothing of them: empty ones of their size stand in."""
    if not (names := external_names(model)):
        onnx.checker.check_model(str(path), full_check=full_check)
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            stand_in = Path(folder) / name
            stand_in.parent.mkdir(parents=True, exist_ok=True)
            stand_in.touch()
            os.truncate(stand_in, (path.parent / name).stat().st_size)
        shutil.copyfile(path, Path(folder) / MODEL)
        onnx.checker.check_model(str(Path(folder) / MODEL), full_check=full_check)


def _interface(session: onnxruntime.InferenceSession, contract: Contract) -> list[Finding]:
    findings = []
    for role, values, names, tensors in (
        ("input", session.get_inputs(), contract.input_names, contract.inputs),
        ("output", session.get_outputs(), contract.output_names, contract.outputs),
    ):
        found = tuple(value.name for value in values)
        if found != names:
            findings.append(finding("CON004", f"{role}s", f"the model has {list(found)}, the contract {list(names)}"))
            continue
        for value in values:
            findings += _tensor(f"{role} {value.name}", value, tensors[value.name])
    return findings


def _tensor(where: str, value: onnxruntime.NodeArg, want: Tensor) -> list[Finding]:
    dtype = value.type.removeprefix("tensor(").removesuffix(")")
    dtype = DTYPES.get(dtype, dtype)
    if dtype != want.dtype:
        return [finding("CON005", where, f"{dtype}, must be {want.dtype}")]
    shape = tuple(value.shape)
    if shape != want.shape:
        return [finding("CON006", where, f"{list(shape)}, must be {list(want.shape)}")]
    return []
