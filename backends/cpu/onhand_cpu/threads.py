"""How many threads to use: the physical performance cores that this process may really use.

Two threads on one core share its arithmetic, efficiency cores hold the others up at every barrier, and a container's
quota throttles whoever exceeds it; each makes inference slower than fewer threads do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

LEAVE_ONE_ABOVE = 4
"""With more cores than this one is left to the user interface."""

SLOWER_CORE = 0.8
"""A core below this share of the fastest one's capacity is an efficiency core."""


def default_threads() -> int:
    """The number of threads for this process on this machine."""
    if sys.platform == "linux":
        allowed = os.sched_getaffinity(0)
        return threads_for(allowed, Path("/"))
    return leave_one(psutil.cpu_count(logical=False) or os.cpu_count() or 1)


def leave_one(cores: int) -> int:
    """The cores to use of those that are there: all of a few, all but one of many."""
    return max(1, cores - 1 if cores > LEAVE_ONE_ABOVE else cores)


def threads_for(allowed: Iterable[int], root: Path) -> int:
    """The number of threads on Linux. allowed: the CPUs of the affinity mask. root: where /proc and /sys lie."""
    cpus = root / "sys/devices/system/cpu"
    performance = _fastest(sorted(set(allowed)), cpus)
    cores = {_core(cpu, cpus) for cpu in performance}
    quota = _quota(root)
    usable = len(cores) if quota is None else min(len(cores), max(1, int(quota)))
    return leave_one(usable) if quota is None else max(1, usable)


def _core(cpu: int, cpus: Path) -> str:
    """Something that the hardware threads of one core have in common."""
    for name in ("core_cpus_list", "thread_siblings_list"):
        text = _read(cpus / f"cpu{cpu}/topology/{name}")
        if text:
            return text
    return str(cpu)


def _fastest(allowed: list[int], cpus: Path) -> list[int]:
    """The performance cores among the allowed; all where the kernel does not tell them apart."""
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        speeds = {cpu: _number(cpus / f"cpu{cpu}/{name}") for cpu in allowed}
        known = [speed for speed in speeds.values() if speed is not None]
        if known and len(known) == len(allowed):
            limit = SLOWER_CORE * max(known)
            return [cpu for cpu, speed in speeds.items() if speed is not None and speed >= limit]
    return allowed


def _quota(root: Path) -> float | None:
    """CPUs' worth of time that the control groups of this process allow, the tightest of them; None is no limit."""
    limits = []
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            limits += [_v2_limit(folder) for folder in _up(root / "sys/fs/cgroup", path)]
        elif "cpu" in controllers.split(","):
            limits += [_v1_limit(folder) for folder in _up(root / "sys/fs/cgroup" / controllers, path)]
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def _up(top: Path, path: str) -> list[Path]:
    """The folder of a control group and of all those above it; in a container the path may exist outside only."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [top.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]


def _v2_limit(folder: Path) -> float | None:
    fields = (_read(folder / "cpu.max") or "").split()
    if len(fields) != 2 or not all(field.isdigit() for field in fields) or int(fields[1]) == 0:
        return None
    return int(fields[0]) / int(fields[1])


def _v1_limit(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota is not None and period and quota > 0 else None


def _number(path: Path) -> float | None:
    text = _read(path)
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
