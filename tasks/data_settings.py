"""From what a spec says of images and text, and what the model takes, to the settings of their sources."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from onnxmill.calibration.sources_images import DTYPES, ImageSettings
from onnxmill.calibration.sources_text import Part, TextSettings
from onnxmill.tasks.errors import InputError, close_match
from onnxmill.tasks.spec import Dim, Images, Tensor, Text

PARTS: dict[str, Part] = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
"""What inputs of the usual names take of an encoded text."""
PIXEL_SCALE = 1 / 255


def only_input(key: str, value: str, inputs: Mapping[str, Tensor]) -> str:
    """The model's one input. Raises `InputError` where it has others too, for a source that gives one."""
    if len(inputs) != 1:
        expected = f"gives one input, and the model takes {', '.join(inputs)}"
        raise InputError(key, value, expected, "give an .npz with all of them, or file.py:callable")
    return next(iter(inputs))


def image_settings(given: Images | None, inputs: Mapping[str, Tensor]) -> ImageSettings:
    """How an image becomes the model's one input. Raises `InputError` where its shape or dtype is none of an image."""
    asked = given or Images()
    name, tensor = next(iter(inputs.items()))
    where = f"input '{name}' {_shown(tensor.shape)}"
    if len(tensor.shape) != 4:
        raise InputError("data.images", None, f"{where} is no image: it must have 4 axes")
    if tensor.dtype not in DTYPES:
        raise InputError("data.images", tensor.dtype, f"{where} is no image: its dtype must be {', '.join(DTYPES)}")
    raw = tensor.dtype == "uint8"
    for key in ("scale", "mean", "std"):
        if raw and getattr(asked, key):
            raise InputError(
                f"data.images.{key}", getattr(asked, key), f"{where} is uint8: it takes the pixels as they are"
            )
    channels = 1 if asked.mode == "gray" else 3
    for key, values in (("mean", asked.mean), ("std", asked.std)):
        if len(values) not in (0, channels):
            raise InputError(
                f"data.images.{key}", list(values), f"must have {channels} value(s), as mode {asked.mode} has"
            )
    layout = _layout(asked, where, tensor.shape, channels)
    return ImageSettings(
        input=name,
        size=_size(asked, where, tensor.shape[2:] if layout == "nchw" else tensor.shape[1:3]),
        resize=asked.resize,
        layout=layout,
        mode=asked.mode,
        scale=1.0 if raw else asked.scale or PIXEL_SCALE,
        mean=asked.mean,
        std=asked.std,
        dtype=tensor.dtype,
    )


def _layout(asked: Images, where: str, shape: tuple[Dim, ...], channels: int) -> Literal["nchw", "nhwc"]:
    fits: dict[Literal["nchw", "nhwc"], bool] = {"nchw": shape[1] == channels, "nhwc": shape[3] == channels}
    if asked.layout != "auto":
        axis = shape[1] if asked.layout == "nchw" else shape[3]
        if axis != channels and not isinstance(axis, str):
            raise InputError("data.images.layout", asked.layout, f"{where} has no {channels} channel(s) there")
        return asked.layout
    found = [layout for layout, fit in fits.items() if fit]
    if len(found) != 1:
        many = "two axes" if found else "no axis"
        fix = "set layout to nchw or nhwc, and mode to what the model takes"
        raise InputError(
            "data.images.layout", "auto", f"{where} has {many} of {channels} channel(s), as mode {asked.mode}", fix
        )
    return found[0]


def _size(asked: Images, where: str, sides: tuple[Dim, ...]) -> tuple[int, int]:
    """Height and width."""
    size = [
        given if isinstance(side, str) else side for side, given in zip(sides, asked.size or (None, None), strict=True)
    ]
    height, width = size
    if height is None or width is None:
        raise InputError("data.images.size", None, f"is required: {where} has dynamic sides", "give [height, width]")
    if asked.size and asked.size != (height, width):
        raise InputError("data.images.size", list(asked.size), f"{where} takes {[height, width]}")
    return height, width


def text_settings(given: Text, tokenizer: str, inputs: Mapping[str, Tensor]) -> TextSettings:
    """How a row becomes the model's inputs; `tokenizer` is its name in the pack. Raises `InputError` for an input that
    is not made from text."""
    for name in given.inputs:
        if name not in inputs:
            raise InputError("data.text.inputs", name, f"is no input of the model; {close_match(name, inputs)}")
    parts: dict[str, Part] = {}
    for name, tensor in inputs.items():
        part = given.inputs.get(name) or PARTS.get(name)
        if part is None:
            fix = f"give `inputs: {{{name}: ids}}`, or attention_mask or type_ids"
            raise InputError("data.text.inputs", None, f"does not say what input '{name}' takes", fix)
        if tensor.dtype not in ("int32", "int64"):
            raise InputError("data.text", None, f"input '{name}' is {tensor.dtype}, and tokens are int64 or int32")
        parts[name] = part
    return TextSettings(
        tokenizer=Path(tokenizer),
        column=given.column,
        inputs=parts,
        dtypes={name: tensor.dtype for name, tensor in inputs.items()},
        max_length=given.max_length,
        padding=given.padding,
        pair=given.pair,
        label=given.label,
    )


def _shown(shape: tuple[Dim, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
