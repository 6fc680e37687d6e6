"""The arguments of a module's `forward` from the flat inputs of a spec, and flat tensors from what it returns."""

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter
from typing import Any

import torch

from onnxmill.tasks.errors import InputError, close_match
from onnxmill.tasks.spec import Constant

Slot = int | dict[str, Any] | tuple[Any, ...]
"""Where inputs go in one argument: the input of that index, or a dict or tuple of such."""
BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class Program(torch.nn.Module):
    """A torch.export program as a module. It keeps the mode in which it was exported."""

    def __init__(self, program: "torch.export.ExportedProgram") -> None:
        super().__init__()
        self.inner = program.module()
        names = inspect.signature(self.inner.forward).parameters
        positional = program.call_spec.in_spec.child(0).num_children
        kinds = [Parameter.POSITIONAL_ONLY] * positional + [Parameter.KEYWORD_ONLY] * (len(names) - positional)
        self.takes = [Parameter(name, kind) for name, kind in zip(names, kinds, strict=True)]

    def train(self, mode: bool = True) -> "Program":
        """Nothing: a program has no mode to change."""
        return self

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.inner(*inputs, **named)


def parameters(model: torch.nn.Module) -> list[Parameter] | None:
    """What `forward` takes; null where that is not known: a compiled module need not have a signature."""
    if isinstance(model, Program):
        return model.takes
    if isinstance(model, torch.jit.ScriptModule):
        _, *arguments = model.forward.schema.arguments  # type: ignore[attr-defined]  # torch makes it a method of its own
        return [_parameter(a.name, a.default_value if a.has_default_value() else Parameter.empty) for a in arguments]
    try:
        return list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        return None


def _parameter(name: str, default: object) -> Parameter:
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default)


@dataclass(frozen=True)
class Call:
    """How flat inputs, and constants, become the arguments of `forward`."""

    positional: tuple[Slot, ...]
    keyword: Mapping[str, Slot]
    constants: Mapping[str, Constant]

    def __call__(self, model: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> Any:
        args = [_filled(slot, inputs) for slot in self.positional]
        named = {name: _filled(slot, inputs) for name, slot in self.keyword.items()}
        return model(*args, **named, **self.constants)


def bind(takes: list[Parameter] | None, names: Sequence[str], constants: Mapping[str, Constant]) -> Call:
    """Match inputs with parameters: by name where all are names of parameters, else by position.

    Dotted names are parts of one argument: `batch.ids` and `batch.mask` of a dict, `pair.0` and `pair.1` of a tuple.
    Constants go by name. Raises `InputError` for what `forward` does not take or what it lacks.
    """
    slots = _structures(names)
    if takes is None:
        return Call(tuple(slots.values()), {}, constants)
    known = [p.name for p in takes if p.kind not in VARIABLE]
    places = [p.name for p in takes if p.kind in BY_POSITION]
    kinds = {p.kind for p in takes}
    for name in constants:
        if name not in known and Parameter.VAR_KEYWORD not in kinds:
            raise InputError("source.constants", name, f"is no parameter of forward; {close_match(name, known)}")
        if name in slots:
            raise InputError("source.constants", name, "is an input as well", "give it once")
    free = [name for name in places if name not in constants]
    own = [name for name in slots if name in known]
    by_name = len(own) == len(slots) or (Parameter.VAR_KEYWORD in kinds and (own or not free))
    if not by_name:
        order = list(slots)
        if any(name not in free or free.index(name) != order.index(name) for name in own):
            fix = "use the names of parameters for all inputs, or list the inputs as forward takes them"
            raise InputError("inputs", list(names), f"forward's parameters are {known}", fix)
        if len(slots) > len(free):
            if Parameter.VAR_POSITIONAL in kinds and len(free) == len(places):
                return Call(tuple(slots.values()), {}, constants)
            given = f"forward takes {len(free)} input(s) at most: its parameters are {known}"
            raise InputError("inputs", list(names), given, "leave out what it does not take")
        slots = dict(zip(free, slots.values(), strict=False))
    needed = [p.name for p in takes if p.default is Parameter.empty and p.kind not in VARIABLE]
    missing = [name for name in needed if name not in slots and name not in constants]
    if missing:
        fix = "add them; those that are no tensors to source.constants"
        raise InputError("inputs", list(names), f"forward also needs {missing}", fix)
    positional: list[Slot] = []
    for place, name in enumerate(places):
        if name in slots and len(positional) == place:
            positional.append(slots.pop(name))
    return Call(tuple(positional), slots, constants)


def _structures(names: Sequence[str]) -> dict[str, Slot]:
    """One slot for each argument, in the order of the names: {"x": 0, "batch": {"ids": 1, "mask": 2}}."""
    tree: dict[str, Any] = {}
    for index, name in enumerate(names):
        *path, last = name.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise InputError("inputs", name, f"'{part}' is an input itself: it cannot have parts")
        if last in node:
            raise InputError("inputs", name, "has parts: it cannot be an input itself")
        node[last] = index
    return {root: _slot(node) for root, node in tree.items()}


def _slot(node: Any) -> Slot:
    if not isinstance(node, dict):
        return int(node)
    if sorted(node) == sorted(str(i) for i in range(len(node))):
        return tuple(_slot(node[str(i)]) for i in range(len(node)))
    return {key: _slot(part) for key, part in node.items()}


def _filled(slot: Slot, inputs: Sequence[torch.Tensor]) -> Any:
    if isinstance(slot, int):
        return inputs[slot]
    if isinstance(slot, tuple):
        return tuple(_filled(part, inputs) for part in slot)
    return {key: _filled(part, inputs) for key, part in slot.items()}


def flatten(value: Any, name: str = "") -> list[tuple[str, torch.Tensor]]:
    """The tensors in what a module returned, each with its dotted key below the outermost mapping ("" without one).

    None is left out. Raises `InputError` for whatever is neither a tensor nor a container.
    """
    if isinstance(value, torch.Tensor):
        return [(name, value)]
    if value is None:
        return []
    if is_dataclass(value) and not isinstance(value, Mapping):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return [pair for key, part in value.items() for pair in flatten(part, f"{name}.{key}" if name else str(key))]
    if isinstance(value, list | tuple):
        return [pair for i, part in enumerate(value) for pair in flatten(part, f"{name}.{i}" if name else "")]
    what = f"output '{name}'" if name else "an output"
    fix = "return torch.tensor(...) for a number; leave out the rest, or turn it off through source.constants"
    raise InputError("outputs", None, f"the model must return tensors; {what} is of type {type(value).__name__}", fix)


class Flat(torch.nn.Module):
    """A model behind flat inputs and outputs: the one shape that exporters get.

    `order` picks the outputs. Each is a copy, so that none is an input, a weight or another output.
    """

    def __init__(self, model: torch.nn.Module, call: Call, order: Sequence[int]) -> None:
        super().__init__()
        self.model, self.call, self.order = model, call, tuple(order)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = flatten(self.call(self.model, inputs))
        return tuple(found[index][1].clone() for index in self.order)


@contextlib.contextmanager
def evaluated(model: torch.nn.Module) -> Iterator[None]:
    """A block in which the model is in eval mode and records no gradients; afterwards it is as it was."""
    modes = [(part, part.training) for part in model.modules() if hasattr(part, "training")]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training
