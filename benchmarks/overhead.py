"""What onnxmill adds to the tools that it calls, in seconds, and where they go.

    python benchmarks/overhead.py [--model mnist|resnet50|all] [--pairs 2] [--json]

Runs `bare.py` and `onnxmill convert` in turn (A B A B), each on a fresh home with the embedded services, as a user
runs them; then the same command unchanged, beside a Prefect flow that does nothing. The timeline of the flow is
Prefect's own record, so the first table adds up exactly; the second explains it by costs that are measured apart.
"""

import argparse
import dataclasses
import importlib
import itertools
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from onnxmill.calibration import samples
from onnxmill.tasks import graph, proof
from onnxmill.tasks.artifact import Record, Store
from onnxmill.tasks.machine import fingerprint
from onnxmill.tasks.report import Report, StepRow
from onnxmill.tasks.spec import Contract, home

ROOT = Path(__file__).resolve().parents[1]
SECOND_RUN_LIMIT_S = 5.0
"""What an unchanged second run may take beyond Prefect's start."""


@dataclass(frozen=True)
class Model:
    """`folder` holds the spec and `make`, the script that writes its inputs to the same folder of ONNXMILL_HOME."""

    folder: str
    make: str


MODELS = {
    "mnist": Model("examples/mnist", "train.py"),
    "resnet50": Model("benchmarks/resnet50", "make_weights.py"),
}

NOTHING = """
import sys
from pathlib import Path
from onnxmill.flows import prefect_server
with prefect_server.api(Path(sys.argv[1])) as wait:
    wait()
    from prefect import flow
    flow(lambda: None, name="nothing")()
"""
"""A Prefect flow that does nothing, on a server that is started the same way."""

PHASES = {
    "samples": "samples",
    "reference": "reference",
    "score": "source scores",
    "export": "export",
    "opset": "opset",
    "simplify": "simplify",
    "quantize": "quantize",
    "assess": "evaluate",
    "benchmark": "benchmark",
    "log": "log",
    "promote": "promote",
}
"""First word of a Prefect task's name -> phase of `bare.py` that does the same, in order. The flow has no phase
`parity`: the task that makes a graph runs it on the parity cases. The bare script has no `opset`: the exporter gives
the right one."""

SOURCE = "onnxmill.tasks.export.torch, onnxmill.tasks.reference, torch.onnx"
INT8 = "onnxmill.tasks.quantize.int8"
CHILD_IMPORTS = {
    "calibration-samples": "onnxmill.tasks.data",
    "evaluation-samples": "onnxmill.tasks.data",
    "reference": SOURCE,
    "evaluate-source": SOURCE,
    "export": SOURCE,
    "opset": "onnxmill.tasks.opset",
    "simplify": "onnxmill.tasks.simplify, onnxsim",
    "quantize-fp16": "onnxmill.tasks.quantize.half",
    "quantize-int8-dynamic": INT8,
    "quantize-int8-static": INT8,
    "evaluate": "onnxmill.tasks.metric",
    "score": "onnxmill.tasks.metric",
    "benchmark": "onnxmill.tasks.targets.cpu",
}
"""Step -> what its child process imports."""
LOAD_BACK = "onnxmill.tasks.registry"
REST = "not explained"
GRAPH_STEPS = ("export", "opset", "simplify", "quantize-fp16", "quantize-int8-dynamic", "quantize-int8-static")
"""Steps that end with a proof of the graph that they made."""


@dataclass(frozen=True)
class Task:
    """One task of the flow as Prefect recorded it; seconds since the process was started."""

    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Flow:
    """A run of `onnxmill convert`. `start` and `end` are the flow's own, in seconds since the process was started."""

    wall_s: float
    start: float
    end: float
    tasks: tuple[Task, ...]
    report: Report


@dataclass(frozen=True)
class Pair:
    """A and B of one turn, and what the same home gave afterwards. `load` is the machine's, before A and before B."""

    bare_s: float
    bare: dict[str, float]
    flow: Flow
    again: Flow
    nothing_cold_s: float
    nothing_warm_s: float
    load: tuple[float, float]


@dataclass(frozen=True)
class Costs:
    """Seconds, measured apart. `imports`: start of a process that imports these modules. `proofs`: of all graphs
    that the flow made. `read` and `write`: every evaluation sample once, from and to a file. `hashing`: every file of
    the store once. `page`: report.html once, with what it imports."""

    imports: dict[str, float]
    proofs: float
    read: float
    write: float
    hashing: float
    page: float


# --- arithmetic ------------------------------------------------------------------------------------------------------


def shares(tasks: Sequence[Task]) -> dict[str, float]:
    """Wall time by task name: an instant in which several tasks run is shared between them equally.

    The sum is the time in which any task ran.
    """
    found = dict.fromkeys((task.name for task in tasks), 0.0)
    edges = sorted({edge for task in tasks for edge in (task.start, task.end)})
    for start, end in itertools.pairwise(edges):
        running = [task.name for task in tasks if task.start <= start and task.end >= end]
        for name in running:
            found[name] += (end - start) / len(running)
    return found


def timeline(flow: Flow) -> dict[str, float]:
    """Where the flow's wall time went, by phase; the sum is the wall time."""
    found = {"start and imports": flow.start}
    for name, seconds in shares(flow.tasks).items():
        phase = PHASES[name.split()[0]]
        found[phase] = found.get(phase, 0.0) + seconds
    busy = sum(found.values()) - flow.start
    found["between tasks"] = flow.end - flow.start - busy
    found["end"] = flow.wall_s - flow.end
    return found


def bare_timeline(wall_s: float, phases: Mapping[str, float]) -> dict[str, float]:
    """The same for the bare script: imports are what no phase accounts for."""
    merged = dict(phases)
    database = merged.pop("MLflow database", 0.0)  # the flow makes it before it starts
    return {"start and imports": wall_s - sum(phases.values()) + database, **merged}


def children(steps: Sequence[StepRow]) -> Counter[str]:
    """Child processes of the steps that ran, by what they import. A benchmark counts as one attempt."""
    found: Counter[str] = Counter()
    for row in steps:
        if not row.cached and row.step in CHILD_IMPORTS:
            found[CHILD_IMPORTS[row.step]] += 2 if row.step == "benchmark" and row.variant != "fp32" else 1
    return found


def attempts(seconds: float, one_s: float) -> int:
    """How many attempts a benchmark that took `seconds` had, when one takes `one_s`."""
    return max(1, round(seconds / one_s))


def causes(pair: Pair, costs: Costs) -> dict[str, float]:
    """Where flow - bare goes, by cause. Estimates from costs measured apart, one at a time; the last line is the rest:
    with it the sum is the difference."""
    steps = pair.flow.report.steps
    started = children(steps)
    if any(decision.moved for decision in pair.flow.report.decisions):
        started[LOAD_BACK] += 1
    measured = [row.seconds for row in steps if row.step == "benchmark" and not row.cached]
    # fp32 is measured alone, with one session's warm-up: an attempt of the others is the mean of theirs
    one = pair.bare.get("benchmark", 0.0) / max(1, len(measured)) + 2 * costs.imports["onnxmill.tasks.targets.cpu"]
    repeats = sum(seconds * (1 - 1 / attempts(seconds, one)) for seconds in measured)
    ran = Counter(row.step for row in steps if not row.cached)
    graphs = sum(ran[name] for name in GRAPH_STEPS)
    passes = ran["evaluate"] + ran["evaluate-source"]
    busy = sum(shares(pair.flow.tasks).values())
    bare_imports = bare_timeline(pair.bare_s, pair.bare)["start and imports"] - pair.bare.get("MLflow database", 0.0)
    found = {
        "Prefect: start and end of a flow that does nothing": pair.nothing_cold_s,
        "Prefect: between tasks": timeline(pair.flow)["between tasks"],
        f"child processes: start and imports of {started.total()}": sum(
            costs.imports[m] * n for m, n in started.items()
        ),
        "the bare script's own imports": -bare_imports,
        "two steps at a time": busy - sum(task.end - task.start for task in pair.flow.tasks),
        f"contract checks and proofs of {graphs} graph(s)": costs.proofs - pair.bare.get("parity", 0.0),
        "samples and outputs through files": passes * (costs.read + costs.write) + ran["score"] * 2 * costs.read,
        "hashing and verifying what the store holds": 2 * costs.hashing,
        "benchmarks repeated because they were unstable": repeats,
        "report.html, three times": 3 * costs.page,
    }
    found[REST] = pair.flow.wall_s - pair.bare_s - sum(found.values())
    return found


def disagreements(variants: Mapping[str, Mapping[str, float]], report: Report) -> list[str]:
    """Where the bare script's models are not the flow's: then the comparison means nothing."""
    faults = []
    for row in report.variants:
        own = variants.get(row.name)
        if own is None or row.artifact is None:
            faults.append(f"{row.name}: made by one of the two only")
            continue
        if abs(own["size_bytes"] / row.artifact.size_bytes - 1) > 0.05:
            faults.append(f"{row.name}: {own['size_bytes']:.0f} bytes, the flow's has {row.artifact.size_bytes}")
        if row.metric and abs(own["metric"] - row.metric.variant) > 0.002:
            faults.append(f"{row.name}: metric {own['metric']:.4f}, the flow's is {row.metric.variant:.4f}")
    return faults


def spread(values: Sequence[float]) -> str:
    """The median, with the range where there are several values."""
    middle = f"{statistics.median(values):.2f}"
    return middle if len(values) == 1 else f"{middle} [{min(values):.2f}, {max(values):.2f}]"


def means(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Key by key, a missing one as 0: unlike medians, means of parts still add up."""
    names = dict.fromkeys(name for table in tables for name in table)
    return {name: statistics.mean(table.get(name, 0.0) for table in tables) for name in names}


# --- running ---------------------------------------------------------------------------------------------------------


def environment(folder: Path) -> dict[str, str]:
    """The user's, without services: both sides use embedded ones in `folder`."""
    services = ("MLFLOW_", "PREFECT_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(services)}
    return {**kept, "ONNXMILL_HOME": str(folder), "PREFECT_HOME": str(folder / "prefect")}


def run(command: Sequence[str | Path], folder: Path) -> tuple[float, str]:
    """Wall seconds and stdout. Raises SystemExit with the end of its stderr where the command fails."""
    started = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, env=environment(folder), capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return seconds, done.stdout


def fresh_home(model: Model, under: Path, name: str) -> Path:
    """A home with the model's inputs and nothing else."""
    made = under / name
    shutil.copytree(home() / model.folder, made / model.folder)
    return made


def run_flow(spec: Path, folder: Path, out: Path) -> Flow:
    """`onnxmill convert`, and what Prefect recorded of it."""
    origin = datetime.now(UTC).timestamp()
    command: list[str | Path] = [Path(sys.executable).with_name("onnxmill"), "convert", spec, "--out", out]
    wall_s, _ = run(command, folder)
    database = sqlite3.connect(folder / "prefect" / "prefect.db")
    [(flow_id, *flow_times)] = database.execute(
        "SELECT id, start_time, end_time FROM flow_run ORDER BY start_time DESC LIMIT 1"
    )
    rows = database.execute("SELECT name, start_time, end_time FROM task_run WHERE flow_run_id = ?", (flow_id,))
    tasks = tuple(Task(name, *_since(origin, times)) for name, *times in rows)
    database.close()
    report = Report.model_validate_json((out / "report.json").read_text())
    return Flow(wall_s, *_since(origin, flow_times), tasks, report)


def _since(origin: float, times: Sequence[str]) -> tuple[float, float]:
    """Prefect's times (UTC, without a zone) as seconds since `origin`."""
    start, end = (datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() - origin for text in times)
    return start, end


def run_pair(model: Model, under: Path) -> Pair:
    """One turn: bare, flow, flow again, and Prefect alone on that home and on a fresh one."""
    spec, python = ROOT / model.folder / "spec.yaml", sys.executable
    load_before = os.getloadavg()[0]
    bare_home = fresh_home(model, under, "bare")
    bare_s, text = run([python, ROOT / "benchmarks" / "bare.py", spec, under / "bare-work"], bare_home)
    bare = json.loads(text)
    load_between = os.getloadavg()[0]
    flow_home = fresh_home(model, under, "flow")
    flow = run_flow(spec, flow_home, under / "out")
    if faults := disagreements(bare["variants"], flow.report):
        raise SystemExit("bare.py does not do what the flow does: " + "; ".join(faults))
    again = run_flow(spec, flow_home, under / "out")
    if ran := [row.step for row in again.report.steps if not row.cached]:
        raise SystemExit(f"the second run was not unchanged: {', '.join(ran)} ran again")
    warm_s, _ = run([python, "-c", NOTHING, flow_home], flow_home)
    cold_s, _ = run([python, "-c", NOTHING, under / "nothing"], under / "nothing")
    return Pair(bare_s, bare["seconds"], flow, again, cold_s, warm_s, (load_before, load_between))


def measure_costs(flow: Flow, folder: Path, under: Path) -> Costs:
    """The costs of parts, each measured apart on what the flow left in its home `folder`."""
    imports = {}
    for modules in [*dict.fromkeys(CHILD_IMPORTS.values()), LOAD_BACK]:
        command = [sys.executable, "-c", f"import onnxmill.tasks.isolate, {modules}"]
        imports[modules] = statistics.median(run(command, folder)[0] for _ in range(3))
    store = Store(folder / "store")
    records = [r for path in sorted((store.root / "actions").iterdir()) if (r := store.lookup(path.name))]
    read = write = 0.0
    for record in records:
        if record.step == "evaluation-samples" and record.artifact:
            read, write = _through_files(store.open(record.artifact), under / "copy")
    started = time.perf_counter()
    if faults := store.check():
        raise SystemExit("; ".join(faults))
    hashing = time.perf_counter() - started
    proofs = sum(_prove(store, record, records, under) for record in records if record.step in GRAPH_STEPS)
    started = time.perf_counter()
    report_html = importlib.import_module("onnxmill.tasks.report_html")
    report_html.html(flow.report)
    return Costs(imports, proofs, read, write, hashing, time.perf_counter() - started)


def _through_files(folder: Path, copy: Path) -> tuple[float, float]:
    """Seconds to read every sample, and to write a few numbers for each."""
    started = time.perf_counter()
    count = sum(1 for _ in samples.read(folder))
    middle = time.perf_counter()
    with zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as archive:
        for index in range(count):
            samples.append(archive, f"{index:06d}/output", np.zeros((1, 10), np.float32))
    return middle - started, time.perf_counter() - middle


def _prove(store: Store, record: Record, records: Sequence[Record], under: Path) -> float:
    """Seconds to prove the graph of `record` again."""
    [reference] = [r.artifact for r in records if r.artifact and r.artifact.digest == record.inputs["reference"]]
    assert record.artifact
    contract = Contract.model_validate(record.settings["contract"])
    stamp = proof.Stamp.model_validate(record.settings["stamp"])
    with tempfile.TemporaryDirectory(dir=under) as out:
        started = time.perf_counter()
        proof.publish(
            store.open(record.artifact) / graph.MODEL,
            Path(out),
            contract,
            stamp,
            store.open(reference),
        )
        return time.perf_counter() - started


# --- telling ---------------------------------------------------------------------------------------------------------


def results(pairs: Sequence[Pair], costs: Costs) -> dict[str, Any]:
    """Everything that was measured, and what follows from it, as JSON."""
    return {
        "machine": fingerprint(),
        "load": [pair.load for pair in pairs],
        "bare_s": [pair.bare_s for pair in pairs],
        "flow_s": [pair.flow.wall_s for pair in pairs],
        "again_s": [pair.again.wall_s for pair in pairs],
        "nothing_warm_s": [pair.nothing_warm_s for pair in pairs],
        "nothing_cold_s": [pair.nothing_cold_s for pair in pairs],
        "phases": {
            "bare": means([bare_timeline(pair.bare_s, pair.bare) for pair in pairs]),
            "flow": means([timeline(pair.flow) for pair in pairs]),
            "again": means([timeline(pair.again) for pair in pairs]),
        },
        "causes": means([causes(pair, costs) for pair in pairs]),
        "costs": dataclasses.asdict(costs),
    }


def tables(found: Mapping[str, Any]) -> dict[str, Table]:
    """What `results` holds, for people: tables by title."""
    bare_s, flow_s = found["bare_s"], found["flow_s"]
    ratios = [flow / bare for flow, bare in zip(flow_s, bare_s, strict=True)]
    loads = ", ".join(f"{load:.1f}" for turn in found["load"] for load in turn)
    walls = _table("s")
    walls.add_row("bare script", spread(bare_s))
    walls.add_row("onnxmill convert", spread(flow_s))
    walls.add_row("ratio", f"{spread(ratios)} ×")

    phases = _table("bare, s", "flow, s", "difference, s")
    bare, flow = found["phases"]["bare"], found["phases"]["flow"]
    for phase in ordered([*bare, *flow]):
        left, right = bare.get(phase, 0.0), flow.get(phase, 0.0)
        phases.add_row(phase, f"{left:.1f}", f"{right:.1f}", f"{right - left:+.1f}")
    left, right = sum(bare.values()), sum(flow.values())
    phases.add_row("all", f"{left:.1f}", f"{right:.1f}", f"{right - left:+.1f}", style="bold")

    why = _table("s")
    for cause, seconds in found["causes"].items():
        why.add_row(cause, f"{seconds:+.2f}")
    why.add_row("all", f"{sum(found['causes'].values()):+.1f}", style="bold")

    beyond = [again - nothing for again, nothing in zip(found["again_s"], found["nothing_warm_s"], strict=True)]
    again = _table("s")
    again.add_row("onnxmill convert", spread(found["again_s"]))
    edges = ("start and imports", "between tasks", "end")
    parts = found["phases"]["again"]
    for name in edges:
        again.add_row(f"  {name}", f"{parts[name]:.2f}")
    again.add_row("  tasks", f"{sum(seconds for name, seconds in parts.items() if name not in edges):.2f}")
    again.add_row("a Prefect flow that does nothing", spread(found["nothing_warm_s"]))
    verdict = "below" if max(beyond) < SECOND_RUN_LIMIT_S else "NOT below"
    again.add_row(f"beyond it ({verdict} {SECOND_RUN_LIMIT_S:g} s)", spread(beyond), style="bold")
    return {
        f"wall time, {len(bare_s)} turn(s); load of the machine before each run: {loads}": walls,
        "where the time goes (means)": phases,
        "why (estimates from costs measured apart)": why,
        "the same command again, unchanged": again,
    }


def ordered(phases: Sequence[str]) -> list[str]:
    """The names of `phases`, each once, in the order in which the flow has them."""
    order = ["start and imports", *PHASES.values()]
    order.insert(order.index("evaluate"), "parity")
    return sorted(dict.fromkeys(phases), key=lambda name: order.index(name) if name in order else len(order))


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*MODELS, "all"], default="all")
    parser.add_argument("--pairs", type=int, default=2, help="turns of bare script and flow")
    parser.add_argument("--json", action="store_true", help="print JSON alone on stdout")
    chosen = parser.parse_args()
    if chosen.pairs < 1:
        parser.error("--pairs: must be 1 or more")
    console, progress = Console(width=110), Console(stderr=True)
    everything = {}
    for name in MODELS if chosen.model == "all" else [chosen.model]:
        model = MODELS[name]
        subprocess.run([sys.executable, ROOT / model.folder / model.make], check=True, stdout=subprocess.DEVNULL)
        pairs = []
        with tempfile.TemporaryDirectory() as folder:
            for turn in range(chosen.pairs):
                progress.print(f"{name}: turn {turn + 1} of {chosen.pairs}", style="dim")
                under = Path(folder, str(turn))
                pairs.append(run_pair(model, under))
            progress.print(f"{name}: costs of parts", style="dim")
            everything[name] = results(pairs, measure_costs(pairs[-1].flow, under / "flow", under))
        if not chosen.json:
            for title, table in tables(everything[name]).items():
                console.print(f"[bold]{name}[/]: {title}", table, "", sep="\n", highlight=False)
    if chosen.json:
        print(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
