"""What a model will take of memory on ONNX Runtime's CPU provider, from its file's header alone.

Counted is what is private to the process (RssAnon of Linux): the system cannot take it back. Pages of the compiled
model's file and of libraries are dropped when somebody needs them.

Measured on x86-64 with AVX-512 VNNI, 2 threads, ONNX Runtime 1.32: growth of RssAnon from before `CpuRuntime(...)` to
after prompts of 512 tokens in chunks of 256, decode steps, and runs of 2, 3, 5, 8 and 16 rows of logits; the KV cache
filled, and then subtracted. MB:

                                            measured   `memory_needs`
    SmolLM2 135M Q4_1                          174          172
    Gemma 3 270M Q4_K_M                        445          441
    Llama, 8 layers of SmolLM2's shape, F16    260          271
    Qwen2 0.5B's shape, Q8_0                   697          727
    Qwen3 0.6B's shape, Q4_K and Q6_K          695          718
    Llama 3.2 1B's shape, Q4_K and Q6_K       1342         1362

A window of 8,192 that is full adds its KV cache and its tables and nothing else; nor does a second slot, or an 8-bit
cache. Growth of Rss is higher by the pages of files: 32 to 305 MB here, a fifth of the compiled file and ONNX Runtime's
own code, and during loading for a moment the rest of the compiled file.
"""

from __future__ import annotations

import sys

from onhand.backends import MemoryNeeds
from onhand.formats.gguf import GgufFile
from onhand.formats.spec import DecoderSpec
from onhand_cpu.nbits import layout_of
from onhand_cpu.runtime import SHORT_CHUNK_TOKENS, SPARE_PLACES

CHUNK_TOKENS = 256
"""Tokens of a run while a prompt is read: the SDK's PREFILL_CHUNK_TOKENS."""

# MLAS packs each block's codes, its scale, and the sum of its zero point's share for the int8 product, both float32.
BLOCK_BYTES = 8

# For each row of a chunk ONNX Runtime's arena keeps about so many copies of every kind of activation, of 6 to 10.
ACTIVATIONS = 10

# Of a row of logits: two, as the last product is made of two halves; their sum; and what is handed over.
LOGITS = 4


# numpy asks for huge pages for an array of so many bytes. Then the places behind a window, which nothing is written to
# but by the way, are in memory as well: they share their pages with the next head's.
HUGE_ARRAY_BYTES = 4 << 20


def memory_needs(file: GgufFile, spec: DecoderSpec, *, window_tokens: int, slots: int, kv_bits: int) -> MemoryNeeds:
    """What `CpuRuntime` takes for such a KV cache."""
    packed, stored = _weights(file, spec)
    token_bytes = spec.kv_values_per_token * kv_bits // 8
    places = window_tokens + SPARE_PLACES
    array_bytes = slots * places * spec.kv_heads * spec.head_size * kv_bits // 8
    spare = SPARE_PLACES if sys.platform == "linux" and array_bytes >= HUGE_ARRAY_BYTES else 0
    tables = sum(places * rope.dimensions * 4 for rope in spec.ropes)
    widths = spec.ffn_size + spec.hidden_size + (spec.heads + 2 * spec.kv_heads) * spec.head_size
    activations = ACTIVATIONS * min(CHUNK_TOKENS, window_tokens) * widths * 4
    logits = LOGITS * max(SHORT_CHUNK_TOKENS, slots) * spec.vocab_size * 4
    return MemoryNeeds(
        weights_bytes=packed,
        kv_bytes=slots * window_tokens * token_bytes,
        overhead_bytes=slots * spare * token_bytes + tables + activations + logits,
        mapped_bytes=stored,
    )


def _weights(file: GgufFile, spec: DecoderSpec) -> tuple[int, int]:
    """Bytes of the matrices as MLAS packs them, and as they lie in the compiled file."""
    packed = stored = 0
    for name, tensor in file.tensors.items():
        if len(tensor.shape) != 2:
            continue
        rows, columns = tensor.shape
        layout = layout_of(tensor.type, columns)
        if layout is None:
            size = kept = rows * columns * 4
        else:
            codes = layout.blocks * layout.code_bytes
            size, kept = rows * (codes + layout.blocks * BLOCK_BYTES), rows * (codes + layout.blocks * 4)
        stored += kept
        if name != "token_embd.weight" or spec.tied_embeddings:  # else rows are gathered from the file as it is
            packed += size
    return packed, stored
