"""ONNX Runtime on the CPU. The session runs in a child process, see `Target`."""

import gc
import statistics
import time
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime

from onnxmill.tasks.errors import InputError
from onnxmill.tasks.targets import TARGETS, Loaded, Round

Feed = dict[str, npt.NDArray[np.generic]]

WINDOW_RUNS = 3
WINDOW_NS = 20_000_000
STABLE_WITHIN = 0.05
ROUND_RUNS_MAX = 20_000
"""Bounds what one round sends to the parent; only models of a few microseconds reach it."""


class Session:
    """A loaded model and the one input that it is timed on."""

    def __init__(self, session: onnxruntime.InferenceSession, feed: Feed, load_ms: float) -> None:
        self._session, self._feed, self._load_ms = session, feed, load_ms

    def loaded(self) -> Loaded:
        # axis 0 of the first input is the batch, by the spec
        first = self._feed[self._session.get_inputs()[0].name]
        return Loaded(self._load_ms, first.shape[0] if first.ndim else 1, placement(self._session))

    def warm_up(self, seconds_max: float) -> int:
        """Run until two neighbouring windows have medians within 5 %, or `seconds_max` is over. A window is 3
        runs or 20 ms, whichever is longer. Returns the number of runs: always 6 or more."""
        deadline = time.perf_counter_ns() + int(seconds_max * 1e9)
        runs, before = 0, 0.0
        while True:
            window = self._time(WINDOW_NS, WINDOW_RUNS)
            runs, now = runs + len(window), statistics.median(window)
            stable = abs(now - before) <= STABLE_WITHIN * min(now, before)
            if before and (stable or time.perf_counter_ns() >= deadline):
                return runs
            before = now

    def measure(self, seconds: float, runs_min: int) -> Round:
        """Time runs for `seconds`, and at least `runs_min` of them. One run before goes untimed: since the
        last round the other side of the comparison had the caches."""
        self._time(0, 1)
        return Round([ns / 1e6 for ns in self._time(int(seconds * 1e9), runs_min)])

    def _time(self, duration_ns: int, runs_min: int) -> list[int]:
        """Nanoseconds of each run."""
        run, feed, clock = self._session.run, self._feed, time.perf_counter_ns
        latencies: list[int] = []
        gc.disable()  # a collection of ours is no time of the model's
        try:
            now = clock()
            end = now + duration_ns
            while (now < end and len(latencies) < ROUND_RUNS_MAX) or len(latencies) < runs_min:
                start = clock()
                run(None, feed)
                now = clock()
                latencies.append(now - start)
        finally:
            gc.enable()
        return latencies


def open_session(model: Path, inputs: Path, dims: dict[str, int], threads: int) -> Session:
    """A session on `model` with `threads` threads, ready to be timed at the sizes `dims` on real inputs.

    `inputs` is a file of parity cases (`000000/input/<name>.npy`). The first case of the sizes `dims` is
    taken; without one, the first case, its dimensions repeated or cut to size. Raises `InputError` when no
    case fits the model.
    """
    start = time.perf_counter_ns()
    session = onnxruntime.InferenceSession(str(model), options(threads), providers=list(TARGETS["cpu"].providers))
    load_ms = (time.perf_counter_ns() - start) / 1e6
    shapes = {i.name: tuple(dims.get(d, d) for d in i.shape) for i in session.get_inputs()}
    return Session(session, _feed(inputs, shapes), load_ms)


def options(threads: int) -> onnxruntime.SessionOptions:
    """Threads do not spin: spinning ones of one session would take the CPUs of the next, and of other
    containers.

    `session.disable_cpu_ep_fallback` is for targets of other providers: with the CPU's it is an error.
    """
    chosen = onnxruntime.SessionOptions()
    chosen.intra_op_num_threads = threads
    chosen.inter_op_num_threads = 1
    chosen.add_session_config_entry("session.intra_op.allow_spinning", "0")
    chosen.add_session_config_entry("session.inter_op.allow_spinning", "0")
    chosen.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return chosen


def placement(session: onnxruntime.InferenceSession) -> dict[str, float]:
    """Share of nodes by execution provider, as ONNX Runtime recorded it; empty where it is too old to record
    it, or where no node was left to run."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return {}
    nodes: Counter[str] = Counter()
    for subgraph in session.get_provider_graph_assignment_info():
        nodes[subgraph.ep_name] += len(subgraph.get_nodes())
    return {provider: count / nodes.total() for provider, count in sorted(nodes.items())}


Shape = tuple[int | str | None, ...]
"""A size, or the name of a dimension that is not among the measured ones, or None: then any size will do."""


def _feed(inputs: Path, shapes: dict[str, Shape]) -> Feed:
    first: Feed | None = None
    with np.load(inputs, allow_pickle=False) as file:
        members: dict[str, dict[str, str]] = {}
        for member in file.files:
            case, kind, name = member.split("/", 2)
            if kind == "input":
                members.setdefault(case, {})[name] = member
        for case in sorted(members):
            missing = sorted(shapes.keys() - members[case].keys())
            if missing:
                raise InputError(f"{inputs.name}: case {case}", missing, "must have every input of the model")
            feed = {name: file[members[case][name]] for name in shapes}
            if all(_fits(feed[name].shape, shape) for name, shape in shapes.items()):
                return feed
            first = first or feed
    if first is None:
        raise InputError(inputs.name, None, "must hold at least one parity case")
    return {name: _resized(name, array, shapes[name]) for name, array in first.items()}


def _fits(shape: tuple[int, ...], wanted: Shape) -> bool:
    return len(shape) == len(wanted) and all(
        size == want or not isinstance(want, int) for size, want in zip(shape, wanted, strict=True)
    )


def _resized(name: str, array: npt.NDArray[np.generic], wanted: Shape) -> npt.NDArray[np.generic]:
    """`array` repeated from its start, or cut, along every axis whose size is another than wanted."""
    if array.ndim != len(wanted) or 0 in array.shape:
        raise InputError(f"input {name}", list(array.shape), f"must have a shape of {list(wanted)}")
    for axis, want in enumerate(wanted):
        if isinstance(want, int) and array.shape[axis] != want:
            array = array.take(np.arange(want) % array.shape[axis], axis=axis)
    return array
