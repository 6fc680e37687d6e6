"""Parts of a calibration: made on different machines, each of some of the samples, and merged into the whole.

A part is a folder: the statistics of each pass, and `calibration-part.json`: of which graph, samples and tools.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from onnxmill.calibration import statistics
from onnxmill.calibration.statistics import FILE
from onnxmill.tasks.artifact import Artifact, Store, sha256_file
from onnxmill.tasks.conversion import Calibration
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.isolate import Reply, peak_rss_mb
from onnxmill.tasks.quantize import CALIBRATE, CalibrationSettings, Observed
from onnxmill.tasks.step import remember, tool_versions

MANIFEST = "calibration-part.json"
AGAIN = "make the part again with this spec, this data and these versions"


class Pass(BaseModel):
    """What was observed with some nodes left in float; `file` is in the part's folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    exclude: tuple[str, ...]
    file: str
    sha256: str


class Part(BaseModel):
    """What a part is of: `prepared` and `samples` are digests, `tools` the versions that the numbers depend on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    number: int
    of: int
    prepared: str
    samples: str
    tools: dict[str, str]
    passes: tuple[Pass, ...]


def shard(text: str) -> tuple[int, int]:
    """(number, of) from "2/3". Raises `InputError`."""
    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of) >= 2):
        raise InputError("--shard", text, "must be NUMBER/OF, as 2/3: the second of three parts")
    return int(number), int(of)


def write(calibration: Calibration, samples: Artifact, place: tuple[int, int], store: Store, out: Path) -> None:
    """Lay out the part that `calibration` observed; its manifest comes last."""
    (out / MANIFEST).unlink(missing_ok=True)
    passes = []
    for index, (exclude, done) in enumerate(calibration.observed):
        name = FILE if index == 0 else f"{Path(FILE).stem}-{index + 1}.npz"
        (out / name).unlink(missing_ok=True)
        shutil.copyfile(store.open(done.files) / FILE, out / name)
        passes.append(Pass(exclude=exclude, file=name, sha256=done.files.files[FILE].sha256))
    part = Part(
        number=place[0],
        of=place[1],
        prepared=calibration.prepared.files.digest,
        samples=samples.digest,
        tools=tool_versions(CALIBRATE),
        passes=tuple(passes),
    )
    (out / MANIFEST).write_text(part.model_dump_json(indent=1) + "\n", encoding="utf-8")


def merge(
    folders: Sequence[Path], prepared: Artifact, samples: Artifact, excluded: Sequence[tuple[str, ...]], store: Store
) -> None:
    """Remember what the parts together hold as the calibration of `prepared` on `samples`: bit for bit what one pass
    gives, so that it is under that pass's own key.

    Raises `InputError` for a part of something else, one that is changed, twice or missing.
    """
    parts = [(folder, _read(folder)) for folder in folders]
    for folder, part in parts:
        _check_same(folder, part, prepared, samples)
    _check_whole(parts)
    inputs = {"model": prepared, "calibration": samples}
    for exclude in excluded:
        paths = [_file(folder, part, exclude) for folder, part in parts]

        def work(folder: Path, log: Path, paths: Sequence[Path] = paths) -> Reply:
            whole = statistics.merged([statistics.load(path) for path in paths])
            statistics.save(whole, folder / "out" / FILE)
            seen = Observed(findings=(), tensors=len(whole.histograms), samples=len(whole.positions))
            return Reply(seen.model_dump(mode="json"), peak_rss_mb())

        settings = CalibrationSettings(exclude=exclude).model_dump(mode="json")
        remember(CALIBRATE.name, CALIBRATE.version, store, settings, inputs, tool_versions(CALIBRATE), work)


def _read(folder: Path) -> Part:
    path = folder / MANIFEST
    try:
        return Part.model_validate_json(path.read_bytes())
    except OSError as error:
        expected = f"holds no part of a calibration: {MANIFEST} cannot be read ({error.strerror})"
        raise InputError("--merge", str(folder), expected, "give folders that `calibrate --shard` wrote") from error
    except ValidationError as error:
        first = error.errors()[0]
        fault = f"{'.'.join(map(str, first['loc'])) or 'content'}: {first['msg']}"
        raise InputError("--merge", str(path), f"is not as `calibrate --shard` writes it: {fault}") from error


def _check_same(folder: Path, part: Part, prepared: Artifact, samples: Artifact) -> None:
    tools = tool_versions(CALIBRATE)
    for name, here in tools.items():
        there = part.tools.get(name)
        if there != here:
            what = "another kind of CPU" if name == "cpu" else f"{name} {there}, here it is {here}"
            raise InputError("--merge", str(folder), f"was made with {what}: its values differ in last bits", AGAIN)
    for what, there, here in (("graph", part.prepared, prepared.digest), ("samples", part.samples, samples.digest)):
        if there != here:
            raise InputError("--merge", str(folder), f"is of other {what} ({there[:12]}, here {here[:12]})", AGAIN)


def _check_whole(parts: Sequence[tuple[Path, Part]]) -> None:
    of = parts[0][1].of
    found: dict[int, Path] = {}
    for folder, part in parts:
        if part.of != of:
            expected = f"is part {part.number} of {part.of}, but {parts[0][0]} is one of {of}"
            raise InputError("--merge", str(folder), expected, "give the parts of one division")
        if part.number in found:
            raise InputError("--merge", str(folder), f"is part {part.number} of {of}, as is {found[part.number]}")
        found[part.number] = folder
    missing = [str(number) for number in range(1, of + 1) if number not in found]
    if missing:
        expected = f"has no part {', '.join(missing)} of {of}"
        raise InputError("--merge", None, expected, f"make it with `--shard {missing[0]}/{of} --out DIR`")


def _file(folder: Path, part: Part, exclude: tuple[str, ...]) -> Path:
    """The statistics of a pass, checked to be those that the part was written with."""
    for one in part.passes:
        if one.exclude == exclude:
            path = folder / Path(one.file).name
            if not path.is_file() or sha256_file(path) != one.sha256:
                raise InputError("--merge", str(path), "is missing, or is not the file that the part was written with")
            return path
    raise InputError("--merge", str(folder), f"has no pass that leaves {list(exclude)} in float", AGAIN)
