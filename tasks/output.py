"""The folder that a command writes to."""

import os
from pathlib import Path

from onnxmill.tasks.errors import InputError
from onnxmill.tasks.spec import home, load


def output_folder(spec: str, out: str) -> Path:
    """Where the report and the models go, made if it is not there; by default a folder under ONNXMILL_HOME."""
    folder = Path(out) if out else home() / "reports" / load(Path(spec)).name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("--out", str(folder), f"cannot be a folder: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise InputError("--out", str(folder), "must be writable")
    return folder
