"""PyTorch: load through the user's loader, run, export. Dynamo from opset 18 on, TorchScript below.

The dynamo exporter does not honour opsets below 18 (it returns 18 without a word), hence the second route; both are
proven by values afterwards, so a size or a branch that was baked in does not pass.
"""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from onnxmill.calibration.samples import Array
from onnxmill.tasks import loader, proof
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.export import SourceSettings
from onnxmill.tasks.machine import threads
from onnxmill.tasks.spec import Contract

DYNAMO_MIN_OPSET = 18


def load(settings: SourceSettings) -> torch.nn.Module:
    """The user's module, in eval mode: live Dropout and batch statistics are never exported."""
    torch.set_num_threads(threads())
    torch.manual_seed(0)
    assert settings.loader
    model = loader.call("source.loader", settings.loader)
    if not isinstance(model, torch.nn.Module):
        kind = type(model).__name__
        raise InputError("source.loader", settings.loader, f"must return a torch.nn.Module; it returned a {kind}")
    return model.eval()


def predict(model: torch.nn.Module, inputs: Mapping[str, Array]) -> list[tuple[str, Array]]:
    """The module's outputs, flattened, with their keys where it returns a mapping ("" elsewhere).

    Raises `InputError` where `forward` has parameters of these names in another place: inputs are given by position.
    """
    _check_order(model, list(inputs))
    with torch.inference_mode():
        value = model(*(_tensor(array) for array in inputs.values()))
    return [(name, tensor.detach().cpu().numpy()) for name, tensor in _flatten(value)]


def write(model: torch.nn.Module, contract: Contract, path: Path) -> str:
    """Export to `path`. The route is the note."""
    example = tuple(_example(contract))
    inputs, outputs = list(contract.input_names), list(contract.output_names)
    with torch.inference_mode():
        own = [name for name, _ in _flatten(model(*example))]
    named = outputs if sorted(own) != sorted(outputs) else own  # exporters name outputs in the model's own order
    if contract.opset >= DYNAMO_MIN_OPSET:
        symbols = {dim: torch.export.Dim(dim) for dim in contract.dims}
        shapes = tuple(
            {axis: symbols[dim] for axis, dim in enumerate(contract.inputs[name].shape) if isinstance(dim, str)}
            for name in contract.input_names
        )
        program = torch.onnx.export(
            model,
            example,
            dynamo=True,
            opset_version=contract.opset,
            dynamic_shapes=shapes,
            input_names=inputs,
            output_names=named,
            verbose=False,
        )
        assert program is not None
        program.save(path, external_data=False)
        _in_order(path, outputs)
        return "dynamo exporter"
    tensors = {**contract.inputs, **contract.outputs}
    axes = {
        name: {axis: dim for axis, dim in enumerate(tensor.shape) if isinstance(dim, str)}
        for name, tensor in tensors.items()
    }
    torch.onnx.export(
        model,
        example,
        path,
        dynamo=False,
        opset_version=contract.opset,
        dynamic_axes=axes,
        input_names=inputs,
        output_names=named,
        verbose=False,
    )
    _in_order(path, outputs)
    return f"TorchScript exporter (dynamo starts at opset {DYNAMO_MIN_OPSET})"


def _check_order(model: torch.nn.Module, names: list[str]) -> None:
    try:
        taken = list(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):  # a compiled module need not have a signature
        return
    if set(names) <= set(taken) and names != taken[: len(names)]:
        fix = "inputs are given by position: list them as forward takes them"
        raise InputError("inputs", names, f"forward's parameters are {taken}", fix)


def _in_order(path: Path, names: list[str]) -> None:
    """Put the outputs of the file in the order of the contract."""
    proto = onnx.load(str(path))
    proto.graph.output.sort(key=lambda value: names.index(value.name))
    proof.save(proto, path)


def _example(contract: Contract) -> list[torch.Tensor]:
    """Inputs to trace: sizes of 2 or more (1 would be specialised), values unlike those of the parity cases."""
    rng = np.random.default_rng(20240229)
    sizes = {dim: max(2, *sizes) for dim, sizes in contract.dims.items()}
    tensors = []
    for name in contract.input_names:
        want = contract.inputs[name]
        shape = [sizes[d] if isinstance(d, str) else d for d in want.shape]
        if np.dtype(want.dtype).kind == "f":
            tensors.append(_tensor(rng.standard_normal(shape).astype(want.dtype)))
        else:
            low, high = want.range or (0, 2)
            tensors.append(_tensor(rng.integers(int(low), int(high), shape).astype(want.dtype)))
    return tensors


def _tensor(array: Array) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array).copy())


def _flatten(value: Any, name: str = "") -> list[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        return [(name, value)]
    if isinstance(value, Mapping):
        return [pair for key, part in value.items() if part is not None for pair in _flatten(part, str(key))]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [pair for part in value if part is not None for pair in _flatten(part)]
    raise InputError("source", type(value).__name__, "the model must return tensors, or tuples or dicts of tensors")
