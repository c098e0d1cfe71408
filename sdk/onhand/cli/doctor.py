"""`onhand doctor`: what this machine offers, what is missing, and what to do about it."""

from __future__ import annotations

import platform
import sys
from dataclasses import asdict, dataclass, field

import typer

from onhand.cli import flags, machine
from onhand.cli.console import megabytes, say, say_json
from onhand.cli.exits import NO_BACKEND
from onhand.cli.models import open_store
from onhand.memory import free_memory, total_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendFacts:
    """What a backend found here. remedy: what to do when it is not available."""

    name: str
    available: bool
    detail: str
    remedy: str = ""
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """What `onhand doctor --json` prints. cpus: logical ones; usable_cpus: those that this process may run on.

    memory_bytes and available_memory_bytes are None where the system does not say. memory_limited_by: what leaves no
    more memory: the machine, a control group, or a limit of this process. damaged: models that cannot be opened.
    """

    onhand: str
    python: str
    executable: str
    platform: str
    cpu: str
    cpus: int
    usable_cpus: int
    memory_bytes: int | None
    available_memory_bytes: int | None
    memory_limited_by: str
    models_folder: str
    free_disk_bytes: int
    models: list[str]
    damaged: list[str]
    pip: str | None
    backends: list[BackendFacts]


def doctor(json: flags.Json = False) -> None:
    """Tell what this machine offers and what is missing. Leaves with 8 when no backend can run here."""
    facts = machine_facts()
    if json:
        say_json(asdict(facts))
    else:
        _print(facts)
    if not any(backend.available for backend in facts.backends):
        raise typer.Exit(NO_BACKEND)


def machine_facts() -> MachineFacts:
    """Look at the machine and at every backend; loads no model."""
    from importlib.metadata import version

    store, free = open_store(), free_memory()
    models = [package.name for package in store.list()]
    return MachineFacts(
        onhand=version("onhand"),
        python=platform.python_version(),
        executable=sys.executable,
        platform=platform.platform(),
        cpu=machine.cpu_name(),
        cpus=machine.logical_cpus(),
        usable_cpus=machine.usable_cpus(),
        memory_bytes=total_memory(),
        available_memory_bytes=free.size_bytes,
        memory_limited_by=free.source,
        models_folder=str(store.folder),
        free_disk_bytes=machine.free_disk_bytes(store.folder),
        models=models,
        damaged=[name for name in store.names() if name not in models],
        pip=_pip_version(),
        backends=backend_facts(),
    )


def _pip_version() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pip")
    except PackageNotFoundError:
        return None


def backend_facts() -> list[BackendFacts]:
    """Every backend that is installed, also one that cannot be imported."""
    from onhand.backends import available_backends  # here, so that `onhand --help` does not wait for numpy

    found = []
    for name, backend in available_backends().items():
        probe = backend.probe()
        found.append(
            BackendFacts(
                name=name, available=probe.available, detail=probe.detail, remedy=probe.remedy, facts=probe.facts
            )
        )
    return found


def _print(facts: MachineFacts) -> None:
    memory = megabytes(facts.memory_bytes) if facts.memory_bytes is not None else "unknown"
    if facts.available_memory_bytes is not None:
        memory += f", {megabytes(facts.available_memory_bytes)} available (limited by {facts.memory_limited_by})"
    rows = {
        "onhand": facts.onhand,
        "Python": f"{facts.python} ({facts.executable})",
        "platform": facts.platform,
        "CPU": f"{facts.cpu}, {facts.cpus} logical cores, {facts.usable_cpus} of them usable here",
        "memory": memory,
        "models": f"{', '.join(facts.models) or 'none; run: onhand pull smollm2-135m'} ({facts.models_folder})",
        "free disk": megabytes(facts.free_disk_bytes),
        "pip": facts.pip or f"none, `onhand pull` needs it; run: {facts.executable} -m ensurepip --upgrade",
    }
    if facts.damaged:
        rows["damaged"] = ", ".join(f"{name} (run: onhand remove {name})" for name in facts.damaged)
    for label, value in rows.items():
        say(f"{label:<10} {value}")
    for backend in facts.backends:
        state = "can run here" if backend.available else "cannot run here"
        remedy = f" ({backend.remedy})" if backend.remedy else ""
        say(f"\nbackend {backend.name}: {state}: {backend.detail}{remedy}")
        for label, value in backend.facts.items():
            say(f"  {label:<16} {value}")
