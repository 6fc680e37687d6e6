"""No import runs upward between the floors, none in a circle, and each heavy library has its room.

import-linter can't say "the rest of onnxmill.tasks" (a layer may not lie within another), so this reads the
imports itself, those inside functions and under TYPE_CHECKING included.
"""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GROUND = {f"onnxmill.tasks.{name}" for name in ("errors", "findings", "runtimes", "spec", "artifact")}
ROOMS = {  # a module, with those whose names it begins: torch, torch_call
    "prefect": ["onnxmill.flows"],
    "mlflow": ["onnxmill.tasks.track", "onnxmill.tasks.registry", "onnxmill.tasks.audit"],
    "numba": ["onnxmill.calibration"],
    **{
        library: [f"onnxmill.tasks.{folder}.{framework}" for folder in ("export", "targets")]
        for library, framework in {
            "torch": "torch",
            "onnxscript": "torch",
            "tensorflow": "tensorflow",
            "keras": "tensorflow",
            "tf2onnx": "tensorflow",
            "sklearn": "sklearn",
            "skl2onnx": "sklearn",
            "jax": "jax",
        }.items()
    },
}


def floor(module: str) -> int:
    """0 errors, findings, runtimes, spec, artifact; 1 calibration; 2 the rest of tasks; 3 flows."""
    if module in GROUND:
        return 0
    return {"calibration": 1, "tasks": 2, "flows": 3}[module.split(".")[1]]


def inside(module: str, package: str) -> bool:
    """Whether `module` is `package` or lies within it."""
    return module == package or module.startswith(package + ".")


def sources() -> dict[str, str]:
    """Every module of the three packages, by name, with its text."""
    found = {}
    for folder in ("flows", "tasks", "calibration"):
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(("onnxmill", *parts)).removesuffix(".__init__")] = path.read_text(encoding="utf-8")
    return found


def imports(text: str, ours: set[str]) -> set[str]:
    """The modules that a source imports: `from a import b` is a.b when that is a module of ours, else a."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import of {node.module}"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in ours else str(node.module) for name in full}
    return found


def violations(modules: dict[str, str]) -> list[str]:
    """One line for each import that the house forbids. `modules` maps a module's name to its source."""
    found = []
    for module, text in modules.items():
        for target in sorted(imports(text, set(modules))):
            library = target.split(".")[0]
            if library in ("flows", "tasks", "calibration"):
                found.append(f"{module} imports {target}: write onnxmill.{target}")
            rooms = ROOMS.get(library, [module])
            if not any(inside(module, room) or module.startswith(f"{room}_") for room in rooms):
                found.append(f"{module} imports {target}: only {', '.join(ROOMS[library])} may")
            if inside(target, "onnxmill"):
                upward = floor(target) > floor(module)
                if inside(module, "onnxmill.calibration") and not inside(target, "onnxmill.calibration"):
                    upward = target != "onnxmill.tasks.errors"
                if upward:
                    found.append(f"{module} imports {target}: that is above it")
    return found


def test_every_import_stays_on_its_floor_and_in_its_room() -> None:
    modules = sources()
    assert {"onnxmill.flows", "onnxmill.tasks", "onnxmill.calibration"} <= modules.keys()
    assert violations(modules) == []


def test_no_import_circle() -> None:
    modules = sources()
    graph = {name: imports(text, set(modules)) & modules.keys() for name, text in modules.items()}
    # A package's own __init__ only has a docstring: importing a module through it is no circle.
    list(TopologicalSorter({name: needs - {name} for name, needs in graph.items()}).static_order())


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("onnxmill.tasks.errors", "from onnxmill.tasks.parity import compare"),
        ("onnxmill.tasks.spec", "def late():\n    import onnxmill.calibration.samples"),
        ("onnxmill.tasks.parity", "from onnxmill.flows import cli"),
        ("onnxmill.calibration.readers", "from onnxmill.tasks.spec import Spec"),
        ("onnxmill.calibration.readers", "from onnxmill.tasks.parity import compare"),
        ("onnxmill.tasks.parity", "import prefect"),
        ("onnxmill.flows.cli", "from mlflow import MlflowClient"),
        ("onnxmill.tasks.parity", "if TYPE_CHECKING:\n    import torch.nn"),
        ("onnxmill.flows.cli", "import tasks.spec"),
    ],
)
def test_a_planted_violation_is_found(module: str, text: str) -> None:
    known = dict.fromkeys(["onnxmill.flows.cli", "onnxmill.tasks.parity", "onnxmill.tasks.spec"], "")
    assert len(violations({**known, module: text})) == 1


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("onnxmill.flows.convert", "import prefect\nfrom onnxmill.tasks.spec import Spec"),
        ("onnxmill.tasks.registry", "from mlflow import MlflowClient"),
        ("onnxmill.tasks.export.torch", "import torch, onnxscript"),
        ("onnxmill.tasks.quantize.static", "from onnxmill.calibration.readers import Reader"),
        ("onnxmill.calibration.readers", "from onnxmill.tasks.errors import SpecError"),
        ("onnxmill.tasks.findings", "from onnxmill.tasks import errors"),
    ],
)
def test_what_the_house_allows_is_allowed(module: str, text: str) -> None:
    known = dict.fromkeys(["onnxmill.tasks.errors", "onnxmill.tasks.spec", "onnxmill.calibration.readers"], "")
    assert violations({**known, module: text}) == []


@pytest.mark.integration
def test_help_imports_no_heavy_library() -> None:
    script = (
        "import sys; sys.argv = ['onnxmill', '--help']\n"
        "from onnxmill.flows.cli import main\n"
        "try:\n    main()\nexcept SystemExit as e:\n    assert not e.code, e.code\n"
        f"print('loaded:', sorted(set(sys.modules) & {set(ROOMS)}), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.strip()) == (0, "loaded: []"), done.stderr
