"""The default number of threads, on machines that are only folders (BR-49)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from onhand_cpu.threads import default_threads, threads_for


def machine(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="ascii")
    return root


def cpu_files(count: int, *, threads_a_core: int = 1, frequencies: list[int] | None = None) -> dict[str, str]:
    files = {}
    for cpu in range(count):
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        cores = count // threads_a_core
        siblings = ",".join(str(cpu % cores + cores * i) for i in range(threads_a_core))
        files[f"{folder}/topology/thread_siblings_list"] = siblings
        if frequencies is not None:
            files[f"{folder}/cpufreq/cpuinfo_max_freq"] = str(frequencies[cpu])
    return files


def test_hyperthreads_count_once(tmp_path: Path) -> None:
    assert threads_for(range(8), machine(tmp_path, cpu_files(8, threads_a_core=2))) == 4


def test_one_of_many_cores_is_left_to_the_user_interface(tmp_path: Path) -> None:
    assert threads_for(range(16), machine(tmp_path, cpu_files(16, threads_a_core=2))) == 7


def test_efficiency_cores_are_left_out(tmp_path: Path) -> None:
    """Eight performance cores with two threads each and sixteen efficiency cores."""
    files: dict[str, str] = {}
    for cpu in range(32):
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        files[f"{folder}/topology/core_cpus_list"] = f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}" if cpu < 16 else str(cpu)
        files[f"{folder}/cpufreq/cpuinfo_max_freq"] = "5400000" if cpu < 16 else "4200000"
    assert threads_for(range(32), machine(tmp_path, files)) == 7


def test_a_phone_uses_its_big_cores(tmp_path: Path) -> None:
    capacities = [250, 250, 250, 250, 900, 900, 900, 1024]
    files = {f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity": str(value) for cpu, value in enumerate(capacities)}
    assert threads_for(range(8), machine(tmp_path, files)) == 4


def test_an_affinity_mask_of_one_gives_one_thread(tmp_path: Path) -> None:
    assert threads_for([5], machine(tmp_path, cpu_files(64))) == 1


def test_a_containers_quota_holds_on_a_large_host(tmp_path: Path) -> None:
    files = cpu_files(64) | {"proc/self/cgroup": "0::/pod/app", "sys/fs/cgroup/pod/cpu.max": "200000 100000"}
    files["sys/fs/cgroup/pod/app/cpu.max"] = "max 100000"
    assert threads_for(range(64), machine(tmp_path, files)) == 2


def test_a_quota_below_one_cpu_gives_one_thread(tmp_path: Path) -> None:
    files = cpu_files(8) | {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "50000 100000"}
    assert threads_for(range(8), machine(tmp_path, files)) == 1


def test_the_older_control_groups_are_read_too(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/cpu,cpuacct/docker/x"
    files = cpu_files(16) | {
        "proc/self/cgroup": "4:cpu,cpuacct:/docker/x\n1:name=systemd:/docker/x",
        f"{group}/cpu.cfs_quota_us": "300000",
        f"{group}/cpu.cfs_period_us": "100000",
    }
    assert threads_for(range(16), machine(tmp_path, files)) == 3


def test_an_unlimited_older_group_is_no_limit(tmp_path: Path) -> None:
    files = cpu_files(4) | {
        "proc/self/cgroup": "4:cpu:/",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
    }
    assert threads_for(range(4), machine(tmp_path, files)) == 4


@pytest.mark.parametrize("text", ["", "max", "x 100000", "100000 0", "100000 100000 1"])
def test_a_quota_file_that_makes_no_sense_is_no_limit(text: str, tmp_path: Path) -> None:
    files = cpu_files(4) | {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": text}
    assert threads_for(range(4), machine(tmp_path, files)) == 4


def test_a_machine_that_tells_nothing_uses_what_the_mask_allows(tmp_path: Path) -> None:
    assert threads_for(range(3), tmp_path) == 3


def test_this_machine_gets_at_least_one_thread() -> None:
    assert default_threads() >= 1
