"""From the steps' results to a calibration's report, and to the table that was asked for."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import onnx

from onnxmill.calibration import statistics, tables
from onnxmill.calibration.methods import Method
from onnxmill.calibration.methods_scheme import Scheme
from onnxmill.calibration.statistics import Statistics
from onnxmill.tasks import calibration_rows, conversion
from onnxmill.tasks.calibration_report import CalibrationDigests, CalibrationReport
from onnxmill.tasks.conversion import Calibration, Job, Samples
from onnxmill.tasks.findings import Finding, finding
from onnxmill.tasks.graph import MODEL
from onnxmill.tasks.quantize import load_for, qdq
from onnxmill.tasks.quantize.int8 import ACTIVATIONS, FEW_SAMPLES
from onnxmill.tasks.quantize.prepare import left_in_float
from onnxmill.tasks.report import StepRow
from onnxmill.tasks.spec import Spec, Variant
from onnxmill.tasks.step import installed_version

TOOLS = ("onnxmill", "onnx", "onnxruntime", "numpy", "numba")
SCHEMES = {
    "onnxruntime": ACTIVATIONS,
    "onnxruntime-trt": Scheme("int8", symmetric=True),
    "tensorrt": Scheme("int8", symmetric=True),
}
"""What the readers of a kind of table quantize activations to."""


@dataclass(frozen=True)
class Seen:
    """How far the steps came: no `calibration` where a graph, or what was observed, has `findings`."""

    job: Job
    samples: Samples
    calibration: Calibration | None
    findings: tuple[Finding, ...]
    rows: tuple[StepRow, ...]


def report(seen: Seen, spec_path: str, method: Method | None, shard: tuple[int, int]) -> CalibrationReport:
    """The report, without the name of a table. `method` is the one that was asked for; null: the spec's."""
    assert seen.samples.calibration
    chosen, spec = chosen_variant(seen.job.spec, method), seen.job.spec
    whole = CalibrationReport(
        name=spec.name,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        sentence="refused: " + "; ".join(map(str, seen.findings)),
        spec=spec_path,
        shard=shard,
        samples=0,
        chosen=chosen.method,
        table=None,
        versions={name: installed_version(name) for name in TOOLS},
        digests=CalibrationDigests(prepared=None, samples=seen.samples.calibration.files.digest),
        steps=seen.rows,
        findings=seen.findings,
        methods=(),
        tensors=(),
    )
    if not seen.calibration:
        return whole
    observed, percent = _observed(seen.calibration, chosen), _percent(spec, chosen)
    tensors = calibration_rows.tensor_rows(observed, _prepared(seen.calibration).graph, percent)
    count = len(observed.positions)
    few = count < FEW_SAMPLES and shard == (1, 1)
    return whole.model_copy(
        update={
            "sentence": calibration_rows.sentence(tensors, count, shard),
            "samples": count,
            "digests": whole.digests.model_copy(update={"prepared": seen.calibration.prepared.files.digest}),
            "findings": (finding("QNT004", "calibration", measured=count, limit=FEW_SAMPLES),) if few else (),
            "methods": calibration_rows.method_rows(tensors, percent, _users(spec)),
            "tensors": tensors,
        }
    )


def write_table(seen: Seen, method: Method | None, form: str, folder: Path) -> str:
    """Write the calibration table of the chosen method; its file's name. Raises `InputError` for what it can't hold."""
    assert seen.calibration
    chosen = chosen_variant(seen.job.spec, method)
    proto = _prepared(seen.calibration)
    observed = _pass(seen.calibration, chosen.exclude)
    percent = _percent(seen.job.spec, chosen)
    found = statistics.ranges(observed, chosen.method, percent, SCHEMES[form])
    name = tables.FORMS[form].file_name
    tables.write(qdq.adjusted(proto, found, (*chosen.exclude, *left_in_float(proto))), folder / name, form)
    return name


def chosen_variant(spec: Spec, method: Method | None) -> Variant:
    """The spec's first int8-static variant of a method (null: of any); where it has none, one that would be."""
    static = [variant for variant in spec.variants if variant.recipe == "int8-static"]
    fitting = [variant for variant in static if method in (None, variant.method)]
    if fitting:
        return fitting[0]
    return Variant(recipe="int8-static", method=method or "minmax", exclude=static[0].exclude if static else ())


def _percent(spec: Spec, chosen: Variant) -> float:
    """The setting of method percentile that the spec uses."""
    using = [variant.percentile for variant in (chosen, *spec.variants) if variant.method == "percentile"]
    return using[0] if using else chosen.percentile


def _users(spec: Spec) -> dict[Method, list[str]]:
    static = [variant for variant in spec.variants if variant.recipe == "int8-static"]
    return {one.method: [variant.label for variant in static if variant.method == one.method] for one in static}


def _pass(calibration: Calibration, exclude: tuple[str, ...]) -> Statistics:
    done = dict(calibration.observed)[exclude]
    return statistics.load(conversion.store().open(done.files) / statistics.FILE)


def _observed(calibration: Calibration, chosen: Variant) -> Statistics:
    """What was seen of the tensors of the chosen variant, and then of those that other variants alone quantize."""
    whole = _pass(calibration, chosen.exclude)
    for exclude, _ in calibration.observed:
        other = _pass(calibration, exclude)
        others = [name for name in other.histograms if name not in whole.histograms]
        whole = Statistics(
            {**whole.histograms, **{name: other.histograms[name] for name in others}},
            {**whole.extremes, **{name: other.extremes[name] for name in others}},
            whole.positions,
        )
    return whole


def _prepared(calibration: Calibration) -> onnx.ModelProto:
    """The graph, every node with a name."""
    return load_for((), conversion.store().open(calibration.prepared.files) / MODEL)
