"""From the steps' results to the report, and to the files that a person asked for."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from onnxmill.tasks import machine
from onnxmill.tasks.artifact import Artifact, Store, sha256_of
from onnxmill.tasks.conversion import Assessment, Done, Job, Samples
from onnxmill.tasks.errors import StepError
from onnxmill.tasks.findings import Finding, finding, refused
from onnxmill.tasks.graph import MODEL
from onnxmill.tasks.report import ArtifactRow, Decision, Digests, Measurement, Report, Status, StepRow, VariantRow
from onnxmill.tasks.spec import Variant, home
from onnxmill.tasks.step import installed_version
from onnxmill.tasks.verdict import exit_code, sentence

TOOLS = ("onnxmill", "onnx", "onnxruntime", "onnxsim", "torch", "numpy", "mlflow", "prefect")
REPORT_JSON, REPORT_HTML = "report.json", "report.html"


class Made(BaseModel):
    """What became of one variant: its model, its verdict, its measurements by target; or why a tool broke.

    `published` is the model with its sidecars: what is written out and logged.
    """

    model_config = ConfigDict(frozen=True)

    variant: Variant
    model: Done | None = None
    published: Artifact | None = None
    assessment: Assessment | None = None
    measurements: tuple[Done, ...] = ()
    faults: tuple[Finding, ...] = ()

    @property
    def status(self) -> Status:
        if any(f.code == "RUN001" for f in self.faults):
            return "failed"
        judged = self.assessment.findings if self.assessment else ()
        return "refused" if refused((*self.faults, *judged)) or self.assessment is None else "passed"

    @property
    def rows(self) -> tuple[StepRow, ...]:
        own = [self.model.row] if self.model and self.variant.recipe != "fp32" else []  # fp32 is the graph itself
        return (*own, *(self.assessment.rows if self.assessment else ()), *(m.row for m in self.measurements))


def broken(error: StepError) -> Finding:
    """The finding of a step whose tool broke, with the end of its stderr."""
    tail = error.stderr_tail.strip().splitlines()[-1:]
    what = str(error).removeprefix(f"{error.step}: ") + (f" | {tail[0]}" if tail and tail[0] not in str(error) else "")
    return finding("RUN001", f"step {error.step}", what)


def build(
    job: Job,
    spec_path: str,
    steps: Sequence[StepRow],
    samples: Samples,
    made: Sequence[Made],
) -> Report:
    """The report of a conversion, before anything is logged or decided."""
    variants = tuple(_row(one) for one in made)
    code = exit_code(variants, job.spec.require)
    return Report(
        name=job.spec.name,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        sentence=sentence(variants, (), job.spec.require),
        exit_code=code,
        spec=os.path.relpath(spec_path),
        versions={name: installed_version(name) for name in TOOLS} | {"python": installed_version("python")},
        machine=machine.fingerprint(),
        digests=Digests(
            source=job.pack.source.artifact.digest,
            data=job.pack.data.artifact.digest if job.pack.data else None,
            metric=_metric_digest(job, samples),
        ),
        opset=job.opset,
        steps=(*steps, *(row for one in made for row in one.rows)),
        variants=variants,
        decisions=(),
    )


def _metric_digest(job: Job, samples: Samples) -> str | None:
    if not (job.spec.metric and job.pack.metric and samples.evaluation):
        return None
    code, evaluation = job.pack.metric.artifact.digest, samples.evaluation.files.digest
    return sha256_of({"fn": job.spec.metric.fn, "code": code, "samples": evaluation})


def concluded(
    report: Report,
    job: Job,
    run_id: str,
    run_ids: Mapping[str, str],
    decisions: Sequence[Decision],
    registered_model: str | None,
) -> Report:
    """The report with the ids of its MLflow runs and what was decided."""
    variants = tuple(row.model_copy(update={"mlflow_run_id": run_ids.get(row.name)}) for row in report.variants)
    return report.model_copy(
        update={
            "variants": variants,
            "decisions": tuple(decisions),
            "sentence": sentence(variants, tuple(decisions), job.spec.require),
            "mlflow_run_id": run_id,
            "registered_model": registered_model,
        }
    )


def _row(made: Made) -> VariantRow:
    proof = made.model.proof if made.model else None
    artifact = made.published
    judged = made.assessment.findings if made.assessment else ()
    return VariantRow(
        name=made.variant.label,
        recipe=made.variant.recipe,
        status=made.status,
        findings=(*made.faults, *judged),
        artifact=ArtifactRow(
            path=f"{made.variant.label}/{MODEL}",
            digest=artifact.digest,
            size_bytes=artifact.size_bytes,
            opset=proof.opset,
            ir_version=proof.ir_version,
        )
        if artifact and proof
        else None,
        quantized_nodes=proof.quantized_nodes if proof else 0,
        quantizable_nodes=proof.quantizable_nodes if proof else 0,
        parity=made.assessment.parity if made.assessment else None,
        metric=made.assessment.metric if made.assessment else None,
        results=tuple(Measurement.model_validate(m.value) for m in made.measurements),
    )


def key(report: Report, job: Job) -> str:
    """The key that a conversion is logged under: what it found, not when or how long it took. The same results,
    found again from the memo, have the same key."""
    return sha256_of(
        {
            "spec": job.spec.model_dump(mode="json"),
            "variants": [row.model_dump(mode="json") for row in report.variants],
            "digests": report.digests.model_dump(),
            "versions": report.versions,
            "machine": report.machine,
        }
    )


def files(report: Report) -> Mapping[str, bytes]:
    """report.json and report.html."""
    os.environ.setdefault("MPLCONFIGDIR", str(home() / "matplotlib"))  # its cache stays with ours
    from onnxmill.tasks import report_html  # it takes half a second: the last thing that a run needs

    text = json.dumps(report.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False)
    return {REPORT_JSON: text.encode() + b"\n", REPORT_HTML: report_html.html(report).encode()}


def _remove_former(out: Path) -> None:
    """Remove the models that an earlier report in `out` names: what lies there is what the report beside it says."""
    try:
        former = Report.model_validate_json((out / REPORT_JSON).read_bytes())
    except (OSError, ValueError):
        return  # there is none, or it is not ours
    for row in former.variants:
        if row.artifact:
            shutil.rmtree(out / Path(row.artifact.path).parent, ignore_errors=True)


def write(reports: Mapping[str, bytes], made: Sequence[Made], store: Store, out: Path) -> None:
    """Lay out the report's files and a copy of every variant's model under `out`. The report comes last."""
    _remove_former(out)
    for one in made:
        if one.published:
            target = out / one.variant.label
            target.mkdir(parents=True, exist_ok=True)
            store.copy(one.published, target)
    out.mkdir(parents=True, exist_ok=True)
    for name, content in reports.items():
        temporary = out / f".{name}"
        temporary.write_bytes(content)
        temporary.replace(out / name)
