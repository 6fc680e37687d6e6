"""Run a function, or keep a worker, in a child process; the one protocol of every step and of other interpreters.

    parent ──stdin: JSON lines──▶ supervisor ──pipe──▶ worker      (its own process group)
    parent ◀─────────stdout: JSON lines──────────────── worker, and the supervisor's last word

`python -m onnxmill.tasks.isolate` is a small supervisor that imports nothing heavy. It forks the worker, passes the
parent's lines on, watches the memory of the worker's process group, and kills that group when its own stdin closes,
that is when the parent ends, however it ends. So nothing survives a cancelled or killed parent, even when the worker
hangs in native code that never gives Python a turn.

Lines to the worker: {"function": "module:name", "arguments": {…}} calls a function once;
{"create": "module:name", …} keeps the object that the function returns; {"method": "name", …} then calls it.
Arguments and results are converted by their type annotations (pydantic): models, paths, numbers.
Lines from it: {"progress": …}, {"result": …}, {"error": …}; from the supervisor, last: {"exit": …}.
What the worker or its libraries print goes to stderr, never into the protocol.
"""

import contextlib
import ctypes
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self

import psutil
from pydantic import ConfigDict, JsonValue, validate_call
from pydantic_core import to_jsonable_python

from onnxmill.tasks.errors import InputError, OnnxmillError, StepError, redact

POLL_SECONDS = 0.1
TAIL_BYTES = 4000


@dataclass(frozen=True)
class Progress:
    """`done` of `total` units of `what`; total 0 means unknown."""

    what: str
    done: int
    total: int


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class Limits:
    """Of one child. `timeout_s` is for each call; `memory_mb` for the resident memory of its process group."""

    timeout_s: float = 3600.0
    memory_mb: float | None = None


@dataclass(frozen=True)
class Reply:
    """What a call gave: the function's value as JSON, the worker's peak resident memory so far."""

    value: JsonValue
    peak_rss_mb: float


def run(
    function: str,
    arguments: Mapping[str, Any],
    *,
    step: str,
    limits: Limits = Limits(),
    cwd: Path | None = None,
    log: Path | None = None,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
    on_progress: OnProgress | None = None,
) -> Reply:
    """Call `function` ("module:name") with `arguments` in a child process, and end the child.

    Raises the child's own `InputError` as such, and `StepError` for everything else: an exception, a crash, a kill,
    a time-out, too much memory; with the signal, the peak RSS and the tail of its stderr.
    """
    with Child(step, limits=limits, cwd=cwd, log=log, python=python, environment=environment) as child:
        return child.ask({"function": function, "arguments": to_jsonable_python(dict(arguments))}, on_progress)


class Child:
    """A child process that answers one request at a time. Use as a context manager: leaving it kills the child."""

    def __init__(
        self,
        step: str,
        *,
        limits: Limits = Limits(),
        cwd: Path | None = None,
        log: Path | None = None,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.step, self.limits = step, limits
        self._log: IO[bytes] = log.open("ab+") if log else tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        self._log_start = self._log.seek(0, os.SEEK_END)
        self._buffer = b""
        self._peak_rss_mb = 0.0
        self._process = subprocess.Popen(
            [python, "-m", "onnxmill.tasks.isolate", str(limits.memory_mb or 0)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=cwd,
            env={**child_environment(), **(environment or {})},
            start_new_session=True,
        )
        _running.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def end(self) -> None:
        """Have the child and everything that it started killed; whoever waits for its answer gets an error."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # the supervisor then kills the worker's group

    def close(self) -> None:
        """End the child, wait until it is gone, and close what belongs to it."""
        assert self._process.stdout
        self.end()
        self._process.wait()
        _running.discard(self)
        self._process.stdout.close()
        self._log.close()

    def create(self, function: str, arguments: Mapping[str, Any], on_progress: OnProgress | None = None) -> Reply:
        """Keep, in the child, the object that `function` ("module:name") returns: later `call`s go to it."""
        return self.ask({"create": function, "arguments": to_jsonable_python(dict(arguments))}, on_progress)

    def call(self, method: str, arguments: Mapping[str, Any]) -> Reply:
        return self.ask({"method": method, "arguments": to_jsonable_python(dict(arguments))}, None)

    def ask(self, request: Mapping[str, Any], on_progress: OnProgress | None) -> Reply:
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it died before: its last word, read below, says why
        deadline = time.monotonic() + self.limits.timeout_s
        while True:
            message = self._read(deadline)
            self._peak_rss_mb = max(self._peak_rss_mb, message.get("peak_rss_mb", 0.0))
            if "progress" in message:
                if on_progress:
                    on_progress(Progress(**message["progress"]))
            elif "result" in message:
                return Reply(message["result"], self._peak_rss_mb)
            elif "error" in message:
                raise self._from_error(message["error"])
            else:
                raise self._broken(message["exit"])

    def _read(self, deadline: float) -> dict[str, Any]:
        """The next line of the protocol; an `exit` message in its place at the deadline or the end of the stream."""
        assert self._process.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return {"exit": {"reason": "timeout", "signal": None}}
                chunk = os.read(self._process.stdout.fileno(), 1 << 16)
                if not chunk:
                    return {"exit": {"reason": "ended", "signal": _signal_name(-(self._process.wait()))}}
                self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def _from_error(self, error: dict[str, Any]) -> OnnxmillError:
        if error["kind"] == "InputError":
            return InputError(**error["fields"])
        return StepError(
            self.step, redact(error["message"]), traceback=error["traceback"],
            stderr_tail=self._tail(), peak_rss_mb=self._peak_rss_mb,
        )  # fmt: skip

    def _broken(self, end: dict[str, Any]) -> StepError:
        reason, name = end["reason"], end["signal"]
        limit_mb = self.limits.memory_mb or 0
        what = {
            "timeout": f"no answer after {self.limits.timeout_s:g} s; its process was killed",
            "memory": f"went over its memory limit of {limit_mb:,.0f} MB; its process was killed",
            "ended": f"its process was killed by {name}" if name else "its process ended without a result",
        }[reason]
        if name == "SIGKILL" and reason == "ended":
            what += f": out of memory in {self.step}, most likely"
        return StepError(
            self.step, what, signal=name or reason, peak_rss_mb=self._peak_rss_mb, stderr_tail=self._tail()
        )

    def _tail(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(self._log_start, size - TAIL_BYTES))
        return redact(self._log.read().decode(errors="replace"))


_running: set[Child] = set()  # this process's children: a signal must find them, whichever thread waits for them


@contextlib.contextmanager
def ending_children() -> Iterator[None]:
    """A block (or, as a decorator, a function) that ends the children it started when it is interrupted or cancelled.

    Threads that wait for a child would otherwise keep the process until the child is done.
    """
    before = set(_running)
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception):  # KeyboardInterrupt, SystemExit, a framework's cancellation
            for child in _running - before:
                child.end()
        raise


_SECRET = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "API_KEY", "ACCESS_KEY")
_SERVICES = ("MLFLOW_", "PREFECT_", "AWS_", "AZURE_", "GOOGLE_")


def child_environment() -> dict[str, str]:
    """This process's environment without the settings of services and without anything that looks like a secret:
    user code runs in children."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_SERVICES) and not any(word in name.upper() for word in _SECRET)
    }


def _signal_name(number: int) -> str | None:
    return signal.Signals(number).name if number > 0 else None


# --- in the child: the supervisor ------------------------------------------------------------------------------------


def supervise(memory_mb: float) -> None:
    """Fork the worker, pass stdin on to it, watch it; kill its process group when stdin closes or memory runs over."""
    _adopt_orphans()
    to_worker_read, to_worker_write = os.pipe()
    alive_read, alive_write = os.pipe()  # closes when the worker ends: its descriptor is not inherited by its children
    worker = os.fork()
    if worker == 0:
        os.setpgid(0, 0)
        _end_with_parent()
        os.close(to_worker_write)
        os.close(alive_read)
        os.dup2(to_worker_read, 0)
        work()
        os._exit(0)
    with contextlib.suppress(PermissionError):
        os.setpgid(worker, worker)  # both sides set it: whoever runs first
    os.close(to_worker_read)
    os.close(alive_write)
    reason, peak = _watch(worker, to_worker_write, alive_read, memory_mb)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker, signal.SIGKILL)
    for descendant in psutil.Process().children(recursive=True):  # those that left the group
        with contextlib.suppress(psutil.Error):
            descendant.kill()
    _, status, usage = os.wait4(worker, 0)
    scale = 1 if sys.platform == "darwin" else 1024
    peak = max(peak, usage.ru_maxrss * scale / 2**20)
    killed_by = _signal_name(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None
    if reason:
        end = {"exit": {"reason": reason, "signal": killed_by}, "peak_rss_mb": peak}
        with contextlib.suppress(BrokenPipeError):  # nobody reads when the parent is gone
            os.write(1, json.dumps(end).encode() + b"\n")


_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def _adopt_orphans() -> None:
    """Linux: what the worker's processes leave behind becomes a child of this process, and so is found."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_with_parent() -> None:
    """Linux: the kernel kills this process when the one that forked it ends, even by SIGKILL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _watch(worker: int, to_worker: int, alive: int, memory_mb: float) -> tuple[Literal["ended", "memory", ""], float]:
    """Until the worker ends ("ended"), its memory runs over ("memory") or stdin closes (""): why, and the peak, MB."""
    peak = 0.0
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(alive, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select(POLL_SECONDS if memory_mb else None)}
            if alive in ready:
                return "ended", peak
            if 0 in ready:
                data = os.read(0, 1 << 16)
                if not data:
                    return "", peak
                with contextlib.suppress(BrokenPipeError):
                    while data:
                        data = data[os.write(to_worker, data) :]
            if memory_mb:
                peak = max(peak, _group_rss_mb(worker))
                if peak > memory_mb:
                    return "memory", peak


def _group_rss_mb(group: int) -> float:
    total = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group:
                total += process.memory_info().rss
    return total / 2**20


# --- in the child: the worker ----------------------------------------------------------------------------------------

_protocol: int | None = None  # the worker's end of the protocol; None outside a worker


def report_progress(what: str, done: int, total: int = 0) -> None:
    """Tell the parent how far a step is; does nothing outside a child."""
    if _protocol is not None:
        _send({"progress": {"what": what, "done": done, "total": total}})


def peak_rss_mb() -> float:
    """The peak resident memory, MB, of this process or of one that it started and waited for: the higher of the two."""
    import resource

    scale = 1 if sys.platform == "darwin" else 1024
    peaks = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(peaks) * scale / 2**20


def _send(message: dict[str, Any]) -> None:
    assert _protocol is not None
    data = json.dumps({**message, "peak_rss_mb": peak_rss_mb()}, allow_nan=False).encode() + b"\n"
    while data:
        data = data[os.write(_protocol, data) :]


def work() -> None:
    """Answer requests until stdin closes. Everything that is printed goes to stderr."""
    global _protocol
    _protocol = os.dup(1)
    os.dup2(2, 1)
    sys.path.insert(0, str(Path.cwd()))
    instance: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "create" in request:
                instance = _call(_resolve(request["create"]), request["arguments"])
                value = None
            elif "method" in request:
                value = _call(getattr(instance, request["method"]), request["arguments"])
            else:
                value = _call(_resolve(request["function"]), request["arguments"])
            _send({"result": to_jsonable_python(value)})
        except InputError as error:
            fields: dict[str, object] = {"key": error.key, "value": None, "expected": error.expected, "fix": error.fix}
            if error.value is not None:
                fields["value"] = error.value if isinstance(error.value, str | int | float) else repr(error.value)
            _send({"error": {"kind": "InputError", "fields": fields}})
        except Exception as error:  # noqa: BLE001  the boundary: whatever a tool raises becomes an error message of the protocol
            text = "".join(traceback.format_exception(error))
            sys.stderr.write(text)
            sys.stderr.flush()
            message = f"{type(error).__name__}: {error}" if not isinstance(error, OnnxmillError) else str(error)
            _send({"error": {"kind": type(error).__name__, "message": message, "traceback": text}})


def _call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    return validate_call(config=ConfigDict(arbitrary_types_allowed=True))(function)(**arguments)


def _resolve(name: str) -> Callable[..., Any]:
    module, attribute = name.split(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return function


if __name__ == "__main__":
    # `-m` runs this file as __main__; steps import it by its name, and must find the same `_protocol`
    from onnxmill.tasks import isolate

    isolate.supervise(float(sys.argv[1]))
