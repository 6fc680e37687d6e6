"""How fast a variant is here, alone or against a baseline: rounds in turn (A B A B), one benchmark at a time
a machine.

Each side is a session in a child process of its own, both warm; only one of them runs at any time. What the
machine does meanwhile (clock, heat, other load) then falls on both sides of a round alike, and the speed-up
is a statistic of paired rounds with an interval.
"""

import contextlib
import fcntl
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter

from onnxmill.tasks.bootstrap import ratio_interval
from onnxmill.tasks.errors import OnnxmillError
from onnxmill.tasks.findings import Finding, finding
from onnxmill.tasks.isolate import Child, Limits, OnProgress, Progress
from onnxmill.tasks.report import Measurement
from onnxmill.tasks.targets import Loaded, Round, Target

VERSION = 1
"""Of this step, for the memo: raise it when the same settings would give other numbers."""

SEED = 0
DRIFT_MAX = 0.10
LOCK_POLL_SECONDS = 0.05


class Budget(BaseModel):
    """How long to measure. The default takes 3 s for a pair of fast models; slow ones (over 40 ms) get their
    `runs_min` runs a round and take as long as these need."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rounds: int = Field(12, ge=3)
    seconds_per_round: float = Field(0.125, gt=0)
    runs_min: int = Field(3, ge=1)
    warm_up_seconds: float = Field(2.0, ge=0)


def settings(budget: Budget, dims: dict[str, int], threads: int) -> dict[str, JsonValue]:
    """What a measurement depends on beside the models, the inputs and the machine: for the memo's key."""
    return {"budget": budget.model_dump(), "dims": dict(dims), "threads": threads}


def measure(
    target: Target,
    *,
    variant: Path,
    baseline: Path | None,
    baseline_name: str | None,
    inputs: Path,
    dims: dict[str, int],
    threads: int,
    budget: Budget,
    limits: Limits = Limits(),
    log: Path | None = None,
    on_progress: OnProgress | None = None,
) -> Measurement:
    """Measure the model `variant` on `target` at the sizes `dims`, in turn with `baseline` (None: it is the
    baseline).

    `inputs` holds the parity cases (`cases.npz`). Quantiles are over all timed runs of all rounds; the
    throughput is items a second, one run after the other; the peak memory is that of the variant's whole
    process, Python included. Waits for other benchmarks on this machine. `limits` are a child's; the timeout
    is for each round. Raises `StepError` when a session cannot be opened or its process breaks, and
    `InputError` when the inputs do not fit.
    """
    arguments = {"inputs": inputs.absolute(), "dims": dims, "threads": threads}
    with machine_slot(lock_path(), on_progress), ExitStack() as stack:

        def start(model: Path) -> _Side:
            child = stack.enter_context(Child("benchmark", limits=limits, log=log))
            child.create(target.session, {"model": model.absolute(), **arguments})
            side = _Side(child)
            side.warm_up(budget.warm_up_seconds)
            return side

        ours = start(variant)
        other = start(baseline) if baseline else None
        for done in range(budget.rounds):
            if other:
                other.measure(budget)
            ours.measure(budget)
            if on_progress:
                on_progress(Progress("benchmark rounds", done + 1, budget.rounds))
        loaded = ours.loaded()

    p50, p95, p99 = (float(q) for q in np.percentile(np.concatenate(ours.rounds_ms), [50, 95, 99]))
    findings = [f for f in [_drift(ours.medians_ms())] if f]
    status = "unstable" if findings else "measured"
    speedup, interval = None, None
    if other:
        speedup, *bounds = ratio_interval(other.medians_ms(), ours.medians_ms(), seed=SEED)
        interval = (bounds[0], bounds[1])
        if not interval[0] > 1:
            detail = f"{speedup:.2f}× [{interval[0]:.2f}, {interval[1]:.2f}] against {baseline_name}"
            findings.append(finding("BEN002", "speedup", detail, measured=interval[0], limit=1.0))
    return Measurement(
        target=target.name,
        fidelity=target.fidelity,
        status=status,
        findings=tuple(findings),
        dims=dims,
        threads=threads,
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        throughput_per_s=loaded.batch / p50 * 1000,
        peak_rss_mb=ours.peak_rss_mb,
        load_ms=loaded.load_ms,
        baseline=baseline_name if other else None,
        speedup=speedup,
        speedup_interval=interval,
        placement=loaded.placement,
    )


class _Side:
    """One of the two: its child process, and the latencies of its rounds so far, ms."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.rounds_ms: list[list[float]] = []
        self.peak_rss_mb = 0.0

    def loaded(self) -> Loaded:
        return TypeAdapter(Loaded).validate_python(self._call("loaded", {}))

    def warm_up(self, seconds_max: float) -> None:
        self._call("warm_up", {"seconds_max": seconds_max})

    def measure(self, budget: Budget) -> None:
        value = self._call("measure", {"seconds": budget.seconds_per_round, "runs_min": budget.runs_min})
        self.rounds_ms.append(TypeAdapter(Round).validate_python(value).latencies_ms)

    def medians_ms(self) -> list[float]:
        return [statistics.median(latencies) for latencies in self.rounds_ms]

    def _call(self, method: str, arguments: dict[str, Any]) -> JsonValue:
        reply = self._child.call(method, arguments)
        self.peak_rss_mb = reply.peak_rss_mb
        return reply.value


def _drift(medians_ms: Sequence[float]) -> Finding | None:
    """BEN001 when the medians of three windows of rounds (start, middle, end) lie more than 10 % apart."""
    windows = [float(np.median(window)) for window in np.array_split(np.asarray(medians_ms), 3)]
    drift = max(windows) / min(windows) - 1
    if drift <= DRIFT_MAX:
        return None
    shown = ", ".join(f"{ms:.3g}" for ms in windows)
    detail = f"from start to end {shown} ms, {drift:.0%} apart"
    return finding("BEN001", "p50_ms", detail, measured=drift, limit=DRIFT_MAX)


def lock_path() -> Path:
    """The lock file of all benchmarks that share a folder for temporary files: on Linux, usually the whole
    machine."""
    return Path(tempfile.gettempdir()) / "onnxmill-benchmark.lock"


@contextmanager
def machine_slot(path: Path, on_progress: OnProgress | None = None) -> Iterator[None]:
    """Hold the machine's one place for a benchmark; wait for it as long as another process (or thread) has
    it.

    A wait is reported once. The kernel frees the lock when its holder ends, however it ends; children do not
    inherit it. This is flock itself and not `filelock`, which refuses a file in /tmp that another user made,
    and falls back to a lock that a killed holder leaves behind. Raises `OnnxmillError` when the file cannot
    be opened.
    """
    descriptor = _open_for_all(path)
    try:
        waiting = False
        while not _locked(descriptor):
            if on_progress and not waiting:
                on_progress(Progress("waiting for another benchmark on this machine", 0, 0))
            waiting = True
            time.sleep(LOCK_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _open_for_all(path: Path) -> int:
    """Open the lock file, made with mode 0666 if need be. First without O_CREAT: in /tmp the kernel can
    forbid that on another user's file (fs.protected_regular)."""
    flags = os.O_RDWR | os.O_NOFOLLOW
    try:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags)
        with contextlib.suppress(FileExistsError):  # another process was first
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(descriptor, 0o666)  # whatever the umask
            return descriptor
        return os.open(path, flags)
    except OSError as error:
        raise OnnxmillError(
            f"benchmark: cannot open the lock {path} ({error.strerror}); remove it or set TMPDIR"
        ) from error
