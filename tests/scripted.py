"""A target for the tests of `benchmark`: its "model" file holds the latencies, so that every number can be checked.

Not in test_benchmark.py, because a child process imports it and would import pytest and onnx with it.
"""

import json
from pathlib import Path

from onnxmill.tasks.errors import InputError
from onnxmill.tasks.targets import Loaded, Round


class Scripted:
    """Gives the rounds that `model` holds, one a call, and notes each call in the file calls.txt beside
    it."""

    def __init__(self, model: Path) -> None:
        self._name, self._calls = model.stem, model.with_name("calls.txt")
        self._rounds = json.loads(model.read_text())

    def _note(self, what: str) -> None:
        with self._calls.open("a") as file:
            file.write(f"{self._name} {what}\n")

    def loaded(self) -> Loaded:
        return Loaded(load_ms=12.5, batch=4, placement={"A": 0.75, "B": 0.25})

    def warm_up(self, seconds_max: float) -> int:
        self._note("warm_up")
        return 6

    def measure(self, seconds: float, runs_min: int) -> Round:
        self._note("measure")
        return Round(self._rounds.pop(0))


def open_session(model: Path, inputs: Path, dims: dict[str, int], threads: int) -> Scripted:
    if threads != 1:
        raise InputError("threads", threads, "must be 1 here")
    return Scripted(model)
