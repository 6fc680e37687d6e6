"""Write a torch module as ONNX by one of torch's exporters; say in one line why one of them cannot."""

import re
import traceback
from collections.abc import Iterator
from pathlib import Path

import onnx
import torch

from onnxmill.tasks import graph
from onnxmill.tasks.errors import shorten
from onnxmill.tasks.export import interface
from onnxmill.tasks.export.torch_call import Flat, evaluated
from onnxmill.tasks.findings import Finding, finding
from onnxmill.tasks.spec import Contract, Tensor

DYNAMO_MIN_OPSET = 18
"""Asked for less, the dynamo exporter gives 18 without a word."""
TORCHSCRIPT_MAX_OPSET = 20
"""Asked for more, the TorchScript exporter stamps the number on the operators of 20."""

UNSUPPORTED = (
    r"Exporting the operator '(?P<op>[\w.:]+)'",
    r"operator with unrecognized namespace (?P<op>[\w.:]+\w)",
    r"Couldn't export operator (?P<op>[\w.:]+)",
    r"ONNX export of operator (?P<op>[\w.:]+\w)",
    r"No ONNX function found for <OpOverload\(op='(?P<op>[\w.]+)'",
    r"No ONNX function found for (?P<op>.+?)\. Failure",
    r"Cannot find a compatible OpOverload for (?P<op>[\w.]+\w)",
)
"""How the exporters say that they have nothing for an operator."""
DATA_DEPENDENT = ("data-dependent", "data dependent", "Dynamic control flow")
BRANCH_FIX = "choose by torch.where, or by torch.cond with both branches as functions"


def write(
    route: str, model: Flat, example: tuple[torch.Tensor, ...], contract: Contract, opset: int, path: Path
) -> list[Finding]:
    """An ONNX file at `path`, its inputs and outputs named as in the contract; a refusal where there is none."""
    exporter = _dynamo if route == "dynamo" else _torchscript
    try:
        with evaluated(model):
            exporter(model, example, contract, opset, path)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001  exporters raise of every kind: the model is refused, with the reason
        traceback.print_exc()
        return [_refusal(error, route)]
    return _named(path, contract)


def _dynamo(model: Flat, example: tuple[torch.Tensor, ...], contract: Contract, opset: int, path: Path) -> None:
    symbols = {dim: torch.export.Dim(dim) for dim in contract.dims}
    inputs = [contract.inputs[name] for name in contract.input_names]
    shapes = tuple({axis: symbols[dim] for axis, dim in _axes(tensor).items()} for tensor in inputs)
    program = torch.onnx.export(
        model,
        example,
        dynamo=True,
        opset_version=max(opset, DYNAMO_MIN_OPSET),
        dynamic_shapes=(shapes,),
        input_names=[_own(name, "in") for name in contract.input_names],
        output_names=[_own(name, "out") for name in contract.output_names],
        verbose=False,
    )
    assert program is not None
    tensors = [value.const_value for value in program.model.graph.initializers.values()]
    weights = sum(tensor.nbytes for tensor in tensors if tensor is not None)
    program.save(path, external_data=weights >= graph.EXTERNAL_BYTES)


def _torchscript(model: Flat, example: tuple[torch.Tensor, ...], contract: Contract, opset: int, path: Path) -> None:
    traced: torch.nn.Module = model
    if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):  # the exporter's own trace cannot
        traced = torch.jit.trace(model, example, check_trace=False)  # type: ignore[no-untyped-call]
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one operator for a whole layer, which this exporter does not know
    inputs = {_own(name, "in"): _axes(contract.inputs[name]) for name in contract.input_names}
    outputs = {_own(name, "out"): _axes(contract.outputs[name]) for name in contract.output_names}
    try:
        torch.onnx.export(
            traced,
            example,
            path,
            dynamo=False,
            opset_version=min(opset, TORCHSCRIPT_MAX_OPSET),
            dynamic_axes={**inputs, **outputs},
            input_names=list(inputs),
            output_names=list(outputs),
            verbose=False,
        )
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def _own(name: str, role: str) -> str:
    """A name for the exporter, which renames no value of the model's own that is called as an output is to be."""
    return f"{name}.onnxmill.{role}"


def _axes(tensor: Tensor) -> dict[int, str]:
    """The dynamic dims of an input or output, by their axes."""
    return {axis: dim for axis, dim in enumerate(tensor.shape) if isinstance(dim, str)}


def _named(path: Path, contract: Contract) -> list[Finding]:
    """Refuse operators that are not ONNX's; give inputs and outputs the contract's names."""
    model = onnx.load(str(path), load_external_data=False)
    local = {(function.domain, function.name) for function in model.functions}
    nodes = [*graph.nodes_of(model.graph), *(node for function in model.functions for node in function.node)]
    foreign = {
        f"{node.domain}::{node.op_type}"
        for node in nodes
        if node.domain not in graph.STANDARD_DOMAINS and (node.domain, node.op_type) not in local
    }
    if foreign:
        return [finding("EXP002", operator, "it is no operator of ONNX") for operator in sorted(foreign)]
    inputs = [_own(name, "in") for name in contract.input_names]
    outputs = [_own(name, "out") for name in contract.output_names]
    interface.conform(model, contract, inputs, outputs)
    path.write_bytes(model.SerializeToString(deterministic=True))
    return []


# --- refusals --------------------------------------------------------------------------------------------------------


def _refusal(error: Exception, route: str) -> Finding:
    """One line: the operator, or the user's line, and what can be done."""
    causes = list(_causes(error))
    text = shorten(f"{type(causes[-1]).__name__}: {' '.join(str(causes[-1]).split())}")
    operator = next((m["op"] for e in causes for p in UNSUPPORTED if (m := re.search(p, str(e)))), "")
    if operator:
        name = operator if "::" in operator else operator.replace(".", "::", 1)
        return finding("EXP002", name, f"{route}: {text}")
    if any(phrase in str(cause) for cause in causes for phrase in DATA_DEPENDENT):
        text, fix = (
            "data-dependent control flow: a Python `if`, loop or number depends on a tensor's values",
            BRANCH_FIX,
        )
    else:
        fix = ""
    return finding("EXP001", _place(causes) or "source", f"{route}: {text}", fix=fix)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from, down to the first one."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__


def _place(causes: list[BaseException]) -> str:
    """The innermost line of the user's files, "net.py:12"; "" where the error names none."""
    for cause in reversed(causes):
        frames = [f for f in traceback.extract_tb(cause.__traceback__) if Path(f.filename).is_relative_to(Path.cwd())]
        if frames:
            return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
    return ""
