"""pack: a spec with everything that its loaders read -> artifacts, the first keys of all later steps.

Three parts, so that a change re-runs what depends on it and nothing else: `source` (the model's code and weights),
`data` (the samples' code and files), `metric`. A part holds the sources of its callables, of the modules of the
allowed roots that they import (found by reading `import` statements), and the declared files. Later steps run the
user's code in a copy of its part alone: what was not found or declared is missing there, loudly.
"""

import ast
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from onnxmill.tasks.artifact import Artifact, Store
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.loader import allowed_roots, parse_entry, root_of
from onnxmill.tasks.spec import Spec, expand
from onnxmill.tasks.step import installed_version


class Part(BaseModel):
    """One part of a pack. `tools` are the installed distributions that its sources import, with their versions."""

    model_config = ConfigDict(frozen=True)

    artifact: Artifact
    tools: dict[str, str]


class Pack(BaseModel):
    model_config = ConfigDict(frozen=True)

    source: Part
    data: Part | None
    metric: Part | None


def pack(spec: Spec, folder: Path, store: Store) -> Pack:
    """Pack a spec that stands in `folder`. Raises `InputError` for a missing file or a loader outside the roots."""
    source = {"source.loader": spec.source.loader} if spec.source.loader else {}
    declared = {"source.files": spec.source.files}
    if spec.source.path:
        declared["source.path"] = (spec.source.path,)
    data = {f"data.{k}": v for k in ("calibration", "evaluation") if (v := getattr(spec.data, k))}
    return Pack(
        source=_part(source, declared, folder, store),
        data=_part(data, {"data.files": spec.data.files}, folder, store) if data else None,
        metric=_part({"metric.fn": spec.metric.fn}, {"metric.files": spec.metric.files}, folder, store)
        if spec.metric
        else None,
    )


def name_in_pack(declared: str, folder: Path) -> str:
    """Where a declared file lies in its part: its path below the spec's folder, or else its own name."""
    path = expand(declared, folder)
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name


def _part(entries: dict[str, str], declared: dict[str, tuple[str, ...]], folder: Path, store: Store) -> Part:
    files: dict[str, Path] = {}
    tools: dict[str, str] = {}
    roots = allowed_roots()
    for key, text in entries.items():
        sources = _Sources(roots)
        sources.add_entry(key, text, folder)
        files |= sources.files
        tools |= {name: installed_version(name) for name in sorted(sources.distributions)}
    for key, names in declared.items():
        for name in names:
            path = expand(name, folder)
            if not path.is_file():
                what = "is a folder; name its files" if path.is_dir() else "no such file"
                raise InputError(key, name, what, f"looked for {path}")
            files[name_in_pack(name, folder)] = path
    return Part(artifact=store.add(files), tools=tools)


class _Sources:
    """The files of an entrypoint and of what it imports, by reading the sources; nothing is executed."""

    def __init__(self, roots: list[Path]) -> None:
        self.roots = roots
        self.files: dict[str, Path] = {}
        self.distributions: set[str] = set()

    def add_entry(self, key: str, text: str, folder: Path) -> None:
        entry = parse_entry(key, text)
        if entry.file:
            path = (folder / entry.file).resolve()
            if not path.is_file():
                raise InputError(key, text, "no such file", f"looked for {path}")
            root = root_of(key, text, path, self.roots)
            base = folder.resolve() if path.is_relative_to(folder.resolve()) else root
            if not path.is_relative_to(base / Path(entry.file).parent):
                raise InputError(key, text, "must lie in the spec's folder or below it")
            self._add_file(path, base, [path.parent, *self.roots], key)
        else:
            for root in [folder.resolve(), *self.roots]:
                if _module_files(entry.module, root):
                    root_of(key, text, root, self.roots)
                    self._add_module(entry.module, [root, *self.roots], key)
                    return
            allowed = ", ".join(map(str, self.roots)) or "none"
            raise InputError(key, text, f"no such module in the folders whose code may run ({allowed})")

    def _add_file(self, path: Path, base: Path, search: list[Path], key: str) -> None:
        name = path.relative_to(base).as_posix()
        if name in self.files:
            return
        self.files[name] = path
        try:
            tree = ast.parse(path.read_bytes(), filename=str(path))
        except (SyntaxError, ValueError) as error:
            line = f" at line {error.lineno}" if isinstance(error, SyntaxError) else ""
            raise InputError(key, path.name, f"is not valid Python{line}: {error}") from error
        package = ".".join(path.relative_to(base).parent.parts)
        for module in _imported(tree, package):
            self._add_module(module, search, key)

    def _add_module(self, module: str, search: list[Path], key: str) -> None:
        for root in search:
            paths = _module_files(module, root)
            if paths:
                for path in paths:
                    self._add_file(path, root, search, key)
                return
        top = module.split(".")[0]
        if top not in sys.stdlib_module_names:
            self.distributions |= set(_distributions().get(top, ()))


def _module_files(module: str, root: Path) -> list[Path]:
    """The files under `root` that importing `module` runs: the packages above it and itself; [] if it is not there."""
    parts = module.split(".")
    above = [root.joinpath(*parts[:i], "__init__.py") for i in range(1, len(parts))]
    plain, package = root.joinpath(*parts).with_suffix(".py"), root.joinpath(*parts, "__init__.py")
    for own in (package, plain):
        if own.is_file():
            return [path for path in above if path.is_file()] + [own]
    return []


def _imported(tree: ast.Module, package: str) -> list[str]:
    """Dotted names that a module may import, anywhere in it: `from a import b` may mean module a or module a.b."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*above, node.module] if node.module else above)
            names += [origin] if origin else []
            names += [f"{origin}.{alias.name}".lstrip(".") for alias in node.names]
    return names


@cache
def _distributions() -> dict[str, list[str]]:
    return {name: list(found) for name, found in metadata.packages_distributions().items()}
