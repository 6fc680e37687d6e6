"""Artifact: a set of files under one digest. Store: blobs and manifests on disk. Memo: actions -> records.

Layout of a store (`ONNXMILL_HOME/store`):

    blobs/ab/abcd…        one file's bytes, named by its sha256, read-only
    manifests/<digest>    an artifact: {name: {sha256, size_bytes}}; written after all of its blobs
    trees/<digest>/       the artifact's files under their own names (hard links of blobs), made when first opened
    actions/<key>         a Record: what a step with this key gave
    tmp/<pid>-…/          work in progress; what a dead process left is removed when a store is opened

Every file appears by an atomic rename: a reader sees a whole one or none.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import psutil
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from onnxmill.tasks.errors import OnnxmillError


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
        folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=self.root / "tmp"))
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
                if not self._blob(sha256).is_file():
                    path = Path(shutil.copyfile(path, folder / "copy"))
                    taken[name] = self._take(path)
                else:
                    taken[name] = File(sha256=sha256, size_bytes=path.stat().st_size)
        return self._seal(taken)

    def verify(self, artifact: Artifact) -> None:
        """Read every file of `artifact` and compare with its digest."""
        if digest_files(artifact.files) != artifact.digest:
            raise CorruptStore(f"store: manifest {artifact.digest[:12]} does not match its own digest; run it again")
        for name, file in artifact.files.items():
            blob = self._blob(file.sha256)
            if not blob.is_file():
                raise CorruptStore(f"store: {name} of artifact {artifact.digest[:12]} is missing ({blob})")
            if sha256_file(blob) != file.sha256:
                raise CorruptStore(f"store: {name} of artifact {artifact.digest[:12]} was changed ({blob})")

    def link(self, artifact: Artifact, folder: Path) -> None:
        """Lay the artifact's files out under `folder`, as hard links: they cost no space and must not be written."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, file in artifact.files.items():
            target = folder / PurePosixPath(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(self._blob(file.sha256), target)

    def open(self, artifact: Artifact) -> Path:
        """A folder with the artifact's files under their own names. Read-only: never write into it."""
        tree = self.root / "trees" / artifact.digest
        if not tree.is_dir():
            with self.workspace() as folder:
                self.link(artifact, folder / "tree")
                try:
                    (folder / "tree").rename(tree)
                except OSError:
                    if not tree.is_dir():  # another process was first: then its tree is as good
                        raise
        return tree

    def check(self) -> list[str]:
        """Verify the whole store. Returns one line a fault; empty means sound."""
        faults = []
        for manifest in sorted((self.root / "manifests").iterdir()):
            try:
                self.verify(Artifact.model_validate_json(manifest.read_bytes()))
            except (ValidationError, CorruptStore) as error:
                faults.append(f"{manifest.name[:12]}: {error}")
        for action in sorted((self.root / "actions").iterdir()):
            try:
                record = Record.model_validate_json(action.read_bytes())
            except ValidationError as error:
                faults.append(f"action {action.name[:12]}: {error}")
                continue
            if record.artifact and not (self.root / "manifests" / record.artifact.digest).is_file():
                faults.append(f"action {action.name[:12]}: its artifact {record.artifact.digest[:12]} is missing")
        return faults

    # --- the memo of steps ---------------------------------------------------------------------------------------

    def lookup(self, key: str) -> Record | None:
        """The record of a step that was done before, with its files verified; None if there is none.

        A record whose files do not verify is dropped, so that the step runs again and mends the store.
        """
        path = self.root / "actions" / key
        if not path.is_file():
            return None
        try:
            record = Record.model_validate_json(path.read_bytes())
            if record.artifact:
                self.verify(record.artifact)
        except (ValidationError, CorruptStore):
            self._forget(path)
            return None
        return record

    def remember(self, record: Record) -> None:
        self._write(self.root / "actions" / record.key, record.model_dump_json(indent=1))

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
        if not (blob.is_file() and sha256_file(blob) == sha256):
            blob.parent.mkdir(exist_ok=True)
            path.chmod(0o444)
            path.replace(blob)
        return File(sha256=sha256, size_bytes=size)

    def _write(self, path: Path, text: str) -> None:
        with self.workspace() as folder:
            (folder / "file").write_text(text, encoding="utf-8")
            (folder / "file").replace(path)

    def _forget(self, action: Path) -> None:
        """Drop an action whose artifact is unsound, with the tree and the manifest that would serve it."""
        try:
            artifact = Record.model_validate_json(action.read_bytes()).artifact
        except ValidationError:
            artifact = None
        action.unlink(missing_ok=True)
        if artifact:
            shutil.rmtree(self.root / "trees" / artifact.digest, ignore_errors=True)
            (self.root / "manifests" / artifact.digest).unlink(missing_ok=True)
            for file in artifact.files.values():
                blob = self._blob(file.sha256)
                if blob.is_file() and sha256_file(blob) != file.sha256:
                    blob.unlink(missing_ok=True)

    def _remove_left_overs(self) -> None:
        for folder in (self.root / "tmp").iterdir():
            pid = folder.name.split("-")[0]
            if pid.isdigit() and not psutil.pid_exists(int(pid)):
                shutil.rmtree(folder, ignore_errors=True)
