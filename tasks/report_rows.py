"""A report's table, cell by cell, and the next step: one wording for the terminal, the page and Prefect's UI."""

import shlex
from dataclasses import dataclass

from onnxmill.tasks import units
from onnxmill.tasks.findings import Finding
from onnxmill.tasks.report import Measurement, MetricRow, Report, VariantRow
from onnxmill.tasks.verdict import is_share, metric_change


@dataclass(frozen=True)
class Row:
    """One variant on one target, as text. `–` where there is no such number."""

    variant: str
    status: str
    target: str
    measured: str
    p50_ms: str
    p95_ms: str
    p99_ms: str
    speedup: str
    size: str
    size_ratio: str
    metric: str
    metric_change: str
    metric_interval: str
    quantized: str


def rows(report: Report) -> tuple[Row, ...]:
    """One row a variant and target, in the spec's order; one for a variant that was measured nowhere."""
    fp32_bytes = next((v.artifact.size_bytes for v in report.variants if v.recipe == "fp32" and v.artifact), None)
    return tuple(
        _row(variant, result, fp32_bytes) for variant in report.variants for result in variant.results or (None,)
    )


def _row(variant: VariantRow, result: Measurement | None, fp32_bytes: int | None) -> Row:
    artifact, metric = variant.artifact, variant.metric
    return Row(
        variant=variant.name,
        status=variant.status,
        target=result.target if result else units.NOTHING,
        measured=result.status if result else units.NOTHING,
        p50_ms=units.milliseconds(result.p50_ms if result else None),
        p95_ms=units.milliseconds(result.p95_ms if result else None),
        p99_ms=units.milliseconds(result.p99_ms if result else None),
        speedup=_speedup(result),
        size=units.size(artifact.size_bytes) if artifact else units.NOTHING,
        size_ratio=f"{artifact.size_bytes / fp32_bytes:.2f}" if artifact and fp32_bytes else units.NOTHING,
        metric=_metric(metric) if metric else units.NOTHING,
        metric_change=metric_change(metric) if metric else units.NOTHING,
        metric_interval=_change_interval(metric) if metric else "",
        quantized=f"{variant.quantized_nodes} of {variant.quantizable_nodes}"
        if variant.quantizable_nodes
        else units.NOTHING,
    )


def _speedup(result: Measurement | None) -> str:
    if result is None or result.p50_ms is None:
        return units.NOTHING
    if result.baseline is None:
        return "baseline"
    return units.NOTHING if result.speedup is None else units.times(result.speedup, result.speedup_interval)


def _metric(metric: MetricRow) -> str:
    return f"{100 * metric.variant:.2f} %" if is_share(metric) else units.number(metric.variant)


def _change_interval(metric: MetricRow) -> str:
    """The interval of variant - source: that of the drop, mirrored, in the unit of `metric_change`."""
    low, high = (-bound * (100 if is_share(metric) else 1) for bound in reversed(metric.drop_interval))
    return f"[{units.signed(low)}, {units.signed(high)}]"


@dataclass(frozen=True)
class Flagged:
    """A variant with its findings as (finding, target), the gravest first; target "" where any would show it."""

    variant: VariantRow
    findings: tuple[tuple[Finding, str], ...]


def flagged(report: Report) -> tuple[Flagged, ...]:
    """The variants that a person should look at: those that did not pass first, then those with a finding."""
    groups = []
    for variant in report.variants:
        found = [(f, "") for f in variant.findings]
        found += [(f, result.target) for result in variant.results for f in result.findings]
        found.sort(key=lambda pair: ("refuse", "warn", "info").index(pair[0].severity))
        if found or variant.status != "passed":
            groups.append(Flagged(variant, tuple(found)))
    return tuple(sorted(groups, key=lambda group: group.variant.status == "passed"))


def graph_notes(report: Report) -> tuple[str, ...]:
    """What the graph before the recipes was proven against and how it came about, a step each."""
    chosen = ("reference", "export", "opset", "simplify")
    notes = {row.step: row.note for row in report.steps if row.note}
    return tuple(notes[step] for step in chosen if step in notes)


def markdown_table(report: Report) -> list[dict[str, str]]:
    """The table as Prefect's table artifact takes it: a list of rows, heading -> cell."""
    return [
        {
            "Variant": row.variant,
            "Status": row.status,
            "Target": row.target,
            "p50 ms": row.p50_ms,
            "p99 ms": row.p99_ms,
            "Speed-up": row.speedup,
            "Size": row.size,
            "Size / fp32": row.size_ratio,
            "Metric": row.metric,
            "Change": f"{row.metric_change} {row.metric_interval}".strip(),
            "Quantized": row.quantized,
        }
        for row in rows(report)
    ]


def serving(report: Report) -> tuple[tuple[str, str], ...]:
    """(what serves, why) for each decision: ("cpu: models:/m@champion is version 3, int8-static", "…")."""
    return tuple(
        (
            f"{d.target}: nothing is promoted"
            if d.version is None
            else f"{d.target}: {_address(report, d.alias)} is version {d.version}, {d.variant}",
            d.why,
        )
        for d in report.decisions
    )


def _address(report: Report, alias: str | None) -> str:
    return f"models:/{report.registered_model or report.name}@{alias}" if alias else "the registered model"


@dataclass(frozen=True)
class NextStep:
    """What to do now: a line of advice and what to type."""

    advice: str
    command: str


def next_step(report: Report) -> NextStep:
    """What a person does after reading this report."""
    convert = f"onnxmill convert {shlex.quote(report.spec)}"
    if report.exit_code == 1:
        return NextStep("mend what broke, then repeat the command: finished steps are not run again", convert)
    if report.exit_code == 3:
        return NextStep(
            "do what the first finding says, then convert again: what is unchanged is not run again", convert
        )
    alias = next((d.alias for d in report.decisions if d.version is not None and d.alias), None)
    if alias:
        return NextStep("load what serves, from Python", f'mlflow.onnx.load_model("{_address(report, alias)}")')
    if report.decisions:
        return NextStep("mend what the decision names, then convert again", convert)
    return NextStep("to promote the best variant, add `promote: {objective: latency}` to the spec", convert)
