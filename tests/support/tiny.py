"""Tiny models of every architecture: random weights, a byte-level vocabulary, real files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from onhand.formats.blocks import BlockType
from support.gguf_writer import AnyTensor, random_blocks, write_gguf

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3")
HIDDEN, FFN, HEADS, KV_HEADS, HEAD_SIZE, LAYERS, CONTEXT, WINDOW = 64, 96, 4, 2, 16, 4, 128, 8

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_characters() -> list[str]:
    """GPT-2's character for each byte: itself where it can be seen, else one from 256 on."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    return [chr(byte) if byte in seen else chr(next(rest)) for byte in range(256)]


SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|unused|>"]
TOKENS = [*byte_characters(), *SPECIALS]
END = TOKENS.index("<|im_end|>")


def vocabulary(template: str | None = CHATML) -> dict[str, Any]:
    """Metadata of a tokenizer whose tokens are the bytes and four special ones."""
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [1] * 256 + [3] * len(SPECIALS),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 256,
        "tokenizer.ggml.eos_token_id": END,
        "tokenizer.ggml.add_bos_token": False,
    }
    metadata["tokenizer.ggml.tokens"] = [*TOKENS, "ab"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 1]
    if template is not None:
        metadata["tokenizer.chat_template"] = template
    return metadata


VOCAB = len(TOKENS) + 1


def hyperparameters(a: str, *, columns: int = HIDDEN, head_size: int = HEAD_SIZE) -> dict[str, Any]:
    """Metadata of the architecture itself."""
    metadata: dict[str, Any] = {
        "general.architecture": a,
        f"{a}.block_count": LAYERS,
        f"{a}.context_length": CONTEXT,
        f"{a}.embedding_length": columns,
        f"{a}.feed_forward_length": FFN if columns == HIDDEN else columns,
        f"{a}.attention.head_count": HEADS,
        f"{a}.attention.head_count_kv": KV_HEADS,
        f"{a}.attention.key_length": head_size,
        f"{a}.attention.value_length": head_size,
        f"{a}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{a}.rope.freq_base": 10000.0,
        f"{a}.rope.dimension_count": head_size,
    }
    if a in ("gemma2", "gemma3", "phi3"):
        metadata[f"{a}.attention.sliding_window"] = WINDOW
    if a == "gemma3":
        metadata["gemma3.attention.sliding_window_pattern"] = 2
        metadata["gemma3.rope.freq_base_swa"] = 100.0
        metadata |= {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
    if a == "gemma2":
        metadata |= {"gemma2.attn_logit_softcapping": 5.0, "gemma2.final_logit_softcapping": 3.0}
    return metadata


def shapes(metadata: dict[str, Any], *, tied: bool) -> dict[str, tuple[int, ...]]:
    """Every tensor of the architecture with its shape; written out here, not taken from the code under test."""
    a = metadata["general.architecture"]
    hidden, ffn = metadata[f"{a}.embedding_length"], metadata[f"{a}.feed_forward_length"]
    head = metadata[f"{a}.attention.key_length"]
    q, kv = HEADS * head, KV_HEADS * head
    block: dict[str, tuple[int, ...]] = {"attn_norm.weight": (hidden,), "ffn_norm.weight": (hidden,)}
    block |= {"attn_output.weight": (hidden, q), "ffn_down.weight": (hidden, ffn)}
    if a == "phi3":
        block |= {"attn_qkv.weight": (q + 2 * kv, hidden), "ffn_up.weight": (2 * ffn, hidden)}
    else:
        block |= {"attn_q.weight": (q, hidden), "attn_k.weight": (kv, hidden), "attn_v.weight": (kv, hidden)}
        block |= {"ffn_gate.weight": (ffn, hidden), "ffn_up.weight": (ffn, hidden)}
    if a == "qwen2":
        block |= {"attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
    if a in ("qwen3", "gemma3"):
        block |= {"attn_q_norm.weight": (head,), "attn_k_norm.weight": (head,)}
    if a in ("gemma2", "gemma3"):
        block |= {"post_attention_norm.weight": (hidden,), "post_ffw_norm.weight": (hidden,)}
    found = {"token_embd.weight": (VOCAB, hidden), "output_norm.weight": (hidden,)}
    if not tied:
        found["output.weight"] = (VOCAB, hidden)
    return found | {f"blk.{i}.{name}": shape for i in range(LAYERS) for name, shape in block.items()}


def write_tiny(
    path: Path,
    architecture: str = "llama",
    *,
    block_type: BlockType = BlockType.Q4_1,
    tied: bool = True,
    head_size: int = HEAD_SIZE,
    seed: int = 0,
    template: str | None = CHATML,
    extra: dict[str, Any] | None = None,
    extra_tensors: dict[str, AnyTensor] | None = None,
) -> Path:
    """A whole model file. block_type: of every matrix; K-quants get columns of 256."""
    rng = np.random.default_rng(seed)
    columns = 256 if block_type.weights == 256 else HIDDEN
    metadata = (
        hyperparameters(architecture, columns=columns, head_size=head_size) | vocabulary(template) | (extra or {})
    )
    tensors: dict[str, AnyTensor] = {}
    for name, shape in shapes(metadata, tied=tied).items():
        if len(shape) == 2 and shape[1] % block_type.weights == 0:
            tensors[name] = (block_type, random_blocks(block_type, *shape, rng, largest=0.4), shape)
        elif len(shape) == 2:
            tensors[name] = (BlockType.Q8_0, random_blocks(BlockType.Q8_0, *shape, rng, largest=0.4), shape)
        else:
            tensors[name] = (BlockType.F32, (1 + 0.3 * rng.standard_normal(shape)).astype(np.float32), shape)
    return write_gguf(path, metadata, tensors | (extra_tensors or {}))


__all__ = ["ARCHITECTURES", "CHATML", "END", "TOKENS", "VOCAB", "write_tiny"]
