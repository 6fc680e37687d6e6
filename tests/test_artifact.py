"""Artifacts and the store: whole or not there, verified on a hit, mended by the next run, safe for many processes."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxmill.tasks.artifact import (
    Artifact,
    CorruptStore,
    File,
    Record,
    Store,
    action_key,
    canonical_json,
    digest_files,
    sha256_file,
    sha256_of,
)

KEY = "ab" * 32


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def publish(store: Store, files: dict[str, str]) -> Artifact:
    with store.workspace() as folder:
        return store.publish(write(folder, files))


def record(artifact: Artifact | None, value: float = 0.98) -> Record:
    return Record(
        key=KEY,
        step="export",
        version=1,
        settings={"opset": 18},
        inputs={"source": "cd" * 32},
        tools={"onnx": "1.0"},
        artifact=artifact,
        value=value,
        seconds=1.5,
        peak_rss_mb=100.0,
        created_at="2024-01-01T00:00:00+00:00",
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def blob(store: Store, artifact: Artifact, name: str) -> Path:
    sha256 = artifact.files[name].sha256
    return store.root / "blobs" / sha256[:2] / sha256


def overwrite(path: Path, content: bytes) -> None:
    """What a bad disk or a careless hand does: the same inode with other bytes."""
    path.chmod(0o644)
    path.write_bytes(content)


# --- digests and keys ------------------------------------------------------------------------------------------------


def test_a_digest_is_of_names_and_contents_alone(tmp_path: Path) -> None:
    files = {"model.onnx": "m", "sub/data.bin": "d"}
    first = publish(Store(tmp_path / "a"), files)
    second = publish(Store(tmp_path / "elsewhere" / "b"), dict(reversed(files.items())))
    assert first == second
    assert first.digest == digest_files(first.files)
    assert sorted(first.files) == ["model.onnx", "sub/data.bin"]
    assert first.size_bytes == 2


@pytest.mark.parametrize("files", [{"a": "y"}, {"b": "x"}, {"a": "x", "b": "x"}, {}])
def test_another_name_content_or_number_is_another_digest(store: Store, files: dict[str, str]) -> None:
    assert publish(store, files).digest != publish(store, {"a": "x"}).digest


def test_add_and_publish_give_the_same_artifact(store: Store, tmp_path: Path) -> None:
    write(tmp_path / "user", {"a": "x", "b": "y"})
    added = store.add({"a": tmp_path / "user/a", "b": tmp_path / "user/b"})
    assert added == publish(store, {"a": "x", "b": "y"})
    assert (tmp_path / "user/a").read_text() == "x"  # the user's own file stays


def test_canonical_json_has_one_spelling() -> None:
    assert canonical_json({"b": [1, 2.5, None, True], "a": "ü"}) == '{"a":"ü","b":[1,2.5,null,true]}'.encode()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_canonical_json_refuses_what_is_not_finite(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"limit": [number]})


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("abü", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4),
    max_leaves=8,
)
MAPPINGS = st.dictionaries(st.text("abc", max_size=3), JSON, max_size=4)
TEXTS = st.dictionaries(st.text("abc", max_size=3), st.text("01", max_size=3), max_size=4)


def turned(value: object) -> object:
    """The same value with every mapping in the opposite order."""
    if isinstance(value, dict):
        return {key: turned(inner) for key, inner in reversed(value.items())}
    return [turned(inner) for inner in value] if isinstance(value, list) else value


@given(MAPPINGS, TEXTS, TEXTS)
def test_a_key_does_not_depend_on_the_order_of_mappings(
    settings: dict[str, object], inputs: dict[str, str], tools: dict[str, str]
) -> None:
    key = action_key("export", 1, settings, inputs, tools)
    again = action_key("export", 1, turned(settings), turned(inputs), turned(tools))  # type: ignore[arg-type]  # dicts
    assert key == again


@given(MAPPINGS, MAPPINGS)
def test_other_settings_are_another_key(one: dict[str, object], other: dict[str, object]) -> None:
    keys = [action_key("export", 1, settings, {}, {}) for settings in (one, other)]
    assert (keys[0] == keys[1]) == (json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))


def test_each_part_of_a_key_counts() -> None:
    keys = {
        action_key("export", 1, {"a": 1}, {"m": "d"}, {"onnx": "1"}),
        action_key("simplify", 1, {"a": 1}, {"m": "d"}, {"onnx": "1"}),
        action_key("export", 2, {"a": 1}, {"m": "d"}, {"onnx": "1"}),
        action_key("export", 1, {"a": 2}, {"m": "d"}, {"onnx": "1"}),
        action_key("export", 1, {"a": 1}, {"m": "e"}, {"onnx": "1"}),
        action_key("export", 1, {"a": 1}, {"n": "d"}, {"onnx": "1"}),
        action_key("export", 1, {"a": 1}, {"m": "d"}, {"onnx": "2"}),
        action_key("export", 1, {"a": 1}, {}, {"m": "d", "onnx": "1"}),
    }
    assert len(keys) == 8


def test_a_key_is_the_same_in_every_version_of_onnxmill() -> None:
    assert action_key("export", 1, {"opset": 18}, {"source": "ab"}, {"onnx": "1.0"}) == sha256_of(
        {
            "inputs": {"source": "ab"},
            "settings": {"opset": 18},
            "step": "export",
            "tools": {"onnx": "1.0"},
            "version": 1,
        }
    )
    assert sha256_of({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


# --- whole or not there ----------------------------------------------------------------------------------------------


def test_files_are_where_the_layout_says(store: Store) -> None:
    artifact = publish(store, {"model.onnx": "m"})
    path = blob(store, artifact, "model.onnx")
    assert path.read_text() == "m"
    assert path.stat().st_mode & 0o222 == 0
    assert json.loads((store.root / "manifests" / artifact.digest).read_text()) == artifact.model_dump()


def test_open_gives_the_files_under_their_names_at_no_space(store: Store) -> None:
    artifact = publish(store, {"model.onnx": "m", "sub/data.bin": "d"})
    tree = store.open(artifact)
    assert {p.relative_to(tree).as_posix(): p.read_text() for p in tree.rglob("*") if p.is_file()} == {
        "model.onnx": "m",
        "sub/data.bin": "d",
    }
    assert (tree / "model.onnx").samefile(blob(store, artifact, "model.onnx"))
    assert store.open(artifact) == tree


def test_a_copy_may_be_written_to(store: Store, tmp_path: Path) -> None:
    artifact = publish(store, {"sub/weights.pt": "w"})
    store.copy(artifact, tmp_path / "work")
    (tmp_path / "work/sub/weights.pt").write_text("trained on")
    assert blob(store, artifact, "sub/weights.pt").read_text() == "w"
    assert store.check() == []


def test_equal_contents_are_stored_once(store: Store) -> None:
    publish(store, {"a": "x", "b": "x"})
    publish(store, {"c": "x"})
    assert len([p for p in (store.root / "blobs").rglob("*") if p.is_file()]) == 1


def test_blobs_come_first_and_the_manifest_last(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    replace = Path.replace

    def watched(path: Path, target: Path) -> Path:
        seen.append(target.relative_to(store.root).parts[0])
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", watched)
    publish(store, {"a": "x", "b": "y"})
    assert seen == ["blobs", "blobs", "manifests"]


def test_publishing_that_fails_half_way_leaves_no_manifest(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = Path.replace
    done: list[Path] = []

    def full_disk(path: Path, target: Path) -> Path:
        if done:
            raise OSError(28, "No space left on device")
        done.append(target)
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full_disk)
        with pytest.raises(OSError, match="No space"):
            publish(store, {"a": "x", "b": "y"})
    assert len(done) == 1
    assert list((store.root / "manifests").iterdir()) == []
    assert list((store.root / "tmp").iterdir()) == []
    assert store.check() == []
    assert publish(store, {"a": "x", "b": "y"}).files["a"] == File(sha256=sha256_file(done[0]), size_bytes=1)


def test_a_killed_process_leaves_nothing_half_written(store: Store) -> None:
    code = f"""
import os
import re
from pathlib import Path
from onnxmill.tasks.artifact import Store
store = Store(Path({str(store.root)!r}))
real, count = Path.replace, []
def replace(path, target):
    if count:
        os.kill(os.getpid(), 9)
    count.append(1)
    return real(path, target)
Path.replace = replace
with store.workspace() as folder:
    (folder / "a").write_text("x")
    (folder / "b").write_text("y" * 100000)
    store.publish(folder)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert list((store.root / "manifests").iterdir()) == []
    assert len(list((store.root / "tmp").iterdir())) == 1
    again = Store(store.root)
    assert list((again.root / "tmp").iterdir()) == []
    assert again.check() == []
    assert {p.name for p in (store.root / "blobs").rglob("*") if p.is_file()} <= {
        sha256_file(p) for p in (store.root / "blobs").rglob("*") if p.is_file()
    }


def test_left_overs_of_the_dead_go_and_those_of_the_living_stay(store: Store) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with store.workspace() as mine:
        host = mine.name.split("-")[0]
    names = [f"{host}-{dead.pid}-abc", f"{host}-{os.getpid()}-abc", f"elsewhere-{dead.pid}-abc"]
    for name in names:
        (store.root / "tmp" / name).mkdir()
        (store.root / "tmp" / name / "half").write_text("…")
    Store(store.root)
    assert {p.name for p in (store.root / "tmp").iterdir()} == set(names[1:])


def test_a_workspace_is_empty_and_gone_afterwards(store: Store) -> None:
    def fails() -> None:
        with store.workspace() as folder:
            assert list(folder.iterdir()) == []
            (folder / "half").write_text("…")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert list((store.root / "tmp").iterdir()) == []


def test_many_processes_publish_the_same(store: Store) -> None:
    code = f"""
from pathlib import Path
from onnxmill.tasks.artifact import Store
store = Store(Path({str(store.root)!r}))
for _ in range(30):
    with store.workspace() as folder:
        for i in range(3):
            (folder / f"file{{i}}").write_text(str(i) * 50000)
        artifact = store.publish(folder)
    store.verify(artifact)
    assert (store.open(artifact) / "file2").read_text() == "2" * 50000
print(artifact.digest)
"""
    running = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    digests = {process.communicate()[0] for process in running}
    assert [process.returncode for process in running] == [0] * 4
    assert len(digests) == 1
    assert store.check() == []
    assert list((store.root / "tmp").iterdir()) == []


# --- verified on a hit -----------------------------------------------------------------------------------------------


def test_what_was_remembered_is_found_again(store: Store) -> None:
    made = record(publish(store, {"model.onnx": "m"}))
    assert store.lookup(KEY) is None
    store.remember(made)
    assert store.lookup(KEY) == made
    assert Store(store.root).lookup(KEY) == made
    assert store.check() == []


def test_a_record_may_have_no_files(store: Store) -> None:
    store.remember(record(None))
    assert store.lookup(KEY) == record(None)


Damage = Callable[[Store, Artifact], None]


def flipped_byte(store: Store, artifact: Artifact) -> None:
    overwrite(blob(store, artifact, "model.onnx"), b"n")


def deleted_blob(store: Store, artifact: Artifact) -> None:
    blob(store, artifact, "model.onnx").unlink()


def deleted_manifest(store: Store, artifact: Artifact) -> None:
    (store.root / "manifests" / artifact.digest).unlink()


def broken_manifest(store: Store, artifact: Artifact) -> None:
    (store.root / "manifests" / artifact.digest).write_text('{"digest": ')


def edited_manifest(store: Store, artifact: Artifact) -> None:
    path = store.root / "manifests" / artifact.digest
    path.write_text(path.read_text().replace("model.onnx", "other.onnx"))


def exchanged_manifest(store: Store, artifact: Artifact) -> None:
    other = publish(store, {"model.onnx": "another"})
    (store.root / "manifests" / artifact.digest).write_text(other.model_dump_json())


def broken_action(store: Store, artifact: Artifact) -> None:
    path = store.root / "actions" / KEY
    path.write_text(path.read_text()[:-20])


def edited_value(store: Store, artifact: Artifact) -> None:
    path = store.root / "actions" / KEY
    path.write_text(path.read_text().replace("0.98", "0.99"))


def binary_action(store: Store, artifact: Artifact) -> None:
    (store.root / "actions" / KEY).write_bytes(b"\xff\xfe")


def empty_action(store: Store, artifact: Artifact) -> None:
    (store.root / "actions" / KEY).write_bytes(b"")


def renamed_action(store: Store, artifact: Artifact) -> None:
    other = record(artifact, value=0.5).model_copy(update={"key": "cd" * 32})
    store.remember(other)
    (store.root / "actions" / other.key).rename(store.root / "actions" / KEY)


DAMAGES: dict[str, tuple[Damage, str]] = {
    "flipped byte": (flipped_byte, "model.onnx of artifact .* was changed"),
    "deleted blob": (deleted_blob, "model.onnx of artifact .* is missing"),
    "deleted manifest": (deleted_manifest, "artifact .* of action abababababab has no manifest"),
    "broken manifest": (broken_manifest, "manifest .* is broken"),
    "edited manifest": (edited_manifest, "manifest .* was changed"),
    "exchanged manifest": (exchanged_manifest, "manifest .* was changed"),
    "broken action": (broken_action, "action abababababab is broken"),
    "edited value": (edited_value, "action abababababab was changed"),
    "binary action": (binary_action, "action abababababab is broken"),
    "empty action": (empty_action, "action abababababab is broken"),
    "renamed action": (renamed_action, "action abababababab was changed"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_no_hit_is_named_and_is_mended_by_the_next_run(store: Store, name: str) -> None:
    damage, words = DAMAGES[name]
    artifact = publish(store, {"model.onnx": "m", "sub/data.bin": "d"})
    store.open(artifact)
    store.remember(record(artifact))
    damage(store, artifact)
    assert store.lookup(KEY) is None
    faults = store.check()
    assert len(faults) == 1
    assert re.search(words, faults[0]), faults[0]
    store.remember(record(publish(store, {"model.onnx": "m", "sub/data.bin": "d"})))  # the step runs again
    assert store.lookup(KEY) == record(artifact)
    assert store.check() == []
    assert (store.open(artifact) / "model.onnx").read_text() == "m"
    assert (store.open(artifact) / "sub/data.bin").read_text() == "d"


@pytest.mark.parametrize("damage", [flipped_byte, deleted_blob])
def test_a_users_file_that_was_damaged_in_the_store_is_taken_again(
    store: Store, tmp_path: Path, damage: Damage
) -> None:
    write(tmp_path, {"weights.pt": "w"})
    artifact = store.add({"model.onnx": tmp_path / "weights.pt"})
    store.open(artifact)
    damage(store, artifact)
    assert store.add({"model.onnx": tmp_path / "weights.pt"}) == artifact
    assert store.check() == []
    assert (store.open(artifact) / "model.onnx").read_text() == "w"


def test_a_blob_that_another_artifact_mended_is_mended_for_all(store: Store) -> None:
    first = publish(store, {"model.onnx": "m"})
    tree = store.open(first)
    flipped_byte(store, first)
    publish(store, {"other.onnx": "m"})
    store.verify(first)
    assert (store.open(first) / "model.onnx").read_text() == "m"
    assert store.open(first) == tree


def test_a_file_that_was_deleted_from_a_tree_comes_back(store: Store) -> None:
    artifact = publish(store, {"model.onnx": "m", "b": "b"})
    (store.open(artifact) / "b").unlink()
    assert (store.open(artifact) / "b").read_text() == "b"


def test_opening_what_lost_its_blob_names_the_file(store: Store) -> None:
    artifact = publish(store, {"model.onnx": "m"})
    deleted_blob(store, artifact)
    with pytest.raises(CorruptStore, match=r"model\.onnx of artifact .* is missing; run it again"):
        store.open(artifact)
    assert list((store.root / "trees").iterdir()) == []


def test_large_files_are_read_piecewise(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(np.zeros(1 << 20, np.uint8).tobytes())
    assert sha256_file(tmp_path / "big") == "30e14955ebf1352266dc2ff8067e68104607e750abb9d3b36582b8af909fcb58"
