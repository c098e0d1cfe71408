"""What the benchmarks share: the models, the prose, and honest medians."""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # the models and the reference are the tests'

Run = Callable[[], float]
"""Runs once and says how long it took, in seconds."""


def interleaved(engines: Mapping[str, Run], rounds: int) -> dict[str, list[float]]:
    """Run every engine once a round, so that a machine that slows down slows all of them; seconds by engine."""
    for engine in engines.values():
        engine()
    results: dict[str, list[float]] = {name: [] for name in engines}
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


def machine() -> str:
    """One line on what this was measured on."""
    import os

    return f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, {platform.system()}"
