"""Progress in words, with literal times."""

from collections.abc import Iterable

from onnxmill.tasks.isolate import Progress
from onnxmill.tasks.progress import ended, in_words
from onnxmill.tasks.report import StepRow


def said(reports: Iterable[tuple[float, Progress]]) -> list[str]:
    """What is said of progress that comes at these seconds."""
    found: list[str] = []
    now = 0.0
    write = in_words("calibrate", found.append, lambda: now)
    for now, progress in reports:  # noqa: B007  the clock above reads it
        write(progress)
    return found


def counted(*reports: tuple[float, int], total: int = 256) -> list[tuple[float, Progress]]:
    return [(at, Progress("72 tensors", done, total)) for at, done in reports]


def test_rate_and_time_left() -> None:
    lines = said(counted((0, 0), (10, 1), (12, 31), (13, 46), (14.1, 62)))
    assert lines == [
        "calibrate: 72 tensors",
        "calibrate: 72 tensors 1/256",  # what came before the first is no rate: it warms up
        "calibrate: 72 tensors 31/256, 15.0/s, 15.0 s left",
        "calibrate: 72 tensors 62/256, 14.9/s, 13.0 s left",
    ]


def test_said_only_now_and_then() -> None:
    assert len(said(counted(*((step / 10, step + 1) for step in range(61))))) == 4  # at 0, 2, 4 and 6 s


def test_without_a_total_and_at_the_end_nothing_is_left() -> None:
    assert said(counted((0, 1), (2, 101), total=0))[1] == "calibrate: 72 tensors 101, 50.0/s"
    assert said(counted((0, 1), (4, 256)))[1] == "calibrate: 72 tensors 256/256, 63.8/s"


def test_each_thing_has_its_own_rate() -> None:
    other = [(20.0, Progress("proving", 1, 3)), (24.0, Progress("proving", 2, 3))]
    assert said([*counted((0, 1), (2, 3)), *other])[2:] == [
        "calibrate: proving 1/3",
        "calibrate: proving 2/3, 0.250/s, 4.0 s left",
    ]
    again = said(counted((0, 1), (2, 201), (30, 1), (32, 3)))  # a second pass, of the same name
    assert again[2:] == ["calibrate: 72 tensors 1/256", "calibrate: 72 tensors 3/256, 1.00/s, 4 min 13 s left"]


def test_words_alone() -> None:
    assert said([(0.0, Progress("opening", 0, 0))]) == ["calibrate: opening"]


def test_a_step_that_ended() -> None:
    row = StepRow(step="export", variant=None, seconds=3.14, cached=False, note="dynamo")
    assert ended(row) == "export: 3.1 s, dynamo"
    assert ended(row.model_copy(update={"cached": True, "variant": "int8", "note": ""})) == "export int8: cached"
