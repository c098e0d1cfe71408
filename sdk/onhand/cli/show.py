"""`onhand show`: what a model is, and what it takes."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onhand.cli import flags
from onhand.cli.console import megabytes, say, say_json
from onhand.cli.models import open_store
from onhand.errors import BackendUnavailableError
from onhand.library.catalog import DEFAULT_MODEL
from onhand.options import CacheOptions
from onhand.types import MemoryPlan

if TYPE_CHECKING:
    from onhand.formats.gguf import GgufFile
    from onhand.formats.spec import DecoderSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What `onhand show --json` prints, and with it as "plan" what the model takes of memory.

    quantization: block type to its share of stored_bytes, what the file's tensors take. template_sha256: of the chat
    template in UTF-8; None when the file has none. license: as the file names it.
    """

    name: str
    architecture: str
    parameters: int
    layers: int
    context_tokens: int
    quantization: dict[str, float]
    stored_bytes: int
    template_sha256: str | None
    license: str | None


def show(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model's name, or a GGUF file.")] = DEFAULT_MODEL,
    context: flags.Context = None,
    kv_bits: flags.KvBits = 32,
    json: flags.Json = False,
) -> None:
    """Show a model's architecture, quantization and context, what it takes of memory, and whether that is there."""
    from onhand.formats.gguf import GgufFile  # here, so that `onhand --help` does not wait for numpy
    from onhand.formats.gguf_spec import read_spec

    cache = CacheOptions(context_tokens=context, kv_bits=kv_bits)
    path = Path(model)
    with GgufFile.open(path if path.suffix == ".gguf" else open_store().get(model).weights) as file:
        spec = read_spec(file)
        facts = model_facts(model, file, spec)
        plan = memory_plan(model, file, spec, cache)
    if json:
        known = plan and asdict(plan) | {"total_bytes": plan.total_bytes, "fits": plan.fits}
        say_json(asdict(facts) | {"plan": known})
    else:
        _print(facts, plan)


def model_facts(name: str, file: GgufFile, spec: DecoderSpec) -> ModelFacts:
    """What a file holds."""
    sizes: Counter[str] = Counter()
    for tensor in file.tensors.values():
        sizes[tensor.type.name] += tensor.nbytes
    template = file.string("tokenizer.chat_template", default="")
    return ModelFacts(
        name=name,
        architecture=spec.architecture,
        parameters=sum(prod(tensor.shape) for tensor in file.tensors.values()),
        layers=len(spec.layers),
        context_tokens=spec.context_tokens,
        quantization={kind: size / sizes.total() for kind, size in sizes.most_common()},
        stored_bytes=sizes.total(),
        template_sha256=hashlib.sha256(template.encode()).hexdigest() if template else None,
        license=file.string("general.license", default="") or None,
    )


def memory_plan(name: str, file: GgufFile, spec: DecoderSpec, cache: CacheOptions) -> MemoryPlan | None:
    """What it takes on the backend that would run it here; None if none can, or that one makes no plan."""
    from onhand.backends import choose_backend
    from onhand.planning import plan_memory

    try:
        backend = choose_backend("auto")
    except BackendUnavailableError:
        return None
    return plan_memory(backend, file, spec, cache, name=name)


def _print(facts: ModelFacts, plan: MemoryPlan | None) -> None:
    shares = ", ".join(f"{kind} {share:.1%}" for kind, share in facts.quantization.items())
    rows = {
        "model": facts.name,
        "architecture": f"{facts.architecture}, {facts.layers} layers",
        "parameters": f"{facts.parameters / 1e6:,.1f} million",
        "quantization": f"{shares} of the weights",
        "context": f"{facts.context_tokens:,} tokens at most",
        "memory": "unknown: no backend here tells it; run: onhand doctor" if plan is None else _needs(plan),
        "available": "unknown" if plan is None else _verdict(plan),
        "template": f"sha256 {facts.template_sha256}" if facts.template_sha256 else "none: it cannot chat",
        "license": facts.license or "not named in the file",
    }
    for label, value in rows.items():
        say(f"{label:<13} {value}")


def _needs(plan: MemoryPlan) -> str:
    parts = {"weights": plan.weights_bytes, "KV cache": plan.kv_bytes, "overhead": plan.overhead_bytes}
    listed = ", ".join(f"{part} {megabytes(size)}" for part, size in parts.items())
    return f"{megabytes(plan.total_bytes)} with a window of {plan.window_tokens:,} tokens: {listed}"


def _verdict(plan: MemoryPlan) -> str:
    if plan.available_bytes is None:
        return f"unknown ({plan.limited_by} does not say)"
    there = f"{megabytes(plan.available_bytes)} (limited by {plan.limited_by})"
    if not plan.fits:
        return f"{there}, too little: {plan.remedy}"
    return f"{there}; the largest window that fits is {plan.largest_window_tokens:,} tokens"
