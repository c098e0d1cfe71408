"""Reads a DecoderSpec from GGUF metadata, one function per family of architectures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from onhand.errors import ModelFormatError, UnsupportedArchitectureError
from onhand.formats.blocks import dequantize
from onhand.formats.gguf import GgufFile
from onhand.formats.spec import DecoderSpec, LayerSpec, RopeScaling, RopeSpec

GEMMA3_LOCAL_ROPE_BASE = 10_000.0  # files written before llama.cpp had a key for it hold none
MAX_LAYERS = 1024
MAX_DIMENSION = 1 << 20
MAX_CONTEXT_TOKENS = 1 << 24


def read_spec(file: GgufFile) -> DecoderSpec:
    """The architecture that a GGUF file describes, checked against the tensors that it holds.

    Raises UnsupportedArchitectureError naming the architecture or the part of it that cannot be run, ModelFormatError
    where the metadata contradict themselves or the tensors.
    """
    architecture = file.string("general.architecture")
    family = _FAMILIES.get(architecture)
    if family is None:
        raise UnsupportedArchitectureError(file.path, architecture, SUPPORTED_ARCHITECTURES)
    if file.integer(f"{architecture}.expert_count", default=0) > 0:
        raise unsupported(file, architecture, "it is a mixture of experts")
    spec = family(file, _common(file, architecture))
    check_tensors(file, spec)
    return spec


def unsupported(file: GgufFile, architecture: str, detail: str) -> UnsupportedArchitectureError:
    """An error for a known architecture of which this file needs a part that is not there yet."""
    return UnsupportedArchitectureError(file.path, architecture, SUPPORTED_ARCHITECTURES, detail)


def _size(file: GgufFile, key: str, limit: int = MAX_DIMENSION, default: int | None = None) -> int:
    value = file.integer(key, default=default)
    if not 1 <= value <= limit:
        raise ModelFormatError(file.path, f"{key} is {value}; it must be from 1 to {limit}")
    return value


def _positive(file: GgufFile, key: str, default: float | None = None) -> float:
    value = file.number(key, default=default)
    if not (math.isfinite(value) and value > 0):
        raise ModelFormatError(file.path, f"{key} is {value}; it must be a number above 0")
    return value


def _common(file: GgufFile, a: str) -> DecoderSpec:
    """What every family reads alike. a: the architecture, which begins its keys."""
    hidden = _size(file, f"{a}.embedding_length")
    heads = _size(file, f"{a}.attention.head_count")
    head_size = _size(file, f"{a}.attention.key_length", default=max(hidden // heads, 1))
    if _size(file, f"{a}.attention.value_length", default=head_size) != head_size:
        raise unsupported(file, a, "keys and values differ in size")
    kv_heads = _size(file, f"{a}.attention.head_count_kv", default=heads)
    if heads % kv_heads:
        raise ModelFormatError(file.path, f"{heads} heads cannot share {kv_heads} KV heads evenly")
    context = _size(file, f"{a}.context_length", MAX_CONTEXT_TOKENS)
    dimensions = _size(file, f"{a}.rope.dimension_count", head_size, default=head_size)
    if dimensions % 2:
        raise ModelFormatError(file.path, f"{a}.rope.dimension_count is {dimensions}; it must be even")
    base = _positive(file, f"{a}.rope.freq_base", default=10_000.0)
    if base <= 1:
        raise ModelFormatError(file.path, f"{a}.rope.freq_base is {base}; it must be above 1")
    rope = RopeSpec(
        base=base,
        dimensions=dimensions,
        interleaved=False,
        scaling=_scaling(file, a, context, dimensions // 2),
    )
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelFormatError(file.path, "tensor 'token_embd.weight' is missing or is not a matrix")
    return DecoderSpec(
        architecture=a,
        vocab_size=embedding.shape[0],
        hidden_size=hidden,
        ffn_size=_size(file, f"{a}.feed_forward_length"),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        context_tokens=context,
        norm_epsilon=_positive(file, f"{a}.attention.layer_norm_rms_epsilon", default=1e-5),
        layers=(LayerSpec(rope=rope, window=None),) * _size(file, f"{a}.block_count", MAX_LAYERS),
        tied_embeddings="output.weight" not in file.tensors,
        attention_scale=1 / math.sqrt(head_size),
    )


def _scaling(file: GgufFile, a: str, context: int, pairs: int) -> RopeScaling | None:
    """RoPE scaling from metadata or from the tensors that hold a divisor for each frequency."""
    original = file.integer(f"{a}.rope.scaling.original_context_length", default=context)
    factors = _factors(file, "rope_freqs.weight", pairs) or _factors(file, "rope_factors_short.weight", pairs)
    attention_factor = _positive(file, f"{a}.rope.scaling.attn_factor", default=1.0)
    # As in llama.cpp: without a type a factor is a linear one, and 0 is none; older files have a key of their own.
    kind = file.string(f"{a}.rope.scaling.type", default="linear")
    older = file.number(f"{a}.rope.scale_linear", default=0.0)
    factor = file.number(f"{a}.rope.scaling.factor", default=older)
    if factors:
        if kind == "linear" and factor not in (0, 1):
            raise unsupported(file, a, "a linear RoPE scaling on top of one factor for each frequency")
        return RopeScaling(
            kind="factors",
            factors=factors,
            long_factors=_factors(file, "rope_factors_long.weight", pairs),
            original_context_tokens=original,
            attention_factor=attention_factor,
        )
    if kind == "none" or factor == 0:
        return None
    if not (math.isfinite(factor) and factor > 0):
        raise ModelFormatError(file.path, f"{a}.rope.scaling.factor is {factor}; it must be a number above 0")
    if kind == "linear":
        return RopeScaling(kind="linear", factor=factor)
    if kind == "yarn":
        return RopeScaling(
            kind="yarn",
            factor=factor,
            original_context_tokens=max(original, 1),
            attention_factor=attention_factor * (1 + 0.1 * math.log(factor)),
        )
    raise unsupported(file, a, f"RoPE scaling {kind!r}")


def _factors(file: GgufFile, tensor: str, pairs: int) -> tuple[float, ...]:
    found = file.tensors.get(tensor)
    if found is None:
        return ()
    values = dequantize(found.type, file.raw(tensor)).ravel()
    if values.size != pairs or not all(math.isfinite(v) and v > 0 for v in values):
        raise ModelFormatError(file.path, f"tensor {tensor!r} must hold {pairs} numbers above 0")
    return tuple(float(v) for v in values)


def _windowed(file: GgufFile, spec: DecoderSpec) -> DecoderSpec:
    """Every layer attends to the window that the metadata name, if they name one shorter than the context."""
    window = file.integer(f"{spec.architecture}.attention.sliding_window", default=0)
    if not 0 < window < spec.context_tokens:
        return spec
    return replace(spec, layers=tuple(replace(layer, window=window) for layer in spec.layers))


def _llama(file: GgufFile, spec: DecoderSpec) -> DecoderSpec:
    """Llama, SmolLM2, Mistral: GGUF stores the rows of Q and K so that RoPE's pairs are neighbours."""
    layers = tuple(replace(layer, rope=replace(layer.rope, interleaved=True)) for layer in spec.layers)
    return _windowed(file, replace(spec, layers=layers, qkv_bias="blk.0.attn_q.bias" in file.tensors))


def _qwen2(file: GgufFile, spec: DecoderSpec) -> DecoderSpec:
    return replace(spec, qkv_bias=True)


def _qwen3(file: GgufFile, spec: DecoderSpec) -> DecoderSpec:
    return replace(spec, qk_norm=True)


def _phi3(file: GgufFile, spec: DecoderSpec) -> DecoderSpec:
    return _windowed(file, replace(spec, fused_qkv=True, fused_gate_up=True))


def _gemma2(file: GgufFile, spec: DecoderSpec) -> DecoderSpec:
    """Every second layer, from the first, is local; the 27B model (46 layers) scales by hidden size per head."""
    softcap = _positive(file, "gemma2.attn_logit_softcapping", default=50.0)
    window = _size(file, "gemma2.attention.sliding_window", MAX_CONTEXT_TOKENS, default=4096)
    layers = tuple(replace(layer, window=window if i % 2 == 0 else None) for i, layer in enumerate(spec.layers))
    return replace(
        _gemma(spec, scale_by_hidden=len(layers) == 46),
        layers=layers,
        attention_softcap=softcap,
        logit_softcap=_positive(file, "gemma2.final_logit_softcapping", default=30.0),
    )


def _gemma3(file: GgufFile, spec: DecoderSpec) -> DecoderSpec:
    """Five local layers, then a global one; RoPE scaling is the global layers' alone. The 27B has 62 layers."""
    window = _size(file, "gemma3.attention.sliding_window", MAX_CONTEXT_TOKENS)
    pattern = _size(file, "gemma3.attention.sliding_window_pattern", default=6)
    rope = spec.layers[0].rope
    base = _positive(file, "gemma3.rope.freq_base_swa", default=GEMMA3_LOCAL_ROPE_BASE)
    local = LayerSpec(window=window, rope=replace(rope, base=base, scaling=None))
    layers = tuple(layer if (i + 1) % pattern == 0 else local for i, layer in enumerate(spec.layers))
    softcap = file.number("gemma3.final_logit_softcapping", default=0.0)
    return replace(
        _gemma(spec, scale_by_hidden=len(layers) == 62),
        layers=layers,
        qk_norm=True,
        logit_softcap=softcap if softcap > 0 else None,
    )


def _gemma(spec: DecoderSpec, *, scale_by_hidden: bool) -> DecoderSpec:
    return replace(
        spec,
        activation="gelu_tanh",
        post_norms=True,
        embedding_scale=math.sqrt(spec.hidden_size),
        attention_scale=1 / math.sqrt(spec.hidden_size / spec.heads if scale_by_hidden else spec.head_size),
    )


_FAMILIES: dict[str, Callable[[GgufFile, DecoderSpec], DecoderSpec]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
}
SUPPORTED_ARCHITECTURES = tuple(_FAMILIES)


def tensor_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor that a decoder of this architecture is made of, by its GGUF name, with its shape (rows, columns)."""
    hidden, ffn = spec.hidden_size, spec.ffn_size
    q, kv = spec.heads * spec.head_size, spec.kv_heads * spec.head_size
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (spec.vocab_size, hidden),
        "output_norm.weight": (hidden,),
    }
    if not spec.tied_embeddings:
        shapes["output.weight"] = (spec.vocab_size, hidden)
    block: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,),
        "attn_output.weight": (hidden, q),
        "ffn_norm.weight": (hidden,),
        "ffn_down.weight": (hidden, ffn),
    }
    if spec.fused_qkv:
        block["attn_qkv.weight"] = (q + 2 * kv, hidden)
    else:
        for name, rows in (("attn_q", q), ("attn_k", kv), ("attn_v", kv)):
            block[f"{name}.weight"] = (rows, hidden)
            if spec.qkv_bias:
                block[f"{name}.bias"] = (rows,)
    if spec.fused_gate_up:
        block["ffn_up.weight"] = (2 * ffn, hidden)
    else:
        block |= {"ffn_gate.weight": (ffn, hidden), "ffn_up.weight": (ffn, hidden)}
    if spec.qk_norm:
        block |= {"attn_q_norm.weight": (spec.head_size,), "attn_k_norm.weight": (spec.head_size,)}
    if spec.post_norms:
        block |= {"post_attention_norm.weight": (hidden,), "post_ffw_norm.weight": (hidden,)}
    for layer in range(len(spec.layers)):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    return shapes


_ROPE_TENSORS = {"rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"}


def check_tensors(file: GgufFile, spec: DecoderSpec) -> None:
    """The file holds what the architecture needs, in the right shapes, and nothing that would be left out silently."""
    expected = tensor_shapes(spec)
    missing = [name for name in expected if name not in file.tensors]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelFormatError(file.path, f"tensor {missing[0]!r}{more} is missing: the file is not complete")
    for name, shape in expected.items():
        found = file.tensors[name].shape
        if found != shape:
            raise ModelFormatError(file.path, f"tensor {name!r} has shape {found}, its architecture needs {shape}")
    unknown = [name for name in file.tensors if name not in expected and name not in _ROPE_TENSORS]
    if unknown:
        raise unsupported(file, spec.architecture, f"tensor {unknown[0]!r} is not part of it")
