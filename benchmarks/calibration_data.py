"""The graphs and real samples of the calibration benchmarks: prepared by the project's own steps, fetched from packages
that carry photos and texts, drawn by a seed.
"""

import csv
import importlib.util
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from tokenizers import Tokenizer

from onnxmill.calibration import samples
from onnxmill.calibration.samples import Array, Expected
from onnxmill.tasks import conversion, graph
from onnxmill.tasks.loader import ROOTS_SETTING
from onnxmill.tasks.quantize import load_for
from onnxmill.tasks.quantize.prepare import broadcast_biases
from onnxmill.tasks.spec import home

ROOT = Path(__file__).resolve().parents[1]
Inputs = dict[str, Array]
Photo = npt.NDArray[np.uint8]

_spec = importlib.util.spec_from_file_location("fetch", ROOT / "tests" / "models" / "fetch.py")
assert _spec
assert _spec.loader
fetch: Any = importlib.util.module_from_spec(_spec)  # another package installs a folder `tests` too
sys.modules["fetch"] = fetch
_spec.loader.exec_module(fetch)

SCIKIT_IMAGE, FOOLBOX, GENSIM = "scikit-image==0.26.0", "foolbox==3.3.4", "gensim==4.4.0"
CALIBRATION_PHOTOS = {
    "astronaut.png": "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5",
    "camera.png": "b0793d2adda0fa6ae899c03989482bff9a42d3d5690fc7e3648f2795d730c23a",
    "chelsea.png": "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb",
    "coffee.png": "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7",
    "coins.png": "f8d773fc9cfa6f4d8e5942dc34d0a0788fcaed2a4fefbbed0aef5398d7ef4cba",
    "motorcycle_left.png": "db18e9c4157617403c3537a6ba355dfeafe9a7eabb6b9b94cb33f6525dd49179",
    "rocket.jpg": "c2dd0de7c538df8d111e479619b129464d0269d0ae5fd18ca91d33a7fdfea95c",
}
"""Of scikit-image: every one in its wheel that is an ordinary photo."""
EVALUATION_PHOTOS = {
    "00_243": "28b7b933c8028c6e20bf74a86a709eda42ce99f14c8742cb657cb386f08a4c9d",
    "01_559": "5f03b0c74dff01b5b4195d0beabcae2a625a406e6917957ab9c455b5b7dea6d6",
    "02_438": "ccef0734c1a65549c6cb5adb0f5d9b1c0b2e2104aba50a9e5f9202dc6d4532ed",
    "03_990": "c7f0b2f1e9ee39d8f900759e8983afa2e4a2d7de090060e8bb947f6e90cace5f",
    "04_949": "a7f62f3c1d214de4718c7253871ab38209283249e131faf65b8f2b7fdc970669",
    "05_853": "8a449436c61da867528b1f4efaf8ae832ab9c9201705eae0d3af1353fbdac131",
    "06_609": "fb061102a4e58b3ed942bb2a4f9542e1e1acdc8f225ef95498e93889290e192f",
    "07_609": "2c297ad1e5c4804a647e9b34bc02ee2fc348b05a4d49050d170fb61c948efa5c",
    "08_915": "c6a3411a3987799f0de45adc142f00ca412c3e14073c635e2adfae1f3913180c",
    "09_455": "ace3716b60ac5843269b270e17020e4f8138440cd30ef3487f7d6e54da9745a4",
    "10_541": "f325c71d9f4290ee45e99bd7ad42f4bffe513b1450ad21e7bd61c7cb137395d9",
    "11_630": "892dff58fc528fe63d2df0c783aa3eca2342637798578ce01763fbc0553eda01",
    "12_741": "6c256e17545b25bbf2e06cf6513ff48d049583569515ac4d4c3a52aea804a529",
    "13_471": "52ed0e738b90d27afcabc3e92c81ae637f160c2d9f75b93a65211005ab5dcd81",
    "14_129": "ad9371d813bf24b0365ee2f78f28c08718ee7c5975f060caa16c3f264e828139",
    "15_99": "4b588649cd835d4c65521727ebee03d9621baff1f54d3e8a53a26b53d983ec2e",
    "16_251": "ce3440a3b7beb6ca3009817504c44d39fa789e7c2f70a2eef7e2f9cc9a87b129",
    "17_22": "b432341845620e9cfd67d848c4783c32dd6eaddad45513866b17180d2b09fcf5",
    "18_317": "b9412f92f0b1c3faede45b55a44940977daa744f2040118d0538cf597fca785d",
    "19_305": "e1f58f00e2e47ce930d7ecab0e46a78316054f68c10d0742e87c1cc092324556",
}
"""Of foolbox: photos of ImageNet's classes."""
TEXTS = {
    "wordsim353.tsv": "f92a022fc2537793a15bc3a8c162ebcd74990e033a228bb6388cb71e4c0b1e1d",
    "simlex999.txt": "d5e0501971478a511430ee880bd0121e94ac701ba86d90544d83e6d2ba3db05d",
    "lee_background.cor": "5d78d6dafd953bbf65797bef09a9ffb9ec430583381be705f8fd460000f370fb",
}
"""Of gensim's test data: pairs of words with people's scores, and 300 news articles of 45 words or more."""

IMAGENET = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], np.float32)
"""Mean and deviation a channel of pixels in [0, 1]."""
LITE = np.array([[127 / 255] * 3, [128 / 255] * 3], np.float32)
BYTES = np.array([[0.0] * 3, [1 / 255] * 3], np.float32)


@dataclass(frozen=True)
class Model:
    """`folder` holds spec.yaml; `make`, where there is one, is the script that writes the inputs of that spec."""

    folder: Path
    make: Path | None = None


MODELS = {
    "resnet50": Model(ROOT / "benchmarks" / "resnet50", ROOT / "benchmarks" / "resnet50" / "make_weights.py"),
    "minilm": Model(fetch.CACHE / "minilm_l6"),
    "detector": Model(fetch.CACHE / "text_detection"),
    "efficientnet": Model(fetch.CACHE / "efficientnet_lite0"),
    "mnist": Model(ROOT / "examples" / "mnist", ROOT / "examples" / "mnist" / "train.py"),
}


def prepared(name: str, folder: Path) -> Path:
    """The model's graph, exported, simplified and prepared for static int8, as a file in `folder`."""
    model = MODELS[name]
    if model.make:
        subprocess.run([sys.executable, model.make], check=True, stdout=subprocess.DEVNULL)
    else:
        fetch.fetch([model.folder.name])
    os.environ[ROOTS_SETTING] = str(model.folder)  # as the command line does for a spec's own folder
    job = conversion.prepare(model.folder / "spec.yaml")
    taken = conversion.samples(job)
    reference = conversion.reference(job, taken)
    job = conversion.completed(job, reference)
    pinned = conversion.pin_opset(job, conversion.export(job, reference), reference)
    job = conversion.at_opset(job, pinned)
    simplified = conversion.simplified(job, pinned, reference)
    proto = load_for((), conversion.store().open(simplified.files) / graph.MODEL)
    broadcast_biases(proto)
    path = folder / f"{name}.onnx"
    graph.save(proto, path)
    return path


def write(name: str, count: int, folder: Path, *, varying: bool = False) -> Path:
    """`count` samples of real photos or news for a model, as a samples file; `varying` texts differ in length."""
    made = {
        "resnet50": lambda: images("pixel_values", count, 224, IMAGENET),
        "minilm": lambda: texts(count, 128, varying),
        "detector": lambda: images("images", count, 416, BYTES),
        "efficientnet": lambda: images("image", count, 224, LITE),
    }[name]()
    first = next(made)
    expected = {
        key: Expected(array.dtype.name, (1, "length") if array.ndim == 2 else array.shape)
        for key, array in first.items()
    }
    folder.mkdir()
    samples.write(name, itertools.chain([first], made), expected, folder, limit=None, labelled=False)
    return folder


# --- photos ----------------------------------------------------------------------------------------------------------


def photos(names: Mapping[str, str]) -> list[Photo]:
    """The photos `[height, width, 3]` of one of the two tables above."""
    package, member = (SCIKIT_IMAGE, "skimage/data/{}") if names is CALIBRATION_PHOTOS else (FOOLBOX, _FOOLBOX)
    folder = home() / "benchmarks" / "photos"
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        folder / Path(member.format(name)).name: fetch.File(package, member.format(name), digest)
        for name, digest in names.items()
    }
    fetch.fetch_files(files)
    return [np.asarray(Image.open(path).convert("RGB")) for path in files]


_FOOLBOX = "foolbox/data/imagenet_{}.jpg"


def crops(chosen: Sequence[Photo], count: int, size: int, norm: Array, seed: int) -> Iterator[npt.NDArray[np.float32]]:
    """`count` random squares of the photos in turn, scaled and normalised: `[1, 3, size, size]` each."""
    random = np.random.default_rng(seed)
    mean, deviation = norm
    for photo in itertools.islice(itertools.cycle(chosen), count):
        height, width = photo.shape[:2]
        side = int(random.integers(min(height, width) // 3, min(height, width) + 1))
        left, top = int(random.integers(width - side + 1)), int(random.integers(height - side + 1))
        square = Image.fromarray(photo[top : top + side, left : left + side])
        pixels = np.asarray(square.resize((size, size), Image.Resampling.BILINEAR), np.float32) / 255
        yield np.ascontiguousarray(((pixels - mean) / deviation).transpose(2, 0, 1)[np.newaxis])


def images(key: str, count: int, size: int, norm: Array) -> Iterator[Inputs]:
    """Crops to calibrate on, as a model takes them."""
    for crop in crops(photos(CALIBRATION_PHOTOS), count, size, norm, seed=11):
        yield {key: crop}


# --- texts -----------------------------------------------------------------------------------------------------------


def text_file(name: str) -> Path:
    path = home() / "benchmarks" / "texts" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    fetch.fetch_files({path: fetch.File(GENSIM, f"gensim/test/test_data/{name}", TEXTS[name])})
    return path


def word_pairs(name: str) -> list[tuple[str, str, float]]:
    """The pairs of words of one of gensim's files, each with people's mean score of how alike they are."""
    lines = text_file(name).read_text().splitlines()
    rows = csv.reader((line for line in lines if not line.startswith("#")), delimiter="\t")
    return [(a, b, float(score)) for a, b, score in rows]


def tokens(words: Sequence[str], length: int | None) -> Iterator[Inputs]:
    """Each text as MiniLM takes it, cut and padded to `length` tokens, by default neither."""
    tokenizer = Tokenizer.from_file(str(fetch.CACHE / "minilm_l6" / "tokenizer.json"))
    tokenizer.no_padding()
    if length:
        tokenizer.enable_truncation(length)
        tokenizer.enable_padding(length=length)
    for text in words:
        encoded = tokenizer.encode(text)
        columns = {
            "input_ids": encoded.ids,
            "attention_mask": encoded.attention_mask,
            "token_type_ids": encoded.type_ids,
        }
        yield {name: np.array([values], np.int64) for name, values in columns.items()}


def texts(count: int, length: int, varying: bool) -> Iterator[Inputs]:
    """News articles of `length` tokens; `varying`: of 8 to `length`, the first of full length."""
    articles = text_file("lee_background.cor").read_text().splitlines()
    lengths = np.random.default_rng(11).integers(8, length + 1, count) if varying else np.full(count, length)
    lengths[0] = length
    whole = tokens([max(articles, key=len), *itertools.islice(itertools.cycle(articles), count - 1)], length)
    for inputs, cut in zip(whole, lengths, strict=True):
        yield {name: array[:, :cut] for name, array in inputs.items()}
