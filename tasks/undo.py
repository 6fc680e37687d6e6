"""Undo: the alias back to a version that served before, and what a person holds, rejects and releases.

Needs the registry alone: no framework, no spec, no store, no Prefect.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time

from onnxmill.tasks import audit, registry, registry_marks
from onnxmill.tasks.audit_chain import Action, Chain, Plan, Record
from onnxmill.tasks.errors import InputError, OnnxmillError
from onnxmill.tasks.registry import Move
from onnxmill.tasks.registry_marks import Version, versions
from onnxmill.tasks.track import Tracking

REASON_LENGTH = 1000


@dataclass(frozen=True)
class Way:
    """The way back of one model: from the version that serves to the one that will."""

    model: str
    now: Version
    back: Version


def way_back(tracking: Tracking, model: str, to: int | None = None) -> Way:
    """Where `rollback` goes: `to`, else the version that served before, else the newest older one that may serve.

    Verifies the model's audit record. `InputError` where there is no such version, or it may not serve.
    """
    known = {version.number: version for version in versions(tracking, model)}
    chain = audit.settle(tracking, model)
    live = registry.live(tracking, model)
    there = f"There are the versions {', '.join(map(str, known.values())) or 'none'}"
    if live.held:
        raise InputError("NAME", model, "is held: nothing moves", f"First `onnxmill release {model} --reason …`")
    if live.champion is None:
        raise InputError("NAME", model, f"has no version with the alias {registry.ALIAS}", there)
    now = known[live.champion.version]
    if to is None:
        for number in [*_served_before(chain, now.number), *sorted((n for n in known if n < now.number), reverse=True)]:
            if number in known and number != now.number and not _objection(known[number]):
                return Way(model, now, known[number])
        fix = f"{there}. Give one with --to, or let a rejected one back: `onnxmill release {model} --version N`"
        raise InputError("NAME", model, f"has no earlier version than {now} that may serve", fix)
    if to == now.number:
        raise InputError("--to", to, f"is what serves now as {registry.ALIAS}", there)
    if to not in known:
        raise InputError("--to", to, f"is no version of '{model}'", there)
    if objection := _objection(known[to]):
        raise InputError("--to", to, objection, there)
    return Way(model, now, known[to])


def rollback(tracking: Tracking, way: Way, reason: str) -> Move:
    """Try the version out, reject the digest that serves now, and give the alias to the version.

    In this order: a process that ends in between leaves nothing for the next conversion to promote again.
    """
    check_reason(reason)
    registry_marks.try_out(tracking, way.model, way.back)
    plan = _plan(way.model, "rollback", way.now.number, way.back.number, way.now, reason)

    def act() -> Move:
        registry_marks.mark_rejected(tracking, way.model, way.now, f"{audit.who()}: {reason}")
        return registry.set_champion(tracking, way.model, way.back.number, way.now.number)

    return audit.carry_out(tracking, plan, act)


def promoted_since(tracking: Tracking, since: datetime) -> list[Way | OnnxmillError]:
    """The way back of every model whose version that serves now was promoted at `since` or later, or why none."""
    ways: list[Way | OnnxmillError] = []
    for model in audit.models(tracking):
        try:
            moves = audit.settle(tracking, model).moves()
            last = next((move for move in reversed(moves) if _moved(move)), None)
            if last is None or last.action != "promote" or last.since < since:
                continue
            way = way_back(tracking, model)
            if way.now.number == last.after:  # else someone moved the alias by hand since
                ways.append(way)
        except OnnxmillError as error:  # the others can still go back
            ways.append(error)
    return ways


def hold(tracking: Tracking, model: str, reason: str) -> None:
    """Nothing moves the alias of `model` until it is released."""
    check_reason(reason)
    versions(tracking, model)  # a name that is none is told as such
    now = _serving(tracking, model)
    if registry.live(tracking, model).held:
        raise InputError("NAME", model, "is held already", f"`onnxmill history {model}` says by whom and why")

    def act() -> Move:
        registry_marks.mark_held(tracking, model, f"{audit.who()}: {reason}")
        return Move(True, now, now, "")

    audit.carry_out(tracking, _plan(model, "hold", now, now, None, reason), act)


def release(tracking: Tracking, model: str, number: int | None, reason: str) -> None:
    """Lift the hold of `model`, or with `number` the rejection of that version's digest."""
    check_reason(reason)
    known = {version.number: version for version in versions(tracking, model)}
    now = _serving(tracking, model)
    version = None
    if number is None:
        if not registry.live(tracking, model).held:
            fix = "To let a version back that was rolled back, give --version"
            raise InputError("NAME", model, "is not held", fix)
    else:
        rejected = ", ".join(str(v.number) for v in known.values() if v.rejected is not None) or "none"
        version = known.get(number)
        if version is None or version.rejected is None:
            raise InputError("--version", number, f"is no rejected version of '{model}'", f"Rejected: {rejected}")

    def act() -> Move:
        if version is None:
            registry_marks.mark_held(tracking, model, None)
        else:
            registry_marks.mark_rejected(tracking, model, version, None)
        return Move(True, now, now, "")

    audit.carry_out(tracking, _plan(model, "release", now, now, version, reason), act)


def served_at(chain: Chain, at: datetime) -> Record | None:
    """The move that gave the alias the version that served at `at`, as far as it is on record."""
    return next((move for move in reversed(chain.moves()) if _moved(move) and move.since <= at), None)


def instant(key: str, text: str, *, end_of_day: bool) -> datetime:
    """An ISO date or time of the option `key`, in UTC unless it says otherwise; a date alone is its begin or end."""
    try:
        if len(text) == len("2026-01-31"):
            day = date.fromisoformat(text)
            return datetime.combine(day, time.max if end_of_day else time.min, UTC)
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(key, text, "must be a date or time such as 2026-01-31 or 2026-01-31T18:00+01:00") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _served_before(chain: Chain, now: int) -> list[int]:
    """The versions that served before `now`, the latest first: each promotion on record says what it replaced."""
    replaced = {move.after: move.before for move in chain.moves() if move.action == "promote" and _moved(move)}
    found: list[int] = []
    number = replaced.get(now)
    while number is not None and number not in found:
        found.append(number)
        number = replaced.get(number)
    return found


def _moved(move: Record) -> bool:
    return move.stage == "outcome" and move.done and move.action in ("promote", "rollback")


def _objection(version: Version) -> str:
    """Why a version may not serve; "" if it may."""
    if version.rejected is not None:
        return f"was rejected ({version.rejected})"
    if version.status != "passed":
        return f"has not passed as loaded back from the registry ({registry.VALIDATION}: {version.status})"
    return ""


def _serving(tracking: Tracking, model: str) -> int | None:
    champion = registry.live(tracking, model).champion
    return champion.version if champion else None


def check_reason(reason: str) -> None:
    """`InputError` where a reason is none that a record can hold."""
    if not reason.strip() or len(reason) > REASON_LENGTH or not reason.isprintable():
        expected = f"must be one line of 1 to {REASON_LENGTH} characters"
        raise InputError("--reason", reason, expected, "It is what others read in `onnxmill history`")


def _plan(model: str, action: Action, before: int | None, after: int | None, version: Version | None, why: str) -> Plan:
    return Plan(
        model=model,
        action=action,
        before=before,
        after=after,
        version=version.number if version else None,
        digest=version.digest if version else None,
        source_digest=version.source_digest if version else None,
        why=why,
    )
