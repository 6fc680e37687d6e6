"""Parity cases on disk: the inputs that everything is compared on, with the reference's outputs.

`cases.npz` holds `000-real/input/<name>.npy`, `000-real/output/<name>.npy`, …: a group a case, real or random.
"""

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from onnxmill.calibration import samples
from onnxmill.calibration.samples import Array

FILE = "cases.npz"
Kind = Literal["real", "random"]


@dataclass(frozen=True)
class Case:
    """One parity case: inputs, the reference's outputs, and whether the inputs are real samples."""

    kind: Kind
    inputs: dict[str, Array]
    outputs: dict[str, Array]


def append(archive: zipfile.ZipFile, index: int, case: Case) -> None:
    """Add one case to an open .npz."""
    for role, arrays in (("input", case.inputs), ("output", case.outputs)):
        for name, array in arrays.items():
            samples.append(archive, f"{index:03d}-{case.kind}/{role}/{name}", array)


def read(folder: Path) -> Iterator[Case]:
    """Stream the cases of a reference's folder."""
    for group, arrays in samples.read_groups(folder / FILE):
        kind: Kind = "real" if group.endswith("-real") else "random"
        inputs = {n.removeprefix("input/"): a for n, a in arrays.items() if n.startswith("input/")}
        outputs = {n.removeprefix("output/"): a for n, a in arrays.items() if n.startswith("output/")}
        yield Case(kind, inputs, outputs)
