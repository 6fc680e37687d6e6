"""Finding: the one shape of every "no" and every warning; and the table of all codes, from which docs are made."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

Severity = Literal["refuse", "warn", "info"]
"""refuse: the variant (or the run) does not pass. warn: it passes, a person should look. info: on record."""


@dataclass(frozen=True)
class Code:
    """A row of the findings table: what the code means and what a person can do about it."""

    severity: Severity
    title: str
    fix: str


CODES: dict[str, Code] = {
    # contract: what must be true of a model after each step
    "CON001": Code("refuse", "the ONNX checker rejects the model", "report the step's log; try another opset"),
    "CON002": Code("refuse", "no ONNX Runtime session opens on the model", "see the message; try another opset"),
    "CON003": Code("refuse", "the model does not run", "see the message and the sizes that it was run at"),
    "CON004": Code(
        "refuse",
        "inputs or outputs differ from the contract in name, number or order",
        "make `inputs:`/`outputs:` match what the model takes and gives; constants must not be inputs",
    ),
    "CON005": Code("refuse", "an input's or output's dtype differs from the contract", "correct the dtype in the spec"),
    "CON006": Code(
        "refuse",
        "a dimension that the contract names is fixed in the model, or the other way round",
        "the size was baked in while tracing: avoid Python numbers made from shapes",
    ),
    "CON007": Code("refuse", "opset or IR version is not the pinned one", "report it: a step changed the pin"),
    "CON008": Code(
        "refuse",
        "an output is not finite where the reference is",
        "look for overflow; keep the operator in fp32",
    ),
    "CON009": Code(
        "refuse",
        "two runs of one session disagree",
        "find the random operator (a live Dropout?), or say `nondeterministic: true`",
    ),
    # export, opset, simplify
    "EXP001": Code("refuse", "the exporter cannot export the model", "see the operator or line in the message"),
    "EXP002": Code(
        "refuse",
        "the converter does not support an operator",
        "replace the operator in the model, or export it yourself and give the .onnx with `source.reference`",
    ),
    "EXP003": Code("refuse", "a type that the model uses has no place here", "see the message"),
    "EXP004": Code("warn", "in float32 the model decides otherwise than in float64", "see the count of rows"),
    "OPS001": Code("refuse", "the model cannot be brought to the pinned opset", "pin the lowest workable opset"),
    "SIM001": Code("info", "a simplification was tried and not kept", "nothing to do"),
    # quantization
    "QNT001": Code(
        "refuse",
        "nothing was quantized",
        "drop this variant, or choose a recipe that quantizes the operators that the model has",
    ),
    "QNT002": Code(
        "info",
        "quantizable nodes were left in float",
        "nothing, where it is meant (see `exclude:`)",
    ),
    "QNT003": Code("warn", "nodes stay fp32: a constant is out of fp16's range", "nothing to do; or rescale the model"),
    "QNT006": Code("refuse", "a model of this size is not quantized", "take fp32 alone, or a smaller model"),
    "QNT004": Code("warn", "few calibration samples", "give 100 samples or more that look like production"),
    "QNT007": Code(
        "refuse",
        "an activation is not finite on a calibration sample",
        "look for an overflow, a division by zero or a logarithm before that tensor; or leave the sample out",
    ),
    # gates
    "GATE001": Code("refuse", "error relative to the output's range above the limit", "see which output and stage"),
    "GATE002": Code("refuse", "cosine similarity below the limit", "see which output; keep sensitive nodes in float"),
    "GATE003": Code(
        "refuse",
        "SQNR below the limit",
        "keep sensitive nodes in float (`exclude:`), or another calibration method",
    ),
    "GATE004": Code("refuse", "argmax agreement below the limit", "keep sensitive nodes in float (`exclude:`)"),
    "GATE005": Code("refuse", "metric below `metric.min`", "a more precise recipe; or the source itself is too weak"),
    "GATE006": Code(
        "refuse",
        "metric drop above `metric.max_drop`",
        "more precise recipe, other calibration data or method",
    ),
    "GATE007": Code("refuse", "nothing was compared", "give the model at least one output and one parity case"),
    "GATE008": Code(
        "refuse",
        "an output's shape differs from the reference's",
        "control flow or a size was baked in while tracing",
    ),
    "GATE009": Code(
        "warn",
        "the sample is too small to judge the metric drop: its interval reaches beyond the limit",
        "give more evaluation samples",
    ),
    # measurement
    "BEN001": Code(
        "warn", "the measurement is unstable", "stop other load on the machine, then `convert --fresh` measures again"
    ),
    "BEN002": Code("info", "not faster than the baseline", "promote by another objective, or drop the variant"),
    # a tool broke
    "RUN001": Code("refuse", "a step's tool broke", "see the message and the step's log"),
}


class Finding(BaseModel):
    """One reason, with its evidence.

    `where` names the output, node, tensor or key; `measured` and `limit` are numbers in the unit of the check
    (null where the check has none, or where the number is not finite: then `message` says so).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    severity: Severity
    where: str
    message: str
    measured: float | None = None
    limit: float | None = None
    fix: str

    def __str__(self) -> str:
        return f"{self.code} {self.where}: {self.message}"


def finding(
    code: str,
    where: str,
    detail: str = "",
    *,
    measured: float | None = None,
    limit: float | None = None,
    fix: str = "",
) -> Finding:
    """A `Finding` of a known code; its title, severity and way out come from `CODES` unless `fix` is given."""
    row = CODES[code]
    number = measured if measured is not None and abs(measured) < float("inf") else None  # NaN, inf -> null
    message = row.title + (f": {detail}" if detail else "")
    if measured is not None and number is None:
        message += f" (measured {measured})"
    return Finding(
        code=code,
        severity=row.severity,
        where=where,
        message=message,
        measured=number,
        limit=limit,
        fix=fix or row.fix,
    )


def refused(findings: Iterable[Finding]) -> bool:
    return any(f.severity == "refuse" for f in findings)
