"""The steps of this package: export a source, each route proven; describe an ONNX file."""

import gc
import importlib
import sys
import traceback
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from onnxmill.tasks import graph, proof
from onnxmill.tasks import opset as opset_module
from onnxmill.tasks.errors import InputError, StepError, shorten
from onnxmill.tasks.export import TOOLS, SourceSettings
from onnxmill.tasks.export.elsewhere import opened
from onnxmill.tasks.findings import Finding, finding, refused
from onnxmill.tasks.isolate import report_progress
from onnxmill.tasks.opset import Pin
from onnxmill.tasks.proof import Proof, Stamp
from onnxmill.tasks.spec import Contract, Framework, Tensor
from onnxmill.tasks.step import Step


class ExportSettings(BaseModel):
    """`opset` is what the exporter is asked for: the pin, or its default where the pin is found later."""

    model_config = ConfigDict(frozen=True)

    source: SourceSettings
    contract: Contract
    stamp: Stamp
    opset: int


def export_step(framework: Framework) -> Step:
    return Step("export", 2, "onnxmill.tasks.export.steps:export", tools=TOOLS[framework], user_code="source")


def export(settings: ExportSettings, source: Path, reference: Path, out: Path, python: str = "") -> Proof:
    """Write the source as ONNX into `out`, check the contract and prove it against the reference.

    Routes are tried in turn until one is proven. The note says which one it was and why not those before it. `python`
    is the interpreter in which the source's code runs, "" for this one.
    """
    if not python and settings.source.framework != "onnx" and _is_large(source):
        python = sys.executable  # torch, for one, keeps what it exported until its process ends
    earlier: list[Finding] = []
    told: list[str] = []
    number, routes = 0, [""]
    while number < len(routes):
        folder = source.parent / f"route-{number}"
        raw, trial = folder / "exported.onnx", folder / "trial"
        trial.mkdir(parents=True)
        routes, findings = _write(settings, python, number, raw)
        gc.collect()  # the model is gone: it and its proof might not fit into memory together
        if refused(findings):
            proved = proof.nothing(*findings)
        else:
            report_progress(f"proving what {routes[number]} gave", 0)
            contract, stamp = settings.contract, settings.stamp
            proved = proof.publish(raw, trial, contract, stamp, reference, opset=None, findings=tuple(findings))
        faults = proof.faults(proved)
        number += 1
        if not faults or number == len(routes):
            break
        reasons = [fault for fault in faults if refused([fault])]
        earlier += reasons
        told.append(f"not {routes[number - 1]}: {shorten(str(reasons[0]))}")
    proof.adopt(trial, out)
    note = "; ".join([routes[number - 1], *told])
    return proved.model_copy(update={"note": note, "findings": (*(earlier if faults else ()), *proved.findings)})


def _is_large(source: Path) -> bool:
    return sum(file.stat().st_size for file in source.rglob("*") if file.is_file()) >= graph.EXTERNAL_BYTES


def _write(settings: ExportSettings, python: str, number: int, raw: Path) -> tuple[list[str], list[Finding]]:
    """All routes of the source, and what there is to say of the file `raw` that this one wrote."""
    with opened(settings.source, python) as model:
        routes = model.routes(settings.contract, settings.opset)
        report_progress(f"exporting by {routes[number]}", 0)
        try:
            return routes, model.write(routes[number], settings.contract, settings.opset, raw)
        except (InputError, OSError, MemoryError):
            raise  # these say nothing of the model
        except Exception as error:
            if isinstance(error, StepError) and error.signal:
                raise  # another interpreter's process broke
            traceback.print_exc()
            kind = "" if isinstance(error, StepError) else f"{type(error).__name__}: "
            return routes, [finding("EXP001", routes[number], kind + " ".join(str(error).split()))]


class DescribeSettings(BaseModel):
    """`path` is the model file's name in the pack; `given` are the inputs that the spec describes."""

    model_config = ConfigDict(frozen=True)

    path: str
    pin: Pin
    given: tuple[str, ...] = ()


DESCRIBE = Step("describe", 2, "onnxmill.tasks.export.steps:describe", tools=("onnx",), user_code="source")


def describe(settings: DescribeSettings, source: Path, out: Path) -> dict[str, Tensor]:
    """The inputs of an ONNX source, as its file has them. Raises `InputError` where its opset cannot be pinned."""
    onnx_module = importlib.import_module("onnxmill.tasks.export.onnx")
    onnx_module.load(SourceSettings(framework="onnx", path=settings.path))
    found: dict[str, Tensor] = onnx_module.describe(source / settings.path, settings.given)
    proto = opset_module.inlined(graph.load(source / settings.path))
    wanted, _ = opset_module.chosen(proto, settings.pin)
    try:
        opset_module.at(proto, wanted)
    except opset_module.Unreachable as error:
        raise InputError("opset", wanted, str(error), f"pin opset {error.nearest}, or auto") from error
    return found
