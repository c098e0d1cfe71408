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
from onhand.library.catalog import DEFAULT_MODEL
from onhand.options import DEFAULT_CONTEXT_TOKENS, CacheOptions

if TYPE_CHECKING:
    from onhand.formats.gguf import GgufFile
    from onhand.formats.spec import DecoderSpec

KV_BYTES = 4  # float32


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What `onhand show --json` prints.

    quantization: block type to its share of the weights' bytes. window_tokens: the context that kv_bytes is for.
    template_sha256: of the chat template in UTF-8; None when the file has none. license: as the file names it.
    """

    name: str
    architecture: str
    parameters: int
    layers: int
    context_tokens: int
    quantization: dict[str, float]
    weights_bytes: int
    window_tokens: int
    kv_bytes: int
    memory_bytes: int
    template_sha256: str | None
    license: str | None


def show(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model's name, or a GGUF file.")] = DEFAULT_MODEL,
    context: flags.Context = None,
    json: flags.Json = False,
) -> None:
    """Show a model's architecture, quantization, context, and the memory that it takes at a context."""
    from onhand.formats.gguf import GgufFile  # here, so that `onhand --help` does not wait for numpy
    from onhand.formats.gguf_spec import read_spec

    window = CacheOptions(context_tokens=context).context_tokens
    path = Path(model)
    with GgufFile.open(path if path.suffix == ".gguf" else open_store().get(model).weights) as file:
        facts = model_facts(model, file, read_spec(file), window)
    if json:
        say_json(asdict(facts))
    else:
        _print(facts)


def model_facts(name: str, file: GgufFile, spec: DecoderSpec, window: int | None) -> ModelFacts:
    """What a file holds, and what it takes with a context of `window` tokens, None the default one."""
    tokens = window or min(spec.context_tokens, DEFAULT_CONTEXT_TOKENS)
    sizes: Counter[str] = Counter()
    for tensor in file.tensors.values():
        sizes[tensor.type.name] += tensor.nbytes
    weights_bytes, kv_bytes = sizes.total(), spec.kv_values_per_token * KV_BYTES * tokens
    template = file.string("tokenizer.chat_template", default="")
    return ModelFacts(
        name=name,
        architecture=spec.architecture,
        parameters=sum(prod(tensor.shape) for tensor in file.tensors.values()),
        layers=len(spec.layers),
        context_tokens=spec.context_tokens,
        quantization={kind: size / weights_bytes for kind, size in sizes.most_common()},
        weights_bytes=weights_bytes,
        window_tokens=tokens,
        kv_bytes=kv_bytes,
        memory_bytes=weights_bytes + kv_bytes,
        template_sha256=hashlib.sha256(template.encode()).hexdigest() if template else None,
        license=file.string("general.license", default="") or None,
    )


def _print(facts: ModelFacts) -> None:
    shares = ", ".join(f"{kind} {share:.1%}" for kind, share in facts.quantization.items())
    rows = {
        "model": facts.name,
        "architecture": f"{facts.architecture}, {facts.layers} layers",
        "parameters": f"{facts.parameters / 1e6:,.1f} million",
        "quantization": f"{shares} of the weights",
        "context": f"{facts.context_tokens:,} tokens at most",
        "memory": f"{megabytes(facts.memory_bytes)} with a context of {facts.window_tokens:,} tokens: "
        f"weights {megabytes(facts.weights_bytes)}, KV cache {megabytes(facts.kv_bytes)}",
        "template": f"sha256 {facts.template_sha256}" if facts.template_sha256 else "none: it cannot chat",
        "license": facts.license or "not named in the file",
    }
    for label, value in rows.items():
        say(f"{label:<13} {value}")
