"""The cells of docs/routes.md: what becomes of one model by every route of its framework at every opset.

A cell is what the product says, export and pin each proven against the framework: proven, or refused with a finding.
What it calls proven is then compared with the framework once more, on fresh inputs that no step has seen: a largest
error above 1e-4 of the output's range makes the cell wrong.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import onnxruntime
from pydantic import BaseModel

from onnxmill.calibration.samples import Array
from onnxmill.tasks import opset, proof, reference
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.export import Source, SourceSettings, load
from onnxmill.tasks.findings import finding, refused
from onnxmill.tasks.graph import MODEL
from onnxmill.tasks.opset import Pin, PinSettings
from onnxmill.tasks.proof import Proof, Stamp
from onnxmill.tasks.reference import ReferenceSettings
from onnxmill.tasks.spec import OPSET_MAX, OPSET_MIN, Contract
from onnxmill.tasks.spec import load as load_spec

MAX_ERROR = 1e-4
FRESH_SEED = 71993
STAMP = Stamp(name="routes", source="0" * 64)


class Cell(BaseModel):
    """`detail` says why a cell is refused; `max_error` is relative to the output's range, on fresh inputs."""

    model: str
    framework: str
    route: str
    opset: int
    outcome: Literal["proven", "refused", "wrong"]
    code: str = ""
    detail: str = ""
    max_error: float | None = None


def cells(folder: Path, work: Path) -> list[Cell]:
    """All cells of the model whose spec lies in `folder`; called in a child that runs there."""
    spec = load_spec(folder / "spec.yaml")
    settings = SourceSettings(**spec.source.model_dump(exclude={"files", "python"}))
    real = work / "reference"
    real.mkdir(parents=True)
    seen = reference.compute(ReferenceSettings(source=settings, contract=spec.contract), folder, real)
    source = load(settings)
    expected = [(inputs, reference.named(seen.contract, source.predict(inputs))) for inputs in fresh(seen.contract)]
    asked = range(OPSET_MIN, OPSET_MAX + 1)
    routes = dict.fromkeys(r for o in (OPSET_MAX, OPSET_MIN) for r in source.routes(seen.contract, o))
    found = []
    for route in routes:
        known: dict[bytes, Proof] = {}  # an exporter gives the same file for several opsets
        for wanted in asked:
            here = work / f"{route}-{wanted}"
            proved = _proved(source, route, wanted, seen.contract, real, here, known)
            row = {"model": folder.name, "framework": settings.framework, "route": route, "opset": wanted}
            faults = [fault for fault in proof.faults(proved) if refused([fault])]
            if faults:
                found.append(Cell(**row, outcome="refused", code=faults[0].code, detail=str(faults[0])))
            else:
                error = largest_error(here / "pinned" / MODEL, expected)
                found.append(Cell(**row, outcome="proven" if error <= MAX_ERROR else "wrong", max_error=error))
            shutil.rmtree(here)
    return found


def _proved(
    source: Source, route: str, wanted: int, contract: Contract, real: Path, here: Path, known: dict[bytes, Proof]
) -> Proof:
    """Export by the route, then pin: the proof of whichever refuses, or of the pinned model."""
    exported, pinned = here / "exported", here / "pinned"
    exported.mkdir(parents=True)
    pinned.mkdir()
    raw = here / "raw.onnx"
    try:
        findings = source.write(route, contract, wanted, raw)
    except (InputError, OSError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001  as the export step takes it: the exporter's refusal
        findings = [finding("EXP001", route, f"{type(error).__name__}: {' '.join(str(error).split())}")]
    if refused(findings):
        return proof.nothing(*findings)
    content = raw.read_bytes()
    proved = known.get(content)
    if proved is None or proof.faults(proved):
        proved = proof.publish(raw, exported, contract, STAMP, real, opset=None, findings=tuple(findings))
        known[content] = proved
    else:
        shutil.copy(raw, exported / MODEL)
    if proof.faults(proved):
        return proved
    return opset.pin(PinSettings(contract=contract, stamp=STAMP, pin=Pin(opset=wanted)), exported, real, pinned)


def fresh(contract: Contract) -> Iterator[dict[str, Array]]:
    """Two inputs at the first and the last size of every dynamic dim, drawn from a seed of this table alone."""
    bounds = reference._bounds(contract, [])
    for number, which in enumerate((0, -1)):
        sizes = {dim: given[which] for dim, given in contract.dims.items()}
        yield {
            name: reference._random(contract.inputs[name], sizes, bounds[name], FRESH_SEED + number, name)
            for name in contract.input_names
        }


def largest_error(path: Path, expected: Sequence[tuple[dict[str, Array], Mapping[str, Array]]]) -> float:
    """The largest difference of any output from the framework's, relative to the range of the framework's values over
    all inputs: noise that a network barely answers to has hardly a range of its own."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = list(expected[0][1])
    assert names, "nothing to compare"
    given = [dict(zip(names, session.run(names, inputs), strict=True)) for inputs, _ in expected]
    worst = 0.0
    for name in names:
        pairs = [(wanted[name], got[name]) for (_, wanted), got in zip(expected, given, strict=True)]
        if any(want.shape != got.shape for want, got in pairs):
            return float("inf")
        want = np.concatenate([w.astype(np.float64).ravel() for w, _ in pairs])
        error = np.abs(want - np.concatenate([g.astype(np.float64).ravel() for _, g in pairs])).max()
        span = float(np.ptp(want)) or float(np.abs(want).max()) or 1.0
        worst = max(worst, float(error) / span) if np.isfinite(error) else float("inf")
    return worst
