"""The wheel is whole, and works where nothing but its own dependencies is installed."""

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# The modules onnxmill.tasks.export.<name> and <name>_* can't be imported without an extra, for want of one of these.
NEEDS_FRAMEWORK = {
    "torch": {"torch"},
    "tensorflow": {"keras", "tensorflow", "tf2onnx"},
    "sklearn": {"sklearn", "skl2onnx"},
    "jax": {"jax", "jax2onnx"},
}

IMPORT_ALL = """
import importlib, json, sys
missing = {}
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as e:
        missing[name] = e.name
print(json.dumps(missing))
"""

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of what git would commit: no left-over of an earlier build gets in."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("onnxmill-*.whl")
    return built


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_wheel_holds_every_module_and_nothing_else_of_ours(wheel: Path) -> None:
    ours = {
        f"onnxmill/{path.relative_to(ROOT).as_posix()}"
        for folder in ("flows", "tasks", "calibration")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert ours
    assert {name for name in names(wheel) if name.endswith(".py")} == ours


def test_wheel_holds_the_data_beside_the_modules(wheel: Path) -> None:
    ours = {
        f"onnxmill/{path.relative_to(ROOT).as_posix()}"
        for pattern in ("mlflow/*.*", "tasks/*.html", "tasks/*.json", "*/py.typed")
        for path in ROOT.glob(pattern)
    }
    assert {"onnxmill/mlflow/promotion.yaml", "onnxmill/tasks/py.typed"} <= ours
    assert ours - names(wheel) == set()


@pytest.mark.full
def test_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    binaries = tmp_path / "venv" / "bin"
    # None of the outer run's settings may lead the inner interpreter back to this environment.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environment |= {
        "ONNXMILL_HOME": str(tmp_path / "home"),
        "PATH": f"{binaries}{os.pathsep}{environment['PATH']}",
    }

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=900
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    run(
        str(binaries / "python"),
        "-m",
        "pip",
        "install",
        "-q",
        "-c",
        str(ROOT / "constraints.txt"),
        str(wheel),
    )
    modules = sorted(
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in names(wheel)
        if name.endswith(".py")
    )
    missing = json.loads(run(str(binaries / "python"), "-c", IMPORT_ALL, json.dumps(modules)).splitlines()[-1])
    for module, library in missing.items():
        package, _, name = module.rpartition(".")
        assert package == "onnxmill.tasks.export", (module, library)
        assert library in NEEDS_FRAMEWORK.get(name.partition("_")[0], ()), (module, library)

    absent = "import importlib.util as u; print([n for n in ('torch', 'tensorflow') if u.find_spec(n)])"
    assert run(str(binaries / "python"), "-c", absent).strip() == "[]"
    assert "convert" in run(str(binaries / "onnxmill"), "--help")
    assert run(str(binaries / "onnxmill"), "doctor").strip()
    policy = "(files('onnxmill.mlflow') / 'promotion.yaml').is_file()"
    found = run(str(binaries / "python"), "-c", f"from importlib.resources import files; print({policy})")
    assert found.strip() == "True"
