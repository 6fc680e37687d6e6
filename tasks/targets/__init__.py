"""Runtimes that can run a variant here, one module each; this is their table, and what each gives."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Target:
    """`session` ("module:function") is created in a child process (see `isolate.Child`) with the arguments
    model, inputs, dims and threads; the object that it returns has the methods

        loaded() -> Loaded
        warm_up(seconds_max) -> int     number of runs
        measure(seconds, runs_min) -> Round
    """

    name: str
    runtime: str
    session: str
    providers: tuple[str, ...]
    fidelity: Literal["native", "simulated"]


@dataclass(frozen=True)
class Loaded:
    """`load_ms`: from the file to a ready session. `batch`: items that one run takes. `placement`: share of
    nodes by execution provider; empty where the runtime cannot tell."""

    load_ms: float
    batch: int
    placement: dict[str, float]


@dataclass(frozen=True)
class Round:
    """The latency of every timed run, ms, in order."""

    latencies_ms: list[float]


TARGETS = {
    target.name: target
    for target in (
        Target(
            name="cpu",
            runtime="onnxruntime",
            session="onnxmill.tasks.targets.cpu:open_session",
            providers=("CPUExecutionProvider",),
            fidelity="native",
        ),
    )
}
