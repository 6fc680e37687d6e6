"""The report that is made of steps' results, its key, and the files that are written."""

import json
from pathlib import Path

import pytest

from onnxmill.tasks import summary
from onnxmill.tasks.artifact import Artifact, Store
from onnxmill.tasks.conversion import Assessment, Done, Job, Samples
from onnxmill.tasks.errors import StepError
from onnxmill.tasks.findings import finding
from onnxmill.tasks.pack import Pack, Part
from onnxmill.tasks.proof import Proof
from onnxmill.tasks.report import Decision, Report, StepRow
from onnxmill.tasks.spec import Metric, Variant
from onnxmill.tasks.summary import Made
from tests import conversions

REFUSAL = finding("GATE003", "output y", "4.2 dB", measured=4.2, limit=10.0)
WARNING = finding("QNT004", "calibration", measured=3, limit=32)
FP32, INT8 = Variant(recipe="fp32"), Variant(recipe="int8-dynamic", name="small")
NOTHING = Artifact(digest="0" * 64, files={})
NO_SAMPLES = Samples(calibration=None, evaluation=None)


def job() -> Job:
    spec = conversions.spec("m")
    part = Part(artifact=NOTHING, tools={})
    return Job(spec=spec, contract=spec.contract, pack=Pack(source=part, data=None, metric=None), opset=18)


def done(artifact: Artifact | None = None, *, seconds: float = 1.0, opset: int = 18) -> Done:
    proof = Proof(findings=(), parity=None, real=None, opset=opset, ir_version=8, nodes=2, size_bytes=9)
    row = StepRow(step="quantize", variant="fp32", seconds=seconds, cached=False)
    return Done(artifact=artifact, value=proof.model_dump(mode="json"), row=row)


def judged(*findings: object) -> Assessment:
    return Assessment.model_validate({"findings": findings, "parity": None, "metric": None, "rows": []})


@pytest.mark.parametrize(
    ("made", "status"),
    [
        (Made(variant=FP32, model=done(), assessment=judged()), "passed"),
        (Made(variant=FP32, model=done(), assessment=judged(WARNING)), "passed"),
        (Made(variant=FP32, model=done(), assessment=judged(REFUSAL)), "refused"),
        (Made(variant=FP32, faults=(REFUSAL,)), "refused"),
        (Made(variant=FP32), "refused"),  # nothing was judged
        (Made(variant=FP32, model=done(), assessment=judged(), faults=(finding("RUN001", "step x"),)), "failed"),
        (Made(variant=FP32, model=done(), assessment=judged(REFUSAL), faults=(finding("RUN001", "step x"),)), "failed"),
    ],
)
def test_status(made: Made, status: str) -> None:
    assert made.status == status


def test_report_of_a_passed_a_refused_and_a_broken_variant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    made = [
        Made(variant=FP32, model=done(NOTHING), published=NOTHING, assessment=judged(WARNING)),
        Made(variant=INT8, model=done(None), assessment=judged(REFUSAL)),
        Made(variant=Variant(recipe="fp16"), faults=(summary.broken(StepError("fp16", "was killed")),)),
    ]
    shared = [StepRow(step="export", variant=None, seconds=2.0, cached=True)]
    report = summary.build(job(), str(tmp_path / "specs" / "spec.yaml"), shared, NO_SAMPLES, made)
    assert report.spec == "specs/spec.yaml"
    assert [(row.name, row.status) for row in report.variants] == [
        ("fp32", "passed"),
        ("small", "refused"),
        ("fp16", "failed"),
    ]
    assert report.exit_code == 0
    assert [row.step for row in report.steps] == ["export", "quantize"]  # fp32 is the graph itself
    fp32, small, fp16 = report.variants
    assert fp32.artifact
    assert (fp32.artifact.path, fp32.artifact.digest) == ("fp32/model.onnx", NOTHING.digest)
    assert fp32.findings == (WARNING,)
    assert small.artifact is None
    assert small.findings == (REFUSAL,)
    assert [f.code for f in fp16.findings] == ["RUN001"]
    assert set(report.versions) == {*summary.TOOLS, "python"}


def test_what_a_broken_tool_said() -> None:
    error = StepError("export", "its process was killed by SIGSEGV", stderr_tail="a\nFatal Python error\n")
    found = summary.broken(error)
    assert (found.code, found.where) == ("RUN001", "step export")
    assert found.message.endswith("its process was killed by SIGSEGV | Fatal Python error")
    assert "export: " not in found.message
    repeated = StepError("export", "ValueError: no", stderr_tail="Traceback\nValueError: no")
    assert summary.broken(repeated).message.count("ValueError: no") == 1


def test_key_is_of_what_was_found_not_when() -> None:
    def key(seconds: float = 1.0, opset: int = 18) -> str:
        made = [
            Made(
                variant=FP32, model=done(NOTHING, seconds=seconds, opset=opset), published=NOTHING, assessment=judged()
            )
        ]
        report = summary.build(job(), "spec.yaml", [], NO_SAMPLES, made)
        return summary.key(report.model_copy(update={"created_at": str(seconds)}), job())

    assert key() == key(seconds=7.0)
    assert key() != key(opset=17)


def test_conclusion() -> None:
    report = conversions.report("m", conversions.variant("fp32"), conversions.variant("small"))
    decision = Decision(target="cpu", cause="first", variant="fp32", version=3, alias="champion", why="first")
    final = summary.concluded(report, job(), "p", {"fp32": "a", "small": "b"}, [decision], "m-onnx")
    assert [row.mlflow_run_id for row in final.variants] == ["a", "b"]
    assert (final.mlflow_run_id, final.registered_model, final.decisions) == ("p", "m-onnx", (decision,))
    assert final.sentence.startswith("fp32 promoted as version 3")
    assert report.decisions == ()


def test_files_are_written_and_replaced(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    artifact, folder = conversions.publish(store, conversions.model(2.0, external=True))
    made = [
        Made(variant=FP32, model=done(artifact), published=artifact, assessment=judged()),
        Made(variant=INT8, model=done(None), assessment=judged(REFUSAL)),
    ]
    report = conversions.report("m", conversions.variant("fp32"))
    for text in ("a sentence", "another"):
        summary.write(summary.files(report.model_copy(update={"sentence": text})), made, store, tmp_path / "out")
        written = Report.model_validate_json((tmp_path / "out" / "report.json").read_bytes())
        assert written.sentence == text
        assert text in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert sorted(p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*") if p.is_file()) == [
        "fp32/model.onnx", "fp32/model.onnx.data", "report.html", "report.json",
    ]  # fmt: skip
    for path in folder.iterdir():
        copy = tmp_path / "out" / "fp32" / path.name
        assert copy.read_bytes() == path.read_bytes()
        copy.write_bytes(b"")  # a person's own copy: the store's stays as it is
    store.verify(artifact)
    assert json.loads((tmp_path / "out" / "report.json").read_text())["schema_version"] == 1


def test_models_of_an_earlier_report_do_not_stay_beside_the_new_one(tmp_path: Path) -> None:
    store, out = Store(tmp_path / "store"), tmp_path / "out"
    artifact, _ = conversions.publish(store, conversions.model(2.0))
    (out / "mine").mkdir(parents=True)
    both = [Made(variant=v, model=done(artifact), published=artifact, assessment=judged()) for v in (FP32, INT8)]
    for made in (both, both[:1]):
        report = summary.build(job(), "spec.yaml", [], NO_SAMPLES, made)
        summary.write(summary.files(report), made, store, out)
    assert sorted(p.name for p in out.iterdir()) == ["fp32", "mine", "report.html", "report.json"]


def test_scores_of_another_metric_or_other_samples_are_told_apart() -> None:
    def digest(fn: str = "m.py:a", samples: Artifact = NOTHING, code: Artifact = NOTHING) -> str | None:
        spec = job().spec.model_copy(update={"metric": Metric(fn=fn)})
        pack = job().pack.model_copy(update={"metric": Part(artifact=code, tools={})})
        taken = Samples(calibration=None, evaluation=done(samples))
        report = summary.build(job().model_copy(update={"spec": spec, "pack": pack}), "s", [], taken, [])
        return report.digests.metric

    other = NOTHING.model_copy(update={"digest": "f" * 64})
    assert len({digest(), digest(fn="m.py:b"), digest(samples=other), digest(code=other)}) == 4
    assert summary.build(job(), "s", [], NO_SAMPLES, []).digests.metric is None
