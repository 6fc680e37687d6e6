"""The command line as the tests run it: in this process, which is fast, or in one of its own, which can be killed."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ONNXMILL = (sys.executable, "-m", "onnxmill.flows.cli")
SERVICES = ("MLFLOW_", "PREFECT_", "ONNXMILL_")


@dataclass(frozen=True)
class Ended:
    """How a command ended. `code` is its exit code, or minus the signal that killed it."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line of stderr that says what is wrong."""
        lines = [line for line in self.err.splitlines() if line.startswith("error:")]
        assert len(lines) == 1, self.err
        return lines[0]


@contextlib.contextmanager
def kept_environment() -> Iterator[None]:
    """What is set in this process's environment meanwhile is undone afterwards."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def environment(home: Path, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment whose only settings of onnxmill and its services are its home and `settings`."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(SERVICES)}
    return {**plain, "ONNXMILL_HOME": str(home), **(settings or {})}


def invoke(*arguments: object, home: Path, settings: Mapping[str, str] | None = None) -> Ended:
    """Run `onnxmill <arguments>` in this process."""
    from onnxmill.flows.cli import main

    out, err = io.StringIO(), io.StringIO()
    with kept_environment(), pytest.MonkeyPatch.context() as patch:
        # what mlflow is to see at its import stays out of this process's environment, so it is said each time
        wanted = {**environment(home, settings), "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}
        os.environ.clear()
        os.environ.update(wanted)
        patch.setattr(sys, "argv", ["onnxmill", *map(str, arguments)])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    code = ended.value.code
    return Ended(code if isinstance(code, int) else 0 if code is None else 1, out.getvalue(), err.getvalue())


def start(
    *arguments: object, home: Path, log: Path, settings: Mapping[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    """Start `onnxmill <arguments>` in a process of its own; stdout and stderr go to `log`."""
    with log.open("ab") as stream:
        return subprocess.Popen(
            [*ONNXMILL, *map(str, arguments)], stdout=stream, stderr=stream, env=environment(home, settings)
        )


def run(*arguments: object, home: Path, settings: Mapping[str, str] | None = None, timeout_s: float = 240) -> Ended:
    """Run `onnxmill <arguments>` in a process of its own, to its end."""
    done = subprocess.run(
        [*ONNXMILL, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment(home, settings),
        timeout=timeout_s,
    )
    return Ended(done.returncode, done.stdout, done.stderr)
