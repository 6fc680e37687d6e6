"""Artifact: a set of files under one digest. Store: blobs and manifests on disk. Memo: actions -> records.

Layout of a store (`ONNXMILL_HOME/store`):

    blobs/ab/abcd…        one file's bytes, named by its sha256, read-only
    manifests/<digest>    an artifact: {name: {sha256, size_bytes}}; written after all of its blobs
    trees/<digest>/       the artifact's files under their own names (hard links of blobs), made when first opened
    actions/<key>         a Record: what a step with this key gave; its first line is the sha256 of the rest
    tmp/<host>-<pid>-…/   work in progress; what a dead process of this host left is removed when a store is opened

Every file appears by an atomic rename: a reader sees a whole one or none.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

import psutil
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from onnxmill.tasks.errors import OnnxmillError

_HOST = re.sub(r"[^A-Za-z0-9]", "", platform.node()) or "host"
"""Part of a workspace's name: another host, or another container, does not see this one's processes."""


class File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str
    size_bytes: int


class Artifact(BaseModel):
    """A set of files. `digest` is the sha256 of the sorted names and contents; nothing else is in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    digest: str
    files: dict[str, File]

    @property
    def size_bytes(self) -> int:
        return sum(f.size_bytes for f in self.files.values())


class Record(BaseModel):
    """What one step gave: its artifact (if it makes files), its value (JSON), and how it came about.

    `inputs` are digests by argument name. Times and seconds are not part of any key or digest.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    step: str
    version: int
    settings: dict[str, JsonValue]
    inputs: dict[str, str]
    tools: dict[str, str]
    artifact: Artifact | None
    value: JsonValue
    seconds: float
    peak_rss_mb: float
    created_at: str


class CorruptStore(OnnxmillError):
    """A stored file is missing or its bytes are not those that its name promises."""


def canonical_json(value: object) -> bytes:
    """One spelling for one value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256_of(value: object) -> str:
    return hashlib.sha256(canonical_json(value)).hexdigest()


def sha256_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def action_key(step: str, version: int, settings: dict[str, Any], inputs: dict[str, str], tools: dict[str, str]) -> str:
    """The memo's key: the step's name and VERSION, its settings, its inputs' digests, its tools' versions."""
    return sha256_of({"step": step, "version": version, "settings": settings, "inputs": inputs, "tools": tools})


def digest_files(files: dict[str, File]) -> str:
    return sha256_of({name: file.sha256 for name, file in files.items()})


class Store:
    """Artifacts and records under one folder. Safe for many processes at once.

    Raises `CorruptStore` when a file that should be there is missing or changed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("blobs", "manifests", "trees", "actions", "tmp"):
            (root / name).mkdir(parents=True, exist_ok=True)
        self._remove_left_overs()

    # --- artifacts ---------------------------------------------------------------------------------------------

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """An empty folder on the store's file system, gone afterwards."""
        folder = Path(tempfile.mkdtemp(prefix=f"{_HOST}-{os.getpid()}-", dir=self.root / "tmp"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def publish(self, folder: Path) -> Artifact:
        """Take every file under `folder` (moved, not copied) as one artifact: blobs first, manifest last."""
        files: dict[str, File] = {}
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            files[path.relative_to(folder).as_posix()] = self._take(path)
        return self._seal(files)

    def add(self, files: Mapping[str, Path]) -> Artifact:
        """Take copies of a user's `files`, {name in the artifact: path}, as one artifact."""
        taken: dict[str, File] = {}
        with self.workspace() as folder:
            for name, path in sorted(files.items()):
                sha256 = sha256_file(path)
                if self._is_sound(sha256):
                    taken[name] = File(sha256=sha256, size_bytes=self._blob(sha256).stat().st_size)
                else:
                    taken[name] = self._take(Path(shutil.copyfile(path, folder / "copy")))
        return self._seal(taken)

    def join(self, *artifacts: Artifact) -> Artifact:
        """One artifact of the files of several, whose names all differ. Nothing is copied."""
        return self._seal({name: file for artifact in artifacts for name, file in artifact.files.items()})

    def verify(self, artifact: Artifact) -> None:
        """Read the manifest and every file of `artifact`, and compare them with its digest."""
        manifest = self.root / "manifests" / artifact.digest
        try:
            written = Artifact.model_validate_json(manifest.read_bytes())
        except (FileNotFoundError, ValidationError) as error:
            raise CorruptStore(f"store: manifest {artifact.digest[:12]} is missing or broken ({manifest})") from error
        if written != artifact or digest_files(artifact.files) != artifact.digest:
            raise CorruptStore(f"store: manifest {artifact.digest[:12]} was changed ({manifest})")
        for name, file in artifact.files.items():
            blob = self._blob(file.sha256)
            if not blob.is_file():
                raise CorruptStore(f"store: {name} of artifact {artifact.digest[:12]} is missing ({blob})")
            if sha256_file(blob) != file.sha256:
                raise CorruptStore(f"store: {name} of artifact {artifact.digest[:12]} was changed ({blob})")

    def copy(self, artifact: Artifact, folder: Path) -> None:
        """Lay copies of the artifact's files out under `folder`, for code that may write to them."""
        self._lay_out(artifact, folder, shutil.copyfile)

    def open(self, artifact: Artifact) -> Path:
        """A folder with the artifact's files under their own names. Read-only: never write into it."""
        tree = self.root / "trees" / artifact.digest
        if not self._is_tree_of(artifact, tree):
            stale = tree.is_dir()
            with self.workspace() as folder:
                self._lay_out(artifact, folder / "tree", os.link)
                try:
                    if stale:
                        tree.rename(folder / "stale")
                    (folder / "tree").rename(tree)
                except OSError:
                    if not self._is_tree_of(artifact, tree):  # another process was first: then its tree is as good
                        raise
        return tree

    def check(self) -> list[str]:
        """Verify the whole store. Returns one line a fault; empty means sound."""
        faults = []
        for manifest in sorted((self.root / "manifests").iterdir()):
            try:
                artifact = Artifact.model_validate_json(manifest.read_bytes())
                self.verify(artifact.model_copy(update={"digest": manifest.name}))
            except ValidationError as error:
                faults.append(f"store: manifest {manifest.name[:12]} is broken ({manifest}): {error}")
            except CorruptStore as error:
                faults.append(str(error))
        for action in sorted((self.root / "actions").iterdir()):
            try:
                record = self._read_action(action)
            except CorruptStore as error:
                faults.append(str(error))
                continue
            if record.artifact and not (self.root / "manifests" / record.artifact.digest).is_file():
                missing = record.artifact.digest[:12]
                faults.append(f"store: artifact {missing} of action {action.name[:12]} has no manifest ({action})")
        return faults

    # --- the memo of steps ---------------------------------------------------------------------------------------

    def lookup(self, key: str) -> Record | None:
        """The record of a step that was done before, with its files verified; None if there is none.

        A record that does not verify counts as none: the step runs again, and so mends the store.
        """
        path = self.root / "actions" / key
        if not path.is_file():
            return None
        try:
            record = self._read_action(path)
            if record.artifact:
                self.verify(record.artifact)
        except CorruptStore:
            return None
        return record

    def remember(self, record: Record) -> None:
        text = record.model_dump_json(indent=1)
        self._write(self.root / "actions" / record.key, f"{sha256_of(text)}\n{text}")

    # --- details -------------------------------------------------------------------------------------------------

    def _seal(self, files: dict[str, File]) -> Artifact:
        artifact = Artifact(digest=digest_files(files), files=files)
        self._write(self.root / "manifests" / artifact.digest, artifact.model_dump_json(indent=1))
        return artifact

    def _blob(self, sha256: str) -> Path:
        return self.root / "blobs" / sha256[:2] / sha256

    def _take(self, path: Path) -> File:
        sha256, size = sha256_file(path), path.stat().st_size
        blob = self._blob(sha256)
        if not self._is_sound(sha256):
            blob.parent.mkdir(exist_ok=True)
            path.chmod(0o444)
            path.replace(blob)
        return File(sha256=sha256, size_bytes=size)

    def _write(self, path: Path, text: str) -> None:
        with self.workspace() as folder:
            (folder / "file").write_text(text, encoding="utf-8")
            (folder / "file").replace(path)

    def _is_sound(self, sha256: str) -> bool:
        blob = self._blob(sha256)
        return blob.is_file() and sha256_file(blob) == sha256

    def _lay_out(self, artifact: Artifact, folder: Path, put: Callable[[Path, Path], object]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, file in artifact.files.items():
            target = folder / PurePosixPath(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                put(self._blob(file.sha256), target)
            except FileNotFoundError as error:
                raise CorruptStore(
                    f"store: {name} of artifact {artifact.digest[:12]} is missing; run it again"
                ) from error

    def _is_tree_of(self, artifact: Artifact, tree: Path) -> bool:
        """Whether each file of `tree` is the blob itself: a blob that was mended since is another file."""
        with suppress(FileNotFoundError):
            return tree.is_dir() and all(
                (tree / name).samefile(self._blob(file.sha256)) for name, file in artifact.files.items()
            )
        return False

    def _read_action(self, path: Path) -> Record:
        try:
            checksum, _, text = path.read_text(encoding="utf-8").partition("\n")
            record = Record.model_validate_json(text)
        except (ValidationError, UnicodeDecodeError) as error:
            raise CorruptStore(f"store: action {path.name[:12]} is broken ({path})") from error
        if checksum != sha256_of(text) or record.key != path.name:
            raise CorruptStore(f"store: action {path.name[:12]} was changed ({path})")
        return record

    def _remove_left_overs(self) -> None:
        for folder in (self.root / "tmp").iterdir():
            host, _, rest = folder.name.rpartition("-")[0].rpartition("-")
            if host == _HOST and rest.isdigit() and not psutil.pid_exists(int(rest)):
                shutil.rmtree(folder, ignore_errors=True)
