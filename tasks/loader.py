"""Loaders: "file.py:callable" beside the spec, or "package.module:callable". Finding them, and calling them.

Finding happens where the spec is read, and only under the roots that this machine's settings allow. Calling happens
in a child process whose working folder holds a copy of the sources.
"""

import importlib
import importlib.util
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxmill.tasks.errors import InputError, OnnxmillError, close_match
from onnxmill.tasks.isolate import report_progress
from onnxmill.tasks.step import CALLING

ROOTS_SETTING = "ONNXMILL_LOADER_ROOTS"


@dataclass(frozen=True)
class Entry:
    """A parsed entrypoint: `file` ends in .py and is relative; or `module` is dotted. Exactly one is not empty."""

    file: str
    module: str
    attribute: str


def parse_entry(key: str, text: str) -> Entry:
    """Split "file.py:callable" or "package.module:callable". Raises `InputError` that names `key`."""
    origin, colon, attribute = text.rpartition(":")
    if not colon or not attribute.isidentifier() or not origin:
        raise InputError(key, text, "must be file.py:callable or package.module:callable")
    if origin.endswith(".py"):
        return Entry(file=origin, module="", attribute=attribute)
    if all(part.isidentifier() for part in origin.split(".")):
        return Entry(file="", module=origin, attribute=attribute)
    raise InputError(key, text, "must be file.py:callable or package.module:callable; a file's name ends in .py")


def allowed_roots() -> list[Path]:
    """Folders whose code may run: the setting ONNXMILL_LOADER_ROOTS (separated like PATH). Never from a spec."""
    return [Path(p).resolve() for p in os.environ.get(ROOTS_SETTING, "").split(os.pathsep) if p]


def root_of(key: str, value: str, path: Path, roots: list[Path]) -> Path:
    """The innermost allowed root that holds `path`. Raises `InputError` where none does."""
    inside = [root for root in roots if path.resolve().is_relative_to(root)]
    if not inside:
        allowed = ", ".join(map(str, roots)) or "none"
        raise InputError(
            key, value, f"is outside the folders whose code may run ({allowed})",
            f"move it there, or let an administrator add its folder to {ROOTS_SETTING}",
        )  # fmt: skip
    return max(inside, key=lambda root: len(root.parts))


def load_callable(key: str, text: str) -> Callable[..., Any]:
    """Import the callable of an entrypoint; the working folder holds its sources. Runs the module's code."""
    entry = parse_entry(key, text)
    report_progress(f"{CALLING}{key} {text}", 0)
    with user_code(key, text, "importing it"):
        module = _import_file(Path.cwd() / entry.file) if entry.file else importlib.import_module(entry.module)
    if not Path(getattr(module, "__file__", None) or "").is_relative_to(Path.cwd()):
        raise InputError(key, text, "has the name of an installed module, which comes first", "rename your file")
    if not hasattr(module, entry.attribute):
        names = [n for n in vars(module) if not n.startswith("_") and callable(getattr(module, n))]
        raise InputError(key, text, f"has no '{entry.attribute}'; {close_match(entry.attribute, names)}")
    found = getattr(module, entry.attribute)
    if not callable(found):
        raise InputError(key, text, f"must be callable; it is a {type(found).__name__}")
    result: Callable[..., Any] = found
    return result


def call(key: str, text: str) -> Any:
    """Call a loader without arguments. Raises `InputError` when it raises or returns None."""
    function = load_callable(key, text)
    with user_code(key, text, "calling it"):
        value = function()
    report_progress(f"called {key}", 0)
    if value is None:
        raise InputError(key, text, "returned None", "return the model" if key == "source.loader" else "yield samples")
    return value


def length(key: str, text: str, items: Any) -> int | None:
    """How many items a data callable returned, where it is a sequence (a list, a dataset): has a length and indices."""
    if isinstance(items, Mapping) or not (hasattr(items, "__len__") and hasattr(items, "__getitem__")):
        return None
    with user_code(key, text, "taking its length"):
        return len(items)


def iterate(key: str, text: str, items: Any, indices: Sequence[int] | None = None) -> Iterator[Any]:
    """The items that a data callable returned: all, or those at `indices` of a sequence.

    Raises `InputError` with the item's index when it raises half-way.
    """
    if indices is None and not hasattr(items, "__iter__"):
        raise InputError(key, text, f"must yield samples; it returned a {type(items).__name__}")
    report_progress(f"{CALLING}{key} {text}", 0)
    with user_code(key, text, "iterating over it"):
        iterator = iter(items) if indices is None else (items[index] for index in indices)
    for index in itertools.count() if indices is None else indices:
        with user_code(key, text, f"taking sample {index} of it"):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item


class user_code:
    """A block that runs a user's code: whatever it raises becomes an `InputError` that names the place."""

    def __init__(self, key: str, text: str, doing: str) -> None:
        self.key, self.text, self.doing = key, text, doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> None:
        if error is None or isinstance(error, OnnxmillError | KeyboardInterrupt | GeneratorExit):
            return
        traceback.print_exception(error)  # to the step's log
        frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(Path.cwd())]
        place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        text = " ".join(str(error).split())
        fix = ""
        if isinstance(error, ModuleNotFoundError | FileNotFoundError):
            fix = "a file that it needs must be declared in `files:`; a module must be imported by name at its top"
        raise InputError(
            self.key, self.text, f"{self.doing} raised {type(error).__name__}{place}: {text}", fix
        ) from error


def _import_file(path: Path) -> Any:
    """Import a file under its stem; its own folder comes first on the path, as when Python runs it."""
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
