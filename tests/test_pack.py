"""Packing: what belongs to a model and nothing else, from the allowed roots and nowhere else; a change in its part."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from onnxmill.tasks.artifact import Store
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.loader import ROOTS_SETTING
from onnxmill.tasks.pack import Pack, pack
from onnxmill.tasks.pack_data import DataPath, DataPaths
from onnxmill.tasks.spec import Spec, parse
from onnxmill.tasks.step import installed_version

FILES = {
    "model.py": "from layers import width\ndef load(): ...",
    "layers.py": "import numpy\nwidth = 3",
    "data.py": "def calibration(): ...\ndef evaluation(): ...",
    "metric.py": "def correct(outputs, label): ...",
    "unused.py": "",
    "weights.pt": "w",
    "samples.npz": "s",
    "README.md": "",
}


def spec(**changes: object) -> Spec:
    sound: dict[str, object] = {
        "version": 1,
        "name": "tiny",
        "source": {"framework": "torch", "loader": "model.py:load", "files": ["weights.pt"]},
        "inputs": {"x": {"shape": ["batch", 3]}},
    }
    return parse(yaml.safe_dump(sound | changes))


WHOLE = spec(
    data={"calibration": "data.py:calibration", "evaluation": "data.py:evaluation", "files": ["samples.npz"]},
    metric={"fn": "metric.py:correct"},
)


def loading(text: str, *files: str) -> Spec:
    return spec(source={"framework": "torch", "loader": text, "files": list(files)})


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec's folder, which is the one allowed root."""
    monkeypatch.setenv(ROOTS_SETTING, str(tmp_path / "spec"))
    return write(tmp_path / "spec", FILES)


def packed(what: Spec, folder: Path) -> Pack:
    return pack(what, folder, Store(folder.parent / "store"))


def source_files(what: Spec, folder: Path) -> set[str]:
    return set(packed(what, folder).source.artifact.files)


def refused(what: Spec, folder: Path) -> str:
    """The message of the refusal; nothing was taken into the store."""
    with pytest.raises(InputError) as caught:
        packed(what, folder)
    assert list((folder.parent / "store" / "manifests").iterdir()) == []
    return str(caught.value)


# --- what is in it ---------------------------------------------------------------------------------------------------


def test_each_part_holds_its_code_what_that_imports_and_its_declared_files(folder: Path) -> None:
    made = packed(WHOLE, folder)
    assert made.data is not None
    assert made.metric is not None
    assert set(made.source.artifact.files) == {"model.py", "layers.py", "weights.pt"}
    assert set(made.data.artifact.files) == {"data.py", "samples.npz"}
    assert set(made.metric.artifact.files) == {"metric.py"}


def test_a_spec_without_data_and_metric_has_no_such_parts(folder: Path) -> None:
    made = packed(spec(), folder)
    assert (made.data, made.metric) == (None, None)


@pytest.mark.parametrize(
    ("text", "also"),
    [
        ("import layers", {"layers.py"}),
        ("import layers as l, json", {"layers.py"}),
        ("from layers import width", {"layers.py"}),
        ("import a.b", {"a/__init__.py", "a/b.py"}),
        ("from a import b", {"a/__init__.py", "a/b.py"}),
        ("from a import number", {"a/__init__.py"}),
        ("import a", {"a/__init__.py"}),
        ("from a.deep import x", {"a/__init__.py", "a/deep/__init__.py", "a/deep/x.py", "a/deep/y.py", "a/b.py"}),
        ("import space.inner", {"space/inner.py"}),
        ("def load():\n    from a import b", {"a/__init__.py", "a/b.py"}),
        ("try:\n    import layers\nexcept ImportError:\n    layers = None", {"layers.py"}),
        ("class X:\n    def f(self):\n        import layers", {"layers.py"}),
        ("import first", {"first.py", "second.py"}),  # a circle
        ("import json, os.path", set()),
        ("import no_such_module", set()),
        ("name = 'layers'", set()),
    ],
)
def test_imports_are_followed(folder: Path, text: str, also: set[str]) -> None:
    write(
        folder,
        {
            "model.py": text,
            "a/__init__.py": "number = 1",
            "a/b.py": "",
            "a/unused.py": "",
            "a/deep/__init__.py": "",
            "a/deep/x.py": "from . import y\nfrom ..b import z\nfrom .. import number",
            "a/deep/y.py": "",
            "space/inner.py": "",
            "first.py": "import second",
            "second.py": "import first",
        },
    )
    assert source_files(loading("model.py:load"), folder) == {"model.py"} | also


def test_a_module_of_a_package_brings_its_relatives(folder: Path) -> None:
    write(
        folder,
        {
            "net/__init__.py": "from .version import number",
            "net/version.py": "",
            "net/model.py": "from . import blocks\nfrom .blocks import Block",
            "net/blocks.py": "from ..net import version",
            "net/other.py": "",
        },
    )
    files = {"net/__init__.py", "net/version.py", "net/model.py", "net/blocks.py"}
    assert source_files(loading("net.model:load"), folder) == files


def test_a_file_in_a_sub_folder_finds_what_lies_beside_it_first(folder: Path) -> None:
    write(folder, {"sub/model.py": "import layers\nimport metric", "sub/layers.py": "", "sub/weights.pt": "w"})
    files = {"sub/model.py", "sub/layers.py", "metric.py", "sub/weights.pt"}
    assert source_files(loading("sub/model.py:load", "sub/weights.pt"), folder) == files


def test_helpers_of_one_name_in_two_folders_stay_apart(folder: Path) -> None:
    write(folder, {"a/c.py": "import tools", "a/tools.py": "1", "b/e.py": "import tools", "b/tools.py": "2"})
    made = packed(spec(data={"calibration": "a/c.py:f", "evaluation": "b/e.py:f"}), folder)
    assert made.data is not None
    assert set(made.data.artifact.files) == {"a/c.py", "a/tools.py", "b/e.py", "b/tools.py"}


def test_a_shared_module_in_a_root_above_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROOTS_SETTING, str(folder.parent))
    write(folder, {"model.py": "import shared.blocks\nimport layers"})
    write(folder.parent / "shared", {"blocks.py": ""})
    assert source_files(loading("model.py:load"), folder) == {"model.py", "layers.py", "shared/blocks.py"}


def test_the_versions_of_what_is_imported_belong_to_the_part(folder: Path) -> None:
    made = packed(WHOLE, folder)
    assert made.source.tools == {"numpy": installed_version("numpy")}
    assert made.data is not None
    assert made.data.tools == {}


@pytest.mark.parametrize("path", ["net.onnx", "models/net.onnx", "../elsewhere/net.onnx"])
def test_a_model_file_keeps_its_external_data_beside_it(folder: Path, path: str) -> None:
    where = (folder / path).parent
    write(where, {"net.onnx": "n", "net.onnx.data": "d", "sub/more.bin": "m"})
    declared = [os.path.relpath(where / name, folder) for name in ("net.onnx.data", "sub/more.bin")]
    made = packed(spec(source={"framework": "onnx", "path": path, "files": declared}), folder)
    assert set(made.source.artifact.files) == {"net.onnx", "net.onnx.data", "sub/more.bin"}


def test_declared_files_are_named_from_the_spec_or_by_their_own_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNXMILL_HOME", str(folder.parent / "mill"))
    write(folder, {"sub/config.json": "{}"})
    write(folder.parent / "mill" / "x", {"big.pt": "b"})
    what = loading("model.py:load", "sub/config.json", "sub/../weights.pt", "${ONNXMILL_HOME}/x/big.pt")
    assert source_files(what, folder) == {"model.py", "layers.py", "sub/config.json", "weights.pt", "big.pt"}


def test_a_link_within_the_root_is_packed_under_the_name_that_the_spec_uses(folder: Path) -> None:
    write(folder, {"v2/model_v2.py": "import layers\ndef load(): ..."})
    (folder / "model.py").unlink()
    (folder / "model.py").symlink_to("v2/model_v2.py")
    assert source_files(loading("model.py:load"), folder) == {"model.py", "layers.py"}


# --- digests ---------------------------------------------------------------------------------------------------------


def digests(made: Pack) -> dict[str, str]:
    parts = {"source": made.source, "data": made.data, "metric": made.metric}
    return {name: part.artifact.digest for name, part in parts.items() if part}


def test_the_same_files_in_two_folders_have_the_same_digests(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = packed(WHOLE, folder)
    other = folder.parent / "far" / "away" / "under another name"
    shutil.copytree(folder, other)
    monkeypatch.setenv(ROOTS_SETTING, str(other))
    second = packed(WHOLE, other)
    assert first == second
    assert str(folder.parent) not in second.model_dump_json()


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("weights.pt", "source"),
        ("model.py", "source"),
        ("layers.py", "source"),
        ("data.py", "data"),
        ("samples.npz", "data"),
        ("metric.py", "metric"),
        ("unused.py", None),
        ("README.md", None),
    ],
)
def test_one_changed_byte_changes_the_part_it_belongs_to_and_no_other(
    folder: Path, name: str, part: str | None
) -> None:
    before = digests(packed(WHOLE, folder))
    with (folder / name).open("a") as stream:
        stream.write("\n")
    after = digests(packed(WHOLE, folder))
    assert {key for key in before if before[key] != after[key]} == ({part} if part else set())


def test_a_date_changes_nothing(folder: Path) -> None:
    before = packed(WHOLE, folder)
    os.utime(folder / "weights.pt", (1, 1))
    (folder / "model.py").chmod(0o755)
    assert packed(WHOLE, folder) == before


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["os:getcwd", "json:loads", "numpy:zeros", "onnxmill.tasks.step:timeout_s", "builtins:eval"]
)
def test_a_module_that_is_only_installed_is_no_loader(folder: Path, text: str) -> None:
    message = refused(loading(text), folder)
    assert message.startswith(f"source.loader: '{text}': no such module in the folders whose code may run ({folder})")


def test_a_module_of_another_allowed_root_is_a_loader(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = write(folder.parent / "shared", {"net/model.py": "from net import blocks", "net/blocks.py": ""})
    assert "no such module" in refused(loading("net.model:load"), folder)
    monkeypatch.setenv(ROOTS_SETTING, f"{folder}{os.pathsep}{shared}")
    assert source_files(loading("net.model:load"), folder) == {"net/model.py", "net/blocks.py"}


@pytest.mark.parametrize("text", ["model.py:load", "model:load", "sub/model.py:load"])
def test_without_an_allowed_root_no_code_is_taken(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, {"sub/model.py": ""})
    monkeypatch.delenv(ROOTS_SETTING)
    assert "may run (none)" in refused(loading(text), folder)


def test_a_spec_outside_the_roots_may_use_their_modules_but_not_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = write(folder.parent / "shared", {"net.py": "import layers"})
    monkeypatch.setenv(ROOTS_SETTING, str(shared))
    assert source_files(loading("net:load", "weights.pt"), folder) == {"net.py", "weights.pt"}
    for text in ("model.py:load", "model:load"):
        with pytest.raises(InputError, match="whose code may run"):
            packed(loading(text), folder)


@pytest.mark.parametrize("text", ["../other/model.py:load", "sub/../model.py:load", "{folder}/model.py:load"])
def test_a_path_that_leads_out_or_is_absolute_is_refused(folder: Path, text: str) -> None:
    write(folder.parent / "other", {"model.py": ""})
    write(folder, {"sub/x": ""})
    text = text.format(folder=folder)
    message = refused(loading(text), folder)
    assert message.startswith(f"source.loader: '{text}': must lie in the spec's folder or below it")


@pytest.mark.parametrize("name", ["model.py", "layers.py"])
def test_a_link_that_leads_out_is_refused(folder: Path, name: str) -> None:
    secret = write(folder.parent / "other", {"secret.py": "def load(): ..."})
    (folder / name).unlink()
    (folder / name).symlink_to(secret / "secret.py")
    message = refused(loading("model.py:load"), folder)
    assert message.startswith("source.loader: 'model.py:load': is outside the folders whose code may run")


def test_a_folder_linked_from_outside_is_refused(folder: Path) -> None:
    (folder / "sub").symlink_to(write(folder.parent / "other", {"model.py": ""}))
    for text in ("sub/model.py:load", "sub.model:load"):
        assert "is outside the folders whose code may run" in refused(loading(text), folder)


@pytest.mark.parametrize("name", ["numpy.py", "layers.pyc", "native.so", "native.abi3.so"])
def test_code_from_outside_does_not_come_in_as_a_declared_file(folder: Path, name: str) -> None:
    write(folder.parent / "other", {name: ""})
    message = refused(loading("model.py:load", f"../other/{name}"), folder)
    assert message.startswith(f"source.files: '../other/{name}': is outside the folders whose code may run")


def test_two_declared_files_of_one_name_are_refused(folder: Path) -> None:
    write(folder.parent / "a", {"weights.pt": "1"})
    message = refused(loading("model.py:load", "weights.pt", "../a/weights.pt"), folder)
    assert "source.files: '../a/weights.pt': has the name of another file" in message
    assert str(folder / "weights.pt") in message


def test_a_file_may_be_declared_twice(folder: Path) -> None:
    what = loading("model.py:load", "weights.pt", "./weights.pt", "layers.py")
    assert source_files(what, folder) == {"model.py", "layers.py", "weights.pt"}


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (loading("modle.py:load"), "source.loader: 'modle.py:load': no such file. looked for {folder}/modle.py"),
        (loading("model.py"), "source.loader: 'model.py': must be file.py:callable or package.module:callable"),
        (loading("model.py:load", "w.pt"), "source.files: 'w.pt': no such file. looked for {folder}/w.pt"),
        (loading("model.py:load", "."), "source.files: '.': is a folder; name its files"),
        (
            spec(source={"framework": "onnx", "path": "m.onnx"}),
            "source.path: 'm.onnx': no such file. looked for {folder}/m.onnx",
        ),
        (spec(data={"calibration": "d.py:f"}), "data.calibration: 'd.py:f': no such file. looked for {folder}/d.py"),
        (
            spec(data={"evaluation": "data.py:f", "files": ["s"]}),
            "data.files: 's': no such file. looked for {folder}/s",
        ),
        (
            spec(data={"evaluation": "data.py:f"}, metric={"fn": "m.py:f"}),
            "metric.fn: 'm.py:f': no such file. looked for {folder}/m.py",
        ),
    ],
)
def test_what_is_missing_is_named(folder: Path, what: Spec, words: str) -> None:
    with pytest.raises(InputError) as caught:
        packed(what, folder)
    assert str(caught.value).startswith(words.format(folder=folder))


@pytest.mark.parametrize(
    ("name", "text"), [("model.py", "def load(:"), ("layers.py", "x = (\n\n"), ("layers.py", "a\0b")]
)
def test_a_syntax_error_names_the_file(folder: Path, name: str, text: str) -> None:
    write(folder, {name: text})
    message = refused(loading("model.py:load"), folder)
    assert message.startswith(f"source.loader: '{name}': is not valid Python")


# --- modules from elsewhere, whose changes no version would show


def test_a_module_on_the_path_that_no_distribution_owns_is_refused(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = write(tmp_path_factory.mktemp("elsewhere"), {"loose_module_of_mine.py": "K = 1"})
    write(folder, {"model.py": "from loose_module_of_mine import K\ndef load(): ..."})
    monkeypatch.syspath_prepend(elsewhere)
    with pytest.raises(InputError, match="imports 'loose_module_of_mine', which is outside the folders"):
        pack(loading("model.py:load"), folder, Store(folder / "store"))
    monkeypatch.setenv(ROOTS_SETTING, os.pathsep.join([str(folder), str(elsewhere)]))
    packed = pack(loading("model.py:load"), folder, Store(folder / "store"))
    assert "loose_module_of_mine.py" in packed.source.artifact.files


def test_a_module_that_is_nowhere_is_left_to_the_code(folder: Path) -> None:
    write(folder, {"model.py": "try:\n    import no_such_module_at_all\nexcept ImportError: ...\ndef load(): ..."})
    assert "model.py" in pack(loading("model.py:load"), folder, Store(folder / "store")).source.artifact.files


# --- a source's own files, and sidecars ------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_sidecars_are_a_part_of_their_own(folder: Path, store: Store) -> None:
    write(folder, {"tokenizer/vocab.txt": "a b", "labels.txt": "cat dog"})
    plain, packed = (
        pack(spec(), folder, store),
        pack(spec(sidecars=["tokenizer/vocab.txt", "labels.txt"]), folder, store),
    )
    assert packed.sidecars
    assert sorted(packed.sidecars.files) == ["labels.txt", "tokenizer/vocab.txt"]
    assert packed.source == plain.source  # they change no key of the model
    assert plain.sidecars is None


@pytest.mark.parametrize(
    ("sidecars", "message"),
    [
        (["labels.txt"], r"sidecars: 'labels\.txt': no such file"),
        (["tokenizer"], r"sidecars: 'tokenizer': is a folder; name its files"),
        (["sub/model.onnx"], r"sidecars: 'sub/model\.onnx': must not be called as a file of the model"),
        (["a/vocab.txt", "../b/vocab.txt", "../c/vocab.txt"], "has the name of another file"),
    ],
)
def test_sidecars_that_cannot_go_with_a_model_are_named(
    folder: Path, store: Store, sidecars: list[str], message: str
) -> None:
    write(folder, {"tokenizer/vocab.txt": "a", "sub/model.onnx": "m", "a/vocab.txt": "a"})
    write(folder.parent, {"b/vocab.txt": "b", "c/vocab.txt": "c"})
    with pytest.raises(InputError, match=message):
        pack(spec(sidecars=sidecars), folder, store)


def test_a_models_folder_is_packed_whole(folder: Path, store: Store) -> None:
    write(folder, {"saved/saved_model.pb": "g", "saved/variables/variables.index": "i"})
    packed = pack(spec(source={"framework": "tensorflow", "path": "saved"}), folder, store)
    assert sorted(packed.source.artifact.files) == ["saved/saved_model.pb", "saved/variables/variables.index"]
    assert packed.names == {"saved": "saved"}
    (folder / "empty").mkdir()
    with pytest.raises(InputError, match="is an empty folder"):
        pack(spec(source={"framework": "tensorflow", "path": "empty"}), folder, store)


def test_files_that_a_key_names_have_their_names_in_the_pack(folder: Path, store: Store) -> None:
    write(folder.parent, {"models/net.onnx": "m"})
    write(folder, {"golden/outputs.npz": "o"})
    source = {"framework": "onnx", "path": "../models/net.onnx", "reference": "golden/outputs.npz"}
    packed = pack(spec(source=source), folder, store)
    assert packed.names == {"../models/net.onnx": "net.onnx", "golden/outputs.npz": "outputs.npz"}
    assert sorted(packed.source.artifact.files) == ["net.onnx", "outputs.npz"]


# --- samples by paths ------------------------------------------------------------------------------------------------

TEXT = {"tokenizer": "words/tokenizer.json", "label": "class"}


def data_of(folder: Path, store: Store, **data: object) -> tuple[set[str], DataPaths]:
    """The files of the part `data`, and the paths in it."""
    packed = pack(spec(data=data), folder, store)
    assert packed.data
    assert packed.data.tools == {}
    return set(packed.data.artifact.files), packed.paths


def test_a_path_is_packed_without_being_declared(folder: Path, store: Store) -> None:
    write(folder, {"sub/a.csv": "", "words/tokenizer.json": "{}"})
    write(folder.parent, {"b.parquet": ""})
    files, paths = data_of(folder, store, calibration="sub/a.csv", evaluation="../b.parquet", text=TEXT)
    assert files == {"sub/a.csv", "b.parquet", "words/tokenizer.json"}
    assert paths == DataPaths(
        calibration=DataPath(name="sub/a.csv", kind="text"),
        evaluation=DataPath(name="b.parquet", kind="text"),
        tokenizer="words/tokenizer.json",
    )


def test_a_folder_is_packed_whole_but_for_hidden_files(folder: Path, store: Store) -> None:
    write(folder, {"photos/cats/1.jpg": "1", "photos/dogs/1.jpg": "2", "photos/.DS_Store": "", "photos/.git/x": ""})
    write(folder.parent, {"recorded/day/a.npz": "", "recorded/readme.txt": ""})
    files, paths = data_of(folder, store, calibration="photos", evaluation="../recorded")
    assert files == {"photos/cats/1.jpg", "photos/dogs/1.jpg", "recorded/day/a.npz", "recorded/readme.txt"}
    assert (paths.calibration, paths.evaluation) == (
        DataPath(name="photos", kind="images"),
        DataPath(name="recorded", kind="requests"),
    )


def test_links_to_folders_are_followed_but_not_in_a_circle(folder: Path, store: Store) -> None:
    write(folder.parent, {"cats/1.jpg": "1"})
    (folder / "photos").mkdir()
    (folder / "photos" / "cats").symlink_to(folder.parent / "cats")
    (folder.parent / "cats" / "again").symlink_to(folder.parent / "cats")
    assert data_of(folder, store, calibration="photos")[0] == {"photos/cats/1.jpg"}


def test_a_callable_and_a_path_may_stand_beside_each_other(folder: Path, store: Store) -> None:
    packed = pack(spec(data={"calibration": "samples.npz", "evaluation": "data.py:evaluation"}), folder, store)
    assert packed.data
    assert set(packed.data.artifact.files) == {"samples.npz", "data.py"}
    assert packed.paths == DataPaths(calibration=DataPath(name="samples.npz", kind="npz"))


def test_a_changed_image_changes_the_part_alone(folder: Path, store: Store) -> None:
    write(folder, {"photos/1.jpg": "1"})
    what = spec(data={"calibration": "photos"})
    before = pack(what, folder, store)
    write(folder, {"photos/1.jpg": "2"})
    after = pack(what, folder, store)
    assert before.data != after.data
    assert (before.source, before.paths) == (after.source, after.paths)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"calibration": "s.npz"}, "data.calibration: 's.npz': no such file. looked for {folder}/s.npz"),
        (
            {"calibration": "photoz"},
            "data.calibration: 'photoz': must be file.py:callable, or a path to .npy, .npz, .csv",
        ),
        ({"calibration": "data.py"}, "data.calibration: 'data.py': must be file.py:callable, or a path to"),
        ({"evaluation": "README.md"}, "data.evaluation: 'README.md': must be file.py:callable, or a path to"),
        ({"evaluation": "empty"}, "data.evaluation: 'empty': is an empty folder. looked in {folder}/empty"),
        ({"calibration": "hidden"}, "data.calibration: 'hidden': is an empty folder"),
        ({"calibration": "classes"}, "data.calibration: 'classes': has an empty folder 'dogs'. take it out"),
        ({"calibration": "t.csv", "text": TEXT}, "data.text.tokenizer: 'words/tokenizer.json': no such file"),
        (
            {"calibration": "cats", "evaluation": "../cats"},
            "data.calibration: 'cats': has the name of another path, '../cats'",
        ),
        ({"calibration": "../cats", "evaluation": "cats/a"}, "has the name of another path, '../cats'"),
    ],
)
def test_a_path_of_samples_that_is_none(folder: Path, store: Store, data: dict[str, object], words: str) -> None:
    write(folder, {"hidden/.x": "", "classes/cats/1.jpg": "", "t.csv": "", "cats/a/1.jpg": ""})
    write(folder.parent, {"cats/2.jpg": ""})
    (folder / "empty").mkdir()
    (folder / "classes" / "dogs").mkdir()
    with pytest.raises(InputError) as caught:
        pack(spec(data=data), folder, store)
    assert words.format(folder=folder) in str(caught.value)


def test_a_variants_table_of_ranges_is_an_artifact_of_its_own(folder: Path, store: Store) -> None:
    write(folder, {"tables/a.json": "a", "b.cache": "b"})
    variants = [{"recipe": "int8-static", "name": name, "ranges": name} for name in ("b.cache",)]
    variants += [{"recipe": "int8-static", "name": "a", "ranges": "tables/a.json"}]
    packed = pack(spec(variants=variants), folder, store)
    assert {name: list(table.files) for name, table in packed.tables.items()} == {
        "b.cache": ["b.cache"],
        "tables/a.json": ["tables/a.json"],
    }
    with pytest.raises(InputError, match=r"variants\.ranges: 'none\.json': no such file"):
        pack(spec(variants=[{"recipe": "int8-static", "ranges": "none.json"}]), folder, store)
