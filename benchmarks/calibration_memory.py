"""Whether calibration's memory grows with the samples: the highest resident set at 32 and at 1,024 of them.

    python benchmarks/calibration_memory.py [--model resnet50|minilm|all] [--json]

Each count is calibrated in a process of its own, which reads its samples from a file: one pass, then the ranges of each
method; a method's memory is the higher of both. The texts for minilm are 8 to 128 tokens long, and the first has 128,
so that few samples need no less than many for the lengths alone. Exits with 1 where a method grows beyond the limit.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import calibration_data as data
from calibration_child import start
from rich.console import Console
from rich.table import Table

from onnxmill.tasks import machine

MODELS = ("resnet50", "minilm")
COUNTS = (32, 1024)
GROWTH_MAX = 0.05


def growth(ran: Mapping[int, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """{method: its peak at the smallest and the largest count, and by which share it grows}."""
    few, many = min(ran), max(ran)
    found = {}
    for method in ran[few]["parts"]:
        low, high = (ran[count]["parts"][method]["peak_rss_mb"] for count in (few, many))
        found[method] = {"mb": [low, high], "growth": high / low - 1, "kept": high / low - 1 <= GROWTH_MAX}
    return found


def table(found: Mapping[str, Mapping[str, Any]], counts: Sequence[int]) -> Table:
    made = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("", *(f"{count:,} samples, MB" for count in counts), "growth", ""):
        made.add_column(heading, justify="right" if heading else "left")
    for method, row in found.items():
        cells = [f"{mb:,.0f}" for mb in row["mb"]]
        made.add_row(method, *cells, f"{row['growth']:+.1%}", "" if row["kept"] else "TOO MUCH")
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*MODELS, "all"], default="all")
    parser.add_argument("--threads", type=int, default=machine.threads(), help="cores that it may use")
    parser.add_argument("--json", action="store_true", help="print JSON alone on stdout")
    chosen = parser.parse_args()
    if chosen.threads < 1:
        parser.error("--threads must be 1 or more")
    console, progress = Console(width=110), Console(stderr=True)
    everything = {}
    for name in MODELS if chosen.model == "all" else [chosen.model]:
        ran = {}
        with tempfile.TemporaryDirectory() as folder:
            model = data.prepared(name, Path(folder))
            for count in COUNTS:
                progress.print(f"{name}: {count} samples", style="dim")
                given = data.write(name, count, Path(folder, str(count)), varying=True)
                ran[count] = start("onnxmill", model, given, chosen.threads, plain=False)
        everything[name] = growth(ran)
        if not chosen.json:
            console.print(f"[bold]{name}[/]", table(everything[name], COUNTS), "", sep="\n", highlight=False)
    if chosen.json:
        print(json.dumps(everything, indent=1))
    return int(not all(row["kept"] for found in everything.values() for row in found.values()))


if __name__ == "__main__":
    sys.exit(main())
