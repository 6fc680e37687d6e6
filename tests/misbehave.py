"""Functions that behave badly in a child process, for the tests of `isolate`."""

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

from onnxmill.tasks.errors import InputError
from onnxmill.tasks.isolate import report_progress


def add(a: int, b: float) -> float:
    print("noise on stdout must not disturb the protocol")
    return a + b


def has_a_large_child(mb: int) -> None:
    subprocess.run([sys.executable, "-c", f"bytearray({mb} * 2**20)"], check=True)


def where() -> Path:
    return Path.cwd()


def environment() -> dict[str, str]:
    return dict(os.environ)


def count(to: int) -> int:
    for i in range(to):
        report_progress("things", i + 1, to)
    return to


def bad_input() -> None:
    raise InputError("data.calibration", "data.py:f", "must yield something", "look at it")


def fails() -> None:
    sys.stderr.write("about to fail\n")
    raise ZeroDivisionError("on purpose")


def segfault() -> None:
    ctypes.string_at(0)


def aborts() -> None:
    os.abort()


def killed() -> None:
    os.kill(os.getpid(), 9)


def exits() -> None:
    os._exit(3)


def hangs(pid_file: Path, grandchild: bool = False) -> None:
    """Sleeps; writes its pid, and the pid of a child of its own, first."""
    pids = [os.getpid()]
    if grandchild:
        pids.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid)
    pid_file.write_text(" ".join(map(str, pids)))
    time.sleep(600)


def hangs_in_native_code(pid_file: Path) -> None:
    """Holds the GIL in native code, so that no Python thread of this process can run."""
    pid_file.write_text(str(os.getpid()))
    ctypes.PyDLL(None).sleep(600)


def eats_memory() -> int:
    hoard = []
    while True:
        hoard.append(bytes(b"x" * (8 << 20)))
        time.sleep(0.005)


class Counter:
    """A worker's object: made once, called many times."""

    def __init__(self, start: int) -> None:
        self.value = start

    def more(self, by: int) -> int:
        self.value += by
        return self.value


def counter(start: int) -> Counter:
    return Counter(start)


def leaves_a_daemon(pid_file: Path) -> None:
    """Starts a process that leaves the worker's group and session, and ends."""
    daemon = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    pid_file.write_text(str(daemon.pid))


def opens_a_session() -> None:
    import onnx.parser
    import onnxruntime

    text = '<ir_version: 8, opset_import: ["": 18]> g (float[1] x) => (float[1] y) { y = Relu(x) }'
    model = onnx.parser.parse_model(text)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].name == "x"
