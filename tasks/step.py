"""One step of the data path: its key, the memo, the child process, the published artifact, the record.

A step is a plain typed function that runs in a child process: `function(settings, <inputs>, out) -> value`. Each input
is the folder of an artifact; files that it writes to the folder `out` become the step's artifact; the value that it
returns (a pydantic model or JSON) goes into the record.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

from pydantic import BaseModel, JsonValue

from onnxmill.tasks import isolate, machine
from onnxmill.tasks.artifact import Artifact, Record, Store, action_key
from onnxmill.tasks.errors import InputError, StepError
from onnxmill.tasks.isolate import Limits, OnProgress, Progress

DEFAULT_TIMEOUT_S = 3600.0
MEMORY_SHARE = 0.9
"""A child that takes more than this share of the machine's memory is ended before the machine ends something else."""


@dataclass(frozen=True)
class Step:
    """`function` is "module:name"; `tools` are the distributions whose versions belong to the key.

    `version` goes up by one with every change of what the function gives for the same input. `user_code` names the
    input whose folder holds the user's sources: the child runs in a fresh copy of it.
    """

    name: str
    version: int
    function: str
    tools: tuple[str, ...] = ()
    user_code: str | None = None


@dataclass(frozen=True)
class Outcome:
    """A step's record; whether it was there before; the seconds that this run spent on it."""

    record: Record
    cached: bool
    seconds: float


def execute(
    step: Step,
    store: Store,
    settings: BaseModel,
    inputs: Mapping[str, Artifact],
    *,
    tools: Mapping[str, str] | None = None,
    unkeyed: Mapping[str, str] | None = None,
    fresh: bool = False,
    on_progress: OnProgress | None = None,
) -> Outcome:
    """The step's record: from the memo where its key is known, else by running it in a child.

    `tools` adds {distribution: version} to the key, `fresh` runs the step whatever the memo holds. `unkeyed` are
    further arguments of the function, of this machine alone: no part of the key.
    Raises `InputError` for the user's faults and `StepError` where a tool broke; neither leaves anything behind.
    """
    versions = tool_versions(step) | dict(tools or {})
    plain = settings.model_dump(mode="json")

    def work(folder: Path, log: Path) -> isolate.Reply:
        return _in_child(step, store, {"settings": plain, **(unkeyed or {})}, inputs, folder, log, on_progress)

    return remember(step.name, step.version, store, plain, inputs, versions, work, fresh=fresh)


def tool_versions(step: Step) -> dict[str, str]:
    """The versions of what a step's output depends on, as its key holds them."""
    return {name: installed_version(name) for name in step.tools}


def remember(
    name: str,
    version: int,
    store: Store,
    settings: dict[str, JsonValue],
    inputs: Mapping[str, Artifact],
    tools: Mapping[str, str],
    work: Callable[[Path, Path], isolate.Reply],
    *,
    fresh: bool = False,
) -> Outcome:
    """The record of a step under its key: from the memo, else from `work(folder, log)`.

    `work` gets an empty folder, whose sub-folder `out` becomes the step's artifact, and the path of a log.
    """
    started = time.monotonic()
    digests = {role: artifact.digest for role, artifact in inputs.items()}
    key = action_key(name, version, settings, digests, dict(tools))
    known = None if fresh else store.lookup(key)
    if known:
        return Outcome(known, cached=True, seconds=time.monotonic() - started)
    log = store.root.parent / "logs" / f"{name}-{key[:12]}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with store.workspace() as folder:
        out = folder / "out"
        out.mkdir()
        reply = work(folder, log)
        artifact = store.publish(out) if any(out.iterdir()) else None
        if artifact:
            store.verify(artifact)
    record = Record(
        key=key,
        step=name,
        version=version,
        settings=settings,
        inputs=digests,
        tools=dict(tools),
        artifact=artifact,
        value=reply.value,
        seconds=round(time.monotonic() - started, 3),
        peak_rss_mb=round(reply.peak_rss_mb, 1),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    store.remember(record)
    return Outcome(record, cached=False, seconds=record.seconds)


def _in_child(
    step: Step,
    store: Store,
    arguments: Mapping[str, object],
    inputs: Mapping[str, Artifact],
    work: Path,
    log: Path,
    on_progress: OnProgress | None,
) -> isolate.Reply:
    folders = {}
    for name, artifact in inputs.items():
        if name == step.user_code:
            folders[name] = work / name
            store.copy(artifact, folders[name])
        else:
            folders[name] = store.open(artifact)
    doing = ""

    def follow(progress: Progress) -> None:
        nonlocal doing
        doing = progress.what
        if on_progress:
            on_progress(progress)

    limits = child_limits()
    try:
        return isolate.run(
            step.function,
            {**arguments, **folders, "out": work / "out"},
            step=step.name,
            limits=limits,
            cwd=folders[step.user_code] if step.user_code else work,
            log=log,
            environment=CHILD_ENVIRONMENT,
            on_progress=follow,
        )
    except StepError as error:
        if error.signal == "timeout" and doing.startswith(CALLING):
            key, value = doing.removeprefix(CALLING).split(" ", 1)
            expected = f"gave nothing within {limits.timeout_s:g} s"
            raise InputError(key, value, expected, "it hangs, or ONNXMILL_STEP_TIMEOUT_S is too short") from error
        raise


CHILD_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",  # sets iterate in one order
    "PYTHONDONTWRITEBYTECODE": "1",  # sources leave no byte code beside them
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while another step works slow both a hundredfold
}

CALLING = "calling "
"""Progress that begins so says that the user's code has the word: "calling <key> <value>"."""


def child_limits() -> Limits:
    """The time that a call may take and the memory that a child may take, by this machine's settings and size."""
    return Limits(timeout_s(), machine.memory_bytes() * MEMORY_SHARE / 2**20)


def timeout_s() -> float:
    """Seconds that one step may take: the setting ONNXMILL_STEP_TIMEOUT_S, by default an hour."""
    text = os.environ.get("ONNXMILL_STEP_TIMEOUT_S", "")
    with suppress(ValueError):
        if not text or 0 < float(text) < math.inf:
            return float(text or DEFAULT_TIMEOUT_S)
    raise InputError("ONNXMILL_STEP_TIMEOUT_S", text, "must be a number of seconds above 0")


@cache
def installed_version(distribution: str) -> str:
    """The installed version of a distribution, or "missing"; of "python" its minor version; of "cpu" the instruction
    sets, by which runtimes choose their kernels, and so the last bits of their results."""
    if distribution == "cpu":
        return str(machine.fingerprint()["cpu_flags"])
    if distribution == "python":
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "missing"
