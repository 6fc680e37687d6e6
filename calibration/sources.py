"""Sources of samples: how many there are, one at a time, their labels; and which of them are taken.

What a source is made of: `sources_arrays`, `sources_images`, `sources_text`.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import Protocol

import numpy as np

from onnxmill.calibration.samples import Array


class Source(Protocol):
    """Samples by index. One is in memory at a time; ascending order is cheap for every source."""

    def __len__(self) -> int: ...

    def sample(self, index: int) -> dict[str, Array]:
        """{input: array} with a batch axis of 1. Raises `InputError` with the fault of a sample that cannot be read."""
        ...

    def label(self, index: int) -> Array | None:
        """The label, without reading the sample; None where there is none."""
        ...

    def origin(self, index: int) -> str:
        """Where the sample comes from, for errors: "cats/1.jpg", "row 17"."""
        ...


def chosen(source: Source, limit: int | None, seed: int = 0) -> list[int]:
    """Indices of `limit` samples, all where there are no more, in ascending order: see `pick`."""
    if limit is None or limit >= len(source):
        return list(range(len(source)))
    return pick(classes(source), limit, seed)


def classes(source: Source) -> list[Hashable]:
    """The class of each sample: its label, where all are whole numbers, bools or texts; else all are of one class."""
    found: list[Hashable] = []
    for index in range(len(source)):
        label = source.label(index)
        if label is None or label.size != 1 or label.dtype.kind not in "biuU":
            return [None] * len(source)
        found.append(label.item())
    return found


def pick(classes: Sequence[Hashable], limit: int, seed: int) -> list[int]:
    """Indices of `limit` samples without repetition, ascending; all where there are no more.

    Each class has its share of them, by the largest remainders, and `seed` decides within a class and between equal
    remainders.
    """
    total = len(classes)
    limit = min(limit, total)
    members: dict[Hashable, list[int]] = {}
    for index in np.random.default_rng(seed).permutation(total).tolist():
        members.setdefault(classes[index], []).append(index)
    quota = {name: limit * len(found) // total for name, found in members.items()}
    by_remainder = sorted(members, key=lambda name: -(limit * len(members[name]) % total))  # stable: ties as shuffled
    for name in by_remainder[: limit - sum(quota.values())]:
        quota[name] += 1
    return sorted(index for name, found in members.items() for index in found[: quota[name]])


def stream(source: Source, indices: Sequence[int]) -> Iterator[dict[str, Array]]:
    """The samples at `indices`, one at a time."""
    return (source.sample(index) for index in indices)
