"""Functions of made-up steps, for the tests of `step`: they run in a child."""

import os
import time
from pathlib import Path

from pydantic import BaseModel

from onnxmill.tasks import loader
from onnxmill.tasks.isolate import report_progress
from onnxmill.tasks.step import CALLING


class Settings(BaseModel):
    text: str = "x"
    fail: bool = False


class Value(BaseModel):
    length: int
    files: list[str]


def writes(settings: Settings, source: Path, out: Path) -> Value:
    """Writes a file of the settings and the source; says how long it is and what the working folder holds."""
    report_progress("writing", 1, 2)
    if settings.fail:
        (out / "half").write_text("…")
        raise ArithmeticError("on purpose")
    text = settings.text + (source / "a.txt").read_text()
    (out / "sub").mkdir()
    (out / "sub" / "b.txt").write_text(text)
    return Value(length=len(text), files=sorted(p.name for p in Path.cwd().iterdir()))


def spoils(settings: Settings, source: Path, out: Path) -> str:
    """User code that writes to its own files."""
    (Path.cwd() / "a.txt").write_text("spoilt")
    return os.environ["PYTHONHASHSEED"]


def calls(settings: Settings, source: Path, out: Path) -> str:
    """Calls the loader model.py:load."""
    return str(loader.call("source.loader", "model.py:load"))


def calls_then_hangs(settings: Settings, source: Path, out: Path) -> None:
    """The user's code is done; a tool of ours hangs."""
    loader.call("source.loader", "model.py:load")
    time.sleep(60)


def takes_two_samples_then_hangs(settings: Settings, source: Path, out: Path) -> None:
    key, text = "data.calibration", "model.py:samples"
    items = loader.iterate(key, text, loader.call(key, text))
    next(items)
    report_progress(f"{CALLING}data.calibration model.py:samples", 1, 2)
    next(items)
