"""A step's progress in words, for a log or a terminal."""

import time
from collections.abc import Callable

from onnxmill.tasks.isolate import OnProgress, Progress

SECONDS = 2.0
"""A step in progress says so this often at most."""


def in_words(step: str, say: Callable[[str], None]) -> OnProgress:
    """Says how far `step` is: the first word at once, then now and then."""
    last = float("-inf")

    def write(progress: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= SECONDS:
            last = now
            total = f"/{progress.total}" if progress.total else ""
            count = f" {progress.done}{total}" if progress.done else ""
            say(f"{step}: {progress.what}{count}")

    return write
