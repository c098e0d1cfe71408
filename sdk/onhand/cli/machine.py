"""What this machine is: its processor and its disk. Its memory: `onhand.memory`."""

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


def free_disk_bytes(folder: Path) -> int:
    """How much is free on the disk where the folder lies, or would lie."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(there).free
