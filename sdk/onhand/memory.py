"""How much memory is left for a model: by the machine, by the control groups of this process, and by its own limits.

The least of them counts. A page that the system can drop and read again from its file counts as free; swap does not,
for a model whose weights are swapped takes minutes for a word.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

if sys.platform == "linux":
    import resource


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """size_bytes: what this process can still take; None where nothing says. source: what leaves no more than that."""

    size_bytes: int | None
    source: str


def free_memory(mapped_bytes: int = 0, root: Path = Path("/")) -> FreeMemory:
    """What is left to this process.

    mapped_bytes: of files that will be mapped too, which a limit of the address space counts. root: where /proc and
    /sys lie on Linux.
    """
    if sys.platform == "win32":
        return FreeMemory(_windows_memory("free"), "the machine")
    if sys.platform == "linux":
        found = [*_machine(root), *_control_groups(root), *_address_space(mapped_bytes, root)]
        size, source = min(found, key=lambda one: one[0], default=(None, "the system"))
        return FreeMemory(size if size is None else max(size, 0), source)
    return FreeMemory(_free_on_macos(), "the machine")


def total_memory() -> int | None:
    """The machine's memory in bytes; None where the system does not say."""
    if sys.platform == "win32":
        return _windows_memory("total")
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def give_back() -> None:
    """Hand memory that was freed, and that the C library keeps, back to the system, where the library can do that.

    Reading Gemma 3's vocabulary of 262,144 tokens leaves 200 MB of it behind, closing a model of 3 GB 370 MB.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # only glibc has it
            ctypes.CDLL(None).malloc_trim(0)


Found = Iterator[tuple[int, str]]


def _machine(root: Path) -> Found:
    available = _fields(root / "proc/meminfo").get("MemAvailable:")
    if available is not None:
        yield available * 1024, "the machine"


def _control_groups(root: Path) -> Found:
    """What each control group of this process and each above it leaves, version 1 and 2."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names, used = root / "sys/fs/cgroup", ["memory.max", "memory.high"], "memory.current"
        elif "memory" in controllers.split(","):
            top, names, used = root / "sys/fs/cgroup/memory", ["memory.limit_in_bytes"], "memory.usage_in_bytes"
        else:
            continue
        # In a container the path may be one that exists outside only; its own group then is the top.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for count in range(len(parts), -1, -1):
            folder = top.joinpath(*parts[:count])
            allowed, current = [_number(folder / name) for name in names], _number(folder / used)
            known = [limit for limit in allowed if limit is not None]
            if known and current is not None:
                yield min(known) - current + _droppable(folder), f"the control group /{'/'.join(parts[:count])}"


def _droppable(folder: Path) -> int:
    """What of a control group's usage is pages of files, which go when their memory is needed."""
    counts = _fields(folder / "memory.stat")
    prefix = "total_" if "total_inactive_file" in counts else ""  # version 1 counts the groups below in these alone
    return counts.get(f"{prefix}inactive_file", 0) + counts.get(f"{prefix}active_file", 0)


if sys.platform == "linux":

    def _address_space(mapped_bytes: int, root: Path) -> Found:
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        pages = _read(root / "proc/self/statm").split()
        if limit != resource.RLIM_INFINITY and pages:
            taken = int(pages[0]) * resource.getpagesize()
            yield limit - taken - mapped_bytes, "the address space (ulimit -v)"


def _fields(path: Path) -> dict[str, int]:
    """The numbers of a file with a name and a number on each line."""
    rows = [line.split() for line in _read(path).splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _number(path: Path) -> int | None:
    """The number in a file; None for none, such as "max"."""
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _free_on_macos() -> int | None:
    try:
        shown = subprocess.run(["/usr/bin/vm_stat"], capture_output=True, text=True, check=True, timeout=5).stdout
    except (OSError, subprocess.SubprocessError):  # it is not there but on macOS
        return None
    return free_by_vm_stat(shown)


def free_by_vm_stat(shown: str) -> int | None:
    """What macOS's vm_stat calls free, inactive or speculative, in bytes; None if it cannot be read."""
    size = re.search(r"page size of (\d+) bytes", shown)
    pages = [
        re.search(rf"^Pages {kind}:\s+(\d+)\.", shown, re.MULTILINE) for kind in ("free", "inactive", "speculative")
    ]
    counts = [int(found[1]) for found in pages if found]
    return int(size[1]) * sum(counts) if size and len(counts) == len(pages) else None


if sys.platform == "win32":

    class _MemoryStatus(ctypes.Structure):
        """MEMORYSTATUSEX of the Windows API."""

        _fields_ = (
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            *((name, ctypes.c_ulonglong) for name in ("total", "free", "a", "b", "c", "d", "e")),
        )

    def _windows_memory(field: str) -> int | None:
        status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
        known = ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
        return int(getattr(status, field)) if known else None
