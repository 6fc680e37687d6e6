"""One contestant of `calibration.py` in a process of its own, whose memory is its own; prints a `Ran` as JSON.

    python benchmarks/calibration_child.py CONTESTANT MODEL SAMPLES THREADS [--plain]

What is timed is the whole work from a file of the graph to ranges: finding the tensors, editing the graph, sessions,
compilation, reading the samples, all passes, thresholds. Imports are not. `--plain` times forward passes of the same
graph and samples in the same process, before and after: the `run` calls alone, at full optimisation.
"""

import argparse
import ctypes
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort

from onnxmill.calibration import samples
from onnxmill.calibration.readers import SampleReader

IMPORTS = {"onnxmill": "onnxmill.tasks.quantize.int8", "onnxruntime": "onnxruntime.quantization", "nncf": "nncf"}
PASS = "(the pass alone)"


@dataclass(frozen=True)
class Part:
    """`seconds` of wall time, `cores` that were busy on average, the highest resident set of that time."""

    seconds: float
    cores: float
    peak_rss_mb: float


@dataclass(frozen=True)
class Ran:
    """Parts by what they compute; work that several share is in each. `plain_s`: before and after, if asked for."""

    parts: dict[str, Part]
    plain_s: tuple[float, ...]


class Clock:
    """Measures from here on."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the highest resident set begins anew
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self) -> Part:
        seconds, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        lines = Path("/proc/self/status").read_text().splitlines()
        [peak] = [int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")]
        return Part(seconds, cpu / seconds, peak)


def joined(first: Part, second: Part) -> Part:
    """One after the other."""
    seconds = first.seconds + second.seconds
    cpu = first.seconds * first.cores + second.seconds * second.cores
    return Part(seconds, cpu / seconds, max(first.peak_rss_mb, second.peak_rss_mb))


def onnxmill(model: Path, folder: Path, threads: int) -> dict[str, Part]:
    """One pass, then each method's ranges of what it saw: a part is all that leads to one method's ranges. The first
    is the pass by itself, whose memory could hide below that of finding the tensors."""
    from onnxmill.calibration import statistics
    from onnxmill.calibration.methods import METHODS
    from onnxmill.tasks.quantize import int8, qdq
    from onnxmill.tasks.quantize.prepare import left_in_float

    clock = Clock()
    proto = onnx.load(model)
    tensors = qdq.tensors_to_observe(proto, tuple(left_in_float(proto)))
    found, clock = clock.stop(), Clock()
    seen = statistics.collect(proto, tensors, SampleReader(folder), threads=threads)
    passed = clock.stop()
    parts = {PASS: passed}
    for method in METHODS:
        clock = Clock()
        statistics.ranges(seen, method, 99.999, int8.ACTIVATIONS)
        parts[method] = joined(joined(found, passed), clock.stop())
    return parts


def onnxruntime(model: Path, folder: Path, method: str) -> dict[str, Part]:
    """What `quantize_static` does before it quantizes, with its default settings."""
    from onnxruntime.quantization import CalibrationMethod, create_calibrator
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    chosen = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}[method]
    clock = Clock()
    with tempfile.TemporaryDirectory() as own:
        calibrator = create_calibrator(
            model,
            list({*QLinearOpsRegistry, *QDQRegistry}),
            augmented_model_path=str(Path(own, "augmented.onnx")),
            calibrate_method=CalibrationMethod[chosen],
        )
        calibrator.collect_data(SampleReader(folder))
        calibrator.compute_data()
    return {method: clock.stop()}


def nncf(model: Path, folder: Path) -> dict[str, Part]:
    """Its own collection of what its default algorithm (min/max) needs, called apart; and `nncf.quantize` as a whole,
    which also corrects biases and writes the model."""
    import nncf
    from nncf.common.factory import build_graph
    from nncf.onnx.graph.passes import apply_preprocess_passes
    from nncf.quantization.algorithms.min_max.algorithm import MinMaxQuantization
    from nncf.quantization.algorithms.pipeline import collect_statistics

    count = len(SampleReader(folder))

    def dataset() -> nncf.Dataset:
        return nncf.Dataset(_Streamed(folder))

    clock = Clock()
    proto = apply_preprocess_passes(onnx.load(model))
    graph = build_graph(proto)
    points = MinMaxQuantization(subset_size=count).get_statistic_points(proto, graph)
    collect_statistics(points, proto, graph, dataset())
    parts = {"statistics": clock.stop()}
    del proto, graph, points
    settle()
    clock = Clock()
    nncf.quantize(onnx.load(model), dataset(), subset_size=count)
    return {**parts, "quantize": clock.stop()}


class _Streamed:
    """Samples in a file, from the first one each time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __iter__(self):  # type: ignore[no-untyped-def]
        return (sample.inputs for sample in samples.read(self._folder))

    def __len__(self) -> int:
        return len(SampleReader(self._folder))


def plain(model: Path, folder: Path, threads: int) -> float:
    """Seconds in `run` over all samples, at full optimisation, after one that warms up."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(model), options, ["CPUExecutionProvider"])
    session.run(None, next(samples.read(folder)).inputs)
    total = 0.0
    for sample in samples.read(folder):
        started = time.perf_counter()
        session.run(None, sample.inputs)
        total += time.perf_counter() - started
    return total


def settle() -> None:
    """Give the memory of what is done back to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def contest(name: str, model: Path, folder: Path, threads: int) -> dict[str, Part]:
    library, _, method = name.partition("-")
    if library == "onnxmill":
        return onnxmill(model, folder, threads)
    return nncf(model, folder) if library == "nncf" else onnxruntime(model, folder, method)


class Failed(RuntimeError):
    """A contestant that does not finish; the message is the last line that it wrote."""


def start(contestant: str, model: Path, folder: Path, threads: int, *, plain: bool) -> dict[str, Any]:
    """Run this script; the `Ran` that it prints. Raises `Failed`."""
    command = [sys.executable, __file__, contestant, model, folder, str(threads), *(["--plain"] if plain else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        raise Failed((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    ran: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])  # libraries print before it
    return ran


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contestant")
    parser.add_argument("model", type=Path)
    parser.add_argument("samples", type=Path)
    parser.add_argument("threads", type=int)
    parser.add_argument("--plain", action="store_true")
    given = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.threads])
    importlib.import_module(IMPORTS[given.contestant.partition("-")[0]])

    def measured_plain() -> tuple[float, ...]:
        seconds = (plain(given.model, given.samples, given.threads),) if given.plain else ()
        settle()
        return seconds

    before = measured_plain()
    parts = contest(given.contestant, given.model, given.samples, given.threads)
    settle()
    print(json.dumps(asdict(Ran(parts, before + measured_plain()))))


if __name__ == "__main__":
    main()
