"""Finds the scales of a model's 8-bit KV cache: it reads a page of text, and what it keeps of that is measured.

That is done once, when somebody first asks for 8 bits, and kept with the compiled form: it takes longer than compiling
the model, and most never ask. Half of the text follows BOS and half does not, for the first token of a sequence gathers
attention, whichever it is, and has keys unlike any other. Tokens drawn at random would need no tokenizer, but rare ones
reach far beyond what text does, and every other number pays for that with coarser steps: see docs/adr/0006.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from onhand.backends import Chunk
from onhand.formats.gguf import GgufFile
from onhand.formats.package import ModelPackage, write_whole
from onhand.formats.spec import DecoderSpec
from onhand.formats.tokenizer import Tokenizer
from onhand_cpu.artifact import KV_SCALES, artifact_folder
from onhand_cpu.kv_scales import KvScales, scales_for
from onhand_cpu.runtime import CpuRuntime

SEQUENCE_TOKENS = 128
"""Most tokens of each half."""

TEXTS = (
    """The quick brown fox jumps over the lazy dog. In 1969, three people flew to the Moon; two of them walked on it.
How do I boil an egg? Put it into boiling water for 7 minutes, then cool it. "Thank you!", she said... it's 25 °C.
1. **Bread**: flour, water, salt
2. Soup - see https://example.org/a?b=3
def add(a: int, b: int) -> int:
    return a + b  # two numbers
""",
    """{"name": "Ada", "ok": true, "n": [1, 2.5, -3]} <b>x</b> \\frac{1}{2}
Die Würde des Menschen ist unantastbar. Tous les êtres humains naissent libres et égaux en dignité et en droits.
Todos los seres humanos nacen libres. Все люди рождаются свободными. 人人生而自由,在尊严和权利上一律平等。
すべての人間は、生まれながらにして自由である。 모든 인간은 자유롭다. يولد جميع الناس أحرارا. सभी मनुष्य स्वतन्त्र हैं।
""",
)


def kv_scales(package: ModelPackage, spec: DecoderSpec, *, threads: int) -> KvScales:
    """The scales for a prepared package: those that are kept there, or measured now and kept. Raises BackendError."""
    folder = artifact_folder(package)
    found = _kept(folder / KV_SCALES, spec)
    if found is None:
        with GgufFile.open(package.weights) as file:
            tokenizer = Tokenizer.from_gguf(file)
        found = measure(spec, folder / "decoder.onnx", sequences(tokenizer), threads=threads)
        with suppress(OSError):  # scales that cannot be kept cost the next start some time and nothing else
            write_whole(folder / KV_SCALES, partial(_save, scales=found))
    return found


def sequences(tokenizer: Tokenizer) -> list[list[int]]:
    """The ids that calibration reads, the first half after BOS where there is one."""
    first, second = (tokenizer.encode(text)[:SEQUENCE_TOKENS] for text in TEXTS)
    return [first if tokenizer.bos_id is None else [tokenizer.bos_id, *first], second]


def measure(spec: DecoderSpec, model: Path, texts: Sequence[Sequence[int]], *, threads: int) -> KvScales:
    """Read texts with a graph that has a float32 KV cache. Raises BackendError."""
    texts = [ids[: spec.context_tokens] for ids in texts]
    runtime = CpuRuntime(spec, model, threads=threads, context_tokens=max(map(len, texts)), slots=len(texts))
    try:
        for slot, ids in enumerate(texts):
            runtime.forward([Chunk(slot=slot, tokens=ids, rows="none")])
        layers = list(zip(*(runtime.export(slot) for slot in range(len(texts))), strict=True))
        keys, values = ([np.concatenate([read[kind] for read in layer], axis=1) for layer in layers] for kind in (0, 1))
        return scales_for(spec, keys, values)
    finally:
        runtime.close()


def _kept(path: Path, spec: DecoderSpec) -> KvScales | None:
    """What was kept, unless it is missing or damaged."""
    try:
        stored = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    shape = (2, len(spec.layers), spec.kv_heads, spec.head_size)
    if stored.shape != shape or stored.dtype != np.float32 or not (np.isfinite(stored) & (stored > 0)).all():
        return None
    return KvScales(*stored)


def _save(path: Path, scales: KvScales) -> None:
    with path.open("wb") as file:  # np.save adds a suffix to a name
        np.save(file, np.stack([scales.keys, scales.values]), allow_pickle=False)
