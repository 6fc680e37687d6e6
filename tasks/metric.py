"""The metric gate: the user's score on labelled data, for the source framework and for a variant; never below a floor,
never lower by more than a limit, with a paired bootstrap interval of the drop."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from onnxmill.calibration import samples
from onnxmill.calibration.samples import Array
from onnxmill.tasks import contract as contract_module
from onnxmill.tasks import loader
from onnxmill.tasks.bootstrap import paired_mean_interval
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.export import TOOLS, SourceSettings
from onnxmill.tasks.export.elsewhere import opened
from onnxmill.tasks.findings import Finding, finding
from onnxmill.tasks.graph import MODEL
from onnxmill.tasks.isolate import report_progress
from onnxmill.tasks.reference import named
from onnxmill.tasks.report import MetricRow
from onnxmill.tasks.spec import Contract, Framework, Metric
from onnxmill.tasks.step import Step

OUTPUTS, SCORES = "outputs.npz", "scores.json"
SEED = 20240611
PROGRESS_EVERY = 100
BATCH = 32
"""Samples that the source framework takes at once, where it can."""
FEW_SAMPLES = 30
"""Below this number equal scores say nothing: they have no spread, and so an interval of no width."""

Predict = Callable[[list[dict[str, Array]]], list[dict[str, Array]]]


class SourceOutputsSettings(BaseModel):
    model_config = ConfigDict(frozen=True)

    source: SourceSettings
    contract: Contract


class ModelOutputsSettings(BaseModel):
    model_config = ConfigDict(frozen=True)

    contract: Contract


class ScoreSettings(BaseModel):
    model_config = ConfigDict(frozen=True)

    fn: str


MODEL_OUTPUTS = Step("evaluate", 1, "onnxmill.tasks.metric:model_outputs", tools=("onnxruntime", "numpy", "cpu"))
SCORE = Step("score", 1, "onnxmill.tasks.metric:score", tools=("numpy",), user_code="metric")


def source_outputs_step(framework: Framework) -> Step:
    return Step(
        "evaluate-source",
        1,
        "onnxmill.tasks.metric:source_outputs",
        tools=TOOLS[framework],
        user_code="source",
    )


def source_outputs(settings: SourceOutputsSettings, source: Path, evaluation: Path, out: Path, python: str = "") -> int:
    """The source framework's outputs on every evaluation sample, in `out`; how many. `python` is the interpreter in
    which the source's code runs ("" for this one)."""
    with opened(settings.source, python) as model:

        def predict(batch: list[dict[str, Array]]) -> list[dict[str, Array]]:
            stacked = samples.stack(batch)
            ordered = {name: stacked[name] for name in settings.contract.input_names}
            outputs = named(settings.contract, model.predict(ordered))
            if len(batch) == 1:  # whole: outputs may lack a batch axis
                return [outputs]
            return [{name: array[i : i + 1] for name, array in outputs.items()} for i in range(len(batch))]

        return _write_outputs(predict, evaluation, out, batch=BATCH if batched(settings.contract) else 1)


def model_outputs(settings: ModelOutputsSettings, model: Path, evaluation: Path, out: Path) -> int:
    """An ONNX model's outputs on every evaluation sample, in `out`; how many."""
    session = contract_module.open_session(model / MODEL)
    return _write_outputs(
        lambda batch: [contract_module.run(session, settings.contract, inputs) for inputs in batch],
        evaluation,
        out,
        batch=1,  # as it is served: a dynamic recipe's ranges depend on what else is in the batch
    )


def batched(contract: Contract) -> bool:
    """Whether samples can be stacked: one dynamic dim is the first of every input and of every output."""
    first = {t.shape[0] if t.shape else 1 for t in [*contract.inputs.values(), *contract.outputs.values()]}
    return len(first) == 1 and isinstance(first.pop(), str)


def _write_outputs(predict: Predict, evaluation: Path, out: Path, *, batch: int) -> int:
    """Stream the samples through `predict`, at most `batch` of one shape at a time; how many there were."""
    total, count = len(samples.hashes(evaluation)), 0
    with zipfile.ZipFile(out / OUTPUTS, "w", zipfile.ZIP_STORED) as archive:
        for group in samples.batches((sample.inputs for sample in samples.read(evaluation)), batch):
            for outputs in predict(group):
                for name, array in outputs.items():
                    samples.append(archive, f"{count:06d}/{name}", array)
                count += 1
            if count // PROGRESS_EVERY > (count - len(group)) // PROGRESS_EVERY:
                report_progress("evaluation", count, total)
    return count


def score(settings: ScoreSettings, metric: Path, outputs: Path, evaluation: Path, out: Path) -> float:
    """Call the user's metric on each sample's outputs and label: `scores.json` in `out`, and their mean.

    Raises `InputError` where the function raises or does not give a finite number.
    """
    function = loader.load_callable("metric.fn", settings.fn)
    pairs = zip(samples.read_groups(outputs / OUTPUTS), samples.read_labels(evaluation), strict=True)
    values = [_score(function, settings.fn, index, o, label) for index, ((_, o), label) in enumerate(pairs)]
    (out / SCORES).write_text(json.dumps(values))
    return float(np.mean(values))


def _score(function: Callable[..., object], text: str, index: int, outputs: dict[str, Array], label: Array) -> float:
    with loader.user_code("metric.fn", text, f"scoring sample {index} with it"):
        value = function(outputs, label.item() if label.ndim == 0 else label)
    try:
        if isinstance(value, str | bytes):
            raise TypeError("text, even where it reads as a number")
        number = float(value)  # type: ignore[arg-type]  # whatever the user returns: the error says what it must be
    except (TypeError, ValueError) as error:
        kind = type(value).__name__
        raise InputError("metric.fn", text, f"must return a number for each sample; it returned a {kind}") from error
    if not np.isfinite(number):
        raise InputError("metric.fn", text, f"must return a finite number; sample {index} gave {number}")
    return number


def read_scores(folder: Path) -> npt.NDArray[np.float64]:
    return np.asarray(json.loads((folder / SCORES).read_text()), dtype=np.float64)


def judge(
    metric: Metric, source: npt.NDArray[np.float64], variant: npt.NDArray[np.float64]
) -> tuple[MetricRow, list[Finding]]:
    """Compare the scores a sample, [samples], of the source and of a variant.

    The drop is mean(source) - mean(variant); its 95 % interval is a paired bootstrap. Refused: a score below
    `metric.min` (GATE005), a drop above `metric.max_drop` (GATE006). Warned: an interval that reaches beyond, or fewer
    than `FEW_SAMPLES` samples (GATE009).
    """
    drop = float(np.mean(source - variant))
    low, high = paired_mean_interval(source - variant, seed=SEED)
    row = MetricRow(
        source=float(source.mean()),
        variant=float(variant.mean()),
        drop_interval=(low, high),
        samples=len(source),
    )
    findings = []
    if metric.min is not None and not row.variant >= metric.min:
        detail = f"{row.variant:.4f}, must be at least {metric.min:g}"
        findings.append(finding("GATE005", "metric", detail, measured=row.variant, limit=metric.min))
    if not drop <= metric.max_drop:
        detail = f"{drop:.4f} [{low:.4f}, {high:.4f}] on {len(source)} samples, must be at most {metric.max_drop:g}"
        findings.append(finding("GATE006", "metric", detail, measured=drop, limit=metric.max_drop))
    elif high > metric.max_drop or len(source) < FEW_SAMPLES:
        detail = f"{drop:.4f} [{low:.4f}, {high:.4f}] on {len(source)} samples, limit {metric.max_drop:g}"
        findings.append(finding("GATE009", "metric", detail, measured=high, limit=metric.max_drop))
    return row, findings
