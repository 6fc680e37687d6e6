"""Loaders: what an entrypoint may look like, where its code may lie, and every way in which it goes wrong."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxmill.tasks import loader
from onnxmill.tasks.errors import InputError, StepError
from onnxmill.tasks.loader import Entry, allowed_roots, call, iterate, load_callable, parse_entry, root_of

LOADER, DATA = "source.loader", "data.calibration"
SAMPLES = "data.py:samples"

Sources = Callable[[Mapping[str, str]], None]


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sources]:
    """Writes files to the working folder; what they import is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def write(texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)

    yield write
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


# --- entrypoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("model.py:load", Entry("model.py", "", "load")),
        ("sub/my-model.py:load", Entry("sub/my-model.py", "", "load")),
        ("package.module:load", Entry("", "package.module", "load")),
        ("module:_load2", Entry("", "module", "_load2")),
        ("c:/x.py:load", Entry("c:/x.py", "", "load")),
    ],
)
def test_entrypoints(text: str, entry: Entry) -> None:
    assert parse_entry(LOADER, text) == entry


@pytest.mark.parametrize(
    "text",
    ["", ":", "model.py", "model.py:", ":load", "model.py:load()", "model:a.b", "a-b:load", "a..b:load", "sub/model:f"],
)
def test_what_is_no_entrypoint(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_entry(LOADER, text)
    assert str(caught.value).startswith(f"{LOADER}: {text!r}: must be file.py:callable or package.module:callable")


@given(st.text(max_size=20))
def test_any_text_is_an_entrypoint_or_an_input_error(text: str) -> None:
    try:
        entry = parse_entry(LOADER, text)
    except InputError:
        return
    assert f"{entry.file or entry.module}:{entry.attribute}" == text
    assert bool(entry.file) != bool(entry.module)


# --- roots -----------------------------------------------------------------------------------------------------------


def test_roots_come_from_the_environment_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(loader.ROOTS_SETTING, raising=False)
    assert allowed_roots() == []
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv(loader.ROOTS_SETTING, f"{tmp_path}/a{os.pathsep}{os.pathsep}{tmp_path}/link")
    assert allowed_roots() == [tmp_path / "a", tmp_path / "real"]


def test_the_innermost_root_counts(tmp_path: Path) -> None:
    roots = [tmp_path, tmp_path / "a" / "b", tmp_path / "a"]
    assert root_of(LOADER, "x", tmp_path / "a/b/c.py", roots) == tmp_path / "a/b"
    assert root_of(LOADER, "x", tmp_path / "ab/c.py", roots) == tmp_path


@pytest.mark.parametrize(
    "path", ["other/model.py", "allowed/../other/model.py", "allowed-too/model.py", "allowed/link.py"]
)
def test_outside_the_roots(tmp_path: Path, path: str) -> None:
    for folder in ("allowed", "other", "allowed-too"):
        (tmp_path / folder).mkdir()
    (tmp_path / "allowed/link.py").symlink_to(tmp_path / "other/model.py")
    with pytest.raises(InputError) as caught:
        root_of(LOADER, "model.py:load", tmp_path / path, [tmp_path / "allowed"])
    for words in (f"{LOADER}: 'model.py:load'", f"may run ({tmp_path}/allowed)", "ONNXMILL_LOADER_ROOTS"):
        assert words in str(caught.value)


def test_without_roots_nothing_may_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"may run \(none\)"):
        root_of(LOADER, "x", tmp_path, [])


# --- finding the callable --------------------------------------------------------------------------------------------


def test_a_file_beside_the_spec(sources: Sources) -> None:
    sources({"model.py": "from layers import width\ndef load():\n    return width", "layers.py": "width = 7"})
    assert call(LOADER, "model.py:load") == 7


def test_a_file_finds_what_lies_beside_it(sources: Sources) -> None:
    sources(
        {
            "sub/model.py": "from layers import width\ndef load():\n    return width",
            "sub/layers.py": "width = 8",
            "layers.py": "width = 7",
        }
    )
    assert call(LOADER, "sub/model.py:load") == 8


def test_a_module_of_a_package(sources: Sources) -> None:
    sources(
        {
            "pack/__init__.py": "",
            "pack/model.py": "from .layers import width\ndef load():\n    return width",
            "pack/layers.py": "width = 9",
        }
    )
    assert call(LOADER, "pack.model:load") == 9


def test_a_class_is_a_callable_too(sources: Sources) -> None:
    sources({"model.py": "class Net:\n    def __init__(self):\n        self.width = 3"})
    assert call(LOADER, "model.py:Net").width == 3


def test_a_missing_attribute_has_a_close_match(sources: Sources) -> None:
    sources({"model.py": "def load(): ...\ndef evaluation(): ...\n_hidden = load\nNUMBER = 1"})
    with pytest.raises(InputError) as caught:
        load_callable(LOADER, "model.py:laod")
    assert str(caught.value) == (
        "source.loader: 'model.py:laod': has no 'laod'; did you mean 'load'? Choices: evaluation, load"
    )


def test_an_attribute_that_cannot_be_called(sources: Sources) -> None:
    sources({"model.py": "load = 3"})
    with pytest.raises(InputError, match="must be callable; it is a int"):
        load_callable(LOADER, "model.py:load")


@pytest.mark.parametrize("text", ["json:loads", "os:getcwd", "sys:exit"])
def test_an_installed_module_is_never_taken_for_the_users(sources: Sources, text: str) -> None:
    sources({"json.py": "def loads(): ...", "os.py": "def getcwd(): ...", "sys.py": "def exit(): ..."})
    with pytest.raises(InputError, match=f"source.loader: '{text}': has the name of an installed module"):
        call(LOADER, text)


# --- what users' code does -------------------------------------------------------------------------------------------

RAISING: dict[str, tuple[str, list[str]]] = {
    "at import": ("\n\nraise OSError('no\\n  such disk')", ["importing it raised OSError at model.py:3: no such disk"]),
    "when called": ("def load():\n    raise ValueError('bad')", ["calling it raised ValueError at model.py:2: bad"]),
    "far below": (
        "import json\ndef load():\n    return json.loads('{')",
        ["calling it raised JSONDecodeError at model.py:3"],
    ),
    "exit": ("import sys\ndef load():\n    sys.exit(4)", ["raised SystemExit at model.py:3"]),
    "own class": ("class Odd(BaseException): ...\ndef load():\n    raise Odd", ["raised Odd at model.py:3"]),
    "syntax": ("def load(:", ["importing it raised SyntaxError", "(model.py, line 1)"]),
    "missing file": (
        "def load():\n    return open('weights.pt')",
        ["FileNotFoundError at model.py:2", "'weights.pt'", "must be declared in `files:`"],
    ),
    "missing module": (
        "import no_such_module\ndef load(): ...",
        ["ModuleNotFoundError at model.py:1", "no_such_module", "must be imported by name"],
    ),
    "arguments": ("def load(path):\n    return path", ["calling it raised TypeError", "'path'"]),
    "None": ("def load():\n    pass", ["returned None", "return the model"]),
    "secret": (
        "def load():\n    raise OSError('http://me:hunter2@host')",
        ["raised OSError at model.py:2: http://***@"],
    ),
}


@pytest.mark.parametrize("name", RAISING)
def test_a_loader_that_goes_wrong(sources: Sources, name: str) -> None:
    text, words = RAISING[name]
    sources({"model.py": text})
    with pytest.raises(InputError) as caught:
        call(LOADER, "model.py:load")
    assert str(caught.value).startswith("source.loader: 'model.py:load': ")
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_whole_traceback_goes_to_the_log(sources: Sources, capsys: pytest.CaptureFixture[str]) -> None:
    sources({"model.py": "def deep():\n    return 1 / 0\ndef load():\n    return deep()"})
    with pytest.raises(InputError) as caught:
        call(LOADER, "model.py:load")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "in deep" in capsys.readouterr().err


def test_an_interrupt_is_nobodys_fault(sources: Sources) -> None:
    sources({"model.py": "def load():\n    raise KeyboardInterrupt"})
    with pytest.raises(KeyboardInterrupt):
        call(LOADER, "model.py:load")


def test_an_error_of_ours_stays_as_it_is() -> None:
    with pytest.raises(StepError, match="export: broke"), loader.user_code(LOADER, "model.py:load", "calling it"):
        raise StepError("export", "broke")


# --- data callables --------------------------------------------------------------------------------------------------


def items_of(indices: Sequence[int] | None = None) -> Iterator[Any]:
    """The items of data.py:samples."""
    return iterate(DATA, SAMPLES, call(DATA, SAMPLES), indices)


@pytest.mark.parametrize("body", ["yield from (1, 2, 3)", "return [1, 2, 3]", "return iter((1, 2, 3))"])
def test_items_of_a_generator_a_list_and_an_iterator(sources: Sources, body: str) -> None:
    sources({"data.py": f"def samples():\n    {body}"})
    assert list(items_of()) == [1, 2, 3]


def test_items_come_one_at_a_time(sources: Sources) -> None:
    sources({"data.py": "taken = []\ndef samples():\n    for i in range(5):\n        taken.append(i)\n        yield i"})
    items = items_of()
    assert [next(items), next(items)] == [0, 1]
    assert sys.modules["data"].taken == [0, 1]


def test_closing_early_lets_the_callable_clean_up(sources: Sources) -> None:
    sources(
        {"data.py": "log = []\ndef samples():\n    try:\n        yield 1\n    finally:\n        log.append('closed')"}
    )
    items = items_of()
    next(items)
    items.close()  # type: ignore[attr-defined]  # it is a generator
    del items
    assert sys.modules["data"].log == ["closed"]


def test_raising_half_way_names_the_sample_and_the_line(sources: Sources) -> None:
    sources({"data.py": "def samples():\n    for i in range(5):\n        yield 1 / (2 - i)"})
    items = items_of()
    assert [next(items), next(items)] == [0.5, 1.0]
    with pytest.raises(InputError) as caught:
        next(items)
    assert str(caught.value) == (
        "data.calibration: 'data.py:samples': "
        "taking sample 2 of it raised ZeroDivisionError at data.py:3: division by zero"
    )


DATASET = """
class Dataset:
    def __len__(self):
        return 9
    def __getitem__(self, index):
        return 10 / (5 - index)
def samples():
    return Dataset()
"""


def test_items_of_a_dataset_by_their_indices(sources: Sources) -> None:
    sources({"data.py": DATASET})
    assert list(items_of([0, 3, 4])) == [2, 5, 10]
    with pytest.raises(InputError, match=r"taking sample 5 of it raised ZeroDivisionError at data\.py:6"):
        list(items_of([4, 5]))


@pytest.mark.parametrize(
    ("body", "length"), [("return [1, 2]", 2), ("yield 1", None), ("return {'x': 1}", None), ("return iter([1])", None)]
)
def test_what_is_a_sequence_has_a_length(sources: Sources, body: str, length: int | None) -> None:
    sources({"data.py": f"def samples():\n    {body}"})
    assert loader.length(DATA, SAMPLES, call(DATA, SAMPLES)) == length


def test_a_length_that_raises(sources: Sources) -> None:
    sources({"data.py": DATASET.replace("return 9", "return open('x')")})
    with pytest.raises(InputError, match=r"taking its length raised FileNotFoundError at data\.py:4"):
        loader.length(DATA, SAMPLES, call(DATA, SAMPLES))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return None", "returned None. yield samples"),
        ("return 3", "must yield samples; it returned a int"),
        ("raise ValueError('early')", "calling it raised ValueError at data.py:2: early"),
        ("return Odd()", "iterating over it raised LookupError at data.py:5: odd"),
    ],
)
def test_a_data_callable_that_yields_nothing_to_iterate_over(sources: Sources, body: str, words: str) -> None:
    odd = "class Odd:\n    def __iter__(self):\n        raise LookupError('odd')"
    sources({"data.py": f"def samples():\n    {body}\n{odd}"})
    with pytest.raises(InputError) as caught:
        list(items_of())
    assert str(caught.value) == f"data.calibration: 'data.py:samples': {words}"
