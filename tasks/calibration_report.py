"""What a calibration found: each tensor's extremes, outliers and ranges by every method. `calibration.json` is it."""

from typing import Literal

from pydantic import Field

from onnxmill.calibration.methods import Method
from onnxmill.tasks.findings import Finding, refused
from onnxmill.tasks.report import Part, StepRow

USUAL = 99.0
"""Per cent of the values that outliers are told from: neither one value nor one channel of a hundred is in it."""
OUTLIER, STRONG = 6.0, 12.0
"""Outlier ratios from which a tensor is marked. A normal distribution has about 2, ResNet-50's tensors 1 to 4."""


class Bars(Part):
    """The histogram in few bars: bar i counts the values in [low + i · width, low + (i + 1) · width)."""

    low: float
    width: float
    counts: tuple[int, ...]


class MethodRange(Part):
    """A tensor's range by one method, for uint8 with a zero point. It holds zero."""

    low: float
    high: float
    kept: float = Field(description="its width as a share of minmax's")
    clipped: float = Field(description="share of the values outside it")
    zeroed: float = Field(description="share of the values that it rounds to zero, exact zeros among them")


class TensorRow(Part):
    """One tensor that carries a quantizer."""

    name: str
    made_by: str = Field(description="operator, or `input`")
    taken_by: tuple[str, ...] = Field(description="operators; `output` where the model gives it")
    values: int
    low: float
    high: float
    low_sample: int = Field(description="the first sample with the lowest value, from 0")
    high_sample: int
    outlier_ratio: float = Field(description="minmax's range as a multiple of that of 99 % of the values")
    ranges: dict[Method, MethodRange]
    histogram: Bars

    @property
    def extreme_sample(self) -> int:
        """The sample that has the value farthest from zero."""
        return self.low_sample if -self.low > self.high else self.high_sample


class MethodRow(Part):
    """What one method does to all tensors."""

    method: Method
    percentile: float | None
    variants: tuple[str, ...] = Field(description="the spec's variants that use it")
    narrowed: int = Field(description="tensors whose range is smaller than minmax's")
    kept_median: float
    kept_least: float
    kept_least_tensor: str
    clipped: float = Field(description="share of all values of all tensors outside their range")


class CalibrationDigests(Part):
    """sha256 of the prepared graph and of the samples; null where it did not come to them."""

    prepared: str | None
    samples: str


class CalibrationReport(Part):
    """Everything about one calibration. Numbers are finite; a refused one has findings and no tensors."""

    schema_version: Literal[1] = 1
    name: str
    created_at: str = Field(description="ISO 8601, UTC")
    sentence: str = Field(description="what a person reads first")
    spec: str = Field(description="the spec, relative to the folder that the command ran in")
    shard: tuple[int, int] = Field(description="(number, of): the part of the samples; (1, 1) all of them")
    samples: int
    chosen: Method = Field(description="of --method, or of the spec's first int8-static variant")
    table: str | None = Field(description="file of the calibration table beside this one")
    versions: dict[str, str]
    digests: CalibrationDigests
    steps: tuple[StepRow, ...]
    findings: tuple[Finding, ...]
    methods: tuple[MethodRow, ...]
    tensors: tuple[TensorRow, ...] = Field(description="in the graph's order")

    @property
    def exit_code(self) -> int:
        return 3 if refused(self.findings) else 0

    @property
    def worst_first(self) -> tuple[TensorRow, ...]:
        """The tensors by outlier ratio, the highest first."""
        return tuple(sorted(self.tensors, key=lambda row: -row.outlier_ratio))


def next_step(report: CalibrationReport) -> tuple[str, str]:
    """What to do now, in words, and the command."""
    convert = f"onnxmill convert {report.spec}"
    if report.exit_code:
        return "see what the findings say, then try again", f"onnxmill calibrate {report.spec}"
    if report.shard != (1, 1):
        return "when every part is there, merge them", f"onnxmill calibrate {report.spec} --merge DIR --merge DIR …"
    marked = [row for row in report.tensors if row.outlier_ratio * row.ranges[report.chosen].kept >= OUTLIER]
    if not marked:
        return "what was observed is kept: convert uses it, with any method", convert
    many = "1 tensor" if len(marked) == 1 else f"{len(marked)} tensors"
    return (
        f"with {report.chosen} outliers take most of the range of {many}: compare other methods as variants of "
        "int8-static, or keep the nodes that take them in float with `exclude:`",
        convert,
    )
