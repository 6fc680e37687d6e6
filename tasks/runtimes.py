"""What each release of a runtime reads: its highest opset and IR version. A newer model fails when it is loaded."""

import re
from dataclasses import dataclass

from onnxmill.tasks.errors import InputError


@dataclass(frozen=True)
class Reads:
    """The highest opset and IR version that a runtime accepts."""

    opset: int
    ir_version: int


RUNTIMES: dict[str, dict[tuple[int, int], Reads]] = {
    # up to 1.18 and 1.21: the compatibility page of ONNX Runtime's documentation; the others were tried
    "onnxruntime": {
        (1, 13): Reads(17, 8),
        (1, 14): Reads(18, 8),
        (1, 15): Reads(19, 8),
        (1, 16): Reads(19, 9),
        (1, 17): Reads(20, 9),
        (1, 18): Reads(21, 10),
        (1, 19): Reads(21, 10),
        (1, 20): Reads(21, 10),
        (1, 21): Reads(22, 10),
        (1, 22): Reads(22, 10),
        (1, 23): Reads(23, 11),
        (1, 32): Reads(28, 14),
    },
}


def reads(requirement: str) -> Reads:
    """What `runtime==version` reads; of a version between two rows, what the older one reads.

    Raises `InputError` for an unknown runtime, a version that is none, or one older than the table.
    """
    found = re.fullmatch(r"([a-z]+)==(\d+)\.(\d+)(\.\d+)*", requirement)
    table = RUNTIMES.get(found[1]) if found else None
    if found is None or table is None:
        expected = f"must be <runtime>==<version>, such as onnxruntime==1.20; runtimes: {', '.join(RUNTIMES)}"
        raise InputError("max_runtime", requirement, expected)
    version = (int(found[2]), int(found[3]))
    known = [row for row in table if row <= version]
    if not known:
        oldest = ".".join(map(str, min(table)))
        raise InputError("max_runtime", requirement, f"is older than what is known here, which begins at {oldest}")
    return table[max(known)]
