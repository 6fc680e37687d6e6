"""PyTorch: a module, a TorchScript file or a torch.export program; by the dynamo exporter or by TorchScript.

Neither exporter is right for all models, and both can bake in a size or a branch that the example took: what they
wrote is proven by values, and under `auto` the other one is tried where that fails.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import numpy as np
import torch

from onnxmill.calibration.samples import Array
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.export import SourceSettings, torch_load, torch_write
from onnxmill.tasks.export.torch_call import Flat, Program, bind, evaluated, flatten, parameters
from onnxmill.tasks.findings import Finding
from onnxmill.tasks.machine import threads
from onnxmill.tasks.spec import Constant, Contract, Dtype


@dataclass(frozen=True)
class Torch:
    """A module, run and exported in eval mode, but left as it is. `constants` are arguments that are no tensors."""

    model: torch.nn.Module
    constants: Mapping[str, Constant] = field(default_factory=dict)
    exporter: str = "auto"

    def predict(self, inputs: Mapping[str, Array]) -> list[tuple[str, Array]]:
        """The module's outputs, flattened, with their keys where it returns a mapping ("" elsewhere)."""
        call = bind(parameters(self.model), list(inputs), self.constants)
        with evaluated(self.model):
            value = call(self.model, [_tensor(array) for array in inputs.values()])
        return [(name, _array(name, tensor)) for name, tensor in flatten(value)]

    def routes(self, contract: Contract, opset: int) -> list[str]:
        """The exporters that apply; first the one that gives the pin itself: dynamo honours no opset below 18."""
        dynamo, torchscript = "dynamo", "torchscript"
        if isinstance(self.model, torch.jit.ScriptModule):
            routes = [torchscript]
        elif isinstance(self.model, Program):
            routes = [dynamo]
        else:
            routes = [dynamo, torchscript] if opset >= torch_write.DYNAMO_MIN_OPSET else [torchscript, dynamo]
        if self.exporter not in ("auto", *routes):
            raise InputError("source.exporter", self.exporter, f"a source of this kind is exported by {routes[0]} only")
        return routes if self.exporter == "auto" else [self.exporter]

    def write(self, route: str, contract: Contract, opset: int, path: Path) -> list[Finding]:
        """By one exporter; with the outputs in the contract's order where the model names them itself."""
        call = bind(parameters(self.model), contract.input_names, self.constants)
        example, names = example_of(contract), list(contract.output_names)
        with evaluated(self.model):
            own = [name for name, _ in flatten(call(self.model, example))]
        order = [own.index(name) for name in names] if sorted(own) == sorted(names) else range(len(own))
        return torch_write.write(route, Flat(self.model, call, order), example, contract, opset, path)


def load(settings: SourceSettings) -> Torch:
    """The user's model, from its loader or its file. Raises `InputError`."""
    torch.set_num_threads(threads())
    torch.manual_seed(0)
    return Torch(torch_load.load(settings), settings.constants, settings.exporter)


def example_of(contract: Contract) -> tuple[torch.Tensor, ...]:
    """Inputs to trace, unlike those of the parity cases. Sizes are 2 or more (1 would be specialised), and differ
    from dim to dim where the spec's sizes allow: equal ones could pass for one dim."""
    rng = np.random.default_rng(20240229)
    sizes: dict[str, int] = {}
    for dim, allowed in contract.dims.items():
        most = max(2, *allowed)
        sizes[dim] = max((n for n in allowed if n > 1 and n not in sizes.values()), default=most)
    tensors = []
    for name in contract.input_names:
        want = contract.inputs[name]
        shape = [sizes[d] if isinstance(d, str) else d for d in want.shape]
        if np.dtype(want.dtype).kind != "f":
            low, high = want.range or (0, 2)
            values: Array = rng.integers(int(low), int(high), shape)
        else:
            values = rng.uniform(*want.range, shape) if want.range else rng.standard_normal(shape)
        tensors.append(_tensor(values.astype(want.dtype)))
    return tuple(tensors)


def _tensor(array: Array) -> torch.Tensor:
    return torch.from_numpy(np.array(array, order="C"))  # a copy: a model may edit its inputs


def _array(name: str, tensor: torch.Tensor) -> Array:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in get_args(Dtype) or tensor.layout != torch.strided:
        what = f"is a {dtype} tensor" if tensor.layout == torch.strided else f"is a tensor of layout {tensor.layout}"
        raise InputError("outputs", name or None, f"{what}, which has no place here", "convert it at forward's end")
    array: Array = tensor.detach().cpu().numpy()
    return array
