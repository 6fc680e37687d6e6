"""Errors: what an `InputError` names, close matches, and that no message holds credentials."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxmill.tasks.errors import (
    InputError,
    OnnxmillError,
    ServiceError,
    StepError,
    close_match,
    redact,
    shorten,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:secret@db/mlflow", "postgresql://***@db/mlflow"),
        ("postgresql://me:p@secret@db/mlflow", "postgresql://***@db/mlflow"),
        ("postgresql://me:p/secret@db/mlflow", "postgresql://***@db/mlflow"),
        ("postgresql://me:secret#1@db/mlflow", "postgresql://***@db/mlflow"),
        ("mysql+pymysql://me:secret@db:3306/mlflow", "mysql+pymysql://***@db:3306/mlflow"),
        ("https://secret@host/path", "https://***@host/path"),
        ("https://:secret@host", "https://***@host"),
        ("https://me:1234@host/x", "https://***@host/x"),
        ("two: http://a:secret@x and http://b:secret@y.", "two: http://***@x and http://***@y."),
        ("'http://a:secret@x', 'plain@text'", "'http://***@x', 'plain@text'"),
        ("https://host/m?token=secret", "https://host/m?token=***"),
        ("https://host/m?v=1&API_KEY=secret&w=2", "https://host/m?v=1&API_KEY=***&w=2"),
        ("https://s3/b?X-Amz-Signature=secret&X-Amz-Date=1", "https://s3/b?X-Amz-Signature=***&X-Amz-Date=1"),
        ("postgresql://db/x?user=me&password=secret#f", "postgresql://db/x?user=me&password=***#f"),
    ],
)
def test_credentials_are_redacted(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "models:/mnist@champion",
        "http://host:5000/api/2.0/mlflow",
        "http://host:5000/a@b",
        "http://host:5000 is down, ask me@example.org",
        "s3://bucket/user@model.onnx",
        "sqlite:////home/me/mlflow.db",
        "http://[::1]:5000/x",
        "https://host/m?version=3&page=2",
        "runs:/0a1b/model",
    ],
)
def test_what_holds_no_credentials_stays(text: str) -> None:
    assert redact(text) == text


@given(
    st.text(st.characters(exclude_categories=["Z", "C"], exclude_characters="'\""), min_size=1),
    st.sampled_from(["http", "postgresql+psycopg2", "s3"]),
)
def test_no_password_survives(password: str, scheme: str) -> None:
    secret = f"S3CRET{password}S3CRET"  # a password that begins like a port and a path is taken for one
    assert redact(f"at {scheme}://me:{secret}@db/x it fails") == f"at {scheme}://***@db/x it fails"


@pytest.mark.parametrize(
    "error",
    [
        OnnxmillError("https://me:secret@host"),
        ServiceError("https://me:secret@host?token=secret"),
        StepError("export", "cannot read https://me:secret@host"),
        InputError("key", "https://me:secret@host", "must be reachable"),
        InputError("key", None, "raised: https://me:secret@host", "see https://me:secret@host"),
    ],
)
def test_no_error_shows_credentials(error: OnnxmillError) -> None:
    assert "secret" not in str(error)
    assert "***@host" in str(error)


def test_input_error_names_key_value_expectation_and_next_step() -> None:
    assert str(InputError("opset", 3, "must be 13 or more", "try 18")) == "opset: 3: must be 13 or more. try 18"
    assert str(InputError("inputs", None, "is required")) == "inputs: is required"


def test_input_error_keeps_its_parts() -> None:
    error = InputError("opset", 3, "must be 13 or more", "try 18")
    assert (error.key, error.value, error.expected, error.fix) == ("opset", 3, "must be 13 or more", "try 18")


def test_a_long_value_is_shortened() -> None:
    assert len(str(InputError("name", "x" * 10_000, "is too long"))) < 250


def test_step_error_tells_the_peak_only_where_something_killed_it() -> None:
    assert str(StepError("simplify", "was killed", signal="SIGKILL", peak_rss_mb=2048.4)) == (
        "simplify: was killed (peak RSS 2,048 MB)"
    )
    assert str(StepError("simplify", "raised", peak_rss_mb=2048.4)) == "simplify: raised"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("a", 1, "b"), 2),
        (ServiceError("down"), 1),
        (StepError("export", "broke"), 1),
        (OnnxmillError("x"), 1),
    ],
)
def test_exit_codes(error: OnnxmillError, code: int) -> None:
    assert error.exit_code == code


def test_close_match_hints_and_lists_sorted_choices() -> None:
    assert close_match("fp23", ["fp32", "int8-static"]) == "did you mean 'fp32'? Choices: fp32, int8-static"
    assert close_match("zzz", ["b", "a"]) == "Choices: a, b"


def test_shorten_keeps_what_fits() -> None:
    assert shorten("x" * 200) == "x" * 200
    assert shorten("x" * 201) == "x" * 199 + "…"
