"""The report: what one conversion did, as a pydantic model. `report.json` is it; its JSON schema ships too.

`python -m onnxmill.tasks.report` writes report.schema.json anew after a change of the models.
"""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from onnxmill.tasks.findings import Finding
from onnxmill.tasks.parity import Parity

SCHEMA_FILE = Path(__file__).with_name("report.schema.json")
Status = Literal["passed", "refused", "failed", "skipped"]


class Part(BaseModel):
    """Base of every part: frozen, no unknown key, no number that is not finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class StepRow(Part):
    """One step as it ran: `seconds` is what this run spent on it (near 0 when `cached`)."""

    step: str
    variant: str | None
    seconds: float
    cached: bool
    note: str = Field("", description="what the step chose, e.g. the export route")


class ArtifactRow(Part):
    """A variant's model. `path` is relative to the report's folder."""

    path: str = Field(pattern=r"^[^/]")
    digest: str
    size_bytes: int
    opset: int
    ir_version: int


class MetricRow(Part):
    """The user's metric on the evaluation samples.

    `drop_interval`: 95 %, of source - variant, paired bootstrap.
    """

    source: float
    variant: float
    drop_interval: tuple[float, float]
    samples: int


class Measurement(Part):
    """One variant measured on one target. Null where there is no such number."""

    target: str
    fidelity: Literal["native", "simulated"]
    status: Literal["measured", "refused", "unavailable", "unstable"]
    findings: tuple[Finding, ...] = ()
    dims: dict[str, int]
    threads: int
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    throughput_per_s: float | None = None
    peak_rss_mb: float | None = None
    load_ms: float | None = None
    baseline: str | None = Field(None, description="what speedup is against; null for the baseline itself")
    speedup: float | None = None
    speedup_interval: tuple[float, float] | None = Field(None, description="95 %, bootstrap over rounds")
    placement: dict[str, float] = Field({}, description="share of nodes an execution provider")


class VariantRow(Part):
    """One variant: how it was judged (`findings` say why), how far from the source it is, how fast where."""

    name: str
    recipe: str
    status: Status
    findings: tuple[Finding, ...] = ()
    artifact: ArtifactRow | None = None
    quantized_nodes: int = 0
    quantizable_nodes: int = 0
    parity: Parity | None = None
    metric: MetricRow | None = None
    results: tuple[Measurement, ...] = ()
    mlflow_run_id: str | None = None


Cause = Literal["first", "new_source", "better_variant", "held", "none"]


class Decision(Part):
    """What a target's alias points to now, and why.

    `variant` and `version` (the registry's) are what serves under `alias` after the decision, null when nothing
    does; where `moved` is false they were serving before as well.
    """

    target: str
    cause: Cause
    variant: str | None
    version: int | None
    alias: str | None
    why: str

    @property
    def moved(self) -> bool:
        """Whether this decision gave the alias another version."""
        return self.cause in ("first", "new_source", "better_variant")


class Digests(Part):
    """sha256 of what the conversion began with. `data` is null where the spec names none.

    `metric` stands for the evaluation samples and the metric's code: scores with another one cannot be compared.
    """

    source: str
    data: str | None
    metric: str | None = None


ExitCode = Literal[0, 1, 3]


class Report(Part):
    """Everything about one conversion. Paths are relative, numbers finite or null."""

    schema_version: Literal[1] = 1
    name: str
    created_at: str = Field(description="ISO 8601, UTC")
    sentence: str = Field(description="what a person reads first")
    exit_code: ExitCode
    spec: str = Field(description="the spec, relative to the folder that the command ran in")
    versions: dict[str, str]
    machine: dict[str, str | int]
    digests: Digests
    opset: int | None = Field(description="null where no graph came as far as to be pinned")
    steps: tuple[StepRow, ...]
    variants: tuple[VariantRow, ...]
    decisions: tuple[Decision, ...]
    mlflow_run_id: str | None = None
    registered_model: str | None = None


def schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of report.json: every key is there, null where it has no value."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Report.model_json_schema(mode="serialization"),
    }


def schema_text() -> str:
    """The content of report.schema.json."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
