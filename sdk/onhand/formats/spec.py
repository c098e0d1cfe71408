"""DecoderSpec: the architecture of a decoder-only transformer as data.

A backend builds its graph from this alone; nothing else in onhand asks which family a model is of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How RoPE is stretched beyond the length that a model was first trained at.

    kind: "linear" divides every frequency by factor (Chen et al. 2023); "yarn" interpolates per frequency (Peng et al.
        2023); "factors" divides frequency i by factors[i] (Llama 3), or by long_factors[i] once the context is longer
        than original_context_tokens (LongRoPE, Ding et al. 2024).
    attention_factor: what cos and sin are multiplied by.
    """

    kind: Literal["linear", "yarn", "factors"]
    factor: float = 1.0
    factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    original_context_tokens: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary position embedding (Su et al. 2021) of one layer.

    dimensions: how many of a head's values are rotated, the first ones. interleaved: pairs are (0, 1), (2, 3), ...
    instead of (0, n/2), (1, n/2 + 1), ...
    """

    base: float
    dimensions: int
    interleaved: bool
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """What may differ from layer to layer. window: how many keys, itself included, a token attends to; None is all."""

    rope: RopeSpec
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A decoder-only transformer with RMSNorm, grouped-query attention and a gated feed-forward network.

    head_size is of queries, keys and values alike. attention_scale multiplies the attention logits, embedding_scale the
    embeddings. A softcap c replaces x by c * tanh(x / c). post_norms: the outputs of attention and of the feed-forward
    network are normalised before they are added (Gemma). fused_qkv and fused_gate_up: how the file stores them.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    ffn_size: int
    heads: int
    kv_heads: int
    head_size: int
    context_tokens: int
    norm_epsilon: float
    layers: tuple[LayerSpec, ...]
    activation: Activation = "silu"
    tied_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    fused_qkv: bool = False
    fused_gate_up: bool = False
    attention_scale: float
    embedding_scale: float = 1.0
    attention_softcap: float | None = None
    logit_softcap: float | None = None

    @property
    def ropes(self) -> tuple[RopeSpec, ...]:
        """The different kinds of RoPE of its layers, in the order in which they first occur."""
        return tuple(dict.fromkeys(layer.rope for layer in self.layers))

    @property
    def kv_values_per_token(self) -> int:
        """How many numbers the KV cache holds for one token, all layers, keys and values."""
        return 2 * len(self.layers) * self.kv_heads * self.head_size


def inverse_frequencies(rope: RopeSpec, context_tokens: int) -> tuple[npt.NDArray[np.float64], float]:
    """RoPE's angle per position for each pair, (dimensions / 2,) radians, and the factor on cos and sin.

    context_tokens: the length that the cache is opened for; LongRoPE chooses its factors by it.
    """
    pairs = np.arange(0, rope.dimensions, 2, dtype=np.float64) / rope.dimensions
    frequencies = 1.0 / np.power(np.float64(rope.base), pairs)
    scaling = rope.scaling
    if scaling is None:
        return frequencies, 1.0
    if scaling.kind == "linear":
        return frequencies / scaling.factor, scaling.attention_factor
    if scaling.kind == "factors":
        long = scaling.long_factors and context_tokens > scaling.original_context_tokens
        return frequencies / np.asarray(scaling.long_factors if long else scaling.factors), scaling.attention_factor
    return _yarn(rope, scaling, frequencies), scaling.attention_factor


def _yarn(rope: RopeSpec, scaling: RopeScaling, frequencies: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Keep the fast frequencies, divide the slow ones by the factor, blend between (Peng et al. 2023, section 3.2)."""

    def pair_that_turns(turns: float) -> float:
        length = scaling.original_context_tokens / (turns * 2 * math.pi)
        return rope.dimensions * math.log(length) / (2 * math.log(rope.base))

    low = max(math.floor(pair_that_turns(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(scaling.beta_slow)), rope.dimensions - 1)
    ramp = np.clip((np.arange(rope.dimensions // 2) - low) / max(high - low, 0.001), 0, 1)
    return frequencies * (1 - ramp) + frequencies / scaling.factor * ramp


def rope_tables(
    rope: RopeSpec, tokens: int, context_tokens: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """cos and sin for positions 0..tokens-1, each (tokens, dimensions / 2) float32, computed in float64.

    context_tokens: the context that is promised, by which LongRoPE chooses; a table may be longer.
    """
    frequencies, factor = inverse_frequencies(rope, context_tokens)
    angles = np.arange(tokens, dtype=np.float64)[:, None] * frequencies
    return (np.cos(angles) * factor).astype(np.float32), (np.sin(angles) * factor).astype(np.float32)
