"""Steps: done once for one key, whole or not at all, with whose fault it was."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from onnxmill.tasks.artifact import Artifact, Store, action_key
from onnxmill.tasks.errors import InputError, StepError
from onnxmill.tasks.isolate import Progress, Reply
from onnxmill.tasks.step import Outcome, Step, child_limits, execute, installed_version, remember, timeout_s
from tests.stepping import Settings

WRITES = Step("writes", 1, "tests.stepping:writes", tools=("pydantic",))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[1]))
    return Store(tmp_path / "home" / "store")


def source(store: Store, files: Mapping[str, str]) -> dict[str, Artifact]:
    with store.workspace() as folder:
        for name, text in files.items():
            (folder / name).write_text(text)
        return {"source": store.publish(folder)}


def kept(store: Store) -> set[str]:
    """What the store holds of actions and of work in progress."""
    return {p.name for name in ("actions", "tmp") for p in (store.root / name).iterdir()}


# --- in a child ------------------------------------------------------------------------------------------------------


def test_a_step_gives_files_and_a_value_and_is_not_done_twice(store: Store) -> None:
    inputs, seen = source(store, {"a.txt": "a"}), list[Progress]()
    first = execute(WRITES, store, Settings(text="t"), inputs, on_progress=seen.append)
    assert first.cached is False
    assert seen == [Progress("writing", 1, 2)]
    record = first.record
    assert record.value == {"length": 2, "files": ["out"]}
    assert record.artifact is not None
    assert (store.open(record.artifact) / "sub" / "b.txt").read_text() == "ta"
    assert record.inputs == {"source": inputs["source"].digest}
    assert record.tools == {"pydantic": installed_version("pydantic")}
    assert record.peak_rss_mb > 1
    assert kept(store) == {record.key}
    again = execute(WRITES, store, Settings(text="t"), inputs, on_progress=seen.append)
    assert (again.cached, again.record) == (True, record)
    assert len(seen) == 1


def test_a_step_that_fails_leaves_no_record_and_nothing_half_written(store: Store) -> None:
    inputs = source(store, {"a.txt": "a"})
    with pytest.raises(StepError, match="writes: ArithmeticError: on purpose") as caught:
        execute(WRITES, store, Settings(fail=True), inputs)
    assert "in writes" in caught.value.traceback
    assert kept(store) == set()
    assert store.check() == []


def test_user_code_runs_in_a_copy_that_it_may_write_to(store: Store) -> None:
    inputs = source(store, {"a.txt": "a"})
    outcome = execute(Step("spoils", 1, "tests.stepping:spoils", user_code="source"), store, Settings(), inputs)
    assert outcome.record.value == "0"  # sets iterate in one order
    assert outcome.record.artifact is None
    assert store.check() == []
    assert (store.open(inputs["source"]) / "a.txt").read_text() == "a"


def test_a_loader_that_hangs_is_the_users_fault(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXMILL_STEP_TIMEOUT_S", "1.5")
    step = Step("calls", 1, "tests.stepping:calls", user_code="source")
    inputs = source(store, {"model.py": "import time\ndef load():\n    time.sleep(60)\n"})
    with pytest.raises(InputError) as caught:
        execute(step, store, Settings(), inputs)
    assert str(caught.value).startswith("source.loader: 'model.py:load': gave nothing within 1.5 s. it hangs, or")
    assert "ONNXMILL_STEP_TIMEOUT_S" in str(caught.value)
    assert kept(store) == set()


def test_a_data_callable_that_hangs_half_way_is_the_users_fault(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXMILL_STEP_TIMEOUT_S", "1.5")
    step = Step("takes", 1, "tests.stepping:takes_two_samples_then_hangs", user_code="source")
    inputs = source(store, {"model.py": "import time\ndef samples():\n    yield 1\n    time.sleep(60)\n"})
    with pytest.raises(InputError, match=r"data\.calibration: 'model\.py:samples': gave nothing within 1\.5 s"):
        execute(step, store, Settings(), inputs)


def test_a_hang_after_the_users_code_is_not_the_users_fault(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXMILL_STEP_TIMEOUT_S", "1.5")
    step = Step("calls", 1, "tests.stepping:calls_then_hangs", user_code="source")
    with pytest.raises(StepError, match=r"calls: no answer after 1\.5 s"):
        execute(step, store, Settings(), source(store, {"model.py": "def load():\n    return 1\n"}))


# --- the memo, without a child ---------------------------------------------------------------------------------------


class Work:
    """Work that is counted: it writes `text` and gives its length."""

    def __init__(self, text: str = "x") -> None:
        self.text, self.calls = text, 0

    def __call__(self, folder: Path, log: Path) -> Reply:
        self.calls += 1
        assert list(folder.iterdir()) == [folder / "out"]
        if self.text:
            (folder / "out" / "file").write_text(self.text)
        return Reply(len(self.text), 12.34)


def done(
    store: Store, work: Work, *, version: int = 1, settings: str = "s", tool: str = "1", fresh: bool = False
) -> Outcome:
    return remember("demo", version, store, {"a": settings}, {}, {"onnx": tool}, work, fresh=fresh)


def test_the_record_says_all_that_its_key_is_made_of(store: Store) -> None:
    record = done(store, Work()).record
    assert record.key == action_key(record.step, record.version, record.settings, record.inputs, record.tools)
    assert (record.value, record.peak_rss_mb) == (1, 12.3)


def test_the_second_time_nothing_is_done(store: Store) -> None:
    work = Work()
    assert [done(store, work).cached, done(store, work).cached] == [False, True]
    assert work.calls == 1


def test_fresh_does_it_again(store: Store) -> None:
    work = Work()
    done(store, work)
    assert done(store, work, fresh=True).cached is False
    assert work.calls == 2


def test_another_version_setting_or_tool_does_it_again(store: Store) -> None:
    work = Work()
    done(store, work)
    done(store, work, version=2)
    done(store, work, settings="t")
    done(store, work, tool="2")
    assert work.calls == 4


def test_another_input_does_it_again_and_its_place_does_not(store: Store, tmp_path: Path) -> None:
    work, other = Work(), Store(tmp_path / "elsewhere" / "store")
    inputs = source(store, {"a": "x"})
    keys = {
        remember("demo", 1, store, {}, inputs, {}, work).record.key,
        remember("demo", 1, other, {}, source(other, {"a": "x"}), {}, work).record.key,
    }
    assert len(keys) == 1
    assert remember("demo", 1, store, {}, source(store, {"a": "y"}), {}, work).cached is False


def test_a_step_without_files_has_no_artifact(store: Store) -> None:
    assert done(store, Work("")).record.artifact is None
    assert done(store, Work("")).cached is True


def test_damage_makes_the_step_run_again(store: Store) -> None:
    work = Work()
    artifact = done(store, work).record.artifact
    assert artifact is not None
    (path,) = (p for p in (store.root / "blobs").rglob("*") if p.is_file())
    path.chmod(0o644)
    path.write_text("y")
    assert done(store, work).cached is False
    assert done(store, work).cached is True
    assert work.calls == 2
    assert store.check() == []


def test_work_that_raises_is_forgotten(store: Store) -> None:
    def fails(folder: Path, log: Path) -> Reply:
        (folder / "out" / "half").write_text("…")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        remember("demo", 1, store, {}, {}, {}, fails)
    assert kept(store) == set()
    assert list((store.root / "blobs").iterdir()) == []


# --- limits and versions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "seconds"), [("", 3600.0), ("1", 1.0), ("0.5", 0.5)])
def test_the_time_out_is_a_setting(text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXMILL_STEP_TIMEOUT_S", text)
    assert timeout_s() == seconds
    assert child_limits().timeout_s == seconds


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "inf", "1,5"])
def test_a_bad_time_out_is_an_input_error(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXMILL_STEP_TIMEOUT_S", text)
    with pytest.raises(InputError, match=f"ONNXMILL_STEP_TIMEOUT_S: '{text}': must be a number of seconds above 0"):
        timeout_s()


def test_a_child_may_take_most_of_the_memory_and_no_more() -> None:
    import psutil

    total_mb = psutil.virtual_memory().total / 2**20
    assert 0.5 * total_mb < (child_limits().memory_mb or 0) < total_mb


def test_versions() -> None:
    assert installed_version("pydantic")[0] == "2"
    assert installed_version("python").startswith("3.")
    assert installed_version("no-such-distribution") == "missing"
