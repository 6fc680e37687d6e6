"""The decision: a pure function, so every rule is a few lines; and what must never happen, by property."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxmill.tasks.artifact import sha256_of
from onnxmill.tasks.decide import Champion, Live, Policy, Standing, decide, load_policy, tighten
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.report import Measurement, VariantRow
from onnxmill.tasks.spec import Promote
from tests.conversions import measurement, report, variant

POLICY = Policy(min_speedup=1.02, max_metric_regression=0.005, max_slowdown=0.10)
LATENCY, SIZE = Promote(), Promote(objective="size")
FP32 = variant("fp32", digest="a", size_bytes=400)
INT8 = variant("int8", digest="b", metric=0.988, result=measurement(0.5, 1.9, (1.8, 2.0)))


def champion(row: VariantRow, version: int = 3, **changes: object) -> Champion:
    found = decide(report("m", row), Live(), POLICY, LATENCY).standing
    assert found
    return Champion(version, found.model_copy(update=changes))


def test_the_first_one_is_the_fastest_of_those_that_passed() -> None:
    proposal = decide(report("m", FP32, INT8), Live(), POLICY, LATENCY)
    assert proposal.standing
    assert (proposal.cause, proposal.standing.variant) == ("first", "int8")
    assert "1.90× [1.80, 2.00]" in proposal.why


def test_size_takes_the_smallest_however_slow() -> None:
    slow = variant("int8", digest="b", size_bytes=99, result=measurement(2.0, 0.5, (0.4, 0.6)))
    proposal = decide(report("m", FP32, slow), Live(), POLICY, SIZE)
    assert proposal.standing
    assert proposal.standing.variant == "int8"


def test_a_variant_not_surely_faster_than_fp32_leaves_fp32() -> None:
    doubtful = variant("int8", digest="b", result=measurement(0.9, 1.1, (1.01, 1.2)))
    proposal = decide(report("m", doubtful, FP32), Live(), POLICY, LATENCY)
    assert proposal.standing
    assert proposal.standing.variant == "fp32"
    alone = decide(report("m", doubtful), Live(), POLICY, LATENCY)
    assert (alone.cause, alone.standing) == ("none", None)
    assert "1.01× at least against fp32, must be 1.02×" in alone.why


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"status": "refused"}, "refused on cpu"),
        ({"status": "unavailable"}, "unavailable on cpu"),
        ({"status": "unstable"}, "unstable on cpu"),
        ({"fidelity": "simulated"}, "only simulated on cpu"),
        ({"target": "other"}, "not measured on cpu"),
        ({"speedup_interval": None}, "no speed-up known on cpu"),
        ({"p50_ms": None}, "no latency known on cpu"),
    ],
)
def test_what_was_not_measured_steadily_is_no_candidate(change: dict[str, object], why: str) -> None:
    row = variant("int8", result=INT8.results[0].model_copy(update=change))
    assert decide(report("m", row), Live(), POLICY, LATENCY).why == f"int8: {why}"


def test_the_champion_itself_stays() -> None:
    proposal = decide(report("m", FP32, INT8), Live(champion(INT8)), POLICY, LATENCY)
    assert (proposal.cause, proposal.standing) == ("none", None)
    assert "int8 is already champion (version 3)" in proposal.why


def test_a_better_variant_of_the_same_source() -> None:
    assert decide(report("m", FP32, INT8), Live(champion(FP32)), POLICY, LATENCY).cause == "better_variant"
    # the quotient of the bounds counts: 1.95 / 2.0 is not faster for sure
    close = variant("int8-b", digest="c", result=measurement(0.48, 2.05, (1.95, 2.1)))
    proposal = decide(report("m", INT8, close), Live(champion(INT8)), POLICY, LATENCY)
    assert proposal.cause == "none"
    assert "0.97× at least against the champion (int8), must be 1.02×" in proposal.why
    smaller = variant("int8-b", digest="c", size_bytes=99, result=INT8.results[0])
    assert decide(report("m", smaller), Live(champion(INT8)), POLICY, SIZE).cause == "better_variant"


def test_this_runs_measurement_of_the_champion_counts_more_than_its_tags() -> None:
    stale = champion(INT8, speedup_low=0.9, speedup_high=0.95, machine_digest="elsewhere")
    better = variant("int8-b", digest="c", result=measurement(0.3, 3.0, (2.9, 3.1)))
    assert decide(report("m", INT8, better), Live(stale), POLICY, LATENCY).cause == "better_variant"
    alone = decide(report("m", better), Live(stale), POLICY, LATENCY)
    assert alone.cause == "none"
    assert "another machine" in alone.why


def new_source(metric: float | None, p50_ms: float, data: str = "d1", was: Champion | None = None) -> tuple[str, str]:
    row = variant("int8", digest="n", metric=metric, result=measurement(p50_ms, 1.9, (1.8, 2.0)))
    found = decide(report("m", row, source="s2", data=data), Live(was or champion(INT8)), POLICY, LATENCY)
    return found.cause, found.why


def test_new_weights_replace_the_champion_unless_worse() -> None:
    assert new_source(0.988, 0.5)[0] == "new_source"
    assert new_source(0.984, 0.54)[0] == "new_source"
    for arguments, reason in (
        ((0.968, 0.1), "metric 0.9680, 0.0200 below the champion's 0.9880, at most 0.005"),
        ((0.99, 0.6), "20% slower"),
        ((None, 0.5), "no metric"),
        ((0.99, 0.5, "d2"), "its metric or its data is another"),
    ):
        cause, why = new_source(*arguments)
        assert cause == "none"
        assert reason in why
    assert new_source(0.9, 0.5, was=champion(INT8, metric=None))[0] == "new_source"


def test_the_next_best_is_tried_where_the_best_may_not() -> None:
    worse = variant("int8", digest="n", metric=0.9, result=measurement(0.3, 3.0, (2.9, 3.1)))
    good = variant("fp32", digest="o", metric=0.99, result=measurement(0.5))
    proposal = decide(report("m", worse, good, source="s2"), Live(champion(INT8)), POLICY, LATENCY)
    assert proposal.standing
    assert (proposal.cause, proposal.standing.variant) == ("new_source", "fp32")


def test_held_rejected_and_foreign_champions_stay() -> None:
    held = decide(report("m", FP32, INT8), Live(champion(FP32), held=True), POLICY, LATENCY)
    assert (held.cause, held.standing) == ("held", None)
    assert "int8" in held.why
    rejected = decide(report("m", FP32, INT8), Live(None, rejected=frozenset("b")), POLICY, LATENCY)
    assert rejected.standing
    assert rejected.standing.variant == "fp32"
    foreign = decide(report("m", FP32), Live(Champion(7, None)), POLICY, LATENCY)
    assert (foreign.cause, foreign.standing) == ("none", None)
    assert "version 7" in foreign.why


results = st.builds(
    lambda p50, low, width, status: Measurement(
        **measurement(p50, low + width / 2, (low, low + width)).model_dump(exclude={"status"}), status=status
    ),
    st.floats(0.01, 100),
    st.floats(0.1, 5),
    st.floats(0, 1),
    st.sampled_from(["measured", "measured", "refused", "unavailable", "unstable"]),
)
rows = st.builds(
    lambda name, status, digest, size, metric, result: variant(
        name, status=status, digest=digest, size_bytes=size, metric=metric, result=result
    ),
    st.sampled_from(["fp16", "int8-dynamic", "int8-static"]),
    st.sampled_from(["passed", "passed", "refused", "failed", "skipped"]),
    st.sampled_from("abcde"),
    st.integers(1, 1000),
    st.none() | st.floats(0, 1),
    results,
)
champions = st.none() | st.builds(
    Champion,
    st.integers(1, 9),
    st.none()
    | st.builds(
        Standing,
        artifact_digest=st.sampled_from("abcde"),
        source_digest=st.sampled_from(["s1", "s2"]),
        metric_digest=st.sampled_from(["d1", "d2"]),
        machine_digest=st.sampled_from([sha256_of({"cpu": "test", "cores": 2}), "other"]),
        target=st.just("cpu"),
        variant=st.just("was"),
        size_bytes=st.integers(1, 1000),
        metric=st.none() | st.floats(0, 1),
        p50_ms=st.floats(0.01, 100),
        speedup=st.floats(0.1, 5),
        speedup_low=st.floats(0.1, 5),
        speedup_high=st.floats(0.1, 5),
    ),
)


@given(
    st.lists(rows, max_size=4),
    champions,
    st.booleans(),
    st.frozensets(st.sampled_from("abcde")),
    st.sampled_from([LATENCY, SIZE]),
)
def test_what_never_happens(
    rows: list[VariantRow], champion: Champion | None, held: bool, rejected: frozenset[str], promote: Promote
) -> None:
    proposal = decide(report("m", *rows), Live(champion, held, rejected), POLICY, promote)
    chosen = proposal.standing
    assert proposal.why
    assert (chosen is None) == (proposal.cause in ("none", "held"))
    if chosen is None:
        return
    assert not held
    assert chosen.artifact_digest not in rejected
    assert champion is None or (champion.standing and chosen.artifact_digest != champion.standing.artifact_digest)
    row = next(
        r
        for r in rows
        if r.artifact
        and (r.artifact.digest, r.name, r.results[0].p50_ms) == (chosen.artifact_digest, chosen.variant, chosen.p50_ms)
    )
    assert row.status == "passed"
    assert row.results[0].status == "measured"
    if promote.objective == "latency":
        assert chosen.speedup_low >= POLICY.min_speedup


def test_the_shipped_policy() -> None:
    assert load_policy() == POLICY


def test_another_policy_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "policy.yaml"
    monkeypatch.setenv("ONNXMILL_POLICY", str(path))
    for text, message in (
        ("min_speedup: 1.1\nmax_metric_regression: 0\nmax_slowdown: 0\nmin_speedpu: 1", "did you mean 'min_speedup'"),
        ("min_speedup: 1.1", "max_metric_regression: is required"),
        ("min_speedup: 0.9\nmax_metric_regression: 0\nmax_slowdown: 0", "min_speedup: 0.9: input should be greater"),
        ("[", "no readable YAML"),
        ("", "must be a mapping"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            load_policy()
    path.write_text("min_speedup: 1.1\nmax_metric_regression: 0\nmax_slowdown: 0")
    assert load_policy().min_speedup == 1.1
    path.unlink()
    with pytest.raises(InputError, match=r"policy\.yaml"):
        load_policy()


def test_a_spec_may_only_tighten() -> None:
    assert tighten(POLICY, Promote(min_speedup=1.5)).min_speedup == 1.5
    assert tighten(POLICY, Promote()) == POLICY
    with pytest.raises(InputError, match=r"promote\.min_speedup: 1\.01: may only tighten the policy's 1\.02"):
        tighten(POLICY, Promote(min_speedup=1.01))
