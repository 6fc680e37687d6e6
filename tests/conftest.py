"""What every test shares: no test writes to the user's own home, and hypothesis repeats itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session", autouse=True)
def onnxmill_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The ONNXMILL_HOME of this test run; a test that needs an empty one sets its own."""
    home = tmp_path_factory.mktemp("onnxmill-home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONNXMILL_HOME", str(home))
        yield home
