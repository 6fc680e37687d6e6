"""Where Prefect's API is: the one that is configured, else a server of our own for as long as this process lives.

Prefect can start a temporary server itself, but that one outlives a killed process. Ours is a child of `isolate`: it
ends with its parent, however the parent ends.
"""

import os
import socket
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx

from onnxmill.tasks.errors import ServiceError, redact
from onnxmill.tasks.isolate import Child, Limits

START_SECONDS = 120.0
CHECK_SECONDS = 5.0
QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}
"""Nothing leaves the machine, and a log line outside a flow is no complaint."""


@contextmanager
def api(home: Path) -> Iterator[Callable[[], str]]:
    """Prefect's API: PREFECT_API_URL, or the user's profile, or else a server started for this block.

    Gives a function that waits until the API answers, and returns its URL: a server takes seconds to start, in which
    other things can be done. Sets what Prefect reads from the environment, so it must run before anything imports
    Prefect. Raises `ServiceError` where the API cannot be reached, and `StepError` where the server does not start.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")  # our own lines say what a terminal needs
    configured = os.environ.get("PREFECT_API_URL") or _profile_url()
    if configured:
        _check(configured)
        yield lambda: configured
        return
    os.environ["PREFECT_HOME"] = str(home / "prefect")
    with _own_server(home) as (url, wait):
        os.environ["PREFECT_API_URL"] = url
        yield wait


def _profile_url() -> str | None:
    """The API URL of the user's active Prefect profile, read without importing Prefect: it reads its settings once."""
    folder = Path(os.environ.get("PREFECT_HOME") or Path.home() / ".prefect")
    try:
        profiles = tomllib.loads((folder / "profiles.toml").read_text())
    except (FileNotFoundError, tomllib.TOMLDecodeError):
        return None
    active = os.environ.get("PREFECT_PROFILE") or profiles.get("active")
    url: str | None = profiles.get("profiles", {}).get(active, {}).get("PREFECT_API_URL")
    return url


def _check(url: str) -> None:
    try:
        httpx.get(f"{url}/health", timeout=CHECK_SECONDS).raise_for_status()
    except httpx.HTTPError as error:
        raise ServiceError(
            f"Prefect's API at {redact(url)} cannot be reached ({type(error).__name__}: {redact(str(error))}). "
            "Start it, or unset PREFECT_API_URL to use a server of onnxmill's own"
        ) from error


@contextmanager
def _own_server(home: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    port = _free_port()
    (home / "prefect").mkdir(parents=True, exist_ok=True)
    (home / "logs").mkdir(parents=True, exist_ok=True)
    environment = {
        **QUIET,
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_UI_ENABLED": "false",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
    }
    limits = Limits(timeout_s=START_SECONDS)
    log = home / "logs" / "prefect-server.log"
    with Child("prefect-server", limits=limits, environment=environment, log=log) as child:
        url = f"http://127.0.0.1:{port}/api"
        with ThreadPoolExecutor(max_workers=1) as starter:
            started = starter.submit(child.create, "onnxmill.flows.prefect_server:serve", {"port": port})

            def wait() -> str:
                started.result()
                return url

            try:
                yield url, wait
                _flush_log()
            except BaseException:
                if started.done():
                    _flush_log()
                child.end()  # a start that is still going on: its thread would be waited for
                raise


def _flush_log() -> None:
    """The last lines of Prefect's log still reach the server."""
    from prefect.logging.handlers import APILogHandler

    APILogHandler().flush()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def serve(port: int) -> None:
    """In the child: start the server on loopback, and return once it is healthy. It runs on in a thread."""
    import uvicorn
    from prefect.server.api.server import create_app

    server = uvicorn.Server(
        uvicorn.Config(create_app(ephemeral=True), host="127.0.0.1", port=port, log_level="error", lifespan="on")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not _healthy(port):
        if not thread.is_alive():
            raise ServiceError(f"Prefect's server on port {port} ended while starting")
        time.sleep(0.05)


def _healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/api/health", timeout=CHECK_SECONDS).status_code == 200
    except httpx.HTTPError:
        return False
