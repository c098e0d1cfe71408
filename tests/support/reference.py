"""The first truth: a decoder in plain numpy float32, written from the architecture and from nothing of the backends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from onhand.formats.blocks import dequantize
from onhand.formats.gguf import GgufFile
from onhand.formats.spec import DecoderSpec, LayerSpec, inverse_frequencies

F32 = npt.NDArray[np.float32]


class ReferenceDecoder:
    """Logits in plain numpy: no fused operator, weights dequantized to float32.

    Keys are kept unrotated and rotated, when they are attended to, to the place they have then. So `evict` is just what
    its name says, and the sliding of a cache that stores rotated keys can be held against it.
    """

    def __init__(self, file: GgufFile, spec: DecoderSpec, context_tokens: int | None = None) -> None:
        """context_tokens: by which LongRoPE chooses its factors."""
        self.spec = spec
        self._context = context_tokens or spec.context_tokens
        self._file = file
        self._weights: dict[str, F32] = {}
        self._kept: list[tuple[F32, F32]] = []  # keys and values of each layer, (tokens, kv_heads, head_size)
        self.clear()

    def clear(self) -> None:
        """Forget every token."""
        empty = np.empty((0, self.spec.kv_heads, self.spec.head_size), np.float32)
        self._kept = [(empty, empty) for _ in self.spec.layers]

    def evict(self, first: int, count: int) -> None:
        """Forget tokens; those behind them move up."""
        gone = slice(first, first + count)
        self._kept = [(np.delete(k, gone, axis=0), np.delete(v, gone, axis=0)) for k, v in self._kept]

    def weight(self, name: str) -> F32:
        if name not in self._weights:
            tensor = self._file.tensors[name]
            self._weights[name] = dequantize(tensor.type, self._file.raw(name)).reshape(tensor.shape)
        return self._weights[name]

    def logits(self, tokens: Sequence[int]) -> F32:
        """Of a whole sequence from scratch, (tokens, vocab) float32."""
        self.clear()
        return self.append(tokens)

    def append(self, tokens: Sequence[int]) -> F32:
        """Of tokens behind those that are kept, (tokens, vocab) float32."""
        spec = self.spec
        x = self.weight("token_embd.weight")[list(tokens)] * np.float32(spec.embedding_scale)
        for i, layer in enumerate(spec.layers):
            attended = self._attention(self._norm(x, f"blk.{i}.attn_norm"), i, layer)
            x = x + self._post_norm(attended, f"blk.{i}.post_attention_norm")
            fed = self._feed_forward(self._norm(x, f"blk.{i}.ffn_norm"), i)
            x = x + self._post_norm(fed, f"blk.{i}.post_ffw_norm")
        head = "token_embd.weight" if spec.tied_embeddings else "output.weight"
        logits = self._norm(x, "output_norm") @ self.weight(head).T
        if spec.logit_softcap:
            logits = np.tanh(logits / spec.logit_softcap) * np.float32(spec.logit_softcap)
        return logits.astype(np.float32)

    def _norm(self, x: F32, name: str) -> F32:
        scale = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(self.spec.norm_epsilon))
        normed: F32 = (x * scale * self.weight(f"{name}.weight")).astype(np.float32)
        return normed

    def _post_norm(self, x: F32, name: str) -> F32:
        return self._norm(x, name) if self.spec.post_norms else x

    def _linear(self, x: F32, name: str) -> F32:
        y: F32 = x @ self.weight(f"{name}.weight").T
        if f"{name}.bias" in self._file.tensors:
            y += self.weight(f"{name}.bias")
        return y

    def _attention(self, x: F32, i: int, layer: LayerSpec) -> F32:
        spec = self.spec
        count, size, q_rows, kv_rows = (
            len(x),
            spec.head_size,
            spec.heads * spec.head_size,
            spec.kv_heads * spec.head_size,
        )
        if spec.fused_qkv:
            q, k, v = np.split(self._linear(x, f"blk.{i}.attn_qkv"), [q_rows, q_rows + kv_rows], axis=-1)
        else:
            q, k, v = (self._linear(x, f"blk.{i}.attn_{part}") for part in "qkv")
        q, k, v = q.reshape(count, -1, size), k.reshape(count, -1, size), v.reshape(count, -1, size)
        if spec.qk_norm:
            q, k = self._norm(q, f"blk.{i}.attn_q_norm"), self._norm(k, f"blk.{i}.attn_k_norm")
        old_k, old_v = self._kept[i]
        k, v = np.concatenate([old_k, k]), np.concatenate([old_v, v])
        self._kept[i] = (k, v)
        total = len(k)
        places = np.arange(total)
        q, k = self._rope(q, layer, places[total - count :]), self._rope(k, layer, places)
        group = spec.heads // spec.kv_heads
        k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) * np.float32(spec.attention_scale)
        if spec.attention_softcap:
            scores = np.tanh(scores / spec.attention_softcap) * np.float32(spec.attention_softcap)
        distance = places[total - count :, None] - places[None, :]
        visible = (distance >= 0) & (distance < (layer.window or total))
        scores = np.where(visible, scores, -np.inf)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", scores, v).reshape(count, -1)
        return self._linear(mixed.astype(np.float32), f"blk.{i}.attn_output")

    def _rope(self, x: F32, layer: LayerSpec, places: npt.NDArray[np.int64]) -> F32:
        """x: (tokens, heads, head_size). places: (tokens,)."""
        rope = layer.rope
        frequencies, factor = inverse_frequencies(rope, self._context)
        angles = (places[:, None] * frequencies)[:, None, :]
        cos, sin = (np.cos(angles) * factor).astype(np.float32), (np.sin(angles) * factor).astype(np.float32)
        y = x.copy()
        n = rope.dimensions
        first, second = (slice(0, n, 2), slice(1, n, 2)) if rope.interleaved else (slice(0, n // 2), slice(n // 2, n))
        y[..., first] = x[..., first] * cos - x[..., second] * sin
        y[..., second] = x[..., second] * cos + x[..., first] * sin
        return y

    def _feed_forward(self, x: F32, i: int) -> F32:
        spec = self.spec
        if spec.fused_gate_up:
            gate, up = np.split(self._linear(x, f"blk.{i}.ffn_up"), 2, axis=-1)
        else:
            gate, up = self._linear(x, f"blk.{i}.ffn_gate"), self._linear(x, f"blk.{i}.ffn_up")
        if spec.activation == "silu":
            active = gate / (1 + np.exp(-gate))
        else:
            inner = np.float32(np.sqrt(2 / np.pi)) * (gate + np.float32(0.044715) * gate**3)
            active = np.float32(0.5) * gate * (1 + np.tanh(inner))
        return self._linear((active * up).astype(np.float32), f"blk.{i}.ffn_down")
