"""Numeric parity: a model's outputs against the source framework's, and the gate on it.

Every number is computed in float64 over all parity cases together, so that a case of small values counts as little
as it should. NaN and infinity where the reference is finite make every number null, and null never passes.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from onnxmill.tasks.findings import Finding, finding
from onnxmill.tasks.spec import Gate, RecipeName

Arrays = Mapping[str, npt.NDArray[np.generic]]

SQNR_EXACT_DB = 300.0
"""Stands for "no error at all", where the ratio would be infinite."""


class OutputParity(BaseModel):
    """How far one output is from the reference.

    max_abs: largest absolute difference. max_rel: max_abs / (max - min of the reference). cosine: cosine similarity of
    the flattened values. sqnr_db: 10 log10(sum ref^2 / sum (out - ref)^2). argmax_agreement: share of rows (all axes
    but the last) whose argmax over the last axis is the same; null where there is no axis of two or more.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    max_abs: float | None
    max_rel: float | None
    cosine: float | None
    sqnr_db: float | None
    argmax_agreement: float | None


class Parity(BaseModel):
    """All outputs of one model over `cases` parity cases."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cases: int
    outputs: tuple[OutputParity, ...]


DEFAULT_GATES: dict[RecipeName, Gate] = {
    # fp32: the same arithmetic in another order. float32 has 24 bits; 1e-4 of the range leaves room for long sums
    "fp32": Gate(max_rel=1e-4, min_cosine=0.9999),
    # fp16: 11 bits, a relative error of 5e-4 an operator, summed over a network
    "fp16": Gate(max_rel=1e-2, min_cosine=0.999),
    # int8: noise of 8 bits is about 40 dB under the signal at one operator; a network that works ends at 15 to 35 dB.
    # Below 10 dB the noise is a third of the signal, and below 0.95 the direction of the output is another one
    "int8-dynamic": Gate(min_sqnr_db=10.0, min_cosine=0.95),
    "int8-static": Gate(min_sqnr_db=10.0, min_cosine=0.95),
}


def judged_on_real_samples(recipe: str) -> bool:
    """Whether a recipe is judged on real samples alone, where there are any: an integer variant's ranges fit real data,
    and made-up values beyond them prove nothing."""
    return recipe.startswith("int8")


def effective_gate(recipe: RecipeName, own: Gate) -> Gate:
    """The recipe's default limits, with those that the variant states in their place."""
    return Gate(**{**DEFAULT_GATES[recipe].model_dump(exclude_none=True), **own.model_dump(exclude_none=True)})


def compare(
    names: Iterable[str], references: Sequence[Arrays], outputs: Sequence[Arrays]
) -> tuple[Parity, list[Finding]]:
    """Compare `outputs` with `references`, a mapping {output name: array} for each parity case.

    Findings: GATE007 where there is nothing to compare, GATE008 where shapes differ, CON008 where values are not
    finite though the reference is. The numbers are judged by `judge`.
    """
    names = list(names)
    if not names or not references or len(references) != len(outputs):
        detail = f"{len(names)} outputs, {len(references)} reference cases, {len(outputs)} cases run"
        return Parity(cases=0, outputs=()), [finding("GATE007", "parity", detail)]
    compared, findings = [], []
    for name in names:
        reference, output = [c[name] for c in references], [c[name] for c in outputs]
        shapes = [(r.shape, o.shape) for r, o in zip(reference, output, strict=True) if r.shape != o.shape]
        if shapes:
            detail = f"{shapes[0][1]} where the reference has {shapes[0][0]}"
            findings.append(finding("GATE008", f"output {name}", detail))
            compared.append(_nothing(name))
            continue
        one, faults = _compare_output(name, reference, output)
        compared.append(one)
        findings += faults
    return Parity(cases=len(references), outputs=tuple(compared)), findings


def judge(parity: Parity, gate: Gate) -> list[Finding]:
    """Every limit that the parity does not meet. A null number meets none."""
    findings = [] if parity.outputs else [finding("GATE007", "parity")]
    for out in parity.outputs:
        where = f"output {out.name}"
        for code, measured, limit, unit in (
            ("GATE001", out.max_rel, gate.max_rel, ""),
            ("GATE002", out.cosine, gate.min_cosine, ""),
            ("GATE003", out.sqnr_db, gate.min_sqnr_db, " dB"),
            ("GATE004", out.argmax_agreement, gate.min_argmax_agreement, ""),
        ):
            if limit is None or (code == "GATE004" and out.argmax_agreement is None and out.max_abs is not None):
                continue  # an output without an axis of two or more has no argmax
            met = measured is not None and (measured <= limit if code == "GATE001" else measured >= limit)
            if not met:
                shown = "not finite" if measured is None else f"{measured:.4g}{unit}"
                side = "at most" if code == "GATE001" else "at least"
                findings.append(
                    finding(
                        code,
                        where,
                        f"{shown}, must be {side} {limit:g}{unit}",
                        measured=measured,
                        limit=limit,
                    )
                )
    return findings


def _nothing(name: str) -> OutputParity:
    return OutputParity(name=name, max_abs=None, max_rel=None, cosine=None, sqnr_db=None, argmax_agreement=None)


def _compare_output(
    name: str, reference: list[npt.NDArray[np.generic]], output: list[npt.NDArray[np.generic]]
) -> tuple[OutputParity, list[Finding]]:
    ref = np.concatenate([r.astype(np.float64).ravel() for r in reference])
    out = np.concatenate([o.astype(np.float64).ravel() for o in output])
    if ref.size == 0:
        return _nothing(name), [finding("GATE007", f"output {name}", "it has no elements")]
    lost = np.isfinite(ref) & ~np.isfinite(out)
    same = (ref == out) | (np.isnan(ref) & np.isnan(out))  # equal infinities and NaN in both are equal
    if lost.any() or (~np.isfinite(ref) & ~same).any():
        bad = int((lost | (~np.isfinite(ref) & ~same)).sum())
        return _nothing(name), [finding("CON008", f"output {name}", f"{bad} of {ref.size} elements")]
    keep = np.isfinite(ref)
    if not keep.any():
        return _nothing(name), [finding("GATE007", f"output {name}", "the reference has no finite element")]
    agreement = _argmax_agreement(reference, output)
    ref, out = ref[keep], out[keep]
    error = np.abs(out - ref)
    max_abs, span = float(error.max()), float(ref.max() - ref.min())
    scale = span or float(np.abs(ref).max()) or 1.0  # a constant output has no range: relative to its value
    peak = max(float(np.abs(ref).max()), float(np.abs(out).max())) or 1.0
    ref, out = ref / peak, out / peak  # ratios do not depend on it; squares of very large or small values would
    noise, signal = float(np.sum((out - ref) ** 2)), float(np.sum(ref**2))
    if noise == 0.0:
        sqnr_db = SQNR_EXACT_DB
    elif signal == 0.0:
        sqnr_db = -SQNR_EXACT_DB
    else:
        sqnr_db = float(np.clip(10.0 * np.log10(signal / noise), -SQNR_EXACT_DB, SQNR_EXACT_DB))
    norms = float(np.linalg.norm(ref) * np.linalg.norm(out))
    cosine = float(np.dot(ref, out)) / norms if norms else (1.0 if noise == 0.0 else 0.0)
    parity = OutputParity(
        name=name,
        max_abs=max_abs,
        max_rel=max_abs / scale,
        cosine=float(np.clip(cosine, -1.0, 1.0)),
        sqnr_db=sqnr_db,
        argmax_agreement=agreement,
    )
    return parity, []


def _argmax_agreement(reference: list[npt.NDArray[np.generic]], output: list[npt.NDArray[np.generic]]) -> float | None:
    if any(r.ndim < 1 or r.shape[-1] < 2 for r in reference):
        return None
    equal = [(r.argmax(-1) == o.argmax(-1)).ravel() for r, o in zip(reference, output, strict=True)]
    return float(np.concatenate(equal).mean())
