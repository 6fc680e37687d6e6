"""Export: one module a framework, each with the same three functions; this table says which.

load(settings) -> model                  in a child whose working folder holds the source part of the pack
predict(model, inputs) -> outputs        the framework's own outputs: the oracle of every later stage
write(model, contract, path) -> note     an ONNX file at `path`; how it was made, for the report
"""

import importlib
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict

from onnxmill.calibration.samples import Array
from onnxmill.tasks import proof
from onnxmill.tasks.errors import InputError
from onnxmill.tasks.findings import finding
from onnxmill.tasks.isolate import report_progress
from onnxmill.tasks.proof import Proof, Stamp
from onnxmill.tasks.spec import Contract, Framework, Tensor
from onnxmill.tasks.step import Step


class SourceSettings(BaseModel):
    """The source as later steps see it: `path` is the model file's name in the pack."""

    model_config = ConfigDict(frozen=True)

    framework: Framework
    loader: str | None
    path: str | None


class FrameworkModule(Protocol):
    def load(self, settings: SourceSettings) -> Any: ...

    def predict(self, model: Any, inputs: Mapping[str, Array]) -> list[tuple[str, Array]]: ...

    def write(self, model: Any, contract: Contract, path: Path) -> str: ...


MODULES: dict[Framework, str] = {"torch": "onnxmill.tasks.export.torch", "onnx": "onnxmill.tasks.export.onnx"}
TOOLS: dict[Framework, tuple[str, ...]] = {
    "torch": ("python", "torch", "onnxscript", "onnx", "onnxruntime", "numpy", "cpu"),
    "onnx": ("onnx", "onnxruntime", "numpy", "cpu"),
}
"""Distributions whose versions decide what a framework gives."""


def module_of(framework: Framework) -> FrameworkModule:
    module: FrameworkModule = importlib.import_module(MODULES[framework])
    return module


class ExportSettings(BaseModel):
    model_config = ConfigDict(frozen=True)

    source: SourceSettings
    contract: Contract
    stamp: Stamp


def export_step(framework: Framework) -> Step:
    return Step("export", 1, "onnxmill.tasks.export:export", tools=TOOLS[framework], user_code="source")


def export(settings: ExportSettings, source: Path, reference: Path, out: Path) -> Proof:
    """Write the source as ONNX into `out`, check the contract and prove it against the reference."""
    framework = module_of(settings.source.framework)
    model = framework.load(settings.source)
    report_progress(f"exporting at opset {settings.contract.opset}", 0)
    raw = source.parent / "exported.onnx"
    try:
        note = framework.write(model, settings.contract, raw)
    except (InputError, OSError, MemoryError):
        raise  # these say nothing of the model
    except Exception as error:  # noqa: BLE001  exporters raise of every kind: the model is refused, with the reason
        traceback.print_exc()
        return proof.nothing(finding("EXP001", "export", f"{type(error).__name__}: {' '.join(str(error).split())}"))
    return proof.publish(raw, out, settings.contract, settings.stamp, reference, pinned=False, note=note)


class DescribeSettings(BaseModel):
    model_config = ConfigDict(frozen=True)

    path: str


DESCRIBE = Step("describe", 1, "onnxmill.tasks.export:describe", tools=("onnx",), user_code="source")


def describe(settings: DescribeSettings, source: Path, out: Path) -> dict[str, Tensor]:
    """The inputs of an ONNX source, as its file has them."""
    onnx_module = importlib.import_module(MODULES["onnx"])
    onnx_module.load(SourceSettings(framework="onnx", loader=None, path=settings.path))
    found: dict[str, Tensor] = onnx_module.describe(source / settings.path)
    return found
