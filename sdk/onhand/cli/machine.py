"""What this machine is: its processor, memory and disk."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


def cpu_name() -> str:
    """The processor's name as the system knows it."""
    if sys.platform == "linux":
        with suppress(OSError):
            for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
                key, _, value = line.partition(":")
                if key.strip() in ("model name", "Model", "Hardware"):
                    return value.strip()
    if sys.platform == "darwin":
        with suppress(OSError, subprocess.CalledProcessError):
            return subprocess.check_output(["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"], text=True).strip()
    return platform.processor() or platform.machine()


def logical_cpus() -> int:
    """How many logical CPUs the machine has."""
    return os.cpu_count() or 1


def usable_cpus() -> int:
    """How many logical CPUs this process may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return logical_cpus()


def memory_bytes() -> int | None:
    """The machine's memory; None where the system does not say."""
    if sys.platform == "win32":
        return _windows_memory_bytes()
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def available_memory_bytes() -> int | None:
    """How much memory programs can still take without swapping; None where the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def free_disk_bytes(folder: Path) -> int:
    """How much is free on the disk where the folder lies, or would lie."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(there).free


if sys.platform == "win32":
    import ctypes

    class _MemoryStatus(ctypes.Structure):
        """MEMORYSTATUSEX of the Windows API."""

        _fields_ = (
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            *((name, ctypes.c_ulonglong) for name in ("total", "free", "a", "b", "c", "d", "e")),
        )

    def _windows_memory_bytes() -> int | None:
        status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
        return int(status.total) if ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)) else None
