"""This machine, as far as a measured time depends on it: how many threads to use, and a fingerprint for the
memo."""

import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path, PurePosixPath

import psutil

Fingerprint = dict[str, str | int]

KERNEL_FLAG = re.compile("avx.*|amx_.*|fma|f16c|asimd.*|i8mm|bf16|sve.*|sme.*")
"""The instruction sets, as Linux spells them, by which runtimes choose their kernels."""


def threads() -> int:
    """How many threads a session should use: the CPUs that this process may run on, or its cgroup's CPU quota
    (rounded down) where that is less. Without either (macOS): all cores."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota = cpu_quota()
    return max(1, min(allowed, allowed if quota is None else math.floor(quota)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPUs' worth of time that the cgroups of this process may use: the least of its own and its ancestors';
    None without a limit. `root` is where /proc and /sys are found."""
    limits = [limit for folder in _cgroups(root, "cpu") if (limit := _limit_of(folder)) is not None]
    return min(limits, default=None)


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of the process's cgroup for a controller ("cpu", "memory") and of its ancestors. In a container the
    path in /proc can be the host's, of which only the mount's root exists: folders that do not exist are for the caller
    to skip."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except FileNotFoundError:  # not Linux
        return
    mounts = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            mount = mounts
        elif controller in controllers.split(","):  # version 1
            mount = mounts / controller
        else:
            continue
        own = PurePosixPath(path.lstrip("/"))
        yield from (mount / folder for folder in (own, *own.parents))


def _limit_of(folder: Path) -> float | None:
    """What `cpu.max` (version 2: "quota period", quota can be "max") or `cpu.cfs_*_us` (version 1, -1 is
    none) say."""
    if (folder / "cpu.max").is_file():
        quota, period = (folder / "cpu.max").read_text().split()
    elif (folder / "cpu.cfs_quota_us").is_file():
        quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    else:
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)


def memory_bytes(root: Path = Path("/")) -> int:
    """The memory that this process may use: the machine's, or its cgroup's limit where that is less."""
    limits = [psutil.virtual_memory().total]
    for folder in _cgroups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):  # version 2, version 1
            if (folder / name).is_file() and (text := (folder / name).read_text().strip()) != "max":
                limits.append(int(text))
    return min(limits)


def fingerprint() -> Fingerprint:
    """What a latency depends on, beside the model: the same on every call and after a reboot, so that a
    measurement can be remembered by it; another after a change of machine, quota, kernel (major.minor) or
    runtime."""
    model, flags = _cpu()
    return {
        "cpu": model,
        "cpu_flags": " ".join(sorted(flag for flag in flags if KERNEL_FLAG.fullmatch(flag))),
        "architecture": platform.machine(),
        "logical_cores": os.cpu_count() or 1,
        "threads": threads(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "os": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "python": platform.python_version(),
        "onnxruntime": version("onnxruntime"),
        "numpy": version("numpy"),
    }


def _cpu() -> tuple[str, frozenset[str]]:
    """The CPU's name and all of its flags."""
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip(), frozenset()
    return parse_cpuinfo(Path("/proc/cpuinfo").read_text())


def parse_cpuinfo(text: str) -> tuple[str, frozenset[str]]:
    """The name and flags of the first CPU in /proc/cpuinfo. Arm gives no name: then its implementer and
    part."""
    first: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        first.setdefault(key.strip(), value.strip())
    arm = f"implementer {first.get('CPU implementer', '?')} part {first.get('CPU part', '?')}"
    return first.get("model name", arm), frozenset(first.get("flags", first.get("Features", "")).split())
