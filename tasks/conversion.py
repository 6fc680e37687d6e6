"""The steps of a conversion, wired: which settings and which inputs each step gets, and what becomes of its result.

Plain functions of a `Job` and of earlier steps' results; `flows/` decides when and where each runs.
"""

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, JsonValue

from onnxmill.tasks import benchmark as benchmarking
from onnxmill.tasks import cases, data, decide, machine, metric, opset, parity, proof, runtimes, simplify, step
from onnxmill.tasks import pack as packing
from onnxmill.tasks import quantize as quantizing
from onnxmill.tasks import reference as referencing
from onnxmill.tasks import spec as specs
from onnxmill.tasks.artifact import Artifact, Store, sha256_of
from onnxmill.tasks.benchmark import Budget
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.export import SourceSettings, elsewhere
from onnxmill.tasks.export import steps as exporting
from onnxmill.tasks.export.steps import ExportSettings
from onnxmill.tasks.findings import Finding, refused
from onnxmill.tasks.graph import MODEL
from onnxmill.tasks.isolate import OnProgress, Reply
from onnxmill.tasks.opset import GraphSettings, Pin
from onnxmill.tasks.pack import Pack
from onnxmill.tasks.parity import Parity
from onnxmill.tasks.proof import Proof, Stamp
from onnxmill.tasks.quantize import Observed
from onnxmill.tasks.reference import Reference, ReferenceSettings
from onnxmill.tasks.report import MetricRow, StepRow
from onnxmill.tasks.spec import Contract, Spec, Variant
from onnxmill.tasks.step import Outcome, Step
from onnxmill.tasks.targets import TARGETS

EXPORTED_OPSET = 18
"""What exporters are asked for where the pin is found afterwards: dynamo's lowest, tf2onnx's highest."""
ATTEMPTS = 3
"""Times that an unstable measurement is tried."""


class Job(BaseModel):
    """A spec with its pack: all that later steps need to know of what the user gave.

    `opset` is null until step `opset` finds it, where the spec says auto. `python` is the other interpreter in which
    the source's code runs, `environment` the digest of what is installed there; "" for this one.
    """

    model_config = ConfigDict(frozen=True)

    spec: Spec
    contract: Contract
    pack: Pack
    opset: int | None
    python: str = ""
    environment: str = ""
    fresh: bool = False

    @property
    def source(self) -> SourceSettings:
        given = self.spec.source
        own = given.model_dump(exclude={"files", "python"})
        return SourceSettings(**own | {key: self.pack.names.get(getattr(given, key)) for key in packing.FILE_KEYS})

    @property
    def pin(self) -> Pin:
        oldest = runtimes.reads(self.spec.max_runtime) if self.spec.max_runtime else None
        return Pin(
            opset=self.opset,
            ceiling=oldest.opset if oldest else None,
            ceiling_ir=oldest.ir_version if oldest else None,
        )

    @property
    def pinned(self) -> int:
        assert self.opset is not None
        return self.opset

    @property
    def stamp(self) -> Stamp:
        return Stamp(name=self.spec.name, source=self.pack.source.artifact.digest)


class Done(BaseModel):
    """What one step gave: its artifact, its value, and its row of the report."""

    model_config = ConfigDict(frozen=True)

    artifact: Artifact | None
    value: JsonValue
    row: StepRow

    @property
    def rows(self) -> tuple[StepRow, ...]:
        return (self.row,)

    @property
    def files(self) -> Artifact:
        assert self.artifact is not None, self.row.step
        return self.artifact

    @property
    def proof(self) -> Proof:
        return Proof.model_validate(self.value)


class Samples(BaseModel):
    """Calibration and evaluation samples, where the spec has them."""

    model_config = ConfigDict(frozen=True)

    calibration: Done | None
    evaluation: Done | None

    @property
    def rows(self) -> tuple[StepRow, ...]:
        return tuple(done.row for done in (self.calibration, self.evaluation) if done)

    @property
    def real(self) -> Artifact | None:
        """Real inputs for the parity cases: those that nothing is calibrated on, where there are any."""
        chosen = self.evaluation or self.calibration
        return chosen.files if chosen else None


class Calibration(BaseModel):
    """The graph prepared for static int8, and what was observed of it: a pass for each set of excluded nodes."""

    model_config = ConfigDict(frozen=True)

    prepared: Done
    observed: tuple[tuple[tuple[str, ...], Done], ...]

    @property
    def rows(self) -> tuple[StepRow, ...]:
        return (self.prepared.row, *(done.row for _, done in self.observed))

    def of(self, variant: Variant) -> Done:
        return dict(self.observed)[variant.exclude]

    def refusal(self, variant: Variant) -> Proof | None:
        """Why there are no ranges, as a proof of nothing; None where there are."""
        if faults := proof.faults(self.prepared.proof):
            return proof.nothing(*faults)
        if variant.ranges:
            return None
        findings = Observed.model_validate(self.of(variant).value).findings
        return proof.nothing(*findings) if refused(findings) else None


class Assessment(BaseModel):
    """A variant's verdict before it is measured: parity and metric against their limits.

    `parity` is the one that was judged: on real samples alone for an integer recipe, where there are any.
    """

    model_config = ConfigDict(frozen=True)

    findings: tuple[Finding, ...]
    parity: Parity | None
    metric: MetricRow | None
    rows: tuple[StepRow, ...]


class SourceScores(BaseModel):
    """The source framework's own scores; `scores` is null where the spec has no metric."""

    model_config = ConfigDict(frozen=True)

    scores: Done | None
    rows: tuple[StepRow, ...]


def store() -> Store:
    home = specs.home()
    try:
        return Store(home / "store")
    except OSError as error:
        raise InputError("ONNXMILL_HOME", str(home), f"cannot hold a store: {error.strerror}") from error


def prepare(spec_path: Path, *, fresh: bool = False) -> Job:
    """Read the spec and pack what it names. Raises `InputError` for the user's faults."""
    spec = specs.load(spec_path)
    if spec.promote:
        decide.tighten(decide.load_policy(), spec.promote)  # what the policy does not allow is told before the work
    pack = packing.pack(spec, spec_path.resolve().parent, store())
    opset = None if spec.opset == "auto" else spec.opset
    job = Job(spec=spec, contract=spec.contract, pack=pack, opset=opset, fresh=fresh)
    if spec.source.python:
        python = specs.expand(spec.source.python, spec_path.resolve().parent)
        job = job.model_copy(update={"python": str(python), "environment": sha256_of(elsewhere.environment(python))})
    return _described(job) if spec.source.framework == "onnx" else job


def samples(job: Job, on_progress: OnProgress | None = None) -> Samples:
    """Take the user's samples. Raises `InputError` for a bad one, none, or one that is in both sets."""
    given, paths = job.spec.data, job.pack.paths
    asked = (
        (data.CALIBRATION, data.calibration_settings(given, job.contract, paths)),
        (data.EVALUATION, data.evaluation_settings(given, job.contract, paths)),
    )
    calibration, evaluation = (_collected(job, step, settings, on_progress) for step, settings in asked)
    if calibration and evaluation:
        where = store()
        data.check_apart(where.open(calibration.files), where.open(evaluation.files))
    return Samples(calibration=calibration, evaluation=evaluation)


def reference(job: Job, taken: Samples, on_progress: OnProgress | None = None) -> Done:
    """The source's outputs on the parity inputs; the value completes the contract (`Reference`)."""
    settings = ReferenceSettings(source=job.source, contract=job.contract)
    inputs = {"source": job.pack.source.artifact} | ({"real": taken.real} if taken.real else {})
    return _execute(job, referencing.reference_step(job.source.framework), settings, inputs, on_progress)


def completed(job: Job, reference: Done) -> Job:
    """The job with the contract that the reference completed."""
    return job.model_copy(update={"contract": Reference.model_validate(reference.value).contract})


def export(job: Job, reference: Done, on_progress: OnProgress | None = None) -> Done:
    opset = job.opset or EXPORTED_OPSET
    settings = ExportSettings(source=job.source, contract=job.contract, stamp=job.stamp, opset=opset)
    inputs = {"source": job.pack.source.artifact, "reference": reference.files}
    return _execute(job, exporting.export_step(job.source.framework), settings, inputs, on_progress)


def pin_opset(job: Job, exported: Done, reference: Done, on_progress: OnProgress | None = None) -> Done:
    """The graph at the pinned opset; the exported one itself where it is there already: it is proven."""
    if exported.proof.opset == job.opset:
        note = f"already at opset {job.opset}"
        return exported.model_copy(
            update={"row": StepRow(step=opset.STEP.name, variant=None, seconds=0.0, cached=True, note=note)}
        )
    settings = opset.PinSettings(contract=job.contract, stamp=job.stamp, pin=job.pin)
    return _execute(job, opset.STEP, settings, {"model": exported.files, "reference": reference.files}, on_progress)


def at_opset(job: Job, pinned: Done) -> Job:
    """The job with the opset that `pin_opset` came to."""
    return job.model_copy(update={"opset": pinned.proof.opset})


def simplified(job: Job, pinned: Done, reference: Done, on_progress: OnProgress | None = None) -> Done:
    settings = GraphSettings(contract=job.contract, stamp=job.stamp, opset=job.pinned)
    return _execute(job, simplify.STEP, settings, {"model": pinned.files, "reference": reference.files}, on_progress)


def graph_faults(done: Done) -> tuple[Finding, ...]:
    """Why a graph before any recipe (exported, pinned, simplified) does not pass; empty when it does."""
    return proof.faults(done.proof)


def with_sidecars(job: Job, model: Artifact) -> Artifact:
    """A model as it is published: with the spec's sidecars."""
    return store().join(model, job.pack.sidecars) if job.pack.sidecars else model


def prepared_for_int8(job: Job, graph: Done, reference: Done, on_progress: OnProgress | None = None) -> Done:
    """The graph in the form that static int8 takes."""
    settings = GraphSettings(contract=job.contract, stamp=job.stamp, opset=job.pinned)
    return _execute(
        job, quantizing.PREPARE, settings, {"model": graph.files, "reference": reference.files}, on_progress
    )


def exclusions(spec: Spec) -> tuple[tuple[str, ...], ...]:
    """The sets of nodes that int8-static variants leave in float: each needs a pass of its own. Of a spec without such
    a variant, the empty set."""
    static = [variant for variant in spec.variants if variant.recipe == "int8-static"]
    if not static:
        return ((),)
    return tuple(dict.fromkeys(variant.exclude for variant in static if not variant.ranges))


def observed(
    job: Job, prepared: Done, taken: Samples, shard: tuple[int, int] = (1, 1), on_progress: OnProgress | None = None
) -> Calibration:
    """What was observed of a prepared graph on the calibration samples, or on one `shard` (number, of) of them."""
    assert taken.calibration
    inputs = {"model": prepared.files, "calibration": taken.calibration.files}
    excluded = exclusions(job.spec)
    passes = [quantizing.CalibrationSettings(exclude=exclude, shard=shard) for exclude in excluded]
    done = [_execute(job, quantizing.CALIBRATE, settings, inputs, on_progress) for settings in passes]
    return Calibration(prepared=prepared, observed=tuple(zip(excluded, done, strict=True)))


def calibrate(
    job: Job, graph: Done, reference: Done, taken: Samples, on_progress: OnProgress | None = None
) -> Calibration:
    """The prepared graph and what was observed of it on the calibration samples: once for all methods."""
    prepared = prepared_for_int8(job, graph, reference, on_progress)
    if graph_faults(prepared) or not exclusions(job.spec):
        return Calibration(prepared=prepared, observed=())
    return observed(job, prepared, taken, on_progress=on_progress)


def quantize(
    job: Job,
    variant: Variant,
    graph: Done,
    reference: Done,
    calibration: Calibration | None,
    on_progress: OnProgress | None = None,
) -> Done:
    """The variant's model. For fp32 it is the graph itself; int8-static is made of the `calibration`."""
    if variant.recipe == "fp32":
        row = StepRow(step="quantize-none", variant=variant.label, seconds=0.0, cached=True, note="the graph itself")
        return graph.model_copy(update={"row": row})
    inputs = {"model": graph.files, "reference": reference.files}
    if variant.recipe == "int8-static":
        assert calibration
        if why := calibration.refusal(variant):
            row = StepRow(step=quantizing.STEPS[variant.recipe].name, variant=variant.label, seconds=0.0, cached=True)
            return Done(artifact=None, value=why.model_dump(mode="json"), row=row)
        given = job.pack.tables[variant.ranges] if variant.ranges else calibration.of(variant).files
        inputs = {"model": calibration.prepared.files, "reference": reference.files, "calibration": given}
    settings = quantizing.recipe_settings(variant, job.contract, job.stamp, job.pinned)
    return _execute(job, quantizing.STEPS[variant.recipe], settings, inputs, on_progress, variant=variant.label)


def score_source(job: Job, taken: Samples, on_progress: OnProgress | None = None) -> SourceScores:
    """The source framework's scores on the evaluation samples."""
    if not (job.spec.metric and taken.evaluation):
        return SourceScores(scores=None, rows=())
    settings = metric.SourceOutputsSettings(source=job.source, contract=job.contract)
    inputs = {"source": job.pack.source.artifact, "evaluation": taken.evaluation.files}
    outputs = _execute(job, metric.source_outputs_step(job.source.framework), settings, inputs, on_progress)
    scores = _score(job, outputs, taken.evaluation, on_progress, None)
    return SourceScores(scores=scores, rows=(outputs.row, scores.row))


def assess(
    job: Job,
    variant: Variant,
    made: Done,
    taken: Samples,
    source: SourceScores,
    on_progress: OnProgress | None = None,
) -> Assessment:
    """Judge a variant's parity and its metric: both, so that a refusal shows what it would have cost."""
    proof, label = made.proof, variant.label
    gate = parity.effective_gate(variant.recipe, variant.gate)
    judged = proof.real if parity.judged_on_real_samples(variant.recipe) and proof.real else proof.parity
    findings = [*proof.findings, *(parity.judge(judged, gate) if judged else [])]
    if made.artifact is None or not source.scores or not taken.evaluation or not job.spec.metric or not judged:
        return Assessment(findings=tuple(findings), parity=judged, metric=None, rows=())
    inputs = {"model": made.artifact, "evaluation": taken.evaluation.files}
    settings = metric.ModelOutputsSettings(contract=job.contract)
    outputs = _execute(job, metric.MODEL_OUTPUTS, settings, inputs, on_progress, variant=label)
    scores = _score(job, outputs, taken.evaluation, on_progress, label)
    where = store()
    row, faults = metric.judge(
        job.spec.metric,
        metric.read_scores(where.open(source.scores.files)),
        metric.read_scores(where.open(scores.files)),
    )
    return Assessment(findings=(*findings, *faults), parity=judged, metric=row, rows=(outputs.row, scores.row))


def benchmark(
    job: Job,
    variant: Variant,
    made: Done,
    graph: Done,
    reference: Done,
    target: str,
    on_progress: OnProgress | None = None,
) -> Done:
    """Measure a variant on a target, in turn with the fp32 graph; again while it is unstable. The value is a
    `Measurement`; its key holds this machine's fingerprint."""
    dims = {dim: sizes[0] for dim, sizes in job.contract.dims.items()}
    budget, threads = Budget(), machine.threads()
    alone = made.files.digest == graph.files.digest
    where = store()
    inputs = {"variant": made.files, "reference": reference.files} | ({} if alone else {"baseline": graph.files})

    def work(folder: Path, log: Path) -> Reply:
        for attempt in range(ATTEMPTS):
            measurement = benchmarking.measure(
                TARGETS[target],
                variant=where.open(made.files) / MODEL,
                baseline=None if alone else where.open(graph.files) / MODEL,
                baseline_name=None if alone else "fp32",
                inputs=where.open(reference.files) / cases.FILE,
                dims=dims,
                threads=threads,
                budget=budget,
                limits=step.child_limits(),
                log=log,
                on_progress=on_progress,
            )
            if measurement.status != "unstable" or attempt == ATTEMPTS - 1:
                break
        return Reply(measurement.model_dump(mode="json"), measurement.peak_rss_mb or 0.0)

    settings = benchmarking.settings(budget, dims, threads) | {"target": target}
    tools = {name: str(value) for name, value in machine.fingerprint().items()}
    outcome = step.remember("benchmark", benchmarking.VERSION, where, settings, inputs, tools, work, fresh=job.fresh)
    return _done(outcome, variant.label)


# --- details ---------------------------------------------------------------------------------------------------------


def _described(job: Job) -> Job:
    """The job of an ONNX source: its inputs as the file has them where the spec leaves them out.

    Raises `InputError` where the pin cannot be reached from the file's opset: before any work.
    """
    given = tuple(job.spec.inputs)
    settings = exporting.DescribeSettings(path=str(job.source.path), pin=job.pin, given=given)
    found = step.execute(exporting.DESCRIBE, store(), settings, {"source": job.pack.source.artifact})
    if job.spec.inputs:
        return job
    described = job.spec.model_dump(exclude_defaults=True) | {"inputs": found.record.value}
    return job.model_copy(update={"contract": Spec.model_validate(described | {"version": 1}).contract})


def _collected(
    job: Job, which: Step, settings: data.SampleSettings | None, on_progress: OnProgress | None
) -> Done | None:
    if settings is None or job.pack.data is None:
        return None
    return _execute(job, data.step_of(which, settings), settings, {"data": job.pack.data.artifact}, on_progress)


def _score(job: Job, outputs: Done, evaluation: Done, on_progress: OnProgress | None, variant: str | None) -> Done:
    assert job.spec.metric
    assert job.pack.metric
    inputs = {"metric": job.pack.metric.artifact, "outputs": outputs.files, "evaluation": evaluation.files}
    settings = metric.ScoreSettings(fn=job.spec.metric.fn)
    return _execute(job, metric.SCORE, settings, inputs, on_progress, variant=variant)


def _execute(
    job: Job,
    which: Step,
    settings: BaseModel,
    inputs: Mapping[str, Artifact],
    on_progress: OnProgress | None,
    *,
    variant: str | None = None,
) -> Done:
    """Run one step. The versions of what the user's sources import belong to its key."""
    part = getattr(job.pack, which.user_code) if which.user_code else None
    other = bool(job.python) and which.user_code == "source"
    outcome = step.execute(
        which,
        store(),
        settings,
        inputs,
        tools=({"environment": job.environment} if other else part.tools) if part else None,
        unkeyed={"python": job.python} if other else None,
        fresh=job.fresh,
        on_progress=on_progress,
    )
    return _done(outcome, variant)


def _done(outcome: Outcome, variant: str | None) -> Done:
    value = outcome.record.value
    note = str(value.get("note", "")) if isinstance(value, dict) else ""
    row = StepRow(
        step=outcome.record.step, variant=variant, seconds=round(outcome.seconds, 3), cached=outcome.cached, note=note
    )
    return Done(artifact=outcome.record.artifact, value=value, row=row)
