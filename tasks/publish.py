"""The steps of a conversion that talk to MLflow, wired: log, promote, conclude. Each may be repeated at any time."""

import os
from collections.abc import Sequence
from pathlib import Path

from onnxmill.tasks import cases, conversion, parity, promotion, spec, summary, track
from onnxmill.tasks.conversion import Done, Job
from onnxmill.tasks.report import Decision, Report
from onnxmill.tasks.summary import Made
from onnxmill.tasks.track import Logged, Tracking


def tracking() -> Tracking:
    """The MLflow of MLFLOW_TRACKING_URI, or the embedded one. Raises `ServiceError` where it does not answer."""
    return track.connect(os.environ.get("MLFLOW_TRACKING_URI"), spec.home())


def log(job: Job, report: Report, made: Sequence[Made], reference: Done) -> Logged:
    """Log the conversion, or finish what was logged of it before."""
    store = conversion.store()
    models = {m.variant.label: store.open(m.published) for m in made if m.published}
    example = next(cases.read(store.open(reference.files))).inputs
    return track.log(
        tracking(),
        report,
        job.spec,
        key=summary.key(report, job),
        models=models,
        files={},  # the report comes when it is known what was decided
        example=example,
    )


def promote(job: Job, report: Report, made: Sequence[Made], reference: Done, logged: Logged) -> Decision:
    """Decide, and move the alias where the decision says so."""
    assert job.spec.promote
    gates = {m.variant.label: parity.effective_gate(m.variant.recipe, m.variant.gate) for m in made}
    folder = conversion.store().open(reference.files)
    return promotion.promote(tracking(), report, job.spec.promote, logged, reference=folder, gates=gates)


def conclude(
    job: Job, report: Report, made: Sequence[Made], logged: Logged, decisions: Sequence[Decision], out: Path
) -> Report:
    """The final report, with the runs' ids and what was decided: in MLflow, and with the models under `out`.

    The report of the run that moved an alias stays on record there: later ones that find nothing to do leave it.
    """
    name = promotion.registered_name(report.name, job.spec.promote) if job.spec.promote else None
    final = summary.concluded(report, job, logged.parent_run_id, logged.run_ids, decisions, name)
    files = summary.files(final)
    service = tracking()
    if any(decision.moved for decision in decisions) or not track.holds(service, logged.parent_run_id, files):
        track.attach(service, logged.parent_run_id, files)
    summary.write(files, made, conversion.store(), out)
    return final
