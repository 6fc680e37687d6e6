"""`doctor`: what of this machine onnxmill can use, and what is broken. Imports no framework."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from onnxmill.tasks import isolate, machine, spec
from onnxmill.tasks.errors import OnnxmillError, redact
from onnxmill.tasks.loader import ROOTS_SETTING, allowed_roots
from onnxmill.tasks.step import child_limits, installed_version
from onnxmill.tasks.targets import TARGETS

Level = Literal["ok", "note", "broken"]

_INSTALLED_BY = {name: f"'onnxmill[{name}]'" for name in ("torch", "tf", "sklearn", "jax")} | {"onnx": "onnxmill"}
FRAMEWORKS = {
    "torch": ("torch", "onnxscript"),
    "tf": ("tensorflow-cpu", "keras", "tf2onnx"),
    "sklearn": ("scikit-learn", "skl2onnx"),
    "jax": ("jax", "jax2onnx"),
    "onnx": ("onnx", "onnxruntime", "onnxsim"),
}
"""What each framework's sources need."""


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, how it stands, and what to do where it is broken."""

    what: str
    level: Level
    found: str


def checks() -> list[Check]:
    """Everything, in order. None of it raises."""
    rows = [_guarded("home", _home), _guarded("child processes", _children), _guarded("machine", _machine)]
    rows += [_framework(name, needs) for name, needs in FRAMEWORKS.items()]
    rows += [
        Check(f"target {name}", "ok", f"{t.runtime} {installed_version(t.runtime)}") for name, t in TARGETS.items()
    ]
    roots = ", ".join(map(str, allowed_roots())) or "the folder of the spec given on the command line"
    rows.append(Check("loader roots", "ok", f"{roots} ({ROOTS_SETTING})"))
    return [*rows, _guarded("MLflow", _mlflow), _guarded("Prefect", _prefect)]


def _guarded(what: str, look: Callable[[], str]) -> Check:
    try:
        return Check(what, "ok", look())
    except (OnnxmillError, OSError) as error:
        return Check(what, "broken", redact(str(error)))


def _home() -> str:
    home = spec.home()
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home):
        return f"{home} is writable"


def _children() -> str:
    reply = isolate.run("onnxmill.tasks.machine:threads", {}, step="doctor")
    limits = child_limits()
    return f"start, with {reply.value} thread(s), {limits.memory_mb:,.0f} MB and {limits.timeout_s:g} s at most"


def _machine() -> str:
    found = machine.fingerprint()
    return ", ".join(f"{name} {value}" for name, value in found.items() if name not in ("python", "numpy"))


def _framework(name: str, needs: tuple[str, ...]) -> Check:
    versions = {package: installed_version(package) for package in needs}
    missing = [package for package, version in versions.items() if version == "missing"]
    if missing:
        return Check(
            f"{name} sources",
            "note",
            f"not possible here: pip install {_INSTALLED_BY[name]}",
        )
    return Check(f"{name} sources", "ok", ", ".join(f"{package} {version}" for package, version in versions.items()))


def _mlflow() -> str:
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        database = spec.home() / "mlflow" / "mlflow.db"
        return f"embedded, {database} {'(is there)' if database.is_file() else '(made by the first run)'}"
    from onnxmill.tasks import publish

    return f"{publish.tracking().shown} answers"


def _prefect() -> str:
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        return "embedded, or the active Prefect profile's; started for each run"
    import httpx

    try:
        httpx.get(f"{url}/health", timeout=5.0).raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise OnnxmillError(f"{redact(url)} does not answer ({type(error).__name__}); start it or unset it") from error
    return f"{redact(url)} answers"
