"""What the benchmarks share: the models, the prose, the machine, and honest medians."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # the models and the reference are the tests'

Key = TypeVar("Key", bound=Hashable)

Run = Callable[[], float]
"""Runs once and says how long it took, in seconds."""

READ_BYTES = 1 << 29  # by each thread at a time; more than caches hold


def interleaved(engines: Mapping[Key, Run], rounds: int) -> dict[Key, list[float]]:
    """Run every engine once a round, so that a machine that slows down slows all of them; seconds by engine."""
    for engine in engines.values():
        engine()
    results: dict[Key, list[float]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, engine in engines.items():
            results[name].append(engine())
    return results


def median_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """The median of the ratios round by round: what two engines differ by, whatever the machine did meanwhile."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))


def timed(run: Callable[[], object]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that so many percent do not exceed, interpolated."""
    return float(np.percentile(values, percent))


def memory_reader(threads: int) -> Run:
    """Seconds a byte that this machine reads memory in: each thread takes numpy's maximum of 512 MiB of its own.

    That comes close to what any program can read, without depending on an inference engine.
    """
    arrays = [np.ones(READ_BYTES // 8, np.int64) for _ in range(threads)]

    def run() -> float:
        readers = [threading.Thread(target=array.max) for array in arrays]
        started = time.perf_counter()
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        return (time.perf_counter() - started) / (threads * READ_BYTES)

    return run


def machine() -> str:
    """One line on what this was measured on."""
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{platform.machine()}, {os.cpu_count()} CPUs{load}, Python {platform.python_version()}, {platform.system()}"
