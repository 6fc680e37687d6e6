"""Every error that onnxmill raises on purpose: one root, one class for each thing that a caller treats differently.

A refusal (a model that does not pass) is not an error: it is a value, see `findings`.
"""

import difflib
import re
from collections.abc import Iterable


class OnnxmillError(Exception):
    """Root of all. `exit_code` is what the command line returns for it. The message never holds credentials."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(redact(message))


class InputError(OnnxmillError):
    """A bad spec, option or input. The message names the key, the value, what was expected, the next step."""

    exit_code = 2

    def __init__(self, key: str, value: object, expected: str, fix: str = "") -> None:
        self.key, self.value, self.expected, self.fix = key, value, expected, fix
        shown = "" if value is None else f" {shorten(redact(repr(value)))}:"
        super().__init__(f"{key}:{shown} {expected}" + (f". {fix}" if fix else ""))


class ServiceError(OnnxmillError):
    """A service that onnxmill needs (MLflow, Prefect) cannot be reached or failed."""


class StepError(OnnxmillError):
    """A step's tool broke: it crashed, was killed, hung, ran out of memory or raised. Carries the evidence."""

    def __init__(
        self,
        step: str,
        what: str,
        *,
        signal: str | None = None,
        peak_rss_mb: float | None = None,
        stderr_tail: str = "",
        traceback: str = "",
    ) -> None:
        self.step, self.what, self.signal, self.peak_rss_mb = step, what, signal, peak_rss_mb
        self.stderr_tail, self.traceback = stderr_tail, traceback
        peak = f" (peak RSS {peak_rss_mb:,.0f} MB)" if peak_rss_mb and signal else ""
        super().__init__(f"{step}: {what}{peak}")


def close_match(name: str, choices: Iterable[str]) -> str:
    """A hint for a misspelt name: "did you mean …?" where one is close, and the list of choices always."""
    known = sorted(choices)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean '{close[0]}'? " if close else ""
    return f"{hint}Choices: {', '.join(known)}"


def shorten(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


_CREDENTIALS = re.compile(
    r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*://)"
    r"(?:[^\s'\"/?#:@]*:(?!\d+[/?#])[^\s'\"]*"  # user:password, in which people leave @ and / unescaped; no port
    r"|[^\s'\"/?#]*)@"  # a user or token alone
)
_SECRET_PARAMETER = re.compile(
    r"(?P<name>[?&][^\s'\"=&#]*(?:token|secret|passw|pwd|api_?key|access_?key|credential|signature|sig)[^\s'\"=&#]*=)"
    r"[^\s'\"&#]+",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """`text` without the user and password of any URI in it, and without the values of its secret parameters.

    >>> redact("postgresql://me:secret@db/mlflow is down")
    'postgresql://***@db/mlflow is down'
    >>> redact("https://host/model?version=3&token=secret")
    'https://host/model?version=3&token=***'
    """
    return _SECRET_PARAMETER.sub(r"\g<name>***", _CREDENTIALS.sub(r"\g<scheme>***@", text))
