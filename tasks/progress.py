"""A step's progress in words, for a log or a terminal."""

import time
from collections.abc import Callable

from onnxmill.tasks import units
from onnxmill.tasks.isolate import OnProgress, Progress
from onnxmill.tasks.report import StepRow

SECONDS = 2.0
"""A step in progress says so this often at most."""


def in_words(step: str, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> OnProgress:
    """Says how far `step` is: the first word at once, then now and then, with the rate and the time left where it
    counts what it does."""
    last = float("-inf")
    first = latest = Progress("", 0, 0)
    began = 0.0

    def write(progress: Progress) -> None:
        nonlocal last, first, latest, began
        now = clock()
        if progress.what != latest.what or progress.done < latest.done or not latest.done:  # the first may warm up
            first, began = progress, now
        latest = progress
        if now - last >= SECONDS:
            last = now
            say(f"{step}: {progress.what}{_count(progress, progress.done - first.done, now - began)}")

    return write


def _count(progress: Progress, done: int, seconds: float) -> str:
    """How many of how many, and how fast the last `done` of them came in `seconds`: " 128/256, 15.2/s, 8.4 s left"."""
    if not progress.done:
        return ""
    text = f" {progress.done}/{progress.total}" if progress.total else f" {progress.done}"
    if done < 1 or seconds <= 0:
        return text
    text += f", {units.milliseconds(done / seconds)}/s"
    left = progress.total - progress.done
    return f"{text}, {units.seconds(left * seconds / done)} left" if left > 0 else text


def ended(row: StepRow) -> str:
    """A step that is done: how long it took, and what it says."""
    about = f"{row.step} {row.variant}" if row.variant else row.step
    return f"{about}: {'cached' if row.cached else f'{row.seconds:.1f} s'}{row.note and f', {row.note}'}"
