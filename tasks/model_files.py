"""The files of a model outside of the store: their list beside them, and the check that none was lost or changed."""

from pathlib import Path

from onnxmill.tasks.artifact import Artifact, CorruptStore, File, digest_files, sha256_file
from onnxmill.tasks.report import VariantRow

MANIFEST = "onnxmill.json"
"""Beside a logged model: the names and sha256 of its files, as in the artifact store."""


def check_files(folder: Path, digest: str) -> list[str]:
    """Compare a downloaded model with its manifest, and that with `digest`. One line a fault, naming the file."""
    try:
        artifact = Artifact.model_validate_json((folder / MANIFEST).read_bytes())
    except (OSError, ValueError) as error:
        return [f"{MANIFEST} is missing or damaged ({type(error).__name__})"]
    if digest_files(artifact.files) != digest:
        return [f"its files have digest {digest_files(artifact.files)[:12]}, expected {digest[:12]}"]
    faults = []
    for name, file in artifact.files.items():
        path = folder / name
        if not path.is_file():
            faults.append(f"{name} is missing")
        elif (found := sha256_file(path)) != file.sha256:
            faults.append(f"{name} was changed: sha256 {found[:12]}, expected {file.sha256[:12]}")
    return faults


def listing(folder: Path, row: VariantRow) -> Artifact:
    """The folder's files with their digests, seen to be those of the report."""
    paths = {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}
    found_files = {name: File(sha256=sha256_file(p), size_bytes=p.stat().st_size) for name, p in paths.items()}
    digest = digest_files(found_files)
    if row.artifact is None or row.artifact.digest != digest:
        expected = row.artifact.digest[:12] if row.artifact else "none"
        raise CorruptStore(f"store: the model of '{row.name}' has digest {digest[:12]}, its report says {expected}")
    return Artifact(digest=digest, files=found_files)
