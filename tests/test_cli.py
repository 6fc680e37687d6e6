"""The command line without Prefect: bad input is one message and the right exit code; nothing is half-written."""

import re
import time
from pathlib import Path

import onnx
import onnx.parser
import pytest
import yaml

from onnxmill.tasks.artifact import Store
from onnxmill.tasks.calibration_report import CalibrationReport
from onnxmill.tasks.track import connect
from tests import bad_input, calibrating
from tests.bad_input import Fault
from tests.flow.command import Ended, invoke, run
from tests.planted import write_tiny
from tests.registering import World

pytestmark = pytest.mark.integration


def check_refused(ended: Ended, key: str, words: list[str], home: Path) -> None:
    """Exit 2 with one line that names `key` and says `words`; no traceback; a store without half-written things."""
    assert ended.code == 2, ended.err
    assert re.match(rf"error: (\S+\.yaml: )?{re.escape(key)}:", ended.error), ended.error
    for word in words:
        assert word in ended.error
    assert "Traceback" not in ended.err + ended.out
    if (home / "store").exists():
        assert Store(home / "store").check() == []
        assert list((home / "store" / "tmp").iterdir()) == []


@pytest.mark.parametrize("command", ["verify", "calibrate", "convert"])
@pytest.mark.parametrize("fault", bad_input.SPEC)
def test_fault_in_the_spec(command: str, fault: str, tmp_path: Path) -> None:
    change, key, words = bad_input.SPEC[fault]
    home = tmp_path / "home"
    check_refused(invoke(command, bad_input.written(tmp_path, change), home=home), key, words, home)
    assert not home.exists()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=f"{where}: {name}")
        for where, table in {"pack": bad_input.PACK, "data": bad_input.DATA, "model": bad_input.MODEL}.items()
        for name, fault in table.items()
    ],
)
def test_fault_in_what_the_spec_names(fault: Fault, tmp_path: Path) -> None:
    change, key, words = fault
    home = tmp_path / "home"
    settings = {"ONNXMILL_STEP_TIMEOUT_S": "2"} if "gave nothing within 2 s" in words else {}
    check_refused(invoke("verify", bad_input.written(tmp_path, change), home=home, settings=settings), key, words, home)


def test_loader_that_hangs(tmp_path: Path) -> None:
    hangs = "import time\n\n\ndef load():\n    time.sleep(60)\n"
    spec, home = bad_input.written(tmp_path, bad_input.source("model.py", hangs)), tmp_path / "home"
    started = time.monotonic()
    ended = invoke("verify", spec, home=home, settings={"ONNXMILL_STEP_TIMEOUT_S": "6"})  # torch is imported before
    check_refused(ended, "source.loader", ["'model.py:load'", "gave nothing within 6 s"], home)
    assert time.monotonic() - started < 20


def test_faults_of_the_spec_file(tmp_path: Path) -> None:
    home, broken = tmp_path / "home", tmp_path / "broken.yaml"
    broken.write_text("name: [", encoding="utf-8")
    check_refused(invoke("verify", broken, home=home), str(broken), ["is not valid YAML", "line 1"], home)
    broken.write_text("- 1\n", encoding="utf-8")
    check_refused(invoke("verify", broken, home=home), str(broken), ["must be a mapping", "version: 1"], home)
    check_refused(invoke("verify", tmp_path / "no.yaml", home=home), "spec", ["no.yaml", "no such file", "init"], home)
    check_refused(invoke("convert", tmp_path, home=home), "spec", [str(tmp_path), "cannot be read"], home)
    assert not home.exists()


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    ended = run("verify", tmp_path / "no.yaml", "--debug", home=tmp_path / "home")
    assert ended.code == 2
    assert "no such file" in ended.error
    assert "Traceback" in ended.err


def test_roots_are_the_servers_setting(tmp_path: Path) -> None:
    """Another folder is allowed by ONNXMILL_LOADER_ROOTS, which then also forbids the spec's own."""
    spec = bad_input.written(tmp_path, bad_input.outside)
    home, settings = tmp_path / "home", {"ONNXMILL_LOADER_ROOTS": str(tmp_path / "elsewhere")}
    # the loader now passes; what is outside is the first data callable
    check_refused(invoke("verify", spec, home=home, settings=settings), "source.loader", ["the spec's folder"], home)
    spec = write_tiny(tmp_path / "spec")
    check_refused(invoke("verify", spec, home=home, settings=settings), "source.loader", ["outside the folders"], home)


@pytest.mark.parametrize(
    ("settings", "service", "shown"),
    [
        ({"MLFLOW_TRACKING_URI": "http://user:hunter2@127.0.0.1:9"}, "MLflow", "http://***@127.0.0.1:9"),
        (
            {"MLFLOW_TRACKING_URI": "postgresql://user:hunter2@127.0.0.1:9/x"},
            "MLflow",
            "postgresql://***@127.0.0.1:9/x",
        ),
        ({"PREFECT_API_URL": "http://user:hunter2@127.0.0.1:9/api"}, "Prefect", "http://***@127.0.0.1:9/api"),
    ],
)
def test_service_that_does_not_answer(settings: dict[str, str], service: str, shown: str, tmp_path: Path) -> None:
    spec, home = write_tiny(tmp_path / "spec"), tmp_path / "home"
    for options in ((), ("--debug",)):
        started = time.monotonic()
        ended = run("convert", spec, *options, home=home, settings=settings)
        assert time.monotonic() - started < 20  # of which the imports take nearly all
        assert ended.code == 1
        assert ended.error.startswith(f"error: {service}")
        assert shown in ended.error
        assert ("Traceback" in ended.err) == bool(options)
        assert "hunter2" not in ended.err + ended.out
    kept = [path for path in home.rglob("*") if path.is_file()]
    assert [path.name for path in kept if b"hunter2" in path.read_bytes()] == []
    assert not (home / "store").exists()


def test_address_that_is_none(tmp_path: Path) -> None:
    spec, home = write_tiny(tmp_path / "spec"), tmp_path / "home"
    ended = invoke("convert", spec, home=home, settings={"MLFLOW_TRACKING_URI": "ftp://user:hunter2@host"})
    check_refused(ended, "MLFLOW_TRACKING_URI", ["ftp://***@host", "http(s)://"], home)
    assert "hunter2" not in ended.err


def test_setting_that_is_no_number(tmp_path: Path) -> None:
    spec, home = write_tiny(tmp_path / "spec"), tmp_path / "home"
    ended = invoke("verify", spec, home=home, settings={"ONNXMILL_STEP_TIMEOUT_S": "soon"})
    check_refused(ended, "ONNXMILL_STEP_TIMEOUT_S", ["'soon'", "a number of seconds above 0"], home)


@pytest.mark.parametrize(
    "arguments", [("convert",), ("convert", "spec.yaml", "--jsn"), ("convrt", "spec.yaml"), ("verify", "a", "b")]
)
def test_wrong_use(arguments: tuple[str, ...], tmp_path: Path) -> None:
    ended = invoke(*arguments, home=tmp_path)
    assert ended.code == 2
    assert "Usage: onnxmill" in ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""


def test_verify_says_what_it_saw(tmp_path: Path) -> None:
    spec, home = write_tiny(tmp_path / "spec"), tmp_path / "home"
    ended = invoke("verify", spec, home=home)
    assert ended.code == 0, ended.err
    for words in ("fp32, int8-static at opset 18", "model.py, parts.py, weights.pt", "8 of real samples", "1.0000"):
        assert words in ended.out
    as_json = invoke("verify", spec, "--json", home=home)
    facts = yaml.safe_load(as_json.out)  # JSON is YAML
    assert facts["evaluation samples"] == "200"
    assert not (home / "mlflow").exists()
    assert not (home / "prefect").exists()


def test_calibrate_shows_the_outlier(tmp_path: Path) -> None:
    spec, home, out = calibrating.write(tmp_path / "spec"), tmp_path / "home", tmp_path / "out"
    ended = invoke("calibrate", spec, "--out", out, "--method", "mse", "--table", "tensorrt", home=home)
    assert ended.code == 0, ended.err
    assert ended.out.startswith("3 tensors on 40 samples: 2 have outliers; the worst is hidden")
    for words in (
        "!! 13.8×",
        "MatMul",
        "moving-average",
        "next: ",
        f"page: {out}/calibration.html",
        "calibration.cache",
    ):
        assert words in ended.out
    assert "calibrate: calibrating 3 tensors" in ended.err
    as_json = invoke("calibrate", spec, "--json", home=home)  # in the home, where convert's report goes
    assert as_json.out == (home / "reports" / "outlier" / "calibration.json").read_text(encoding="utf-8")
    report = CalibrationReport.model_validate_json(as_json.out)
    assert (report.chosen, report.table) == ("minmax", None)
    assert [row.step for row in report.steps if not row.cached] == []
    assert sorted(path.name for path in out.iterdir()) == ["calibration.cache", "calibration.html", "calibration.json"]


def test_calibrate_in_parts(tmp_path: Path) -> None:
    spec, home = calibrating.write(tmp_path / "spec"), tmp_path / "home"
    for number in (1, 2):
        ended = invoke("calibrate", spec, "--shard", f"{number}/2", "--out", tmp_path / f"{number}", home=home)
        assert ended.code == 0, ended.err
        assert ended.out.startswith(f"part {number} of 2: 3 tensors on 20 samples")
    merging = ("calibrate", spec, "--out", tmp_path / "out", "--merge", tmp_path / "1", "--merge")
    assert "on 40 samples" in invoke(*merging, tmp_path / "2", home=home).out
    check_refused(invoke(*merging, tmp_path / "1", home=home), "--merge", ["part 1 of 2, as is"], home)


def test_calibrate_refuses_what_is_not_finite(tmp_path: Path) -> None:
    spec, home = calibrating.write(tmp_path / "spec", model=calibrating.OVERFLOWS), tmp_path / "home"
    ended = invoke("calibrate", spec, home=home)
    assert ended.code == 3
    assert ended.out.startswith("refused: QNT007 tensor e")
    assert "fix: look for an overflow" in " ".join(ended.out.split())


@pytest.mark.parametrize(
    ("options", "key", "words"),
    [
        (("--method", "mze"), "--method", ["'mze'", "did you mean 'mse'?", "entropy, minmax"]),
        (("--table", "trt"), "--table", ["'trt'", "onnxruntime, onnxruntime-trt, tensorrt"]),
        (("--shard", "3/2", "--out", "x"), "--shard", ["'3/2'", "as 2/3"]),
        (("--shard", "1/2"), "--shard", ["needs --out"]),
        (("--shard", "1/2", "--merge", "a"), "--shard", ["--merge takes parts"]),
        (("--merge", "a", "--fresh"), "--fresh", ["give one of the two"]),
    ],
)
def test_wrong_options_of_calibrate(options: tuple[str, ...], key: str, words: list[str], tmp_path: Path) -> None:
    spec, home = calibrating.write(tmp_path / "spec"), tmp_path / "home"
    check_refused(invoke("calibrate", spec, *options, home=home), key, words, home)
    assert not home.exists()


def test_calibrate_needs_samples(tmp_path: Path) -> None:
    spec = calibrating.write(tmp_path / "spec", calibration=False, variants=("fp32",))
    ended = invoke("calibrate", spec, home=tmp_path / "home")
    check_refused(ended, "data.calibration", ["is not in the spec", "give a callable or a path"], tmp_path / "home")


def test_hold_release_and_history(tmp_path: Path) -> None:
    home = tmp_path / "home"
    world = World(connect(None, home), home)
    world.version("m-onnx", 2.0)
    assert world.move("m-onnx", 1, None).moved
    held = invoke("hold", "m-onnx", "--reason", "incident 7", home=home)
    assert (held.code, held.out) == (0, "m-onnx is held\nnext, to lift it: onnxmill release m-onnx --reason …\n")
    check_refused(invoke("rollback", "m-onnx", "--reason", "x", home=home), "NAME", ["is held", "release"], home)
    assert invoke("release", "m-onnx", "--reason", "over", home=home).out == "m-onnx is no longer held\n"
    table = invoke("history", home=home)
    rows = [line.split() for line in table.out.splitlines()]
    assert rows[0] == ["when", "model", "action", "version", "from", "to", "who", "why"]
    assert [row[3] for row in rows[1:]] == ["promote", "hold", "release"]
    assert (table.code, rows[2][-2:]) == (0, ["incident", "7"])
    lines = invoke("history", "m-onnx", "--csv", home=home).out.splitlines()
    assert lines[0] == "when,model,action,version,from,to,done,who,why,artifact,source,sha256"
    assert [line.split(",")[2:7] for line in lines[1:]] == [
        ["promote", "1", "", "1", "True"], ["hold", "", "1", "1", "True"], ["release", "", "1", "1", "True"],
    ]  # fmt: skip
    found = yaml.safe_load(invoke("history", "--json", home=home).out)
    assert ([row["why"] for row in found["rows"]], found["faults"]) == (["made up", "incident 7", "over"], {})
    at = [
        invoke("history", "--at", date, "--csv", home=home).out.splitlines()[1] for date in ("2020-01-31", "2999-01-01")
    ]
    assert at[0] == "m-onnx,2020-01-31T23:59:59.999999+00:00,,,"
    assert at[1].startswith("m-onnx,2999-01-01T23:59:59.999999+00:00,1,")
    client = world.tracking.client()
    runs = client.search_runs([client.get_experiment_by_name("onnxmill/audit").experiment_id])  # type: ignore[union-attr]  # it is there
    client.delete_run(runs[0].info.run_id)
    broken = invoke("history", home=home)
    assert broken.code == 1
    assert "broken: m-onnx: record" in broken.err
    assert len(broken.out.splitlines()) == 4  # and all that is there


@pytest.mark.parametrize(
    ("arguments", "key", "words"),
    [
        (("rollback", "--reason", "x"), "NAME", ["or --promoted-since must be given"]),
        (("rollback", "m", "--promoted-since", "2026-01-01", "--reason", "x"), "NAME", ["'m'", "not both"]),
        (("rollback", "--promoted-since", "2026-01-01", "--to", "1", "--reason", "x"), "--to", ["one NAME"]),
        (("rollback", "--promoted-since", "soon", "--reason", "x"), "--promoted-since", ["'soon'", "2026-01-31"]),
        (("rollback", "m", "--reason", " "), "--reason", ["one line"]),
        (("rollback", "m", "--reason", "x"), "NAME", ["'m'", "no registered model", "nothing is registered yet"]),
        (("history", "--csv", "--json"), "--csv", ["exclude each other"]),
        (("history", "--at", "soon"), "--at", ["'soon'", "2026-01-31"]),
        (("history", "m"), "NAME", ["'m'", "no registered model"]),
    ],
)
def test_wrong_use_of_undo(arguments: tuple[str, ...], key: str, words: list[str], tmp_path: Path) -> None:
    home = tmp_path / "home"
    check_refused(invoke(*arguments, home=home), key, words, home)


def test_init_writes_a_spec_that_verify_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18]>
        agraph (float[batch, 3] x) => (float[batch, 3] y) { y = Relu(x) }
    """)
    onnx.save(model, tmp_path / "my model.onnx")
    monkeypatch.chdir(tmp_path)
    assert invoke("init", "my model.onnx", home=home).code == 0
    assert invoke("verify", "spec.yaml", home=home).code == 0
    before = Path("spec.yaml").read_text(encoding="utf-8")
    ended = invoke("init", "my model.onnx", home=home)
    check_refused(ended, "--out", ["'spec.yaml'", "is there already", "--force"], home)
    assert Path("spec.yaml").read_text(encoding="utf-8") == before
    assert invoke("init", "my model.onnx", "--force", home=home).code == 0
    check_refused(invoke("init", "no.onnx", "--force", home=home), "MODEL", ["'no.onnx'", "no such file"], home)
    check_refused(invoke("init", "my model.onnx", "--out", "no/a.yaml", home=home), "--out", ["folder"], home)
    assert Path("spec.yaml").read_text(encoding="utf-8") == before


def test_init_for_a_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert invoke("init", "model.py:load", "--out", "mine.yaml", home=tmp_path / "home").code == 0
    spec = yaml.safe_load(Path("mine.yaml").read_text(encoding="utf-8"))
    assert spec["source"]["loader"] == "model.py:load"
    assert list(spec["inputs"]) == ["image"]  # the parameter of forward


OPTIONS = {
    "convert": ["SPEC", "--out", "--json", "--fresh", "--debug"],
    "calibrate": ["SPEC", "--out", "--method", "--table", "--shard", "--merge", "--json", "--fresh", "--debug"],
    "verify": ["SPEC", "--json", "--debug"],
    "init": ["MODEL", "--out", "--force", "--debug"],
    "doctor": ["--json", "--debug"],
    "rollback": ["NAME", "--reason", "--to", "--promoted-since", "--yes", "--debug"],
    "hold": ["NAME", "--reason", "--debug"],
    "release": ["NAME", "--reason", "--version", "--debug"],
    "history": ["NAME", "--at", "--csv", "--json", "--debug"],
}


@pytest.mark.parametrize("command", OPTIONS)
def test_help_lists_every_option(command: str, tmp_path: Path) -> None:
    ended = invoke(command, "--help", home=tmp_path)
    shown = ended.out
    assert ended.code == 0
    assert set(re.findall(r"--[a-z]+(?:-[a-z]+)*", shown)) == {o for o in OPTIONS[command] if o.startswith("--")} | {
        "--help"
    }
    assert OPTIONS[command][0].lower() in shown.lower()


def test_help_lists_every_command_and_exit_code(tmp_path: Path) -> None:
    shown = " ".join(invoke("--help", home=tmp_path).out.split())
    for word in (*OPTIONS, "ONNXMILL_HOME", "MLFLOW_TRACKING_URI", "PREFECT_API_URL", "Exit codes: 0", "3 refused"):
        assert word in shown


def test_doctor(tmp_path: Path) -> None:
    ended = invoke("doctor", "--json", home=tmp_path)
    rows = yaml.safe_load(ended.out)
    assert ended.code == (1 if any(row["level"] == "broken" for row in rows) else 0)
    assert {"ok"} <= {row["level"] for row in rows} <= {"ok", "note", "broken"}
