"""The README's commands, run as a reader would: every ```bash block that follows `<!-- run -->`, in order.

They share one ONNXMILL_HOME, so that a later block may use what an earlier one made. `<!-- run exit=3 -->`
expects that exit code.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
MARKER = "<!-- run"
BLOCK = re.compile(r"^<!-- run(?: exit=(\d+))? -->\n+```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TIMEOUT_S = 600


class Block(NamedTuple):
    line: int
    exit_code: int
    script: str


def blocks(text: str) -> list[Block]:
    """The blocks of a README that are meant to run, with the line and the exit code each must end with."""
    return [
        Block(text.count("\n", 0, match.start()) + 1, int(match[1] or 0), match[2]) for match in BLOCK.finditer(text)
    ]


TEXT = README.read_text(encoding="utf-8") if README.exists() else ""  # the missing file fails below, by name


def test_readme_has_blocks_and_none_is_overlooked() -> None:
    assert blocks(TEXT), "README.md has no block that runs"
    assert len(blocks(TEXT)) == TEXT.count(MARKER), "a `<!-- run -->` comment is not followed by a ```bash block"


def test_blocks_are_read_with_their_exit_codes() -> None:
    text = "x\n<!-- run -->\n```bash\ntrue\n```\n```bash\nno\n```\n<!-- run exit=3 -->\n\n```bash\na\nb\n```\n"
    assert blocks(text) == [Block(2, 0, "true\n"), Block(9, 3, "a\nb\n")]


@pytest.fixture(scope="module")
def readme_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    bin_first = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": bin_first, "ONNXMILL_HOME": str(tmp_path_factory.mktemp("readme-home"))}


@pytest.mark.integration
@pytest.mark.parametrize("block", blocks(TEXT), ids=lambda block: f"line-{block.line}")
def test_block_runs(block: Block, readme_environment: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.script],
        cwd=ROOT,
        env=readme_environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == block.exit_code, f"README.md:{block.line}\n{block.script}\n{done.stdout[-4000:]}"
