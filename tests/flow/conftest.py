"""One Prefect server for all tests of the flow, and one sound conversion that most of them start from."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.flow.command import Ended, environment, invoke, kept_environment
from tests.planted import write_tiny


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API's URL of a server as `convert` starts one, up for as long as these tests run."""
    from onnxmill.flows import prefect_server

    home = tmp_path_factory.mktemp("prefect")
    with contextlib.ExitStack() as server:
        with kept_environment():
            settings = environment(home, {"PREFECT_HOME": str(home)})
            os.environ.clear()
            os.environ.update(settings)
            url = server.enter_context(prefect_server.api(home))()
            # Prefect reads its settings when it is imported, and then never again
            from prefect.settings import PREFECT_API_URL

            assert PREFECT_API_URL.value() == url, "a test module imports Prefect at its top: import it in the tests"
        yield url


@dataclass(frozen=True)
class World:
    """A home with its MLflow, and the server: where conversions run."""

    home: Path
    prefect_api: str

    @property
    def tracking_uri(self) -> str:
        return f"sqlite:///{self.home / 'mlflow' / 'mlflow.db'}"

    @property
    def settings(self) -> dict[str, str]:
        return {"PREFECT_API_URL": self.prefect_api}

    def convert(self, spec: Path, *options: object) -> Ended:
        return invoke("convert", spec, *options, home=self.home, settings=self.settings)


@dataclass(frozen=True)
class Converted:
    """A conversion that ended well: where, from which spec, into which folder."""

    world: World
    spec: Path
    out: Path
    ended: Ended


@pytest.fixture(scope="session")
def converted(prefect_api: str, tmp_path_factory: pytest.TempPathFactory) -> Converted:
    """The tiny spec, converted in a home of its own."""
    folder = tmp_path_factory.mktemp("converted")
    world, spec, out = World(folder / "home", prefect_api), write_tiny(folder / "spec"), folder / "out"
    ended = world.convert(spec, "--out", out, "--json")
    assert ended.code == 0, ended.err
    return Converted(world, spec, out, ended)
