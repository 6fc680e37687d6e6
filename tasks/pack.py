"""pack: a spec with everything that its loaders read -> artifacts, the first keys of all later steps.

Three parts, so that a change re-runs what depends on it and nothing else: `source` (the model's code and weights),
`data` (the samples' code and files), `metric`. A part holds the sources of its callables, of the modules of the
allowed roots that they import (found by reading `import` statements), and the declared files. Later steps run the
user's code in a copy of its part alone: what was not found or declared is missing there, loudly.
"""

import ast
import importlib.util
import sys
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.machinery import all_suffixes
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from onnxmill.tasks.artifact import Artifact, Store
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.graph import MODEL
from onnxmill.tasks.loader import ROOTS_SETTING, allowed_roots, parse_entry, root_of
from onnxmill.tasks.pack_data import DataPaths, check_classes, check_names, data_path, name_in_pack, visible
from onnxmill.tasks.spec import Spec, expand, names_callable
from onnxmill.tasks.step import installed_version


class Part(BaseModel):
    """One part of a pack. `tools` are the installed distributions that its sources import, with their versions."""

    model_config = ConfigDict(frozen=True)

    artifact: Artifact
    tools: dict[str, str]


class Pack(BaseModel):
    """`names` are the files that the source's own keys declare: as in the spec -> as in the pack; `paths` are those of
    `data`; `tables` are the variants' calibration tables by their names in the spec, each the file of an artifact."""

    model_config = ConfigDict(frozen=True)

    source: Part
    data: Part | None
    metric: Part | None
    sidecars: Artifact | None = None
    names: dict[str, str] = {}
    paths: DataPaths = DataPaths()
    tables: dict[str, Artifact] = {}


FILE_KEYS = ("path", "state_dict", "reference")
"""Keys of a source that each name one file."""
RESERVED = (MODEL, f"{MODEL}.data", "onnxmill.json", "MLmodel")
"""Files that lie beside a model's sidecars; those of weights may be several, called `model.onnx.data.0`, …."""


def pack(spec: Spec, folder: Path, store: Store) -> Pack:
    """Pack a spec that stands in `folder`. Raises `InputError` for a missing file or a loader outside the roots."""
    source = {"source.loader": spec.source.loader} if spec.source.loader else {}
    own = {key: name for key in FILE_KEYS if (name := getattr(spec.source, key))}
    declared = {"source.files": spec.source.files} | {f"source.{key}": (name,) for key, name in own.items()}
    # a model finds its external data from where it lies
    base = expand(spec.source.path, folder).parent if spec.source.path else folder
    given = {k: v for k in ("calibration", "evaluation") if (v := getattr(spec.data, k))}
    data = {f"data.{key}": text for key, text in given.items() if names_callable(text)}
    paths = {key: data_path(f"data.{key}", text, folder) for key, text in given.items() if not names_callable(text)}
    check_names(given, paths, folder)
    samples = {"data.files": spec.data.files} | {f"data.{key}": (given[key],) for key in paths}
    if spec.data.text:
        samples["data.text.tokenizer"] = (spec.data.text.tokenizer,)
    return Pack(
        source=_part(source, declared, folder, base, store),
        data=_part(data, samples, folder, folder, store) if given else None,
        metric=_part({"metric.fn": spec.metric.fn}, {"metric.files": spec.metric.files}, folder, folder, store)
        if spec.metric
        else None,
        sidecars=_sidecars(spec.sidecars, folder, store),
        tables={
            variant.ranges: _part({}, {"variants.ranges": (variant.ranges,)}, folder, folder, store).artifact
            for variant in spec.variants
            if variant.ranges
        },
        names={name: name_in_pack(expand(name, folder), base) for name in own.values()},
        paths=DataPaths(
            calibration=paths.get("calibration"),
            evaluation=paths.get("evaluation"),
            tokenizer=name_in_pack(expand(spec.data.text.tokenizer, folder), folder) if spec.data.text else "",
        ),
    )


def _sidecars(names: tuple[str, ...], folder: Path, store: Store) -> Artifact | None:
    for name in names:
        if Path(name).name in RESERVED or Path(name).name.startswith(f"{MODEL}.data."):
            raise InputError("sidecars", name, f"must not be called as a file of the model ({', '.join(RESERVED)})")
    return _part({}, {"sidecars": names}, folder, folder, store).artifact if names else None


def _part(
    entries: dict[str, str], declared: dict[str, tuple[str, ...]], folder: Path, base: Path, store: Store
) -> Part:
    """A declared file lies in its part under its path below `base`, or else under its own name."""
    files: dict[str, Path] = {}
    tools: dict[str, str] = {}
    roots = allowed_roots()
    for key, text in entries.items():
        sources = _Sources(key, text, folder, roots)
        files |= sources.files
        tools |= {name: installed_version(name) for name in sorted(sources.distributions)}
    for key, names in declared.items():
        for name in names:
            for path, packed in _declared(key, name, folder, base).items():
                if path.name.endswith(tuple(all_suffixes())):  # it lies where imports look first
                    root_of(key, name, path, roots)
                if files.setdefault(packed, path).resolve() != path.resolve():
                    clash = f"has the name of another file, {files[packed]}"
                    raise InputError(key, name, clash, "rename one of the two")
    return Part(artifact=store.add(files), tools=tools)


def _declared(key: str, name: str, folder: Path, base: Path) -> dict[Path, str]:
    """The file that an entry names, or the files of a model's or of samples' folder; each with its name in the pack."""
    path = expand(name, folder)
    samples = key in ("data.calibration", "data.evaluation")
    if path.is_dir() and (samples or key == "source.path"):
        files = visible(path) if samples else sorted(file for file in path.rglob("*") if file.is_file())
        if not files:
            raise InputError(key, name, "is an empty folder", f"looked in {path}")
        if samples:
            check_classes(key, name, path, files)
        top = Path(name_in_pack(path, base))
        return {file: (top / file.relative_to(path)).as_posix() for file in files}
    if not path.is_file():
        what = "is a folder; name its files" if path.is_dir() else "no such file"
        raise InputError(key, name, what, f"looked for {path}")
    return {path: name_in_pack(path, base)}


@dataclass(frozen=True)
class _Place:
    """A folder in which imports look, and the folder below which its files have their names in the pack."""

    search: Path
    base: Path


class _Sources:
    """The files of an entrypoint and of what it imports, by reading the sources; nothing is executed."""

    def __init__(self, key: str, text: str, folder: Path, roots: list[Path]) -> None:
        self.key, self.text, self.roots = key, text, roots
        self.files: dict[str, Path] = {}
        self.distributions: set[str] = set()
        allowed = any(folder.resolve().is_relative_to(root) for root in roots)
        self.places = [_Place(root, root) for root in ([folder] if allowed else []) + roots]
        entry = parse_entry(key, text)
        if entry.file:
            self._add_entry_file(Path(entry.file), folder)
        elif not self._add_module(entry.module):
            shown = ", ".join(map(str, roots)) or "none"
            raise InputError(key, text, f"no such module in the folders whose code may run ({shown})")

    def _add_entry_file(self, file: Path, folder: Path) -> None:
        if file.is_absolute() or ".." in file.parts:
            raise InputError(
                self.key, self.text, "must lie in the spec's folder or below it", "give its path from there"
            )
        path = folder / file
        if not path.is_file():
            raise InputError(self.key, self.text, "no such file", f"looked for {path}")
        # as when Python runs the file, imports look beside it first
        self.places.insert(0, _Place(path.parent, folder))
        self._add_file(path, self.places[0])

    def _add_file(self, path: Path, place: _Place) -> None:
        name = path.relative_to(place.base).as_posix()
        if name in self.files:
            return
        root_of(self.key, self.text, path, self.roots)  # a link may lead out of them
        self.files[name] = path
        try:
            tree = ast.parse(path.read_bytes(), filename=str(path))
        except (SyntaxError, ValueError) as error:
            line = f" at line {error.lineno}" if isinstance(error, SyntaxError) else ""
            raise InputError(self.key, path.name, f"is not valid Python{line}: {error}") from error
        for module in _imported(tree, path.relative_to(place.search).parent.parts):
            self._add_module(module)

    def _add_module(self, module: str) -> bool:
        """Add the files that importing `module` runs, or note its distribution; whether it has files here."""
        for place in self.places:
            paths = _module_files(module, place.search)
            for path in paths:
                self._add_file(path, place)
            if paths:
                return True
        top = module.split(".")[0]
        if top in sys.stdlib_module_names or any(_module_files(top, place.search) for place in self.places):
            return False  # of the latter, `a.b` may be a name in module a
        found = _distributions_of(top)
        if not found and _is_importable(top):
            raise InputError(
                self.key, self.text, f"imports '{top}', which is outside the folders whose code may run",
                f"let an administrator add its folder to {ROOTS_SETTING}: then a change of it is noticed, too",
            )  # fmt: skip
        self.distributions |= found
        return False


def _module_files(module: str, root: Path) -> list[Path]:
    """The files under `root` that importing `module` runs: the packages above it and itself; [] if it is not there."""
    parts = module.split(".")
    above = [root.joinpath(*parts[:i], "__init__.py") for i in range(1, len(parts))]
    plain, package = root.joinpath(*parts).with_suffix(".py"), root.joinpath(*parts, "__init__.py")
    for own in (package, plain):
        if own.is_file():
            return [path for path in above if path.is_file()] + [own]
    return []


def _imported(tree: ast.Module, package: tuple[str, ...]) -> list[str]:
    """Dotted names that a module of `package` may import, anywhere in it: `from a import b` may mean a or a.b."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            origin = (*above, *([node.module] if node.module else []))
            names += [".".join(origin)] if origin else []
            names += [".".join((*origin, alias.name)) for alias in node.names]
    return names


@cache
def _distributions_of(module: str) -> set[str]:
    """The installed distributions that a top-level module belongs to. Most are called as their module is: only for
    the others is every installed distribution looked at."""
    named = {module} if installed_version(module) != "missing" else metadata.packages_distributions().get(module, ())
    return {name for name in named if not _is_editable(name)}


def _is_editable(distribution: str) -> bool:
    """Whether a distribution is installed in editable mode: its version does not change with its code. Not asked of
    our own, which is no part of a model."""
    origin = metadata.distribution(distribution).read_text("direct_url.json")
    return distribution != "onnxmill" and '"editable": true' in (origin or "")


def _is_importable(module: str) -> bool:
    """Whether a module that has no installed distribution is found all the same, by PYTHONPATH or a .pth file."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
