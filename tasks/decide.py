"""The decision: which variant, if any, takes the alias: a pure function of report, live registry, policy."""

import os
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from onnxmill.tasks.artifact import sha256_of
from onnxmill.tasks.errors import InputError, close_match
from onnxmill.tasks.report import Cause, Report, VariantRow
from onnxmill.tasks.spec import Promote

# importlib.resources can't read a folder without code in an editable installation;
# installed or not, it stands beside this one
POLICY_FILE = Path(__file__).parents[1] / "mlflow" / "promotion.yaml"


class Policy(BaseModel):
    """What a candidate must show: mlflow/promotion.yaml explains each key and holds the numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    min_speedup: float = Field(ge=1)
    max_metric_regression: float = Field(ge=0)
    max_slowdown: float = Field(ge=0)


class Standing(BaseModel):
    """What is known of a proven, measured variant: of a candidate from the report, of a champion from tags.

    `metric`: null without one. `speedup` against fp32 with its 95 % interval, all 1 for fp32 itself.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    artifact_digest: str
    source_digest: str
    metric_digest: str | None = None
    machine_digest: str
    target: str
    variant: str
    size_bytes: int
    metric: float | None = None
    p50_ms: float
    speedup: float
    speedup_low: float
    speedup_high: float

    def __str__(self) -> str:
        metric = f", metric {self.metric:.4f}" if self.metric is not None else ""
        return (
            f"{self.variant} ({self.speedup:.2f}× [{self.speedup_low:.2f}, {self.speedup_high:.2f}] "
            f"against fp32, p50 {self.p50_ms:.3g} ms, {self.size_bytes:,} bytes{metric})"
        )


@dataclass(frozen=True)
class Champion:
    """The version that the alias names now. `standing` is null where onnxmill did not register it."""

    version: int
    standing: Standing | None


@dataclass(frozen=True)
class Live:
    """What the registry says now: who serves, whether a person holds it, which digests were rolled back."""

    champion: Champion | None = None
    held: bool = False
    rejected: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Proposal:
    """What should take the alias (`standing`, null for nothing) and why, in numbers for a person."""

    cause: Cause
    standing: Standing | None
    why: str


def load_policy() -> Policy:
    """The policy that ships, or that of the file ONNXMILL_POLICY. Raises `InputError` that names the key."""
    origin = os.environ.get("ONNXMILL_POLICY") or str(POLICY_FILE)
    try:
        value = yaml.safe_load(Path(origin).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(
            "ONNXMILL_POLICY", origin, f"is no readable YAML file: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(value, dict):
        raise InputError(origin, None, f"must be a mapping of these keys: {', '.join(Policy.model_fields)}")
    try:
        return Policy.model_validate(value)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(str(part) for part in fault["loc"])
        match fault["type"]:
            case "extra_forbidden":
                raise InputError(
                    f"{origin}: {key}", None, f"unknown key; {close_match(key, Policy.model_fields)}"
                ) from error
            case "missing":
                raise InputError(f"{origin}: {key}", None, "is required") from error
            case _:
                expected = fault["msg"][0].lower() + fault["msg"][1:]
                raise InputError(f"{origin}: {key}", fault["input"], expected) from error


def tighten(policy: Policy, promote: Promote) -> Policy:
    """The policy with what the spec's `promote:` states in its place. A looser value is an `InputError`."""
    if promote.min_speedup is None:
        return policy
    if promote.min_speedup < policy.min_speedup:
        expected = f"may only tighten the policy's {policy.min_speedup:g}"
        raise InputError("promote.min_speedup", promote.min_speedup, expected, "give that or more")
    return policy.model_copy(update={"min_speedup": promote.min_speedup})


def decide(report: Report, live: Live, policy: Policy, promote: Promote) -> Proposal:
    """The best proven variant of `report` against the champion, by the spec's objective on its target.

    A candidate passed, was measured steadily, was not rolled back, and, under `latency`, is fp32 or faster than
    it by `min_speedup`. Of the champion's source it must beat the champion; of a new source it must not be worse
    than the policy allows.
    """
    policy = tighten(policy, promote)
    measured: list[Standing] = []
    against: list[str] = []  # why each of the others is none
    for row in report.variants:
        standing = _standing(row, report, promote.target)
        if isinstance(standing, str):
            against.append(f"{row.name}: {standing}")
        else:
            measured.append(standing)
    candidates = []
    for standing in measured:
        if standing.artifact_digest in live.rejected:
            against.append(f"{standing.variant}: was rolled back; `onnxmill release` lets it back")
        elif promote.objective == "latency" and not _worth_it(standing, policy):
            against.append(
                f"{standing.variant}: {standing.speedup_low:.2f}× at least against fp32, "
                f"must be {policy.min_speedup:g}×"
            )
        else:
            candidates.append(standing)
    if promote.objective == "latency":
        candidates.sort(key=lambda s: (-s.speedup, s.size_bytes, s.variant))
    else:
        candidates.sort(key=lambda s: (s.size_bytes, -s.speedup, s.variant))
    proposal = _choose(candidates, against, _freshest(live.champion, measured), policy, promote)
    if live.held and proposal.standing:
        return Proposal("held", None, f"a person holds this model: nothing moves. Without that: {proposal.why}")
    return proposal


def _standing(row: VariantRow, report: Report, target: str) -> Standing | str:
    """The variant's numbers on `target`, or why it is no candidate."""
    if row.status != "passed":
        return row.status
    result = next((r for r in row.results if r.target == target), None)
    if row.artifact is None or result is None:
        return f"not measured on {target}"
    if result.status != "measured":
        return f"{result.status} on {target}"
    if result.fidelity != "native":
        return f"only simulated on {target}"
    if result.baseline is None:
        speedup, interval = 1.0, (1.0, 1.0)
    elif result.speedup is None or result.speedup_interval is None:
        return f"no speed-up known on {target}"
    else:
        speedup, interval = result.speedup, result.speedup_interval
    if result.p50_ms is None:
        return f"no latency known on {target}"
    return Standing(
        artifact_digest=row.artifact.digest,
        source_digest=report.digests.source,
        metric_digest=report.digests.metric,
        machine_digest=sha256_of(report.machine),
        target=target,
        variant=row.name,
        size_bytes=row.artifact.size_bytes,
        metric=row.metric.variant if row.metric else None,
        p50_ms=result.p50_ms,
        speedup=speedup,
        speedup_low=interval[0],
        speedup_high=interval[1],
    )


def _worth_it(standing: Standing, policy: Policy) -> bool:
    """Whether it is fp32 itself, or faster than it by enough."""
    is_baseline = standing.speedup_low == standing.speedup_high == 1.0
    return is_baseline or standing.speedup_low >= policy.min_speedup


def _freshest(champion: Champion | None, measured: list[Standing]) -> Champion | None:
    """The champion with this run's measurement where the run measured it too: side by side beats any tag."""
    if champion is None or champion.standing is None:
        return champion
    digest = champion.standing.artifact_digest
    again = next((s for s in measured if s.artifact_digest == digest), champion.standing)
    return Champion(champion.version, again)


def _choose(
    candidates: list[Standing],
    against: list[str],
    champion: Champion | None,
    policy: Policy,
    promote: Promote,
) -> Proposal:
    """The first candidate, in order, that may take the alias."""
    others = list(against)
    for candidate in candidates:
        if champion is None:
            return Proposal(
                "first", candidate, f"{candidate} is the best by {promote.objective}; nothing served before"
            )
        if champion.standing is None:
            others.append(
                f"version {champion.version} serves and was not registered by onnxmill: set the alias by hand"
            )
            break
        if candidate.artifact_digest == champion.standing.artifact_digest:
            others.insert(0, f"{candidate.variant} is already champion (version {champion.version})")
            break  # the rest is worse by the objective
        if candidate.source_digest == champion.standing.source_digest:
            cause: Cause = "better_variant"
            objection = _no_better(candidate, champion.standing, policy, promote)
        else:
            cause = "new_source"
            objection = _worse(candidate, champion.standing, policy)
        if not objection:
            was = f"version {champion.version}, {champion.standing}"
            return Proposal(cause, candidate, f"{candidate} replaces {was}")
        others.append(f"{candidate.variant}: {objection}")
    return Proposal("none", None, "; ".join(others) or "no variant passed")


def _no_better(candidate: Standing, champion: Standing, policy: Policy, promote: Promote) -> str:
    """Why a variant of the champion's own source does not replace it; "" if it does."""
    if promote.objective == "size":
        smaller = candidate.size_bytes < champion.size_bytes
        return "" if smaller else f"{candidate.size_bytes:,} bytes, the champion has {champion.size_bytes:,}"
    if elsewhere := _elsewhere(candidate, champion):
        return elsewhere
    # both are ratios to fp32; the quotient of the outer bounds holds however they are correlated
    gain = candidate.speedup_low / champion.speedup_high
    if gain >= policy.min_speedup:
        return ""
    return f"{gain:.2f}× at least against the champion ({champion.variant}), must be {policy.min_speedup:g}×"


def _worse(candidate: Standing, champion: Standing, policy: Policy) -> str:
    """Why a variant of a new source does not replace the champion; "" if it does."""
    if champion.metric is not None:
        if candidate.metric is None:
            return f"no metric, and the champion has {champion.metric:.4f}: give the spec a `metric:`"
        if candidate.metric_digest != champion.metric_digest:
            return "its metric or its data is another than the champion's: convert its source with these too"
        drop = champion.metric - candidate.metric
        if not drop <= policy.max_metric_regression:
            limit = policy.max_metric_regression
            worse = f"{candidate.metric:.4f}, {drop:.4f} below the champion's {champion.metric:.4f}"
            return f"metric {worse}, at most {limit:g}"
    if elsewhere := _elsewhere(candidate, champion):
        return elsewhere
    slowdown = candidate.p50_ms / champion.p50_ms - 1
    if not slowdown <= policy.max_slowdown:
        return (
            f"p50 {candidate.p50_ms:.3g} ms is {slowdown:.0%} slower than the champion's "
            f"{champion.p50_ms:.3g} ms, at most {policy.max_slowdown:.0%}"
        )
    return ""


def _elsewhere(candidate: Standing, champion: Standing) -> str:
    if (candidate.machine_digest, candidate.target) == (champion.machine_digest, champion.target):
        return ""
    return "the champion was measured on another machine or target: convert its source here first"
