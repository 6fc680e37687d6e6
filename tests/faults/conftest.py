"""What the tests of faults share: a Prefect server as a person starts it, and a conversion that nothing disturbs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from onnxmill.tasks.report import Report
from tests.faults.processes import Server, free_port, left_after
from tests.flow.command import run
from tests.planted import write_tiny


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the API of a started `prefect server`."""
    folder, port = tmp_path_factory.mktemp("prefect-server"), free_port()
    settings = {
        "PREFECT_HOME": str(folder),
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_UI_ENABLED": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    arguments = ["prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    server = Server(arguments, f"http://127.0.0.1:{port}/api/health", folder / "log", settings)
    try:
        server.start()
        yield f"http://127.0.0.1:{port}/api"
    finally:
        server.stop()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The report of the tiny spec's conversion with embedded services, which leaves no process behind."""
    folder: Path = tmp_path_factory.mktemp("undisturbed")
    ended = run("convert", write_tiny(folder / "spec"), "--out", folder / "out", "--json", home=folder / "home")
    assert ended.code == 0, ended.err
    assert left_after(folder / "home", 5) == []
    return Report.model_validate_json(ended.out)
