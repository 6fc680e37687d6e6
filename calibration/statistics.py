"""One streaming pass of a model over samples: a histogram of each tensor, and each sample's extremes.

Every method finds its ranges in what this pass gives, so that another method costs no new pass. The model runs at full
optimisation, one sample at a time whatever batches they come in: the result does not depend on the batch size. Memory
is a histogram a tensor (and 8 bytes a sample and tensor), however many samples there are.
"""

import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

from onnxmill.calibration import histogram, methods
from onnxmill.calibration.histogram import Histogram
from onnxmill.calibration.methods import Method
from onnxmill.calibration.methods_scheme import Range, Scheme
from onnxmill.calibration.observer import NotFinite, Observer
from onnxmill.calibration.samples import Array
from onnxmill.tasks.errors import InputError

FILE = "statistics.npz"


@dataclass(frozen=True)
class Statistics:
    """What was seen of each tensor.

    `extremes[tensor]` is float32 [samples, 2]: the lowest and highest value in each sample, in the order of
    `positions` [samples], which are the samples' places in the manifest, ascending.
    """

    histograms: dict[str, Histogram]
    extremes: dict[str, npt.NDArray[np.float32]]
    positions: npt.NDArray[np.int64]


class NotFiniteActivation(ValueError):
    """A model's tensor is NaN or infinite on a sample."""

    def __init__(self, tensor: str, sample: int, detail: str) -> None:
        super().__init__(f"tensor '{tensor}' on sample {sample}: {detail}")
        self.tensor, self.sample, self.detail = tensor, sample, detail


def collect(
    model: onnx.ModelProto,
    tensors: Sequence[str],
    batches: Iterable[Mapping[str, Array]],
    *,
    threads: int,
    first: int = 0,
    on_sample: Callable[[int], None] = lambda done: None,
) -> Statistics:
    """The statistics of float32 `tensors` (inputs or results of nodes) over all samples in `batches`.

    `first` is the first sample's place in the manifest. Raises `NotFiniteActivation`, and `InputError` for no
    sample or one that the model does not take.
    """
    observers = {name: Observer() for name in tensors}
    rows: list[npt.NDArray[np.float32]] = []
    with ThreadPoolExecutor(threads) as pool:
        pool.submit(Observer().add, np.zeros(1, np.float32))  # compiles while the session is made
        session, computed = _session(model, tensors, threads)
        splits = all(value.shape and isinstance(value.shape[0], str) for value in session.get_inputs())
        for index, inputs in enumerate(_one_by_one(batches) if splits else batches):
            values = {**inputs, **_run(session, computed, inputs, first + index)}
            # taken from one queue, the largest first: the threads end together
            queue = iter(sorted(tensors, key=lambda name: -values[name].size))
            jobs = [pool.submit(_observe, queue, observers, values) for _ in range(threads)]
            found = {name: one for job in jobs for name, one in job.result().items()}
            rows.append(np.array(_checked(found, tensors, first + index), np.float32).reshape(-1, 2))
            on_sample(index + 1)
    if not rows:
        raise InputError("data.calibration", None, "gave no sample; give at least one")
    extremes = np.stack(rows)
    return Statistics(
        histograms={name: observer.histogram() for name, observer in observers.items()},
        extremes={name: np.ascontiguousarray(extremes[:, i]) for i, name in enumerate(tensors)},
        positions=np.arange(first, first + len(rows)),
    )


def merged(parts: Sequence[Statistics]) -> Statistics:
    """The statistics of all samples of `parts`, bit for bit as from one pass over them, in whatever order they come.

    Raises ValueError for parts of other tensors, or where a sample is in two.
    """
    names = list(parts[0].histograms)
    for part in parts:
        if list(part.histograms) != names:
            raise ValueError("the parts hold other tensors: they are of two models")
    positions = np.concatenate([part.positions for part in parts])
    order = np.argsort(positions, kind="stable")
    if len(np.unique(positions)) < len(positions):
        raise ValueError("a sample is in two parts")
    whole = {name: parts[0].histograms[name] for name in names}
    for part in parts[1:]:
        whole = {name: histogram.merged(seen, part.histograms[name]) for name, seen in whole.items()}
    extremes = {name: np.concatenate([part.extremes[name] for part in parts])[order] for name in names}
    return Statistics(whole, extremes, positions[order])


def ranges(seen: Statistics, method: Method, percent: float, scheme: Scheme) -> dict[str, Range]:
    """Each tensor's range by one of `methods.METHODS`; `percent` is method percentile's."""
    return {
        name: methods.find(method, seen_of_it, seen.extremes[name], scheme, percent)
        for name, seen_of_it in seen.histograms.items()
    }


def save(statistics: Statistics, path: Path) -> None:
    """Write an .npz; equal statistics give equal bytes (which compressing would leave to the version of zlib)."""
    seen = statistics.histograms.values()
    np.savez(
        path,
        tensors=np.array(json.dumps(list(statistics.histograms))),
        lows=np.array([h.low for h in seen]),
        highs=np.array([h.high for h in seen]),
        exponents=np.array([h.exponent for h in seen]),
        counts=np.stack([h.counts for h in seen]),
        extremes=np.stack(list(statistics.extremes.values())),
        positions=statistics.positions,
    )


def load(path: Path) -> Statistics:
    """Statistics that `save` wrote. Raises `InputError` for another file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            names: list[str] = json.loads(str(file["tensors"]))
            columns = [file[key] for key in ("lows", "highs", "exponents", "counts")]
            extremes, positions = file["extremes"], file["positions"]
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise InputError("statistics", str(path), f"is no file of calibration statistics: {error}") from error
    rows = zip(*columns, strict=True)
    histograms = {
        name: Histogram(float(low), float(high), int(exponent), counts)
        for name, (low, high, exponent, counts) in zip(names, rows, strict=True)
    }
    return Statistics(histograms, dict(zip(names, extremes, strict=True)), positions)


def _session(model: onnx.ModelProto, tensors: Sequence[str], threads: int) -> tuple[ort.InferenceSession, list[str]]:
    """A session that gives `tensors`, and the names of those that it computes. Nothing else is fetched: a result that
    is not asked for stays fused with what follows."""
    given = {value.name for value in model.graph.input}
    computed = [name for name in tensors if name not in given]
    outputs = {value.name for value in model.graph.output}
    more = onnx.ModelProto()
    for name in computed:
        if name not in outputs:
            more.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_mem_pattern = False  # one is kept for each shape of the inputs
    # threads that wait for work in a loop would take the cores from the counting between two runs
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 3
    # two messages of protobuf, one after the other, are one with the outputs of both
    return ort.InferenceSession(
        model.SerializeToString() + more.SerializeToString(), options, ["CPUExecutionProvider"]
    ), computed


def _run(
    session: ort.InferenceSession, computed: list[str], inputs: Mapping[str, Array], index: int
) -> dict[str, Array]:
    if not computed:
        return {}
    try:
        return dict(zip(computed, session.run(computed, dict(inputs)), strict=True))
    except Exception as error:
        text = " ".join(str(error).split())
        raise InputError("data.calibration", None, f"the model does not run on sample {index}: {text}") from error


def _one_by_one(batches: Iterable[Mapping[str, Array]]) -> Iterator[dict[str, Array]]:
    """The samples of each batch, in order, with a batch axis of 1."""
    for batch in batches:
        for row in range(max((len(array) for array in batch.values()), default=0)):
            yield {name: array[row : row + 1] for name, array in batch.items()}


def _observe(
    queue: Iterator[str], observers: Mapping[str, Observer], values: Mapping[str, Array]
) -> dict[str, tuple[float, float] | NotFinite]:
    """Observe tensors as long as the queue gives any; the extremes of each."""
    found: dict[str, tuple[float, float] | NotFinite] = {}
    for name in queue:
        try:
            found[name] = observers[name].add(values[name])
        except NotFinite as error:
            found[name] = error
    return found


def _checked(
    found: Mapping[str, tuple[float, float] | NotFinite], tensors: Sequence[str], index: int
) -> list[tuple[float, float]]:
    """The extremes in the order of `tensors`, which is the graph's. Raises `NotFiniteActivation` for the first fault:
    those after it follow from it."""
    extremes = []
    for name in tensors:
        one = found[name]
        if isinstance(one, NotFinite):
            raise NotFiniteActivation(name, index, str(one)) from one
        extremes.append(one)
    return extremes
