"""Paths of samples in a spec: what lies there, and which files of a folder belong to a pack."""

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from onnxmill.calibration.sources_images import leads_back
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.spec import DATA_SUFFIXES, DataKind, expand


class DataPath(BaseModel):
    """A path of `data`: its name in the pack, and what lies there."""

    model_config = ConfigDict(frozen=True)

    name: str
    kind: DataKind


class DataPaths(BaseModel):
    """What `data` gives by paths, and the name of `data.text.tokenizer` in the pack ("" where there is none)."""

    model_config = ConfigDict(frozen=True)

    calibration: DataPath | None = None
    evaluation: DataPath | None = None
    tokenizer: str = ""


def data_path(key: str, text: str, folder: Path) -> DataPath:
    """What a path of `data` is, of a spec in `folder`. Raises `InputError` for what is no source of samples."""
    path = expand(text, folder)
    kind: DataKind | None = DATA_SUFFIXES.get(path.suffix.lower())
    if path.is_dir():
        kind = "requests" if any(file.suffix == ".npz" for file in visible(path)) else "images"
    if kind is None:
        expected = f"must be file.py:callable, or a path to {', '.join(DATA_SUFFIXES)} or a folder"
        raise InputError(key, text, expected, f"looked for {path}")
    return DataPath(name=name_in_pack(path, folder), kind=kind)


def check_names(given: Mapping[str, str], paths: Mapping[str, DataPath], folder: Path) -> None:
    """Raise `InputError` where one path of `data` lies within another in the pack, and does not outside of it."""
    for key, path in paths.items():
        for other_key, other in paths.items():
            inside = Path(path.name).is_relative_to(other.name)
            if inside != expand(given[key], folder).is_relative_to(expand(given[other_key], folder)):
                clash = f"has the name of another path, '{given[other_key]}'"
                raise InputError(f"data.{key}", given[key], clash, "rename one of the two")


def name_in_pack(path: Path, base: Path) -> str:
    """A path below `base`, or else its own name."""
    return path.relative_to(base).as_posix() if path.is_relative_to(base) else path.name


def visible(folder: Path) -> list[Path]:
    """The files below a folder, links to folders followed; but for hidden ones."""
    found: list[Path] = []
    for here, folders, files in os.walk(folder, followlinks=True):
        place = Path(here)
        folders[:] = [name for name in folders if not name.startswith(".") and not leads_back(place / name)]
        found += [place / name for name in files if not name.startswith(".") and (place / name).is_file()]
    return sorted(found)


def check_classes(key: str, name: str, folder: Path, files: list[Path]) -> None:
    """Raise `InputError` for a sub-folder without a file: it counts as a class, and a pack holds files alone."""
    filled = {file.relative_to(folder).parts[0] for file in files}
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and not entry.name.startswith(".") and entry.name not in filled:
            raise InputError(key, name, f"has an empty folder '{entry.name}'", "take it out, or put a sample there")
