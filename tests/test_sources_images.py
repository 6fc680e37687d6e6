"""Image folders: the numbers of independent calculations, any geometry, and a name for every broken file."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from onnxmill.calibration.samples import Array, Expected, check
from onnxmill.calibration.sources import Source
from onnxmill.calibration.sources_images import ImageFolder, ImageSettings, Pixels, _resized
from onnxmill.tasks.errors import InputError

KEY = "data.calibration"


def noise(height: int, width: int) -> Pixels:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def save(path: Path, pixels: Pixels) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def only(folder: Path, **changed: object) -> Array:
    """The single image of a folder, raw at 2 × 2 unless the settings say otherwise."""
    given = {"input": "image", "size": (2, 2), "layout": "nhwc", "dtype": "uint8", **changed}
    source: Source = ImageFolder(KEY, folder, ImageSettings(**given))  # type: ignore[arg-type]
    assert len(source) == 1
    return source.sample(0)["image"]


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_pixels_of_an_image_of_the_size_stay_as_they_are(tmp_path: Path) -> None:
    pixels = noise(2, 2)
    save(tmp_path / "a.png", pixels)
    for resize in ("crop", "stretch", "pad"):
        assert np.array_equal(only(tmp_path, resize=resize), pixels[np.newaxis])


@pytest.mark.parametrize("mode", ["rgb", "bgr", "gray"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_layout_mode_and_normalization(tmp_path: Path, layout: str, mode: str) -> None:
    pixels = noise(3, 4)
    save(tmp_path / "a.png", pixels)
    mean, std = ((0.4,), (0.2,)) if mode == "gray" else ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    made = only(tmp_path, size=(3, 4), layout=layout, mode=mode, scale=1 / 255, mean=mean, std=std, dtype="float32")
    luma = np.floor(pixels @ np.array([0.299, 0.587, 0.114]) + 0.5)[..., np.newaxis]  # ITU-R 601-2, as Pillow documents
    channels = {"rgb": pixels, "bgr": pixels[..., ::-1], "gray": luma}[mode]
    expected = ((channels / 255 - mean) / std)[np.newaxis]
    if layout == "nchw":
        expected = expected.transpose(0, 3, 1, 2)
    assert made.dtype == np.float32
    assert made.flags.c_contiguous
    assert made.shape == expected.shape
    np.testing.assert_allclose(
        made.astype(np.float64), expected, rtol=0, atol=1.01 / 255 / min(std) if mode == "gray" else 1e-6
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_value_is_rounded_once(tmp_path: Path, dtype: str) -> None:
    pixels = noise(2, 2)
    save(tmp_path / "a.png", pixels)
    made = only(tmp_path, scale=1 / 255, mean=(0.1, 0.2, 0.3), std=(0.3, 0.2, 0.1), dtype=dtype)
    expected = (pixels * (1 / 255) - np.array([0.1, 0.2, 0.3])) / np.array([0.3, 0.2, 0.1])
    assert np.array_equal(made[0], expected.astype(dtype))


@pytest.mark.parametrize(("height", "width"), [(60, 90), (90, 60), (20, 31), (31, 20), (7, 200)])
def test_crop_is_torchvisions_resize_and_center_crop(height: int, width: int) -> None:
    """torch: antialiased bilinear of the whole, shortest side 32, then the middle; ours computes the middle alone."""
    image = noise(height, width)
    short, side = min(height, width), 32
    tall, wide = (side * length // short for length in (height, width))
    whole = torch.from_numpy(image.transpose(2, 0, 1).astype(np.float64))[None]
    resized = torch.nn.functional.interpolate(whole, (tall, wide), mode="bilinear", antialias=True)[0].numpy()
    top, left = round((tall - side) / 2), round((wide - side) / 2)
    expected = resized[:, top : top + side, left : left + side].transpose(1, 2, 0)
    made = np.asarray(_resized(Image.fromarray(image), (side, side), "crop"))
    assert np.abs(made - expected).max() <= 1.01  # two passes, each rounded to a whole pixel value
    assert np.abs(made - expected).mean() < 0.5


@pytest.mark.parametrize("resize", ["stretch", "pad"])
def test_stretch_and_pad_agree_with_torch(resize: str) -> None:
    image, (height, width) = noise(50, 80), (24, 32)
    inner = (24, 32) if resize == "stretch" else (20, 32)  # 50 · 32 / 80
    whole = torch.from_numpy(image.transpose(2, 0, 1).astype(np.float64))[None]
    resized = torch.nn.functional.interpolate(whole, inner, mode="bilinear", antialias=True)[0].numpy()
    expected = np.zeros((height, width, 3))
    top = (height - inner[0]) // 2
    expected[top : top + inner[0]] = resized.transpose(1, 2, 0)
    made = np.asarray(_resized(Image.fromarray(image), (height, width), resize))  # type: ignore[arg-type]
    assert np.abs(made - expected).max() <= 1.01
    assert not made[:top].any()


sides = st.integers(1, 50)


@given(sides, sides, sides, sides, st.sampled_from(["crop", "stretch", "pad"]))
@settings(max_examples=300, deadline=None)
def test_any_image_becomes_exactly_the_size(height: int, width: int, tall: int, wide: int, resize: str) -> None:
    made = np.asarray(_resized(Image.new("L", (width, height), 200), (tall, wide), resize))  # type: ignore[arg-type]
    assert made.shape == (tall, wide)
    if resize != "pad":  # a flat image stays flat: nothing from outside of it comes in
        assert (made == 200).all()
    else:  # black on at most two sides, equal up to a pixel, none where the ratio is the same
        rows, columns = (np.asarray((made > 0).any(axis)) for axis in (1, 0))
        assert (made[rows][:, columns] == 200).all()
        assert rows.all() or columns.all()
        for filled in (rows, columns):
            assert 0 <= filled[::-1].argmax() - filled.argmax() <= 1


def test_an_image_of_one_row_costs_no_more_than_its_crop() -> None:
    made = _resized(Image.new("L", (60_000, 1), 9), (224, 224), "crop")  # whole, it would be 224 × 13,440,000
    assert made.size == (224, 224)


# --- what files hold -------------------------------------------------------------------------------------------------


def test_orientation_of_a_camera_is_honoured(tmp_path: Path) -> None:
    pixels = noise(2, 3)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by 90° clockwise to see it upright
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(only(tmp_path, size=(3, 2))[0], np.rot90(pixels, -1))


@pytest.mark.parametrize(
    ("suffix", "mode", "dtype"), [("png", "I;16", "<u2"), ("tif", "I;16", "<u2"), ("tif", "I;16B", ">u2")]
)
def test_sixteen_bits_keep_their_high_byte(tmp_path: Path, suffix: str, mode: str, dtype: str) -> None:
    deep = np.array([[0, 256, 32_768, 65_535]], dtype)
    Image.frombytes(mode, (4, 1), deep.tobytes()).save(tmp_path / f"a.{suffix}")
    assert only(tmp_path, size=(1, 4), mode="gray").ravel().tolist() == [0, 1, 128, 255]
    assert only(tmp_path, size=(1, 4))[0, 0].tolist() == [[value] * 3 for value in (0, 1, 128, 255)]


def test_a_pgm_of_sixteen_bits(tmp_path: Path) -> None:
    (tmp_path / "a.pgm").write_bytes(b"P5 2 1 65535\n" + struct.pack(">2H", 256, 65_535))
    assert only(tmp_path, size=(1, 2), mode="gray").ravel().tolist() == [1, 255]


def test_palette_alpha_cmyk_gray_and_bits(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    red = Image.new("RGB", (2, 2), (255, 0, 0))
    palette = red.convert("P")
    palette.info["transparency"] = bytes([10] * 256)
    for name, image, expected in (
        ("p", palette, (255, 0, 0)),
        ("rgba", Image.new("RGBA", (2, 2), (255, 0, 0, 7)), (255, 0, 0)),
        ("la", Image.new("LA", (2, 2), (90, 7)), (90, 90, 90)),
        ("l", Image.new("L", (2, 2), 90), (90, 90, 90)),
        ("1", Image.new("1", (2, 2), 1), (255, 255, 255)),
    ):
        image.save((tmp_path / name).with_suffix(".png"))
        made = only(tmp_path)
        assert made.tolist() == [[[list(expected)] * 2] * 2], name
        assert only(tmp_path, mode="gray").shape == (1, 2, 2, 1)
        (tmp_path / name).with_suffix(".png").unlink()
    Image.new("CMYK", (2, 2), (0, 255, 255, 0)).save(tmp_path / "c.tif")
    assert only(tmp_path)[0, 0, 0].tolist() == [255, 0, 0]
    assert not recwarn.list


def test_the_same_bytes_give_the_same_array(tmp_path: Path) -> None:
    for name in ("x/a.jpg", "y/b.jpg"):
        save(tmp_path / name, noise(40, 50))
    first, again = (only(tmp_path / name, size=(16, 16)) for name in ("x", "y"))
    assert first.tobytes() == again.tobytes()


# --- folders ---------------------------------------------------------------------------------------------------------

RAW = ImageSettings("image", (2, 2), dtype="uint8")


def test_order_labels_and_what_does_not_count(tmp_path: Path) -> None:
    for name in ("b/2.png", "b/10.JPG", "a/deep/z.bmp", "a/.hidden.png", ".git/x.png", "b/.cache/x.png", "d/1.webp"):
        save(tmp_path / name.lower(), noise(2, 2)).rename(tmp_path / name)
    (tmp_path / "c").mkdir()
    (tmp_path / "README.md").write_text("not an image")
    source = ImageFolder(KEY, tmp_path, RAW)
    assert [source.origin(i) for i in range(len(source))] == ["a/deep/z.bmp", "b/10.JPG", "b/2.png", "d/1.webp"]
    labels = [source.label(i) for i in range(len(source))]
    assert [int(label) for label in labels if label is not None] == [0, 1, 1, 3]  # "c" is a class without an image
    checked = check(KEY, "sample 0", source.sample(0), {"image": Expected("uint8", ("batch", 3, 2, 2))})
    assert checked["image"].shape == (1, 3, 2, 2)


def test_no_labels_where_one_image_has_no_folder(tmp_path: Path) -> None:
    save(tmp_path / "a" / "1.png", noise(2, 2))
    save(tmp_path / "2.png", noise(2, 2))
    source = ImageFolder(KEY, tmp_path, RAW)
    assert [source.label(i) for i in range(len(source))] == [None, None]


def test_links_are_followed_but_not_in_a_circle(tmp_path: Path) -> None:
    save(tmp_path / "elsewhere" / "1.png", noise(2, 2))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cats").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "elsewhere")
    source = ImageFolder(KEY, tmp_path / "data", RAW)
    assert [source.origin(i) for i in range(len(source))] == ["cats/1.png"]


def test_a_label_reads_no_image(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(b"broken")
    label = ImageFolder(KEY, tmp_path, RAW).label(0)
    assert label is not None
    assert label.dtype == np.int64


# --- refusals --------------------------------------------------------------------------------------------------------


def png_without_pixels(width: int, height: int) -> bytes:
    chunks = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT" + zlib.compress(b"")
    sealed = (struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(sealed)


def test_a_broken_image_is_named_with_its_index_and_fault(tmp_path: Path) -> None:
    whole = save(tmp_path / "good" / "a.jpg", noise(64, 64)).read_bytes()
    flat = save(tmp_path / "good" / "b.png", noise(64, 64)).read_bytes()
    Image.new("F", (2, 2), 0.5).save(tmp_path / "good" / "c.tif")
    broken = {
        "0.jpg": (b"", "is an empty file"),
        "1.jpg": (b"no image at all", "is of no known image format (15 bytes)"),
        "2.jpg": (whole[: len(whole) // 2], "cannot be decoded: image file is truncated"),
        "3.png": (flat[:60] + b"\0" * 40 + flat[100:], "cannot be decoded"),
        "4.png": (flat[: len(flat) // 2], "cannot be decoded"),
        "5.png": (png_without_pixels(60_000, 60_000), "is too large to decode safely"),
        "6.png": (png_without_pixels(4, 4), "cannot be decoded"),
        "7.tif": ((tmp_path / "good" / "c.tif").read_bytes(), "pixels of F (32 bits) have no known range"),
        "8.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 2 2\n", "is of no known image format"),
    }
    (tmp_path / "bad" / "sub").mkdir(parents=True)
    for name, (content, _) in broken.items():
        (tmp_path / "bad" / "sub" / name).write_bytes(content)
    source = ImageFolder(KEY, tmp_path / "bad", RAW)
    assert len(source) == len(broken)
    for index, (name, (_, fault)) in enumerate(broken.items()):
        with pytest.raises(InputError) as caught:
            source.sample(index)
        assert str(caught.value).startswith(f"{KEY}: 'sub/{name}': image {index} "), caught.value
        assert fault in str(caught.value)


def test_a_file_that_went_away(tmp_path: Path) -> None:
    save(tmp_path / "a.png", noise(2, 2))
    source = ImageFolder(KEY, tmp_path, RAW)
    (tmp_path / "a.png").unlink()
    with pytest.raises(InputError, match=r"'a.png': image 0 cannot be decoded.*No such file"):
        source.sample(0)


def test_a_folder_without_an_image_or_none_at_all(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no image"):
        ImageFolder(KEY, tmp_path, RAW)
    with pytest.raises(InputError, match="cannot be read as a folder: No such file"):
        ImageFolder(KEY, tmp_path / "missing", RAW)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be read as a folder: Not a directory"):
        ImageFolder(KEY, tmp_path / "file", RAW)


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"dtype": "float23"}, "did you mean 'float32'"),
        ({"dtype": "int64"}, "no dtype of an image"),
        ({"size": (0, 2)}, "size must be"),
        ({"dtype": "float32", "mean": (0.5,)}, "mean must have 3 values, one for each channel of mode rgb"),
        ({"dtype": "float32", "std": (1.0, 1.0, 1.0), "mode": "gray"}, "std must have 1 values"),
        ({"dtype": "float32", "std": (1.0, 0.0, 1.0)}, "not zero"),
        ({"dtype": "float32", "mean": (1.0, float("nan"), 1.0)}, "must be finite"),
        ({"dtype": "float32", "scale": float("inf")}, "must be finite"),
        ({"scale": 1 / 255}, "is raw pixels"),
        ({"mean": (1.0, 1.0, 1.0)}, "is raw pixels"),
    ],
)
def test_settings_that_do_not_fit(tmp_path: Path, changed: dict[str, object], fault: str) -> None:
    save(tmp_path / "a.png", noise(2, 2))
    with pytest.raises(InputError, match=fault):
        only(tmp_path, **changed)
