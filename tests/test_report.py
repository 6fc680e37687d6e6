"""The report: its schema, its verdict in one sentence and an exit code, its table and its terminal view.

tests/reports/*.json are reports of schema version 1 as a reader may have kept them: they must stay readable.
"""

import io
import json
import math
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from rich.console import Console

from onnxmill.tasks import units
from onnxmill.tasks.findings import finding
from onnxmill.tasks.report import (
    SCHEMA_FILE,
    ArtifactRow,
    Decision,
    MetricRow,
    Report,
    Status,
    VariantRow,
    schema,
    schema_text,
)
from onnxmill.tasks.report_rows import flagged, markdown_table, next_step, rows, serving
from onnxmill.tasks.report_text import render
from onnxmill.tasks.verdict import brief, exit_code, sentence

REPORTS = Path(__file__).with_name("reports")
NAMES = ("promoted", "refused", "failed")
STATUSES: tuple[Status, ...] = ("passed", "refused", "failed", "skipped")


def kept(name: str) -> Report:
    return Report.model_validate_json((REPORTS / f"{name}.json").read_text(encoding="utf-8"))


def decision(**changes: object) -> Decision:
    first = {"target": "cpu", "cause": "first", "variant": "int8-static", "version": 3, "alias": "champion", "why": "w"}
    return Decision.model_validate(first | changes)


def shown(report: Report, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(render(report))
    return console.export_text()


# --- the schema


def test_shipped_schema_is_the_models() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(), "run `python -m onnxmill.tasks.report`"


@pytest.mark.parametrize("name", NAMES)
def test_kept_reports_are_valid_and_come_back_unchanged(name: str) -> None:
    text = (REPORTS / f"{name}.json").read_text(encoding="utf-8")
    report = kept(name)
    jsonschema.validate(json.loads(text), schema())
    assert json.loads(report.model_dump_json()) == json.loads(text)
    assert report.sentence == sentence(report.variants, report.decisions, ["int8-static"] if name != "refused" else [])


@pytest.mark.parametrize("change", [{"exit_code": 2}, {"extra": 1}, {"schema_version": 2}, {"steps": None}])
def test_schema_rejects_what_is_no_report(change: dict[str, object]) -> None:
    value = json.loads((REPORTS / "promoted.json").read_text(encoding="utf-8")) | change
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(value, schema())


def test_numbers_that_are_not_finite_are_rejected() -> None:
    with pytest.raises(ValidationError, match="finite"):
        MetricRow(source=math.nan, variant=1.0, drop_interval=(0.0, 0.0), samples=1)


def test_absolute_paths_are_rejected() -> None:
    with pytest.raises(ValidationError, match="path"):
        ArtifactRow(path="/tmp/model.onnx", digest="d", size_bytes=1, opset=18, ir_version=8)


# --- the exit code

statuses = st.lists(st.sampled_from(STATUSES), max_size=5)


@given(statuses=statuses, required=st.sets(st.integers(0, 6)))
def test_exit_code_invariants(statuses: list[Status], required: set[int]) -> None:
    variants = [VariantRow(name=f"v{i}", recipe="fp32", status=s) for i, s in enumerate(statuses)]
    require = [f"v{i}" for i in sorted(required)]
    code = exit_code(variants, require)
    of = dict(zip((v.name for v in variants), statuses, strict=True))
    assert (code == 0) == ("passed" in statuses and all(of.get(name) == "passed" for name in require))
    assert code != 1 or "failed" in statuses
    if any(of.get(name) in ("refused", None) for name in require):
        assert code == 3  # mending the tool that broke would not help
    mended = [v.model_copy(update={"status": "passed"}) if v.status == "failed" else v for v in variants]
    assert (code == 1) == (code != 0 and exit_code(mended, require) == 0)
    line = sentence(variants, (), require)
    assert "\n" not in line
    assert line.endswith("nothing promoted") or code == 0
    assert all(name in line for name in require if of.get(name) != "passed")


# --- the sentence


def test_sentence_of_a_promotion() -> None:
    report = kept("promoted")
    won = [v for v in report.variants if v.status == "passed"]
    expected = "int8-static promoted as version 3: 1.9× [1.8, 2.0] against fp32 on cpu, metric −0.1 pt"
    assert sentence(won, report.decisions, []) == expected
    assert sentence(report.variants, report.decisions, []) == expected + "; refused: int8-entropy"


def test_sentence_of_a_refusal() -> None:
    bad = finding("GATE003", "output logits", "4.2 dB, must be at least 10 dB", measured=4.2, limit=10.0)
    refused = VariantRow(name="int8-static", recipe="int8-static", status="refused", findings=(bad,))
    reason = "(SQNR 4.2 dB, must be at least 10 dB on output logits)"
    assert sentence([refused], (), []) == f"refused: int8-static {reason}; nothing promoted"
    fp32 = VariantRow(name="fp32", recipe="fp32", status="passed")
    assert sentence([fp32, refused], [decision(cause="none", variant="fp32", version=2)], ["int8-static"]) == (
        f"refused: int8-static, which is required {reason}; fp32 passed; "
        "nothing promoted, version 2 (fp32) still serves"
    )


@pytest.mark.parametrize(
    ("decisions", "expected"),
    [
        ([], "fp32 passed; nothing promoted"),
        ([decision(cause="none")], "nothing promoted: int8-static still serves as version 3"),
        ([decision(cause="held")], "nothing promoted: int8-static is held as version 3"),
        ([decision(cause="none", variant=None, version=None, alias=None)], "nothing promoted"),
        ([decision(variant="fp32", version=1)], "fp32 promoted as version 1"),
    ],
)
def test_sentence_of_a_pass(decisions: list[Decision], expected: str) -> None:
    assert sentence([VariantRow(name="fp32", recipe="fp32", status="passed")], decisions, []) == expected


def test_sentence_without_promotion_names_the_fastest() -> None:
    line = sentence(kept("promoted").variants[:4], (), [])
    assert line.startswith("fp32, fp16, int8-dynamic, int8-static passed; fastest is int8-static: 1.9× [1.8, 2.0]")


def test_metric_that_is_no_share_is_not_in_points() -> None:
    metric = MetricRow(source=31.25, variant=30.0, drop_interval=(1.0, 1.5), samples=10)
    variant = VariantRow(name="fp32", recipe="fp32", status="passed", metric=metric)
    assert sentence([variant], [decision(variant="fp32")], []).endswith("version 3: metric −1.25")


def test_brief_is_one_short_line() -> None:
    line = brief(finding("EXP001", "step export", "at\n  line 3\n" + "x" * 500))
    assert line.startswith("step export: the exporter cannot export the model: at line 3 xxx")
    assert line.endswith("…")
    assert len(line) < 150
    assert "\n" not in line


# --- numbers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.points(-0.001), "−0.1 pt"),
        (units.points(0.0125), "+1.25 pt"),
        (units.points(-0.00001), "±0 pt"),
        (units.times(1.9, (1.84, 1.96)), "1.9× [1.8, 2.0]"),
        (units.times(1.02), "1.02×"),
        (units.milliseconds(0.04123), "0.0412"),
        (units.milliseconds(12400.0), "12,400"),
        (units.milliseconds(None), "–"),
        (units.size(999), "999 B"),
        (units.size(999_600), "1.00 MB"),
        (units.size(102_431_002), "102 MB"),
        (units.size(3_210_000_000), "3.21 GB"),
        (units.seconds(125.0), "2 min 5 s"),
        (units.number(-4.2), "−4.2"),
    ],
)
def test_numbers_read_well(text: str, expected: str) -> None:
    assert text == expected


@given(st.integers(0, 10**13))
def test_size_is_within_half_a_percent(value: int) -> None:
    figure, unit = units.size(value).split()
    assert math.isclose(
        float(figure.replace(",", "")) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit], value, rel_tol=0.0051
    )


# --- the table, what serves, the next step


def test_rows_of_a_promotion() -> None:
    table = {row.variant: row for row in rows(kept("promoted"))}
    static = table["int8-static"]
    assert (static.speedup, static.size_ratio, static.quantized) == ("1.9× [1.8, 2.0]", "0.26", "4 of 4")
    assert (static.metric, static.metric_change, static.metric_interval) == ("99.08 %", "−0.1 pt", "[−0.25, +0.07]")
    assert table["fp32"].speedup == "baseline"
    assert table["int8-entropy"].p50_ms == "–"


def test_one_row_a_variant_and_target() -> None:
    report = kept("promoted")
    first = report.variants[0]
    other = first.results[0].model_copy(update={"target": "laptop", "status": "unavailable", "p50_ms": None})
    more = report.model_copy(update={"variants": (first.model_copy(update={"results": (*first.results, other)}),)})
    assert [(row.target, row.measured, row.p50_ms) for row in rows(more)] == [
        ("cpu", "measured", "0.412"),
        ("laptop", "unavailable", "–"),
    ]
    assert "laptop" in shown(more)
    assert "unavailable" in shown(more)


def test_prefect_table_holds_plain_text() -> None:
    table = markdown_table(kept("promoted"))
    assert len(table) == 5
    assert len({tuple(row) for row in table}) == 1
    assert all(cell.strip() for row in table for cell in row.values())


def test_what_serves_and_what_is_next() -> None:
    report = kept("promoted")
    assert serving(report)[0][0] == "cpu: models:/mnist-cnn-onnx@champion is version 3, int8-static"
    assert next_step(report).command == 'mlflow.onnx.load_model("models:/mnist-cnn-onnx@champion")'
    assert "`promote:" in next_step(report.model_copy(update={"decisions": ()})).advice
    assert next_step(kept("failed").model_copy(update={"spec": "my models/a.yaml"})).command == (
        "onnxmill convert 'my models/a.yaml'"
    )


def test_refused_variants_come_first_and_grave_findings_before_others() -> None:
    groups = flagged(kept("promoted"))
    assert [group.variant.name for group in groups] == ["int8-entropy", "fp16", "int8-dynamic", "int8-static"]
    assert [f.code for f, _ in groups[0].findings] == ["GATE003", "GATE006", "QNT004"]


# --- the terminal


@pytest.mark.parametrize("name", NAMES)
def test_terminal_shows_verdict_table_reasons_and_next_command_at_100_columns(name: str) -> None:
    report = kept(name)
    text = shown(report)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 100
    flat = " ".join(text.split())
    assert report.sentence in flat
    assert next_step(report).command in flat
    for variant in report.variants:
        assert f"{variant.name} " in text  # not folded
        if variant.status != "passed":
            assert all(f.code in text and f.fix in flat for f in variant.findings)


def test_terminal_takes_brackets_as_text() -> None:
    report = kept("refused").model_copy(update={"sentence": "refused: [red]x[/red] [/nothing]"})
    assert "[red]x[/red] [/nothing]" in shown(report)
