"""What memory is left: the machine's, the control groups', the process's own limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from onhand.memory import FreeMemory, free_by_vm_stat, free_memory, give_back, total_memory

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc and /sys")

GB = 10**9


def system(root: Path, files: dict[str, object], *, available: int | None = 8 * GB) -> Path:
    """A /proc and a /sys with these files."""
    if available is not None:
        files["proc/meminfo"] = f"MemTotal: 99 kB\nMemAvailable:   {available // 1000 * 1000 // 1024} kB\n"
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def v2(path: str, limit: object, used: int, *, file_pages: int = 0, high: object = "max") -> dict[str, object]:
    """The files of a control group of version 2."""
    folder = f"sys/fs/cgroup{path}"
    stat = f"anon {used - file_pages}\ninactive_file {file_pages // 4}\nactive_file {file_pages - file_pages // 4}"
    return {
        f"{folder}/memory.max": limit,
        f"{folder}/memory.high": high,
        f"{folder}/memory.current": used,
        f"{folder}/memory.stat": stat,
    }


@on_linux
def test_without_limits_it_is_what_the_machine_has(tmp_path: Path) -> None:
    free = free_memory(root=system(tmp_path, {"proc/self/cgroup": "0::/"}, available=8_192_000))
    assert free == FreeMemory(8_192_000, "the machine")


@on_linux
def test_the_tightest_of_nested_control_groups_counts_and_is_named(tmp_path: Path) -> None:
    files: dict[str, object] = {"proc/self/cgroup": "0::/user/app"}
    files |= v2("/user/app", 6 * GB, GB) | v2("/user", 4 * GB, 3 * GB) | v2("", "max", 5 * GB)
    assert free_memory(root=system(tmp_path, files)) == FreeMemory(GB, "the control group /user")


@on_linux
def test_pages_of_files_are_given_back(tmp_path: Path) -> None:
    files: dict[str, object] = {"proc/self/cgroup": "0::/app"} | v2("/app", 4 * GB, 3 * GB, file_pages=2 * GB)
    assert free_memory(root=system(tmp_path, files)).size_bytes == 3 * GB


@on_linux
def test_the_limit_above_which_a_group_is_throttled_counts_too(tmp_path: Path) -> None:
    files: dict[str, object] = {"proc/self/cgroup": "0::/app"} | v2("/app", 4 * GB, GB, high=2 * GB)
    assert free_memory(root=system(tmp_path, files)).size_bytes == GB


@on_linux
def test_a_group_that_only_exists_outside_of_a_container_leaves_its_top_to_count(tmp_path: Path) -> None:
    files: dict[str, object] = {"proc/self/cgroup": "0::/../../docker/4711"} | v2("", 3 * GB, GB)
    assert free_memory(root=system(tmp_path, files)) == FreeMemory(2 * GB, "the control group /")


@on_linux
def test_version_1_is_read_too(tmp_path: Path) -> None:
    top = "sys/fs/cgroup/memory"
    files: dict[str, object] = {"proc/self/cgroup": "7:cpu,cpuacct:/x\n5:memory:/app\n1:name=systemd:/y"}
    files |= {f"{top}/memory.limit_in_bytes": 9223372036854771712, f"{top}/memory.usage_in_bytes": 7 * GB}
    files |= {f"{top}/app/memory.limit_in_bytes": 2 * GB, f"{top}/app/memory.usage_in_bytes": GB}
    files[f"{top}/app/memory.stat"] = f"inactive_file 5\ntotal_inactive_file {GB // 2}\ntotal_active_file 0"
    assert free_memory(root=system(tmp_path, files)) == FreeMemory(3 * GB // 2, "the control group /app")


@on_linux
def test_a_group_that_is_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    files: dict[str, object] = {"proc/self/cgroup": "0::/app"} | v2("/app", GB, 2 * GB)
    assert free_memory(root=system(tmp_path, files)).size_bytes == 0


@on_linux
@pytest.mark.parametrize("text", ["", "MemAvailable:\n", "MemAvailable: many kB\n", "\xff\x00"])
def test_what_cannot_be_read_is_unknown(tmp_path: Path, text: str) -> None:
    files: dict[str, object] = {"proc/meminfo": text, "sys/fs/cgroup/memory.max": "?"}
    assert free_memory(root=system(tmp_path, files, available=None)).size_bytes is None


@on_linux
def test_a_limit_of_the_address_space_counts_with_what_will_be_mapped() -> None:
    code = """
import resource
from pathlib import Path
from onhand.memory import free_memory
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 100_000_000, resource.RLIM_INFINITY))
free = free_memory(mapped_bytes=60_000_000)
print(free.size_bytes, free.source)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    size, source = shown.split(maxsplit=1)
    assert 30_000_000 < int(size) <= 40_000_000
    assert "ulimit -v" in source


def test_this_machine_has_memory_and_some_of_it_is_free() -> None:
    total, free = total_memory(), free_memory()
    assert total is None or free.size_bytes is None or 0 < free.size_bytes < total
    give_back()


VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               10.
Pages active:                            500.
Pages inactive:                           20.
Pages speculative:                         3.
Pages throttled:                           0.
Pages wired down:                        100.
"""


def test_vm_stat_of_macos_is_understood() -> None:
    assert free_by_vm_stat(VM_STAT) == 33 * 16384
    assert free_by_vm_stat(VM_STAT.replace("Pages inactive", "Pages of some kind")) is None
    assert free_by_vm_stat("") is None
