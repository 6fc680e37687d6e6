"""The verdict on a conversion: its exit code and the one sentence that a person reads first."""

import re
from collections.abc import Sequence

from onnxmill.tasks import units
from onnxmill.tasks.findings import Finding
from onnxmill.tasks.report import Decision, ExitCode, MetricRow, Status, VariantRow


def exit_code(variants: Sequence[VariantRow], require: Sequence[str]) -> ExitCode:
    """0: a variant passed, and every required one. 1: so it would be, had no tool broken. 3: refused anyway."""

    def enough(counted: set[Status]) -> bool:
        names = {v.name for v in variants if v.status in counted}
        return bool(names) and names.issuperset(require)

    if enough({"passed"}):
        return 0
    return 1 if enough({"passed", "failed"}) else 3


def sentence(variants: Sequence[VariantRow], decisions: Sequence[Decision], require: Sequence[str]) -> str:
    """The whole report in one line: what was promoted and what it gains, or what prevents it, in numbers.

    "int8-static promoted as version 3: 1.9× [1.8, 2.0] against fp32 on cpu, metric −0.1 pt"
    "refused: int8-static (SQNR 4.2 dB, must be at least 10 dB on output logits); nothing promoted"
    """
    outcome = _outcome(variants, decisions)
    if exit_code(variants, require) == 0:
        aside = [
            f"{status}: {', '.join(names)}"
            for status in ("refused", "failed", "skipped")
            if (names := [v.name for v in variants if v.status == status])
        ]
        return "; ".join([outcome, *aside])
    required = [v for v in variants if v.name in require and v.status != "passed"]
    blocking = required or [v for v in variants if v.status != "passed"]
    parts = [
        f"{status}: {', '.join(_reason(v, required=v in required) for v in rows)}"
        for status in ("refused", "failed", "skipped")
        if (rows := [v for v in blocking if v.status == status])
    ]
    missing = [name for name in require if name not in {v.name for v in variants}]
    if missing or not variants:
        parts.append(f"missing: {', '.join(missing) or 'any variant'}")
    passed = [v.name for v in variants if v.status == "passed"]
    if passed:
        parts.append(f"{', '.join(passed)} passed")
    return "; ".join([*parts, outcome if any(d.moved for d in decisions) else _kept(decisions)])


BRIEF_LENGTH = 120


def brief(reason: Finding) -> str:
    """A finding on one short line: "SQNR 4.2 dB, must be at least 10 dB on output logits"."""
    text = " ".join(reason.message.split())
    # "SQNR below the limit: 4.2 dB, must be at least 10 dB" says the same thing twice
    text = re.sub(r" (?:below|above) (?:the limit|`[\w.]+`): (?=.*must be )", " ", text)
    if len(text) > BRIEF_LENGTH:
        text = text[: BRIEF_LENGTH - 1].rstrip() + "…"
    return f"{text} on {reason.where}" if " must be " in text else f"{reason.where}: {text}"


def metric_change(metric: MetricRow) -> str:
    """variant - source: in percentage points where the metric is a share (0 to 1), else in its own unit."""
    change = metric.variant - metric.source
    return units.points(change) if is_share(metric) else units.signed(change)


def is_share(metric: MetricRow) -> bool:
    """Whether the metric reads as a share of 1. Only the values can tell: it is any function of the user's."""
    return 0 <= metric.source <= 1 and 0 <= metric.variant <= 1


def _outcome(variants: Sequence[VariantRow], decisions: Sequence[Decision]) -> str:
    """What was promoted where; or what serves on; or, when nothing was to be decided, what passed."""
    rows = {v.name: v for v in variants}
    moved = [
        f"{d.variant} promoted as version {d.version}{_gain(rows.get(d.variant or ''), d.target)}"
        for d in decisions
        if d.moved
    ]
    if moved or decisions:
        return "; ".join(moved) or _unmoved(decisions)
    passed = [v.name for v in variants if v.status == "passed"]
    faster = [
        (m.speedup, v, m.target)
        for v in variants
        if v.status == "passed"
        for m in v.results
        if m.speedup is not None and m.speedup > 1
    ]
    parts = [f"{', '.join(passed)} passed"]
    if faster:
        _, variant, target = max(faster, key=lambda row: row[0])
        parts.append(f"fastest is {variant.name}{_gain(variant, target)}")
    return "; ".join([*parts, "nothing promoted"])


def _unmoved(decisions: Sequence[Decision]) -> str:
    """What goes on serving where no alias moved."""
    serving = [
        f"{d.variant} {'is held' if d.cause == 'held' else 'still serves'} as version {d.version}"
        for d in decisions
        if d.version is not None
    ]
    return f"nothing promoted: {', '.join(serving)}" if serving else "nothing promoted"


def _kept(decisions: Sequence[Decision]) -> str:
    """Likewise where this run gave nothing that could be promoted."""
    serving = [f"version {d.version} ({d.variant}) still serves" for d in decisions if d.version is not None]
    return ", ".join(["nothing promoted", *serving])


def _gain(variant: VariantRow | None, target: str) -> str:
    """ ": 1.9× [1.8, 2.0] against fp32 on cpu, metric −0.1 pt", with the parts that were measured."""
    if variant is None:
        return ""
    parts = [
        f"{units.times(m.speedup, m.speedup_interval)} against {m.baseline} on {m.target}"
        for m in variant.results
        if m.target == target and m.speedup is not None and m.baseline
    ]
    if variant.metric:
        parts.append(f"metric {metric_change(variant.metric)}")
    return f": {', '.join(parts)}" if parts else ""


def _reason(variant: VariantRow, *, required: bool) -> str:
    """A variant that did not pass, with the first finding that prevents it and how many more there are."""
    reasons = [f for f in variant.findings if f.severity == "refuse"]
    name = f"{variant.name}, which is required" if required else variant.name
    if not reasons:
        return name
    more = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
    return f"{name} ({brief(reasons[0])}{more})"
