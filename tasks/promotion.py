"""Promotion: decide on the live registry, register the winner, prove it as loaded back, then move the alias."""

from collections.abc import Mapping
from pathlib import Path

from onnxmill.tasks import audit, decide, parity, registry
from onnxmill.tasks.audit_chain import Plan
from onnxmill.tasks.decide import Champion, Proposal
from onnxmill.tasks.findings import refused
from onnxmill.tasks.registry import ALIAS
from onnxmill.tasks.report import Decision, Report
from onnxmill.tasks.spec import Gate, Promote
from onnxmill.tasks.track import Logged, Tracking


def registered_name(report_name: str, promote: Promote) -> str:
    return promote.register_as or f"{report_name}-onnx"


def promote(
    tracking: Tracking,
    report: Report,
    settings: Promote,
    logged: Logged,
    *,
    reference: Path,
    gates: Mapping[str, Gate],
) -> Decision:
    """Decide on `report`, and move the alias where the decision says so; `gates` are the variants' limits by name.

    Nothing is decided on a conversion that did not pass. Raises `ServiceError` where the registry does not answer,
    `OnnxmillError` where the model's audit record was edited.
    """
    model, target = registered_name(report.name, settings), settings.target
    live = registry.live(tracking, model)
    if report.exit_code != 0:
        return _stays(target, live.champion, Proposal("none", None, "the conversion did not pass"))
    audit.settle(tracking, model)
    proposal = decide.decide(report, live, decide.load_policy(), settings)
    standing = proposal.standing
    if standing is None:
        return _stays(target, live.champion, proposal)
    name = standing.variant
    version = registry.register(tracking, model, standing, logged.run_ids[name], logged.model_ids[name])
    recipe = next(row.recipe for row in report.variants if row.name == name)
    findings = registry.prove(
        tracking,
        model,
        version,
        digest=standing.artifact_digest,
        reference=reference,
        gate=gates[name],
        real_only=parity.judged_on_real_samples(recipe),
    )
    if refused(findings):
        why = f"version {version} ({name}) did not pass as loaded back: {'; '.join(map(str, findings))}"
        return _stays(target, live.champion, Proposal("none", None, why))
    before = live.champion.version if live.champion else None
    plan = Plan(
        model=model,
        action="promote",
        before=before,
        after=version,
        version=version,
        digest=standing.artifact_digest,
        source_digest=standing.source_digest,
        why=f"{proposal.cause}: {proposal.why}",
    )
    move = audit.carry_out(tracking, plan, lambda: registry.set_champion(tracking, model, version, before))
    if not move.moved:
        return _stays(target, registry.live(tracking, model).champion, Proposal("none", None, move.why))
    return Decision(target=target, cause=proposal.cause, variant=name, version=version, alias=ALIAS, why=proposal.why)


def _stays(target: str, champion: Champion | None, proposal: Proposal) -> Decision:
    """The decision that moves nothing: it names what serves on."""
    standing = champion.standing if champion else None
    return Decision(
        target=target,
        cause=proposal.cause,
        variant=standing.variant if standing else None,
        version=champion.version if champion else None,
        alias=ALIAS if champion else None,
        why=proposal.why,
    )
