"""What runs on this machine for a home of onnxmill, and servers that a test can start and stop."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil


def of_home(home: Path) -> list[psutil.Process]:
    """The live processes whose environment has this ONNXMILL_HOME: the command line and all that it started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            ours = process.environ().get("ONNXMILL_HOME") == str(home)
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def left_after(home: Path, seconds: float) -> list[str]:
    """The command lines of what still runs for this home after at most so many seconds."""
    deadline = time.monotonic() + seconds
    while (left := of_home(home)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [" ".join(process.cmdline()) for process in left]


LOAD_BACK = "load back"
"""Stands for the child that loads a model back from the registry: it has no log of its own."""


def running_steps(parent: int, logs: Path) -> set[str]:
    """The steps whose children run under the process `parent`, by the name of their log."""
    names = set()
    for process in psutil.Process(parent).children(recursive=True):
        with contextlib.suppress(psutil.Error, OSError):
            if "onnxmill.tasks.isolate" in process.cmdline():
                log = Path(f"/proc/{process.pid}/fd/2").readlink()
                names.add(log.stem if log.parent == logs else LOAD_BACK)
    return names


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Server:
    """A server as a person starts it: `arguments` after `python -m`, its `health` address, its whole process group."""

    arguments: Sequence[str]
    health: str
    log: Path
    settings: Mapping[str, str]
    process: "subprocess.Popen[bytes] | None" = field(default=None)

    def start(self) -> None:
        with self.log.open("ab") as log:
            process = self.process = subprocess.Popen(
                [sys.executable, "-m", *self.arguments],
                stdout=log,
                stderr=log,
                env={**os.environ, **self.settings},
                start_new_session=True,
            )
        until(lambda: self._healthy() or process.poll() is not None, 120, f"no server at {self.health}")
        assert process.poll() is None, self.log.read_text()

    def stop(self) -> None:
        """End the group at once, as a machine that goes down does."""
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def _healthy(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(self.health, timeout=5).status_code == 200
        return False


def until(true: Callable[[], object], seconds: float, otherwise: str) -> None:
    """Wait until `true` gives something true; fail after so many seconds."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)
