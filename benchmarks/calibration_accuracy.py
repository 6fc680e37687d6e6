"""What static int8 costs on real data: each method's ranges beside ONNX Runtime's `quantize_static`.

    python benchmarks/calibration_accuracy.py [--model mnist|minilm|efficientnet|all] [--json]

Both quantize the same prepared graph on the same samples with the same settings: QDQ, activations uint8, weights int8 a
channel, the same nodes left in float. The methods that both have are compared in pairs, sample by sample, with a 95 %
bootstrap interval. Exits with 1 where one of ours is worse beyond its interval, or the best of ours is below the best
of theirs.
"""

import argparse
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import calibration_data as data
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
from rich.console import Console
from rich.table import Table
from scipy.stats import spearmanr

from onnxmill.calibration import samples, statistics
from onnxmill.calibration.methods import METHODS, Method
from onnxmill.calibration.readers import SampleReader
from onnxmill.calibration.samples import Expected
from onnxmill.tasks import bootstrap, graph, machine
from onnxmill.tasks.quantize import int8, qdq
from onnxmill.tasks.quantize.prepare import left_in_float
from onnxmill.tasks.spec import home

Scores = npt.NDArray[np.float64]
Outputs = dict[str, npt.NDArray[np.float32]]
"""Of one sample: the output of each model, by its name."""

THEIRS: dict[Method, tuple[CalibrationMethod, dict[str, bool]]] = {
    "minmax": (CalibrationMethod.MinMax, {}),
    "moving-average": (CalibrationMethod.MinMax, {"CalibMovingAverage": True}),
    "percentile": (CalibrationMethod.Percentile, {}),
    "entropy": (CalibrationMethod.Entropy, {}),
}
FP32 = "fp32"
PERCENT = 99.999
"""Of percentile, for both: the default of both."""
RESAMPLES, SEED = 2000, 20261130
WORD_TOKENS = 16
"""ONNX Runtime's histograms take samples of one shape alone: words are padded to it, for both."""


@dataclass(frozen=True)
class Metric:
    """`score` gives what a model got on one sample, of its output, that of fp32 and the label; `value` the metric of
    all scores `[n]` and labels `[n]`. Higher is better. `relative`: what is measured is how near fp32 a model is."""

    score: Callable[[Any, Any, Any], float]
    digits: int
    relative: bool = False
    value: Callable[[Scores, Scores], float] = lambda scores, labels: float(scores.mean())
    is_mean: bool = True

    def interval(self, ours: Scores, theirs: Scores, labels: Scores) -> tuple[float, float]:
        """Of the difference, by resampling pairs."""
        if self.is_mean:
            return bootstrap.paired_mean_interval(ours - theirs, seed=SEED, resamples=RESAMPLES)
        random = np.random.default_rng(SEED)
        draws = random.integers(len(labels), size=(RESAMPLES, len(labels)))
        found = [self.value(ours[d], labels[d]) - self.value(theirs[d], labels[d]) for d in draws]
        low, high = np.quantile(found, [0.025, 0.975])
        return float(low), float(high)


@dataclass(frozen=True)
class Task:
    """`calibration` yields inputs; `evaluation` pairs of the inputs of one sample (one or more) and its label."""

    calibration: Callable[[], Iterator[data.Inputs]]
    evaluation: Callable[[], Iterator[tuple[tuple[data.Inputs, ...], float]]]
    metrics: dict[str, Metric]


# --- tasks -----------------------------------------------------------------------------------------------------------


def digits(training: bool) -> Any:
    folder = data.MODELS["mnist"].folder
    found = importlib.util.spec_from_file_location("mnist_data", folder / "data.py")
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    sys.modules["mnist_data"] = module
    found.loader.exec_module(module)
    return module.read_digits(home() / "examples" / "mnist" / "digits.csv.gz", training=training)


def training_digits() -> Iterator[data.Inputs]:
    for image in digits(True).images[:256]:
        yield {"image": image[np.newaxis]}


def other_digits() -> Iterator[tuple[tuple[data.Inputs], float]]:
    others = digits(False)
    for image, label in zip(others.images, others.labels, strict=True):
        yield ({"image": image[np.newaxis]},), float(label)


def other_words() -> Iterator[data.Inputs]:
    """256 words of SimLex-999 that are not in WordSim353."""
    judged = {word.lower() for a, b, _ in data.word_pairs("wordsim353.tsv") for word in (a, b)}
    words = dict.fromkeys(word for a, b, _ in data.word_pairs("simlex999.txt") for word in (a, b))
    return data.tokens([word for word in words if word.lower() not in judged][:256], WORD_TOKENS)


def word_pairs() -> Iterator[tuple[tuple[data.Inputs, ...], float]]:
    for a, b, score in data.word_pairs("wordsim353.tsv"):
        yield tuple(data.tokens([a, b], WORD_TOKENS)), score


def other_photos() -> Iterator[tuple[tuple[data.Inputs], float]]:
    """50 crops of each of 20 photos that nothing is calibrated on."""
    chosen = data.photos(data.EVALUATION_PHOTOS)
    for crop in data.crops(chosen, 50 * len(chosen), 224, data.LITE, seed=12):
        yield ({"image": crop},), 0.0


def sqnr_db(output: Any, fp32: Any, label: float) -> float:
    signal, noise = fp32[0].astype(np.float64), (output[0] - fp32[0]).astype(np.float64)
    return float(10 * np.log10((signal**2).sum() / (noise**2).sum()))


TASKS = {
    "mnist": Task(
        training_digits,
        other_digits,
        {"accuracy": Metric(lambda output, fp32, label: float(output[0].argmax() == label), 4)},
    ),
    "minilm": Task(
        other_words,
        word_pairs,
        {
            "WordSim353, Spearman": Metric(
                lambda output, fp32, label: float((output[0] * output[1]).sum()),
                4,
                value=lambda scores, labels: float(spearmanr(scores, labels).statistic),
                is_mean=False,
            )
        },
    ),
    "efficientnet": Task(
        lambda: data.images("image", 64, 224, data.LITE),
        other_photos,
        {
            "SQNR of the logits, dB": Metric(sqnr_db, 2, relative=True),
            "top-1 as fp32": Metric(
                lambda output, fp32, label: float(output[0].argmax() == fp32[0].argmax()), 4, relative=True
            ),
        },
    ),
}


# --- running ---------------------------------------------------------------------------------------------------------


def quantized(model: Path, folder: Path, given: Path) -> dict[str, Path]:
    """{"onnxmill minmax": its int8 graph}, made in `folder` of the samples in `given`."""
    proto = onnx.load(model)
    exclude = tuple(left_in_float(proto))
    tensors = qdq.tensors_to_observe(proto, exclude)
    seen = statistics.collect(proto, tensors, SampleReader(given), threads=machine.threads())
    made = {}
    for method in METHODS:
        ranges = qdq.adjusted(proto, statistics.ranges(seen, method, PERCENT, int8.ACTIVATIONS), exclude)
        path = made[f"onnxmill {method}"] = folder / f"ours-{method}.onnx"
        graph.save(qdq.quantized(proto, ranges, per_channel=True, exclude=exclude), path)
    for method in THEIRS:
        path = folder / f"theirs-{method}.onnx"
        try:
            theirs(model, SampleReader(given), method, exclude, path)
        except ValueError as error:  # its histograms do not take every range
            print(f"ONNX Runtime's {method} fails: {error}", file=sys.stderr)
        else:
            made[f"onnxruntime {method}"] = path
    return made


def theirs(model: Path, reader: SampleReader, method: Method, exclude: Sequence[str], out: Path) -> None:
    calibrate_method, options = THEIRS[method]
    quantize_static(
        model,
        out,
        reader,
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        nodes_to_exclude=list(exclude),
        calibrate_method=calibrate_method,
        extra_options=options,
    )


def scored(task: Task, models: Mapping[str, Path]) -> tuple[dict[str, dict[str, Scores]], Scores]:
    """{metric: {model: its scores}}, and the labels; one of the models is FP32."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1  # the models run side by side
    sessions = {name: ort.InferenceSession(str(path), options) for name, path in models.items()}
    judged = {key: [name for name in models if name != FP32 or not m.relative] for key, m in task.metrics.items()}
    found: dict[str, dict[str, list[float]]] = {key: {name: [] for name in names} for key, names in judged.items()}
    labels = []
    with ThreadPoolExecutor(machine.threads()) as pool:
        for sample, label in task.evaluation():
            outputs = dict(zip(sessions, pool.map(partial(_outputs, sample), sessions.values()), strict=True))
            for key, metric in task.metrics.items():
                for name in judged[key]:
                    found[key][name].append(metric.score(outputs[name], outputs[FP32], label))
            labels.append(label)
    return {key: {name: np.array(row) for name, row in rows.items()} for key, rows in found.items()}, np.array(labels)


def _outputs(sample: tuple[data.Inputs, ...], session: ort.InferenceSession) -> list[Any]:
    return [session.run(None, inputs)[0][0] for inputs in sample]


def run(name: str, folder: Path) -> dict[str, Any]:
    """{metric: what `compared` says}."""
    task, model, given = TASKS[name], data.prepared(name, folder), folder / "samples"
    first = next(task.calibration())
    given.mkdir()
    expected = {key: Expected(array.dtype.name, array.shape) for key, array in first.items()}
    samples.write(name, task.calibration(), expected, given, limit=None, labelled=False)
    scores, labels = scored(task, {FP32: model, **quantized(model, folder, given)})
    return {key: compared(metric, scores[key], labels) for key, metric in task.metrics.items()}


def compared(metric: Metric, scores: Mapping[str, Scores], labels: Scores) -> dict[str, Any]:
    """The metric of each model; for the methods that both have, the difference with its interval; the best of each."""
    values = {name: metric.value(row, labels) for name, row in scores.items()}
    pairs = {}
    for method in THEIRS:
        ours, theirs = f"onnxmill {method}", f"onnxruntime {method}"
        if theirs not in values:
            continue
        low, high = metric.interval(scores[ours], scores[theirs], labels)
        pairs[method] = {"difference": values[ours] - values[theirs], "interval": [low, high], "kept": high >= 0}
    best = {
        library: max((value, name) for name, value in values.items() if name.startswith(library))[1]
        for library in ("onnxmill ", "onnxruntime ")
    }
    ours, theirs = best.values()
    low, high = metric.interval(scores[ours], scores[theirs], labels)
    return {
        "samples": len(labels),
        "values": values,
        "pairs": pairs,
        "best": {
            "onnxmill": ours, "onnxruntime": theirs, "difference": values[ours] - values[theirs],
            "interval": [low, high], "kept": values[ours] >= values[theirs],
        },
    }  # fmt: skip


def table(found: Mapping[str, Any], digits: int) -> Table:
    made = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("", "onnxmill", "ONNX Runtime", "difference", "95 % interval", ""):
        made.add_column(heading, justify="right" if heading else "left")
    values = found["values"]
    for method in METHODS:
        theirs, pair = values.get(f"onnxruntime {method}"), found["pairs"].get(method)
        cells = [
            f"{values[f'onnxmill {method}']:.{digits}f}",
            ("fails" if method in THEIRS else "") if theirs is None else f"{theirs:.{digits}f}",
        ]
        made.add_row(method, *cells, *(_difference(pair, digits) if pair else ()))
    best = found["best"]
    cells = [best[library].partition(" ")[2] for library in ("onnxmill", "onnxruntime")]
    made.add_row("the best", *cells, *_difference(best, digits), style="bold")
    return made


def _difference(pair: Mapping[str, Any], digits: int) -> tuple[str, str, str]:
    low, high = pair["interval"]
    return (
        f"{pair['difference']:+.{digits}f}",
        f"[{low:+.{digits}f}, {high:+.{digits}f}]",
        "" if pair["kept"] else "WORSE",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*TASKS, "all"], default="all")
    parser.add_argument("--json", action="store_true", help="print JSON alone on stdout")
    chosen = parser.parse_args(arguments)
    console, progress = Console(width=110), Console(stderr=True)
    everything = {}
    for name in TASKS if chosen.model == "all" else [chosen.model]:
        progress.print(f"{name}: calibrating, quantizing and judging ten models", style="dim")
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):  # ONNX Runtime's calibrators print
            everything[name] = run(name, Path(folder))
        if not chosen.json:
            for key, found in everything[name].items():
                metric = TASKS[name].metrics[key]
                fp32 = "" if metric.relative else f"; fp32 {found['values'][FP32]:.{metric.digits}f}"
                console.print(f"[bold]{name}[/]: {key}, {found['samples']} samples{fp32}", highlight=False)
                console.print(table(found, metric.digits), "", sep="\n", highlight=False)
    if chosen.json:
        print(json.dumps(everything, indent=1))
    judged = [
        one for metrics in everything.values() for m in metrics.values() for one in (*m["pairs"].values(), m["best"])
    ]
    return int(not all(one["kept"] for one in judged))


if __name__ == "__main__":
    sys.exit(main())
