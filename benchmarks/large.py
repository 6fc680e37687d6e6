"""A model above 2 GB through everything: peak memory and time of each step, path to path.

    python benchmarks/large.py [--framework onnx|torch] [--layers 34] [--folder DIR]

Writes a model of random weights (ONNX with a file of weights beside it, or a torch module and its state dict), runs
`onnxmill verify` and `onnxmill convert` on it with the embedded services and promotion, and deletes all of it. Exits
with 1 where a process took more than 1.5 times the model's size.

Memory is what the kernel calls the resident set at its highest. Pages of a file that is mapped into memory count in it,
as ONNX Runtime's weights are until it has packed them; pages that the kernel keeps of files that were merely read or
copied do not.
"""

import argparse
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from onnx import ModelProto, TensorProto, helper
from rich.console import Console
from rich.table import Table

from onnxmill.tasks.artifact import Record
from onnxmill.tasks.spec import home

WIDTH = 4096
LAYERS = 34
RATIO_MAX = 1.5
"""Peak memory of any one process in sizes of the model."""
COPIES = 4
"""Of the model, on the disk at once: the source, the store's, MLflow's, and the one of the step that works."""
POLL_SECONDS = 0.1

Framework = Literal["onnx", "torch"]
WEIGHTS = "weights.bin"
REST = """
dims: {{batch: [1, 8]}}
opset: 18
variants: [fp32]
promote: {{register_as: large}}
"""
SPEC: dict[Framework, str] = {
    "onnx": "version: 1\nname: large\nsource: {{framework: onnx, path: model.onnx, files: [weights.bin]}}" + REST,
    "torch": "version: 1\nname: large\nsource: {{framework: torch, loader: model.py:load, state_dict: weights.pt}}\n"
    "inputs: {{x: {{shape: [batch, {width}]}}}}" + REST,
}
TORCH = """
import torch
from torch import nn


class Large(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear({width}, {width}, bias=False) for _ in range({layers}))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x, x.mean(1, keepdim=True)


def load():
    return Large()
"""
SAVE = """
import torch
weights = torch.from_file("weights.bin", size={layers} * {width}**2).reshape({layers}, {width}, {width})
torch.save({{f"layers.{{i}}.weight": weight.clone() for i, weight in enumerate(weights)}}, "weights.pt")
"""


@dataclasses.dataclass(frozen=True)
class Ran:
    """One command: its exit code, its seconds, the peak memory (MB) of its own process and of its largest child."""

    name: str
    code: int
    seconds: float
    own_mb: float
    largest_mb: float


def make(folder: Path, framework: Framework, layers: int) -> int:
    """Write the spec and the model, a chain of `layers` MatMuls `[WIDTH, WIDTH]`, each followed by Relu; bytes of the
    weights. These are drawn as He et al. (2015) say, so that activations keep their size."""
    rng = np.random.default_rng(20261130)
    with (folder / WEIGHTS).open("wb") as file:
        for _ in range(layers):
            weight = rng.standard_normal((WIDTH, WIDTH), dtype=np.float32)
            weight *= np.float32((2 / WIDTH) ** 0.5)
            weight.tofile(file)
    size = (folder / WEIGHTS).stat().st_size
    (folder / "spec.yaml").write_text(SPEC[framework].format(width=WIDTH))
    if framework == "onnx":
        (folder / "model.onnx").write_bytes(_onnx(layers).SerializeToString())
    else:
        (folder / "model.py").write_text(TORCH.format(layers=layers, width=WIDTH))
        # in a process of its own: what this one takes, the kernel counts for those that it starts
        subprocess.run([sys.executable, "-c", SAVE.format(layers=layers, width=WIDTH)], cwd=folder, check=True)
        (folder / WEIGHTS).unlink()
    return size


def _onnx(layers: int) -> ModelProto:
    """The model at opset 17, its weights in the file `WEIGHTS`, one after the other."""
    nodes, weights, value = [], [], "x"
    for layer in range(layers):
        tensor = TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH])
        tensor.data_location = TensorProto.EXTERNAL
        length = 4 * WIDTH**2
        for key, text in {"location": WEIGHTS, "offset": str(layer * length), "length": str(length)}.items():
            tensor.external_data.add(key=key, value=text)
        weights.append(tensor)
        nodes.append(helper.make_node("MatMul", [value, tensor.name], [f"h{layer}"]))
        value = f"r{layer}"
        nodes.append(helper.make_node("Relu", [f"h{layer}"], [value]))
    nodes.append(helper.make_node("ReduceMean", [value], ["y"], axes=[1], keepdims=1))  # another operator at opset 18
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH])]
    sizes = {value: WIDTH, "y": 1}
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size]) for name, size in sizes.items()]
    graph = helper.make_graph(nodes, "large", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(arguments: Sequence[str], where: Path) -> Ran:
    """Run `onnxmill` with a home of its own in `where`."""
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "PREFECT_"))}
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "onnxmill.flows.cli", *arguments],
        env={**settings, "ONNXMILL_HOME": str(where / "home")},
        cwd=where,
    )
    own_kb = 0
    while True:
        own_kb = max(own_kb, _peak_kb(process.pid))
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        time.sleep(POLL_SECONDS)
    process.returncode = os.waitstatus_to_exitcode(status)
    # the usage of a process that ended includes those of its children that it waited for
    return Ran(arguments[0], process.returncode, time.monotonic() - started, own_kb / 1024, usage.ru_maxrss / 1024)


def _peak_kb(pid: int) -> int:
    """The highest resident set of a running process; 0 when it has ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def records(where: Path) -> list[Record]:
    """What each step left in the store, in the order in which they ended."""
    actions = (where / "home" / "store" / "actions").iterdir()
    texts = sorted((path.stat().st_mtime, path.read_text().partition("\n")[2]) for path in actions)
    return [Record.model_validate_json(text) for _, text in texts]


def shown(size: int, ran: Sequence[Ran], steps: Sequence[Record]) -> tuple[Table, float]:
    """The table, and the highest ratio in it."""
    rows = [(f"step {step.step}", step.peak_rss_mb, step.seconds) for step in steps]
    for one in ran:
        rows.append((f"{one.name}: its own process", one.own_mb, one.seconds))
        rows.append((f"{one.name}: largest of all its processes", one.largest_mb, one.seconds))
    table = Table(title=f"a model of {size / 1e9:.2f} GB")
    for heading in ("process", "peak RSS, MB", "of the model", "seconds"):
        table.add_column(heading, justify="left" if heading == "process" else "right")
    for name, peak_mb, seconds in rows:
        table.add_row(name, f"{peak_mb:,.0f}", f"{peak_mb * 2**20 / size:.2f}×", f"{seconds:.1f}")
    return table, max(peak_mb * 2**20 / size for _, peak_mb, _ in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=get_args(Framework), default="onnx")
    parser.add_argument("--folder", type=Path, default=home() / "benchmarks")
    parser.add_argument("--layers", type=int, default=LAYERS, help=f"of {4 * WIDTH**2 / 1e6:.0f} MB each")
    chosen = parser.parse_args(arguments)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    need = COPIES * chosen.layers * 4 * WIDTH**2
    if (free := shutil.disk_usage(chosen.folder).free) < need:
        parser.error(f"--folder {chosen.folder}: {free / 1e9:.1f} GB are free, {need / 1e9:.1f} are needed")
    with tempfile.TemporaryDirectory(prefix="large-", dir=chosen.folder) as temporary:
        where = Path(temporary)
        size = make(where, chosen.framework, chosen.layers)
        ran = [run(["verify", "spec.yaml"], where)]
        ran.append(run(["convert", "spec.yaml", "--out", "out"], where))
        table, ratio = shown(size, ran, records(where))
    Console(width=120).print(table)
    failed = [f"{one.name} ended with {one.code}" for one in ran if one.code]
    if ratio > RATIO_MAX:
        failed.append(f"a process took {ratio:.2f} times the model's size, {RATIO_MAX} is the limit")
    for line in failed:
        print(line, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
