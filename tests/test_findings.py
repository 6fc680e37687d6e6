"""Findings: the one shape of every refusal and warning."""

import json
import re

import numpy as np
import pytest
from pydantic import ValidationError

from onnxmill.tasks.findings import CODES, Finding, finding, refused


@pytest.mark.parametrize("code", sorted(CODES))
def test_each_code_is_a_finding_with_title_severity_and_a_way_out(code: str) -> None:
    made = finding(code, "output y")
    row = CODES[code]
    assert (made.code, made.severity, made.message, made.fix) == (code, row.severity, row.title, row.fix)
    assert made.where == "output y"


@pytest.mark.parametrize("code", sorted(CODES))
def test_each_row_of_the_table_is_complete(code: str) -> None:
    assert re.fullmatch(r"[A-Z]{3,4}\d{3}", code)
    assert CODES[code].title
    assert CODES[code].fix


def test_detail_numbers_and_own_fix() -> None:
    made = finding("GATE003", "output y", "12.1 dB, limit 20 dB", measured=12.1, limit=20.0, fix="exclude: [conv]")
    assert str(made) == "GATE003 output y: SQNR below the limit: 12.1 dB, limit 20 dB"
    assert (made.measured, made.limit, made.fix) == (12.1, 20.0, "exclude: [conv]")


def test_numbers_of_numpy_become_numbers() -> None:
    made = finding("GATE001", "output y", measured=float(np.float32(0.5)), limit=1)
    assert json.loads(made.model_dump_json())["measured"] == 0.5


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_null_and_told(number: float) -> None:
    made = finding("GATE001", "output y", measured=number, limit=0.1)
    assert made.measured is None
    assert made.message.endswith(f"(measured {number})")
    assert json.loads(made.model_dump_json())["measured"] is None


def test_an_unknown_code_is_no_finding() -> None:
    with pytest.raises(KeyError):
        finding("GATE999", "output y")


def test_round_trip() -> None:
    made = finding("CON008", "output y", measured=3, limit=0)
    assert Finding.model_validate_json(made.model_dump_json()) == made


def test_a_finding_does_not_change() -> None:
    with pytest.raises(ValidationError):
        finding("CON008", "output y").code = "CON009"  # type: ignore[misc]  # what the test tries


@pytest.mark.parametrize(
    ("codes", "refuses"),
    [([], False), (["QNT002"], False), (["BEN001", "SIM001"], False), (["BEN001", "CON001"], True), (["RUN001"], True)],
)
def test_one_refusal_refuses(codes: list[str], refuses: bool) -> None:
    assert refused(finding(code, "x") for code in codes) is refuses
