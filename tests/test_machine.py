"""Threads and the machine's fingerprint: quotas of containers are found, and nothing that changes by itself
is in it."""

import json
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from onnxmill.tasks import machine
from onnxmill.tasks.machine import cpu_quota, fingerprint, memory_bytes, parse_cpuinfo, threads


def a_root(folder: Path, cgroup: str, files: dict[str, str]) -> Path:
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = folder / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("cgroup", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}, 3.0),
        ("0::/a/b\n", {"a/b/cpu.max": "200000 100000\n", "a/cpu.max": "300000 100000\n"}, 2.0),
        ("0::/of/the/host\n", {"cpu.max": "50000 100000\n"}, 0.5),
        (
            "4:cpu,cpuacct:/x\n0::/\n",
            {"cpu/x/cpu.cfs_quota_us": "250000\n", "cpu/x/cpu.cfs_period_us": "100000\n"},
            2.5,
        ),
        ("4:cpu:/x\n", {"cpu/x/cpu.cfs_quota_us": "-1\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, None),
        ("4:cpuset:/x\n", {"cpu/x/cpu.cfs_quota_us": "1000\n", "cpu/x/cpu.cfs_period_us": "1000\n"}, None),
    ],
)
def test_quota_is_the_least_of_the_cgroup_and_its_ancestors(
    tmp_path: Path, cgroup: str, files: dict[str, str], quota: float | None
) -> None:
    assert cpu_quota(a_root(tmp_path, cgroup, files)) == quota


def test_no_quota_without_cgroups(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None


@pytest.mark.parametrize(("quota", "expected"), [(None, 8), (0.5, 1), (2.9, 2), (8.0, 8), (64.0, 8)])
def test_threads_are_the_lesser_of_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(machine, "cpu_quota", lambda: quota)
    assert threads() == expected


@pytest.mark.skipif(sys.platform != "linux", reason="affinity is Linux's")
def test_one_cpu_of_affinity_is_one_thread() -> None:
    code = (
        "import os; os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1]);"
        "from onnxmill.tasks.machine import threads; print(threads())"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"


def test_fingerprint_is_the_same_in_another_process_and_names_no_host() -> None:
    code = "import json; from onnxmill.tasks.machine import fingerprint; print(json.dumps(fingerprint()))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    here = fingerprint()
    assert json.loads(other.stdout) == here
    assert all(here.values())
    assert socket.gethostname() not in here.values()
    # the whole release holds a build's date or number on some systems, and changes with each update
    assert here["os"] == f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}"


def test_cpuinfo_of_x86_and_arm() -> None:
    x86 = "processor\t: 0\nmodel name\t: Fast CPU: 3 GHz\nflags\t\t: fpu avx2 avx512_vnni\n\nmodel name\t: B\n"
    assert parse_cpuinfo(x86) == ("Fast CPU: 3 GHz", frozenset({"fpu", "avx2", "avx512_vnni"}))
    arm = "processor\t: 0\nFeatures\t: fp asimd i8mm\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
    assert parse_cpuinfo(arm) == ("implementer 0x41 part 0xd40", frozenset({"fp", "asimd", "i8mm"}))


def test_only_flags_that_choose_kernels_are_in_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = frozenset(["fpu", "rdrand", "avx512_vnni", "avx2", "amx_int8", "avx_vnni", "asimddp"])
    monkeypatch.setattr(machine, "_cpu", lambda: ("name", flags))
    assert fingerprint()["cpu_flags"] == "amx_int8 asimddp avx2 avx512_vnni avx_vnni"


@pytest.mark.parametrize(
    ("cgroup", "files", "limit"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "1048576\n"}, 1048576),
        ("9:memory:/x\n0::/\n", {"memory/x/memory.limit_in_bytes": "2097152\n"}, 2097152),
        ("0::/\n", {"memory.max": "max\n"}, psutil.virtual_memory().total),
        ("0::/\n", {"memory.max": f"{2**62}\n"}, psutil.virtual_memory().total),
    ],
)
def test_memory_is_the_least_of_the_machine_and_its_cgroups(
    tmp_path: Path, cgroup: str, files: dict[str, str], limit: int
) -> None:
    assert memory_bytes(a_root(tmp_path, cgroup, files)) == limit
