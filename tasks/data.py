"""The user's samples: taken from the data callables once, checked, hashed and stored for every later step."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from onnxmill.calibration import samples
from onnxmill.calibration.samples import Expected
from onnxmill.tasks import loader
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.isolate import report_progress
from onnxmill.tasks.spec import Contract, Tensor
from onnxmill.tasks.step import CALLING, Step

CALIBRATION = Step("calibration-samples", 1, "onnxmill.tasks.data:collect", tools=("numpy",), user_code="data")
EVALUATION = Step("evaluation-samples", 1, "onnxmill.tasks.data:collect", tools=("numpy",), user_code="data")
PROGRESS_EVERY = 100


class SampleSettings(BaseModel):
    """`limit` bounds the number of samples, null takes all. `labelled` samples come as (inputs, label)."""

    model_config = ConfigDict(frozen=True)

    key: str
    callable: str
    inputs: dict[str, Tensor]
    limit: int | None
    labelled: bool


def calibration_settings(callable_: str, contract: Contract, limit: int) -> SampleSettings:
    return SampleSettings(
        key="data.calibration", callable=callable_, inputs=contract.inputs, limit=limit, labelled=False
    )


def evaluation_settings(callable_: str, contract: Contract) -> SampleSettings:
    return SampleSettings(key="data.evaluation", callable=callable_, inputs=contract.inputs, limit=None, labelled=True)


def collect(settings: SampleSettings, data: Path, out: Path) -> int:
    """Write the samples of one data callable to `out`; how many. Raises `InputError` for a bad or missing sample."""
    expected = {name: Expected(tensor.dtype, tensor.shape) for name, tensor in settings.inputs.items()}

    def progress(count: int) -> None:
        if count % PROGRESS_EVERY == 0:
            report_progress(f"{CALLING}{settings.key} {settings.callable}", count, settings.limit or 0)

    items = loader.iterate(settings.key, settings.callable)
    return samples.write(
        settings.key,
        items,
        expected,
        out,
        limit=settings.limit,
        labelled=settings.labelled,
        on_sample=progress,
    )


def check_apart(calibration: Path, evaluation: Path) -> None:
    """Raise `InputError` where a sample is in both: a metric on data that ranges were tuned on proves nothing."""
    used = {digest: index for index, digest in enumerate(samples.hashes(calibration))}
    both = [(used[digest], index) for index, digest in enumerate(samples.hashes(evaluation)) if digest in used]
    if both:
        first = f"calibration sample {both[0][0]} is evaluation sample {both[0][1]}"
        raise InputError(
            "data.evaluation", None, f"shares {len(both)} sample(s) with data.calibration ({first})",
            "split them, for example by the hash of each sample",
        )  # fmt: skip
