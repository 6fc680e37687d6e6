"""The user's samples: taken from callables or paths once, checked, hashed and stored for every later step."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from onnxmill.calibration import samples
from onnxmill.calibration.samples import Expected
from onnxmill.calibration.sources import Source, chosen, pick
from onnxmill.calibration.sources_arrays import Archive, ArrayFile, Requests
from onnxmill.calibration.sources_images import ImageFolder, ImageSettings
from onnxmill.calibration.sources_text import TextSettings, TextTable
from onnxmill.tasks import loader
from onnxmill.tasks.data_settings import image_settings, only_input, text_settings
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.isolate import report_progress
from onnxmill.tasks.pack_data import DataPath, DataPaths
from onnxmill.tasks.spec import Contract, Data, DataKind, Tensor
from onnxmill.tasks.step import CALLING, Step

CALIBRATION = Step("calibration-samples", 2, "onnxmill.tasks.data:collect", tools=("numpy",), user_code="data")
EVALUATION = Step("evaluation-samples", 2, "onnxmill.tasks.data:collect", tools=("numpy",), user_code="data")
LIBRARIES: dict[DataKind, tuple[str, ...]] = {"images": ("pillow",), "text": ("tokenizers", "pyarrow")}
"""What reads some kinds of samples."""
LABELS: dict[DataKind, str] = {
    "npz": "store them under 'label'",
    "requests": "store them under 'label'",
    "images": "put every image in a sub-folder, which is its class",
}
"""Where a source may have labels, and this one has none."""
PROGRESS_EVERY = 100


class SampleSettings(BaseModel):
    """`source` is an entrypoint, where `kind` is null, or else the path in the pack.

    `limit` bounds the number of samples, and `seed` says which; null takes all. `labelled` samples have a label.
    """

    model_config = ConfigDict(frozen=True)

    key: str
    source: str
    kind: DataKind | None
    inputs: dict[str, Tensor]
    limit: int | None
    seed: int
    labelled: bool
    images: ImageSettings | None = None
    text: TextSettings | None = None


def calibration_settings(given: Data, contract: Contract, paths: DataPaths) -> SampleSettings | None:
    """Null where the spec has no such samples. Raises `InputError` where a source cannot give what the model takes."""
    return _settings("data.calibration", given.calibration, paths.calibration, given, contract, paths.tokenizer)


def evaluation_settings(given: Data, contract: Contract, paths: DataPaths) -> SampleSettings | None:
    """Null where the spec has no such samples. Raises `InputError` where a source cannot give what the model takes."""
    return _settings("data.evaluation", given.evaluation, paths.evaluation, given, contract, paths.tokenizer)


def _settings(
    key: str, text: str | None, path: DataPath | None, given: Data, contract: Contract, tokenizer: str
) -> SampleSettings | None:
    if text is None:
        return None
    kind, labelled = path.kind if path else None, key == "data.evaluation"
    if kind in ("npy", "images"):
        only_input(key, text, contract.inputs)
    return SampleSettings(
        key=key,
        source=path.name if path else text,
        kind=kind,
        inputs=contract.inputs,
        limit=None if labelled else given.samples,
        seed=0 if labelled else given.seed,
        labelled=labelled,
        images=image_settings(given.images, contract.inputs) if kind == "images" else None,
        text=text_settings(given.text, tokenizer, contract.inputs) if kind == "text" and given.text else None,
    )


def step_of(step: Step, settings: SampleSettings) -> Step:
    """CALIBRATION or EVALUATION as it takes these samples: a path needs no copy, since no code of the user's runs."""
    if settings.kind is None:
        return step
    return dataclasses.replace(step, tools=(*step.tools, *LIBRARIES.get(settings.kind, ())), user_code=None)


def collect(settings: SampleSettings, data: Path, out: Path) -> int:
    """Write the samples of one source to `out`; how many. Raises `InputError` for a bad or missing sample."""
    expected = {name: Expected(tensor.dtype, tensor.shape) for name, tensor in settings.inputs.items()}
    with contextlib.chdir(data):  # errors show paths as they are in the pack
        taken = _called(settings) if settings.kind is None else _read(settings, _opened(settings))

        def progress(count: int) -> None:
            if count % PROGRESS_EVERY == 0:
                report_progress(taken.doing, count, taken.total)

        return samples.write(
            settings.key,
            taken.items,
            expected,
            out,
            limit=settings.limit,
            labelled=settings.labelled,
            named=taken.named,
            on_sample=progress,
        )


@dataclass(frozen=True)
class _Taken:
    """What is taken of a source: the items, how many at most (0: all of an iterator), the name of the i-th for errors,
    and what is being done, for the progress."""

    items: Iterable[object]
    total: int
    named: Callable[[int], str]
    doing: str


def _called(settings: SampleSettings) -> _Taken:
    """The first items of an iterator, chosen ones of a sequence."""
    key, text = settings.key, settings.source
    given = loader.call(key, text)
    length, doing = loader.length(key, text, given), f"{CALLING}{key} {text}"
    if length is None:
        return _Taken(loader.iterate(key, text, given), settings.limit or 0, "sample {}".format, doing)
    indices = pick([None] * length, length if settings.limit is None else settings.limit, settings.seed)
    items = loader.iterate(key, text, given, indices)
    return _Taken(items, len(indices), lambda i: f"sample {indices[i]}", doing)


def _read(settings: SampleSettings, source: Source) -> _Taken:
    indices = chosen(source, settings.limit, settings.seed)

    def named(position: int) -> str:
        index = indices[position]
        return f"sample {index} ({source.origin(index)})"

    def items() -> Iterator[object]:
        for position, index in enumerate(indices):
            label = source.label(index)
            if settings.labelled and label is None and settings.kind:
                fault = f"{named(position)} has no label, which evaluation needs"
                raise InputError(settings.key, settings.source, fault, LABELS[settings.kind])
            sample = source.sample(index)
            yield (sample, label) if settings.labelled else sample

    return _Taken(items(), len(indices), named, f"reading {settings.source}")


def _opened(settings: SampleSettings) -> Source:
    """The source at a path of the working folder."""
    key, path = settings.key, Path(settings.source)
    match settings.kind:
        case "npy":
            return ArrayFile(key, path, only_input(key, settings.source, settings.inputs))
        case "npz":
            return Archive(key, path, dict.fromkeys(settings.inputs, True))
        case "requests":
            return Requests(key, path, _split(settings.inputs))
        case "images":
            assert settings.images
            return ImageFolder(key, path, settings.images)
        case _:
            assert settings.text
            return TextTable(key, path, settings.text)


def _split(inputs: Mapping[str, Tensor]) -> dict[str, bool]:
    """Whether each input has an axis of samples: a dynamic first one."""
    return {name: bool(tensor.shape) and isinstance(tensor.shape[0], str) for name, tensor in inputs.items()}


def check_apart(calibration: Path, evaluation: Path) -> None:
    """Raise `InputError` where a sample is in both: a metric on data that ranges were tuned on proves nothing."""
    used = {digest: index for index, digest in enumerate(samples.hashes(calibration))}
    both = [(used[digest], index) for index, digest in enumerate(samples.hashes(evaluation)) if digest in used]
    if both:
        first = f"calibration sample {both[0][0]} is evaluation sample {both[0][1]}"
        raise InputError(
            "data.evaluation", None, f"shares {len(both)} sample(s) with data.calibration ({first})",
            "split them, for example by the hash of each sample",
        )  # fmt: skip
