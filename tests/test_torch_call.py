"""What `forward` gets of a spec's flat inputs, and the flat tensors in what it returns."""

from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPooling

from onnxmill.tasks.errors import InputError
from onnxmill.tasks.export.torch_call import Flat, Program, bind, evaluated, flatten, parameters

Named = namedtuple("Named", ["a", "b"])


@dataclass
class Record:
    a: torch.Tensor
    b: tuple[torch.Tensor | None, torch.Tensor]


def module(forward: Callable[..., Any]) -> nn.Module:
    """A module whose forward is this function."""
    made = nn.Module()
    made.forward = forward
    return made


def given(forward: Callable[..., Any], names: list[str], constants: Mapping[str, Any] | None = None) -> Any:
    """What `forward` gets where input number i is the tensor i."""
    model = module(forward)
    call = bind(parameters(model), names, constants or {})
    return call(model, [torch.tensor(i) for i in range(len(names))])


def three(x: Any, scale: Any = None, mask: Any = None) -> list[Any]:
    return [None if value is None else int(value) for value in (x, scale, mask)]


@pytest.mark.parametrize(
    ("names", "got"),
    [
        (["x"], [0, None, None]),
        (["mask", "x"], [1, None, 0]),
        (["scale", "x", "mask"], [1, 0, 2]),
        (["image"], [0, None, None]),
        (["x", "mask_2"], [0, 1, None]),
        (["a", "b", "c"], [0, 1, 2]),
    ],
)
def test_by_name_where_all_are_parameters_else_by_position(names: list[str], got: list[int | None]) -> None:
    assert given(three, names) == got


def test_positions_leave_out_what_is_a_constant() -> None:
    assert given(three, ["a", "b"], {"scale": 7}) == [0, 7, 1]


def test_the_rest_of_an_open_signature() -> None:
    def more(x: Any, **rest: Any) -> Any:
        return int(x), {name: int(value) for name, value in rest.items()}

    assert given(more, ["mask", "x"], {"n": 5}) == (1, {"mask": 0, "n": 5})
    assert given(more, ["image"]) == (0, {})
    assert given(lambda **rest: sorted(rest), ["a", "b"]) == ["a", "b"]
    assert given(lambda *rest: [int(value) for value in rest], ["a", "b"]) == [0, 1]
    assert given(lambda x, *, scale: (int(x), int(scale)), ["scale", "x"]) == (1, 0)


def test_dotted_names_are_parts_of_one_argument() -> None:
    def nested(batch: Any, pair: Any) -> Any:
        return batch, pair

    batch, pair = given(nested, ["pair.1", "batch.ids", "batch.deep.a", "pair.0"])
    assert batch == {"ids": 1, "deep": {"a": 2}}
    assert pair == (3, 0)
    assert given(nested, ["p.0", "q.x"]) == ((0,), {"x": 1})  # by position


@pytest.mark.parametrize(
    ("names", "constants", "key", "message"),
    [
        (["mask", "image"], {}, "inputs", r"forward's parameters are \['x', 'scale', 'mask'\]"),
        (["image", "x"], {}, "inputs", r"forward's parameters are"),
        (["scale", "mask"], {}, "inputs", r"forward also needs \['x'\]"),
        (["a", "b", "c", "d"], {}, "inputs", "takes 3 input"),
        (["a", "b", "c"], {"mask": True}, "inputs", "takes 2 input"),
        (["x"], {"scalle": 2}, "source.constants", "did you mean 'scale'"),
        (["x", "mask"], {"mask": 2}, "source.constants", "is an input as well"),
        (["x", "x.part"], {}, "inputs", "cannot have parts"),
        (["x.part", "x"], {}, "inputs", "cannot be an input itself"),
    ],
)
def test_what_does_not_fit_is_named(names: list[str], constants: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        given(three, names, constants)
    assert raised.value.key == key


def test_scalars_of_forward_must_be_declared() -> None:
    def scalars(x: Any, n: int, flag: bool) -> Any:
        return n if flag else x

    with pytest.raises(InputError, match=r"also needs \['n', 'flag'\]\. add them; those that are no tensors to source"):
        given(scalars, ["x"])
    assert given(scalars, ["x"], {"flag": True, "n": 4}) == 4


def test_a_script_module_has_the_parameters_of_its_schema() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, scale: float = 2.0, n: int = 1) -> torch.Tensor:
            return x * scale + n

    script = torch.jit.script(Two())
    taken = parameters(script)
    assert taken
    assert [(p.name, p.default) for p in taken][1:] == [("scale", 2.0), ("n", 1)]
    assert bind(taken, ["image"], {"n": 5})(script, [torch.ones(1)]).item() == 7


def test_a_program_gets_its_arguments_as_it_was_exported() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
            return x - mask

    model = Program(torch.export.export(Two(), (torch.ones(2),), {"mask": torch.ones(2)}))
    call = bind(parameters(model), ["mask", "x"], {})
    assert call(model, [torch.zeros(2), torch.ones(2)]).tolist() == [1, 1]
    with evaluated(model):
        assert call(model, [torch.ones(2), torch.ones(2)]).tolist() == [0, 0]


# --- outputs ----------------------------------------------------------------------------------------------------------

ONE, TWO = torch.tensor(1), torch.tensor(2)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (ONE, [""]),
        ((ONE, TWO), ["", ""]),
        ([ONE, (TWO, None)], ["", ""]),
        ({"a": ONE, "none": None, "b": TWO}, ["a", "b"]),
        ({"a": {"x": ONE}, "b": [TWO]}, ["a.x", "b.0"]),
        ((ONE, {"b": TWO}), ["", "b"]),
        (Named(ONE, TWO), ["a", "b"]),
        (Record(ONE, (None, TWO)), ["a", "b.1"]),
        (torch.tensor([[0, 0, 1]]).max(1), ["", ""]),
        (BaseModelOutputWithPooling(last_hidden_state=ONE, pooler_output=TWO), ["last_hidden_state", "pooler_output"]),
    ],
)
def test_what_a_model_returns_is_flattened(value: Any, names: list[str]) -> None:
    found = flatten(value)
    assert [name for name, _ in found] == names
    assert [int(tensor) for _, tensor in found] == [1, 2][: len(names)]


@pytest.mark.parametrize("value", ["text", 3, 2.5, True, object()])
def test_what_is_no_tensor_is_refused(value: object) -> None:
    with pytest.raises(InputError, match=rf"an output is of type {type(value).__name__}"):
        flatten((ONE, value))
    with pytest.raises(InputError, match=r"output 'a\.0' is of type"):
        flatten({"a": [value]})


def test_flat_outputs_are_copies_in_the_order_asked_for() -> None:
    model = module(lambda x: (x, x))
    x = torch.ones(2)
    first, second = Flat(model, bind(parameters(model), ["x"], {}), [1, 0])(x)
    assert len({tensor.data_ptr() for tensor in (first, second, x)}) == 3


# --- eval mode --------------------------------------------------------------------------------------------------------


class Odd(nn.Module):
    """Its `train` forgets to return the module, as some do."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.still = nn.Dropout(0.5).eval()

    def train(self, mode: bool = True) -> None:  # type: ignore[override]
        super().train(mode)


def test_eval_mode_ends_with_the_block_whatever_happens_in_it() -> None:
    model = Odd()
    before = [part.training for part in model.modules()]
    assert before == [True, True, False]

    def fails() -> None:
        with evaluated(model):
            assert not any(part.training for part in model.modules())
            assert not torch.is_grad_enabled()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert [part.training for part in model.modules()] == before
    assert torch.is_grad_enabled()
