"""convert: one spec, the whole data path, top to bottom."""

from pathlib import Path
from typing import Any, TypeVar

from prefect import flow, runtime
from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect.states import Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from onnxmill.flows import steps
from onnxmill.tasks import conversion, publish, summary
from onnxmill.tasks.conversion import Done, Job
from onnxmill.tasks.errors import InputError, OnnxmillError, StepError
from onnxmill.tasks.isolate import ending_children
from onnxmill.tasks.output import output_folder
from onnxmill.tasks.report import StepRow
from onnxmill.tasks.report_rows import markdown_table
from onnxmill.tasks.spec import load
from onnxmill.tasks.summary import Made

RUNNER: ThreadPoolTaskRunner[Any] = ThreadPoolTaskRunner(max_workers=2)
"""Steps that run at once: threads that wait for child processes."""


T = TypeVar("T")


def run_name() -> str:
    """The model's name: what a person looks for in a list of runs."""
    try:
        return f"convert {load(Path(runtime.flow_run.parameters['spec'])).name}"
    except InputError:
        return "convert"  # the flow itself says what is wrong with the spec


@flow(name="convert", flow_run_name=run_name, task_runner=RUNNER)  # type: ignore[arg-type]  # TaskRunner is invariant
@ending_children()
def convert(spec: str, out: str = "", fresh: bool = False) -> State[Any]:
    """Export, prove, quantize, measure, log and promote one model.

    Args:
        spec: Path of the spec file.
        out: Folder for the report and the models; empty: under ONNXMILL_HOME.
        fresh: Run every step, whatever was done before.
    """
    folder = output_folder(spec, out)
    publish.tracking()  # an MLflow that does not answer ends the run here, not after the work
    job = conversion.prepare(Path(spec), fresh=fresh)
    samples = _value(steps.samples.submit(job))
    reference = _value(steps.reference.submit(job, samples))
    job = conversion.completed(job, reference)
    scores: Any = steps.score_source.submit(job, samples)

    graphs = [_value(steps.export.submit(job, reference))]
    if not conversion.graph_faults(graphs[-1]):
        graphs.append(_value(steps.pin_opset.submit(job, graphs[-1], reference)))
    if not conversion.graph_faults(graphs[-1]):
        job = conversion.at_opset(job, graphs[-1])
        graphs.append(_value(steps.simplify.submit(job, graphs[-1], reference)))
    graph, faults = graphs[-1], conversion.graph_faults(graphs[-1])

    calibrated: Any = None
    if faults:
        made = [Made(variant=variant, faults=faults) for variant in job.spec.variants]
    else:
        if any(v.recipe == "int8-static" for v in job.spec.variants):
            calibrated = steps.calibrate.submit(job, graph, reference, samples)
        ranges = {v.label: calibrated if v.recipe == "int8-static" else None for v in job.spec.variants}
        models: list[Any] = [
            steps.quantize.submit(job, v, graph, reference, ranges[v.label]) for v in job.spec.variants
        ]
        verdicts = [
            steps.assess.submit(job, variant, model, samples, scores)
            for variant, model in zip(job.spec.variants, models, strict=True)
        ]
        _value(scores)  # what breaks for all variants is not a fault of each
        made = [
            _made(job, v, ranges[v.label], *row) for v, *row in zip(job.spec.variants, models, verdicts, strict=True)
        ]
        made = [_measured(job, one, graph, reference) for one in made]
    shared = [*samples.rows, *reference.rows, *_value(scores).rows, *(g.row for g in graphs), *_rows(calibrated)]
    report = summary.build(job, spec, shared, samples, made)

    try:
        logged = steps.log(job, report, made, reference)
        decisions = [steps.promote(job, report, made, reference, logged)] if job.spec.promote else []
    except OnnxmillError as error:  # what is known so far is not lost
        so_far = report.model_copy(update={"exit_code": 1, "sentence": f"{report.sentence}; then: {error}"})
        summary.write(summary.files(so_far), made, conversion.store(), folder)
        raise
    report = publish.conclude(job, report, made, logged, decisions, folder)
    create_table_artifact(
        key=f"convert-{_slug(report.name)}", table=markdown_table(report), description=report.sentence
    )
    if report.exit_code == 0:
        return Completed(message=report.sentence)
    return Failed(name="Refused" if report.exit_code == 3 else "Failed", message=report.sentence)


def _value(future: PrefectFuture[T]) -> T:
    """A task's value; what it raised is raised here. (A task that is called and returns a state gives the state.)"""
    return future.result()


def _rows(calibrated: Any) -> tuple[StepRow, ...]:
    """The rows of a calibration, where there was one that did not break: that is told by each variant of it."""
    try:
        rows: tuple[StepRow, ...] = _value(calibrated).rows if calibrated else ()
    except StepError:
        return ()
    return rows


def _made(job: Job, variant: Any, ranges: Any, model: Any, verdict: Any) -> Made:
    """One variant's model and verdict; a broken tool fails this variant alone, or those of one calibration."""
    done = None
    try:
        if ranges:
            _value(ranges)
        done = _value(model)
        published = conversion.with_sidecars(job, done.artifact) if done.artifact else None
        return Made(variant=variant, model=done, published=published, assessment=_value(verdict))
    except StepError as error:
        return Made(variant=variant, model=done, faults=(summary.broken(error),))


def _measured(job: Job, made: Made, graph: Done, reference: Done) -> Made:
    """The variant with its measurements; what did not pass is not measured."""
    if made.status != "passed" or made.model is None:
        return made
    try:
        runs = [steps.benchmark.submit(job, made.variant, made.model, graph, reference, t) for t in job.spec.targets]
        results = [_value(run) for run in runs]
    except StepError as error:
        return made.model_copy(update={"faults": (summary.broken(error),)})
    return made.model_copy(update={"measurements": tuple(results)})


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower())
