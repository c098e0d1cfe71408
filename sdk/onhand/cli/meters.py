"""What this machine tells of what a run took: energy and memory. None where it does not tell."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


def energy_microjoules(root: Path = POWERCAP) -> dict[str, tuple[int, int]] | None:
    """The counter of each processor package with the value at which it begins anew; None unless all can be read.

    Of the kernel's RAPL zones: what lies within a package, and the platform around it, would be counted twice. Since
    2020 most systems let root alone read them.
    """
    found = {}
    for zone in sorted(root.glob("intel-rapl:*")):
        try:
            if (zone / "name").read_text().startswith("package-"):
                found[zone.name] = _number(zone / "energy_uj"), _number(zone / "max_energy_range_uj")
        except (OSError, ValueError):
            return None
    return found or None


def joules_between(before: dict[str, tuple[int, int]] | None, after: dict[str, tuple[int, int]] | None) -> float | None:
    """What all packages took between two readings that lie less than one turn of a counter apart."""
    if before is None or after is None or before.keys() != after.keys():
        return None
    return sum(_passed(before[zone][0], *after[zone]) for zone in after) / 1e6


def _passed(before: int, after: int, turn: int) -> int:
    return after - before if after >= before else after - before + turn


def _number(path: Path) -> int:
    return int(path.read_text())


def percentile(values: Iterable[float], percent: float) -> float:
    """The value that so many percent of the values do not exceed, interpolated."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


if sys.platform == "win32":
    import ctypes

    class _Counters(ctypes.Structure):
        """PROCESS_MEMORY_COUNTERS of the Windows API."""

        _fields_ = (
            ("size", ctypes.c_ulong),
            ("faults", ctypes.c_ulong),
            *((name, ctypes.c_size_t) for name in ("peak_working_set", "a", "b", "c", "d", "e", "f", "g")),
        )

    def peak_memory_bytes() -> int | None:
        """The most memory that this process has held at a time."""
        counters = _Counters(size=ctypes.sizeof(_Counters))
        this = ctypes.windll.kernel32.GetCurrentProcess()
        asked = ctypes.windll.kernel32.K32GetProcessMemoryInfo(
            ctypes.c_void_p(this), ctypes.byref(counters), ctypes.c_ulong(counters.size)
        )
        return int(counters.peak_working_set) if asked else None

else:
    import resource

    def peak_memory_bytes() -> int | None:
        """The most memory that this process has held at a time."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
