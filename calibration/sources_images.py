"""Samples from a folder of images: decoded, resized and normalized one at a time."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from onnxmill.calibration.samples import Array
from onnxmill.tasks.errors import InputError, close_match

Pixels = npt.NDArray[np.uint8]
DTYPES = ("float16", "float32", "float64", "uint8")
SUFFIXES = (".bmp", ".gif", ".jpe", ".jpeg", ".jfif", ".jpg", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp")
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # no format that starts another program, as EPS does


@dataclass(frozen=True)
class ImageSettings:
    """How an image becomes the model's input: resized to `size`, then (pixel · scale - mean) / std.

    `size` is (height, width). `resize`: "crop" covers the size and cuts what is over, equally on both sides; "stretch"
    changes the ratio of the sides; "pad" fits into the size and fills the rest with black. `mean` and `std` have a
    value for each channel, in the order of `mode`, in units of pixel · scale; () is none. dtype "uint8" is the raw
    pixels, without scale, mean and std.
    """

    input: str
    size: tuple[int, int]
    resize: Literal["crop", "stretch", "pad"] = "crop"
    layout: Literal["nchw", "nhwc"] = "nchw"
    mode: Literal["rgb", "bgr", "gray"] = "rgb"
    scale: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    dtype: str = "float32"

    @property
    def channels(self) -> int:
        return 1 if self.mode == "gray" else 3


class ImageFolder:
    """The images below a folder, by their path; hidden ones and files of other kinds do not count.

    An image's label is the index of its first folder among the sorted direct sub-folders; there is none as soon as one
    image lies in no sub-folder. Raises `InputError` for settings that do not fit together and where there is no image.
    """

    def __init__(self, key: str, path: Path, settings: ImageSettings) -> None:
        self._key, self._path, self._settings = key, path, settings
        self._table = _values(key, settings)
        self._names = sorted(_images(key, path))
        if not self._names:
            raise InputError(key, str(path), "holds no image", f"Known are {', '.join(SUFFIXES)}")
        folders = sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        self._classes = {name: index for index, name in enumerate(folders)}
        self._labelled = all("/" in name for name in self._names)

    def __len__(self) -> int:
        return len(self._names)

    def origin(self, index: int) -> str:
        """The image's path below the folder."""
        return self._names[index]

    def label(self, index: int) -> Array | None:
        """The class as an int64 scalar."""
        return np.array(self._classes[self._names[index].partition("/")[0]], np.int64) if self._labelled else None

    def sample(self, index: int) -> dict[str, Array]:
        """{input: [1, C, H, W]}, or [1, H, W, C] as the layout says. Raises `InputError` for a broken image."""
        name, settings = self._names[index], self._settings
        try:
            pixels = _pixels(self._path / name, settings)
        except UnidentifiedImageError as error:
            size_bytes = (self._path / name).stat().st_size
            fault = f"is of no known image format ({size_bytes} bytes)" if size_bytes else "is an empty file"
            raise self._refusal(index, fault) from error
        except Image.DecompressionBombError as error:
            raise self._refusal(index, f"is too large to decode safely: {error}") from error
        except Exception as error:  # Pillow's decoders raise many kinds: OSError, SyntaxError, struct.error …
            raise self._refusal(index, f"cannot be decoded: {error}") from error
        height, width = settings.size
        # A value for each of the 256 pixel values of a channel: exact to the last bit of the dtype, and one look-up.
        output = np.empty((height, width, settings.channels), self._table.dtype)
        if settings.layout == "nchw":
            output = np.empty((settings.channels, height, width), self._table.dtype)
        channels_last = output if settings.layout == "nhwc" else np.moveaxis(output, 0, -1)
        for channel, table in enumerate(self._table):
            channels_last[..., channel] = table[pixels[..., channel]]
        return {settings.input: output[np.newaxis]}

    def _refusal(self, index: int, fault: str) -> InputError:
        fix = "Mend the file or take it out of the folder"
        return InputError(self._key, self._names[index], f"image {index} {fault}", fix)


def _images(key: str, folder: Path) -> Iterator[str]:
    """The paths of all images below the folder, links to folders followed. Raises `InputError` where it cannot look."""

    def refuse(error: OSError) -> None:
        raise InputError(key, str(error.filename), f"cannot be read as a folder: {error.strerror}") from error

    for here, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        place = Path(here)
        folders[:] = [name for name in folders if not name.startswith(".") and not leads_back(place / name)]
        for name in files:
            if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES:
                yield (place / name).relative_to(folder).as_posix()


def leads_back(folder: Path) -> bool:
    """Whether a folder is a link to one of those it lies in."""
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())


def _values(key: str, settings: ImageSettings) -> Array:
    """The model's value of each pixel value, [C, 256] in the settings' dtype. Raises `InputError` for bad settings."""
    if settings.dtype not in DTYPES:
        raise InputError(key, settings.dtype, f"no dtype of an image; {close_match(settings.dtype, DTYPES)}")
    if min(settings.size) < 1:
        raise InputError(key, settings.size, "size must be (height, width), each at least 1")
    for name, values in (("mean", settings.mean), ("std", settings.std)):
        if len(values) not in (0, settings.channels):
            expected = f"{name} must have {settings.channels} values, one for each channel of mode {settings.mode}"
            raise InputError(key, values, expected)
    numbers = (settings.scale, *settings.mean, *settings.std)
    if not all(map(math.isfinite, numbers)) or 0 in (settings.scale, *settings.std):
        raise InputError(key, numbers, "scale, mean and std must be finite, scale and std not zero")
    if settings.dtype == "uint8" and (settings.scale != 1 or settings.mean or settings.std):
        raise InputError(key, "uint8", "is raw pixels: leave out scale, mean and std, or use a float dtype")
    mean = np.array(settings.mean or (0.0,) * settings.channels)[:, np.newaxis]
    std = np.array(settings.std or (1.0,) * settings.channels)[:, np.newaxis]
    table: Array = ((np.arange(256) * settings.scale - mean) / std).astype(settings.dtype)
    return table


def _pixels(path: Path, settings: ImageSettings) -> Pixels:
    """The image upright and resized, [H, W, C]. Alpha is dropped, as the usual loaders do; an animation's first frame
    counts. Raises whatever Pillow raises."""
    with Image.open(path, formats=FORMATS) as opened:
        deep = opened.mode.startswith("I;16") or (opened.mode == "I" and opened.format in ("PNG", "PPM"))
        image = ImageOps.exif_transpose(opened)
        if deep:  # the high byte, as Pillow does itself for three channels of 16 bits
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        elif image.mode in ("I", "F"):
            raise ValueError(f"pixels of {image.mode} (32 bits) have no known range; save it with 8 or 16 bits")
        elif image.mode == "P":
            image = image.convert("RGBA")  # resolves the palette's transparency
        resized = _resized(image.convert("L" if settings.mode == "gray" else "RGB"), settings.size, settings.resize)
    pixels: Pixels = np.asarray(resized).reshape(*settings.size, settings.channels)
    return pixels[..., ::-1] if settings.mode == "bgr" else pixels


def _resized(image: Image.Image, size: tuple[int, int], resize: Literal["crop", "stretch", "pad"]) -> Image.Image:
    """Bilinear with a wider filter when it shrinks (antialias). Only the part that a crop keeps is computed."""
    height, width = size
    if resize == "stretch":
        return image.resize((width, height), Image.Resampling.BILINEAR)
    if resize == "pad":
        ratio = min(height / image.height, width / image.width)
        inner = max(1, round(image.width * ratio)), max(1, round(image.height * ratio))
        padded = Image.new(image.mode, (width, height))
        place = (width - inner[0]) // 2, (height - inner[1]) // 2
        padded.paste(image.resize(inner, Image.Resampling.BILINEAR), place)
        return padded
    # The whole would become [tall, wide], of which torchvision's Resize and CenterCrop cut at (left, top).
    if height * image.width >= width * image.height:
        tall, wide = height, height * image.width // image.height
    else:
        tall, wide = width * image.height // image.width, width
    left, top = round((wide - width) / 2), round((tall - height) / 2)
    x, y = image.width / wide, image.height / tall
    box = left * x, top * y, min((left + width) * x, image.width), min((top + height) * y, image.height)
    return image.resize((width, height), Image.Resampling.BILINEAR, box=box)
