"""What calibration costs, in plain forward passes: onnxmill, ONNX Runtime's calibrators and NNCF's statistics.

    python benchmarks/calibration.py [--model resnet50|minilm|detector|all] [--contestants NAME ...] [--json]

Each contestant works in a process of its own, pinned to `--threads` cores, on the same graph and the same samples in
the same file; they take turns (A B C A B C). Just before and after it, the same process times plain forward passes:
full optimisation, batch 1, the same threads. Exits with 1 where a limit of ours is missed.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import calibration_data as data
from calibration_child import Failed, start
from rich.console import Console
from rich.table import Table

from onnxmill.tasks import machine

SAMPLES = {"resnet50": 64, "minilm": 64, "detector": 32}
CONTESTANTS = ("onnxmill", "onnxruntime-minmax", "onnxruntime-entropy", "onnxruntime-percentile", "nncf")
LIMITS = {"minmax": 1.9, "percentile": 3.0, "entropy": 3.0, "mse": 3.0}
"""Of ours on resnet50, in plain forward passes."""
FASTER_MIN = 4.0
"""Than ONNX Runtime's entropy on resnet50."""

Row = dict[str, list[float]]


def gathered(runs: Sequence[tuple[str, Mapping[str, Any]]], samples: int) -> dict[str, Row]:
    """Of all turns: {"onnxmill minmax": its figures, a value a turn}."""
    rows: dict[str, Row] = {}
    for contestant, ran in runs:
        plain_s = statistics.mean(ran["plain_s"])
        for name, part in ran["parts"].items():
            figures = {
                "ratio": part["seconds"] / plain_s,
                "ms_a_sample": 1e3 * part["seconds"] / samples,
                "plain_ms": 1e3 * plain_s / samples,
                "cores": part["cores"],
                "peak_rss_mb": part["peak_rss_mb"],
            }
            row = rows.setdefault(f"{contestant.partition('-')[0]} {name}", {key: [] for key in figures})
            for key, value in figures.items():
                row[key].append(value)
    return rows


def verdicts(rows: Mapping[str, Row]) -> dict[str, bool]:
    """The limits that the rows of resnet50 allow to judge, in words; the medians are judged."""
    found = {}
    for method, limit in LIMITS.items():
        if row := rows.get(f"onnxmill {method}"):
            ratio = statistics.median(row["ratio"])
            found[f"{method}: {ratio:.2f} of at most {limit} plain passes"] = ratio <= limit
    ours, theirs = rows.get("onnxmill entropy"), rows.get("onnxruntime entropy")
    if ours and theirs:
        faster = statistics.median(theirs["ratio"]) / statistics.median(ours["ratio"])
        found[f"entropy: {faster:.1f} times faster than ONNX Runtime's, at least {FASTER_MIN}"] = faster >= FASTER_MIN
    return found


def spread(values: Sequence[float], digits: int) -> str:
    """The median, with the range where there are several values."""
    middle = f"{statistics.median(values):,.{digits}f}"
    return middle if len(values) == 1 else f"{middle} [{min(values):,.{digits}f}, {max(values):,.{digits}f}]"


def table(rows: Mapping[str, Row]) -> Table:
    made = Table(box=None, padding=(0, 2, 0, 0))
    columns = {"plain passes": ("ratio", 2), "ms a sample": ("ms_a_sample", 1), "plain, ms": ("plain_ms", 1)}
    columns |= {"cores busy": ("cores", 1), "peak RSS, MB": ("peak_rss_mb", 0)}
    for heading in ("", *columns):
        made.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for name, row in rows.items():
        made.add_row(name, *(spread(row[key], digits) for key, digits in columns.values()))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*SAMPLES, "all"], default="all")
    parser.add_argument(
        "--contestants", nargs="+", choices=CONTESTANTS, metavar="NAME", help="by default all whose package is here"
    )
    parser.add_argument("--samples", type=int, help=f"by default {SAMPLES}")
    parser.add_argument("--rounds", type=int, default=3, help="turns of all contestants")
    parser.add_argument("--threads", type=int, default=machine.threads(), help="cores that each may use")
    parser.add_argument("--json", action="store_true", help="print JSON alone on stdout")
    chosen = parser.parse_args()
    if min(chosen.rounds, chosen.samples or 1, chosen.threads) < 1:
        parser.error("--rounds, --samples and --threads must be 1 or more")
    console, progress = Console(width=140), Console(stderr=True)
    here = [name for name in CONTESTANTS if find_spec(name.partition("-")[0])]
    if len(here) < len(CONTESTANTS):
        progress.print("NNCF is not installed and takes no part: see README.md", style="dim")
    everything: dict[str, Any] = {"machine": machine.fingerprint(), "threads": chosen.threads, "models": {}}
    missed = False
    for name in SAMPLES if chosen.model == "all" else [chosen.model]:
        samples = chosen.samples or SAMPLES[name]
        with tempfile.TemporaryDirectory() as folder:
            progress.print(f"{name}: graph and {samples} samples", style="dim")
            model = data.prepared(name, Path(folder))
            given = data.write(name, samples, Path(folder, "samples"))
            runs, loads, failed = [], [], dict[str, str]()
            for turn in range(chosen.rounds):
                for contestant in chosen.contestants or here:
                    if contestant in failed:
                        continue
                    loads.append(os.getloadavg()[0])
                    progress.print(f"{name}: turn {turn + 1} of {chosen.rounds}, {contestant}", style="dim")
                    try:
                        runs.append((contestant, start(contestant, model, given, chosen.threads, plain=True)))
                    except Failed as error:
                        failed[contestant] = str(error)
        rows = gathered(runs, samples)
        judged = verdicts(rows) if name == "resnet50" else {}
        missed = missed or not all(judged.values()) or "onnxmill" in failed
        everything["models"][name] = {
            "samples": samples,
            "load": loads,
            "rows": rows,
            "failed": failed,
            "limits": judged,
        }
        if not chosen.json:
            title = f"[bold]{name}[/]: {samples} samples, {chosen.threads} thread(s), {chosen.rounds} turn(s)"
            load = f"load of the machine {min(loads):.1f} to {max(loads):.1f}"
            console.print(f"{title}, {load}", table(rows), sep="\n", highlight=False)
            for contestant, why in failed.items():
                console.print(f"{contestant} fails: {why}", highlight=False)
            for words, kept in judged.items():
                console.print(f"{'kept' if kept else '[bold]MISSED[/]'}: {words}", highlight=False)
            console.print()
    if chosen.json:
        print(json.dumps(everything, indent=1))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
