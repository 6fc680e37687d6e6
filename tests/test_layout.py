"""The repository's shape: what stands at the top, what the distribution names, what is never committed."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("flows", "tasks", "calibration")
LIMIT_BYTES = 1_000_000
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(" + "|".join(["work", "root", "opt"]) + r")/")


def project_files() -> list[Path]:
    """Every file that is committed, or would be by `git add --all`."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    files = [ROOT / name for name in listed.split("\0") if name]
    assert files, "git lists no file: nothing would be checked"
    return [path for path in files if path.is_file()]


def test_top_level_is_the_one_agreed() -> None:
    agreed = {"pyproject.toml", "flows", "tasks", "calibration", "tests", "mlflow", "README.md"}
    assert agreed - {path.name for path in ROOT.iterdir()} == set()


def test_mlflow_folder_holds_no_code() -> None:
    # With an __init__.py the folder would hide the library of that name from whatever starts in the root.
    assert (ROOT / "mlflow").is_dir()
    assert list((ROOT / "mlflow").rglob("*.py")) == []


def test_distribution_names_every_folder_that_holds_code() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    holding = {
        ".".join(("onnxmill", *path.parent.relative_to(ROOT).parts))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
    }
    assert set(setuptools["packages"]) == holding | {"onnxmill.mlflow"}
    assert setuptools["package-dir"] == {f"onnxmill.{folder}": folder for folder in (*FOLDERS, "mlflow")}


def test_no_module_of_flows_is_named_like_a_package() -> None:
    # Prefect's loader puts a flow file's own folder first on sys.path: such a module would hide the package.
    ours = {path.stem for path in (ROOT / "flows").glob("*.py")} - {"__init__"}
    taken = set(packages_distributions()) | sys.stdlib_module_names
    assert {"prefect", "json"} <= taken
    assert ours & taken == set()


def test_no_large_file_is_committed() -> None:
    large = [path for path in project_files() if path.stat().st_size > LIMIT_BYTES]
    assert large == []


def test_no_path_of_one_machine_is_committed() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in project_files()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert found == []
