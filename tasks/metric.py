"""The metric gate: the user's score on labelled data, for the source framework and for a variant; never below a floor,
never lower by more than a limit, with a paired bootstrap interval of the drop."""

import json
from collections.abc import Callable, Iterator
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
from onnxmill.tasks.export import TOOLS, SourceSettings, module_of
from onnxmill.tasks.findings import Finding, finding
from onnxmill.tasks.isolate import report_progress
from onnxmill.tasks.proof import MODEL
from onnxmill.tasks.report import MetricRow
from onnxmill.tasks.spec import Contract, Framework, Metric
from onnxmill.tasks.step import Step

OUTPUTS, SCORES = "outputs.npz", "scores.json"
SEED = 20240611
PROGRESS_EVERY = 100

Predict = Callable[[dict[str, Array]], dict[str, Array]]


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


MODEL_OUTPUTS = Step("evaluate", 1, "onnxmill.tasks.metric:model_outputs", tools=("onnxruntime", "numpy"))
SCORE = Step("score", 1, "onnxmill.tasks.metric:score", tools=("numpy",), user_code="metric")


def source_outputs_step(framework: Framework) -> Step:
    return Step(
        "evaluate-source",
        1,
        "onnxmill.tasks.metric:source_outputs",
        tools=TOOLS[framework],
        user_code="source",
    )


def source_outputs(settings: SourceOutputsSettings, source: Path, evaluation: Path, out: Path) -> int:
    """The source framework's outputs on every evaluation sample, in `out`; how many."""
    framework, names = module_of(settings.source.framework), settings.contract.output_names
    model = framework.load(settings.source)

    def predict(inputs: dict[str, Array]) -> dict[str, Array]:
        ordered = {name: inputs[name] for name in settings.contract.input_names}
        raw = framework.predict(model, ordered)
        by_name = dict(raw)
        if set(names) == set(by_name):
            return by_name
        return {name: array for name, (_, array) in zip(names, raw, strict=True)}

    return _write_outputs(predict, evaluation, out)


def model_outputs(settings: ModelOutputsSettings, model: Path, evaluation: Path, out: Path) -> int:
    """An ONNX model's outputs on every evaluation sample, in `out`; how many."""
    session = contract_module.open_session(model / MODEL)
    return _write_outputs(lambda inputs: contract_module.run(session, settings.contract, inputs), evaluation, out)


def _write_outputs(predict: Predict, evaluation: Path, out: Path) -> int:
    import zipfile

    total, count = len(samples.hashes(evaluation)), 0
    with zipfile.ZipFile(out / OUTPUTS, "w", zipfile.ZIP_STORED) as archive:
        for sample in samples.read(evaluation):
            for name, array in predict(sample.inputs).items():
                samples.append(archive, f"{count:06d}/{name}", array)
            count += 1
            if count % PROGRESS_EVERY == 0:
                report_progress("evaluation", count, total)
    return count


def score(settings: ScoreSettings, metric: Path, outputs: Path, evaluation: Path, out: Path) -> float:
    """Call the user's metric on each sample's outputs and label: `scores.json` in `out`, and their mean.

    Raises `InputError` where the function raises or does not give a finite number.
    """
    function = loader.load_callable("metric.fn", settings.fn)
    values = [
        _score(function, settings.fn, index, o, label) for index, (o, label) in enumerate(_pairs(outputs, evaluation))
    ]
    (out / SCORES).write_text(json.dumps(values))
    return float(np.mean(values))


def _pairs(outputs: Path, evaluation: Path) -> Iterator[tuple[dict[str, Array], Array | None]]:
    for (_, arrays), sample in zip(samples.read_groups(outputs / OUTPUTS), samples.read(evaluation), strict=True):
        yield arrays, sample.label


def _score(
    function: Callable[..., object], text: str, index: int, outputs: dict[str, Array], label: Array | None
) -> float:
    with loader.user_code("metric.fn", text, f"scoring sample {index} with it"):
        value = function(outputs, label.item() if label is not None and label.ndim == 0 else label)
    try:
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
    `metric.min` (GATE005), a drop above `metric.max_drop` (GATE006). Warned: an interval that reaches beyond (GATE009).
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
    elif high > metric.max_drop:
        detail = f"{drop:.4f} [{low:.4f}, {high:.4f}] on {len(source)} samples, limit {metric.max_drop:g}"
        findings.append(finding("GATE009", "metric", detail, measured=high, limit=metric.max_drop))
    return row, findings
