"""Simplify a graph with onnxsim; kept only where it runs, its values hold, and neither nodes nor bytes grow."""

from pathlib import Path

import onnx

from onnxmill.tasks import parity, proof
from onnxmill.tasks.findings import finding, refused
from onnxmill.tasks.opset import GraphSettings
from onnxmill.tasks.proof import MODEL, Proof
from onnxmill.tasks.step import Step

STEP = Step("simplify", 1, "onnxmill.tasks.simplify:simplify", tools=("onnxsim", "onnx", "onnxruntime", "numpy", "cpu"))


def simplify(settings: GraphSettings, model: Path, reference: Path, out: Path) -> Proof:
    """The simplified model, or the model as it was with finding SIM001 that says why."""
    import onnxsim  # here, in the child: it imports torch where it finds it

    before = model / MODEL
    raw = out.parent / "simplified.onnx"
    contract, stamp = settings.contract, settings.stamp
    original = onnx.load(str(before))
    size_bytes = sum(file.stat().st_size for file in model.iterdir())
    try:
        simplified, _ = onnxsim.simplify(original)
    except (OSError, MemoryError):
        raise  # these say nothing of the model
    except Exception as error:  # noqa: BLE001  onnxsim raises whatever its C++ throws; an optional step is not fatal
        reason = f"onnxsim failed: {' '.join(str(error).split())}"
    else:
        proof.save(simplified, raw)
        trial = out.parent / "trial"
        trial.mkdir()
        proved = proof.publish(raw, trial, contract, stamp, reference)
        dropped = {i.name for i in original.graph.input} - {i.name for i in simplified.graph.input}
        if dropped:  # an input with a default: no part of the contract, but a caller may set it
            reason = f"onnxsim dropped input {', '.join(sorted(dropped))}"
        else:
            reason = _why_not(proved, nodes=len(original.graph.node), size_bytes=size_bytes)
        if not reason:
            for file in trial.iterdir():
                file.replace(out / file.name)
            saved = len(original.graph.node) - proved.nodes
            return proved.model_copy(update={"note": f"onnxsim: {proved.nodes} nodes, {saved} fewer"})
    kept = proof.publish(before, out, contract, stamp, reference, note="kept as it was")
    return kept.model_copy(update={"findings": (*kept.findings, finding("SIM001", "simplify", reason))})


def _why_not(proved: Proof, *, nodes: int, size_bytes: int) -> str:
    """Why the simplified model is not kept; empty when it is."""
    faults = list(proved.findings)
    if proved.parity:
        faults += parity.judge(proved.parity, parity.DEFAULT_GATES["fp32"])
    if refused(faults):
        return "; ".join(map(str, faults))
    if proved.nodes > nodes:
        return f"{proved.nodes} nodes, {nodes} before"
    if proved.size_bytes > size_bytes:
        return f"{proved.size_bytes} bytes, {size_bytes} before"
    return ""
