"""A source whose code needs other libraries than ours: it is loaded, run and exported by another interpreter.

There, a worker of `isolate` holds the model. Arrays and graphs pass as files; the proof is made here, by our libraries.
The other environment needs the model's framework and what is in `NEEDS`; onnxmill itself is lent to it.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from onnxmill.calibration.samples import Array
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.export import Source, SourceSettings, load
from onnxmill.tasks.findings import Finding
from onnxmill.tasks.isolate import Child, Progress, report_progress
from onnxmill.tasks.spec import Contract
from onnxmill.tasks.step import child_limits

NEEDS = ("numpy", "onnx", "psutil", "pydantic", "PyYAML")
"""Distributions that the other environment must have beside the framework."""
LIST = """
import json, sys
from importlib import metadata
if sys.version_info < (3, 11):
    sys.exit("is Python %d.%d; 3.11 or later is needed" % sys.version_info[:2])
found = {d.metadata["Name"].lower(): d.version for d in metadata.distributions() if d.metadata["Name"]}
print(json.dumps({**found, "python": "%d.%d" % sys.version_info[:2]}))
"""


def environment(python: Path) -> dict[str, str]:
    """All distributions of another environment with their versions: what its results depend on.

    Raises `InputError` for an interpreter that does not run, is too old or lacks what we need there.
    """
    key, fix = "source.python", "give the interpreter of an environment, such as ../old-torch/bin/python"
    try:
        done = subprocess.run([python, "-c", LIST], capture_output=True, text=True, timeout=60, check=False, cwd="/")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(key, str(python), f"does not run: {error}", fix) from error
    if done.returncode:
        raise InputError(key, str(python), " ".join(done.stderr.split())[-200:] or "does not run", fix)
    try:
        found = TypeAdapter(dict[str, str]).validate_json(done.stdout)
    except ValueError as error:
        raise InputError(key, str(python), "is no Python interpreter", fix) from error
    if missing := [name for name in NEEDS if name.lower() not in found]:
        fix = f"{python} -m pip install {' '.join(missing)}"
        raise InputError(key, str(python), f"its environment lacks {', '.join(missing)}", fix)
    return found


@contextlib.contextmanager
def opened(settings: SourceSettings, python: str) -> Iterator[Source]:
    """The loaded source: in this process, or in one of the interpreter `python`, which may be this one, that ends with
    the block."""
    if not python:
        yield load(settings)
        return
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        child = Child(
            "source",
            limits=child_limits(),
            cwd=Path.cwd(),
            log=log,
            python=python,
            environment=_lent(Path(folder) / "lib", python),
        )
        try:
            with child:
                child.create("onnxmill.tasks.export.elsewhere:serve", {"settings": settings}, _forward)
                yield _Elsewhere(child, Path(folder))
        finally:
            sys.stderr.write(log.read_text(errors="replace"))


def _lent(folder: Path, python: str) -> dict[str, str]:
    """What of onnxmill the model's process needs, laid out in `folder`; the settings by which `python` finds it."""
    (folder / "onnxmill").mkdir(parents=True)
    for package in ("tasks", "calibration"):
        found = find_spec(f"onnxmill.{package}")
        assert found
        assert found.origin
        (folder / "onnxmill" / package).symlink_to(Path(found.origin).parent)
    if python == sys.executable:  # whatever is found here must be found there
        return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}
    return {"PYTHONPATH": str(folder), "PYTHONNOUSERSITE": "1"}


def _forward(progress: Progress) -> None:
    report_progress(progress.what, progress.done, progress.total)


class _Elsewhere:
    """A `Source` whose model is in a worker of another interpreter."""

    def __init__(self, child: Child, folder: Path) -> None:
        self._child, self._folder = child, folder

    def predict(self, inputs: Mapping[str, Array]) -> list[tuple[str, Array]]:
        given, got = self._folder / "inputs.npz", self._folder / "outputs.npz"
        _write(given, list(inputs.items()))
        self._child.call("predict", {"inputs": given, "outputs": got})
        return _read(got)

    def routes(self, contract: Contract, opset: int) -> list[str]:
        return TypeAdapter(list[str]).validate_python(
            self._child.call("routes", {"contract": contract, "opset": opset}).value
        )

    def write(self, route: str, contract: Contract, opset: int, path: Path) -> list[Finding]:
        arguments = {"route": route, "contract": contract, "opset": opset, "path": path}
        return TypeAdapter(list[Finding]).validate_python(self._child.call("write", arguments).value)


class _Served:
    """The other side: the model, whose arrays come and go as files."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def predict(self, inputs: Path, outputs: Path) -> None:
        _write(outputs, self._source.predict(dict(_read(inputs))))

    def routes(self, contract: Contract, opset: int) -> list[str]:
        return self._source.routes(contract, opset)

    def write(self, route: str, contract: Contract, opset: int, path: Path) -> list[Finding]:
        return self._source.write(route, contract, opset, path)


def serve(settings: SourceSettings) -> _Served:
    """In the other interpreter: load the source and keep it."""
    return _Served(load(settings))


def _write(path: Path, arrays: list[tuple[str, Array]]) -> None:
    """Arrays with their names, in order; several may have the same one."""
    np.savez(path, np.array([name for name, _ in arrays], dtype=np.str_), *(array for _, array in arrays))


def _read(path: Path) -> list[tuple[str, Array]]:
    with np.load(path, allow_pickle=False) as file:
        return [(str(name), file[f"arr_{index + 1}"]) for index, name in enumerate(file["arr_0"])]
