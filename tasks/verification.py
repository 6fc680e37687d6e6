"""`verify`: everything about a spec that can be checked before work is done on it."""

from collections.abc import Callable
from pathlib import Path

from onnxmill.tasks import conversion
from onnxmill.tasks.progress import in_words
from onnxmill.tasks.reference import Reference


def verify(path: Path, say: Callable[[str], None]) -> dict[str, str]:
    """Pack the spec, take its samples, load the source and run it on the parity inputs; facts for a person, in order.

    Raises `InputError` for the first thing that is wrong. `say` is told what is being done.
    """
    job = conversion.prepare(path)
    samples = conversion.samples(job, in_words("samples", say))
    reference = conversion.reference(job, samples, in_words("reference", say))
    seen = Reference.model_validate(reference.value)
    job = conversion.completed(job, reference)
    scores = conversion.score_source(job, samples, in_words("score source", say))
    pack, contract = job.pack, job.contract
    facts = {
        "spec": f"{job.spec.name}: {', '.join(v.label for v in job.spec.variants)} at opset {job.spec.opset}",
        "source": ", ".join(pack.source.artifact.files) + f"; digest {pack.source.artifact.digest[:12]}",
        "inputs": "; ".join(f"{n} {t.dtype} {list(t.shape)}" for n, t in contract.inputs.items()),
        "outputs": "; ".join(f"{n} {t.dtype} {list(t.shape)}" for n, t in contract.outputs.items()),
        "parity cases": f"{seen.real_cases} of real samples, {seen.random_cases} made up",
    }
    for done in (samples.calibration, samples.evaluation):
        if done:
            facts[done.row.step.replace("-", " ")] = str(done.value)
    if scores.scores:
        facts["metric of the source"] = f"{scores.scores.value:.4f}"
    return facts
