"""Builds the ONNX graph of a decoder from its DecoderSpec: any number of conversations (slots) and new tokens a run.

Inputs: ids (slots, tokens) int64, what is short padded at its end; positions (slots, attended) int64; rows (logits,)
int64, which of the slots * tokens rows logits are wanted for; attended_rows (attended,) and kept_rows (tokens,) int64,
see below; new_tokens (slots,) int32, how many of each slot's rows attend; last_place (slots,) and total_length (1,)
int32, the KV cache's bookkeeping; cos and sin for each kind of RoPE; keys.i and values.i, (slots, kv_heads, capacity,
head_size), which the graph writes in place. Outputs: logits (logits, vocab) float32. With an 8-bit KV cache keys.i and
values.i are int8, and there are keys_scale.i and values_scale.i, (kv_heads * head_size,): see onhand_cpu.kv_scales.

GroupQueryAttention takes queries in blocks, and multiplies a query that is alone in its block by another kernel than
several: the last bits differ. int8 products then round some inputs the other way, and the logits of a decode step
differ from those of the same token in a prompt by 1% of their range. So queries attend in even numbers only:
attended_rows doubles the last of an odd number, kept_rows drops the double. What a token's logits are then does not
depend on how its prompt was cut: see docs/adr/0005. Over int8 keys one query gets the same bits as several, but for
another kernel that some numbers of heads and threads choose where there is only room for one; there the double only
makes that room, and does not attend: see docs/adr/0006.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx

from onhand.errors import UnsupportedArchitectureError
from onhand.formats.gguf import GgufFile
from onhand.formats.gguf_spec import SUPPORTED_ARCHITECTURES
from onhand.formats.spec import DecoderSpec, LayerSpec
from onhand_cpu.graph import Graph, TensorFile
from onhand_cpu.weights import Weights


def build_decoder(
    spec: DecoderSpec, file: GgufFile, tensors: TensorFile, *, accuracy_level: int, advance: Callable[[int], None]
) -> onnx.ModelProto:
    """The graph, its tensors written to `tensors` on the way. advance: told the bytes of `file` carried over.

    Raises UnsupportedArchitectureError for shapes that GroupQueryAttention refuses on this processor.
    """
    for rope in spec.ropes:
        if spec.head_size % 16 or rope.dimensions % 16:
            detail = (
                f"heads of {spec.head_size} values, {rope.dimensions} of them rotated; the CPU takes multiples of 16"
            )
            raise UnsupportedArchitectureError(file.path, spec.architecture, SUPPORTED_ARCHITECTURES, detail)
    graph = Graph(tensors)
    weights = Weights(file, graph, accuracy_level, advance)
    return _Decoder(spec, graph, weights).build()


def with_int8_cache(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph over the same tensors, with an int8 KV cache and inputs for its scales."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    for value in (*graph.input, *graph.output):
        if value.name.removeprefix("new_").startswith(("keys.", "values.")):
            value.type.tensor_type.elem_type = onnx.TensorProto.INT8
    for node in graph.node:
        if node.op_type != "GroupQueryAttention":
            continue
        for place, cache in ((3, 12), (4, 13)):
            kind, layer = node.input[place].split(".")
            node.input[cache] = f"{kind}_scale.{layer}"
            graph.input.append(
                onnx.helper.make_tensor_value_info(node.input[cache], onnx.TensorProto.FLOAT, ["channels"])
            )
        attributes = {"kv_cache_bit_width": 8, "k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL"}
        node.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in attributes.items())
    return changed


class _Decoder:
    def __init__(self, spec: DecoderSpec, graph: Graph, weights: Weights) -> None:
        self.spec = spec
        self.g = graph
        self.weights = weights
        self.ropes = spec.ropes

    def build(self) -> onnx.ModelProto:
        spec, g = self.spec, self.g
        self._declare_inputs()
        embedding = self.weights.store(["token_embd.weight"])
        residual = self.weights.gather("ids", embedding)
        if spec.embedding_scale != 1:
            residual = g.node("Mul", [residual, self._scalar("embedding_scale", spec.embedding_scale)])
        x = self._norm(residual, "blk.0.attn_norm.weight")
        for i, layer in enumerate(spec.layers):
            attended = self._post_norm(self._attention(x, i, layer), f"blk.{i}.post_attention_norm.weight")
            x, residual = self._add_and_norm(attended, residual, f"blk.{i}.ffn_norm.weight")
            fed = self._post_norm(self._feed_forward(x, i), f"blk.{i}.post_ffw_norm.weight")
            last = i + 1 == len(spec.layers)
            following = "output_norm.weight" if last else f"blk.{i + 1}.attn_norm.weight"
            if last:  # from here on only the rows whose logits are wanted
                flat = g.constant("rows_shape", np.array([1, -1, spec.hidden_size], np.int64))
                fed, residual = (
                    g.node("Gather", [g.node("Reshape", [value, flat]), "rows"], axis=1) for value in (fed, residual)
                )
            x, residual = self._add_and_norm(fed, residual, following)
        head = embedding if spec.tied_embeddings else self.weights.store(["output.weight"])
        self._logits(self.weights.multiply_finely(x, head))
        return g.finish()

    def _declare_inputs(self) -> None:
        g, spec = self.g, self.spec
        g.input("ids", np.int64, ["slots", "tokens"])
        g.input("positions", np.int64, ["slots", "attended"])
        g.input("rows", np.int64, ["logits_rows"])
        g.input("attended_rows", np.int64, ["attended"])
        g.input("kept_rows", np.int64, ["tokens"])
        g.input("last_place", np.int32, ["slots"])
        g.input("total_length", np.int32, [1])
        g.input("new_tokens", np.int32, ["slots"])
        for i, rope in enumerate(self.ropes):
            for name in ("cos", "sin"):
                g.input(f"{name}.{i}", np.float32, ["positions_known", rope.dimensions // 2])
        shape: Sequence[int | str] = ["slots", spec.kv_heads, "capacity", spec.head_size]
        for i in range(len(spec.layers)):
            for name in ("keys", "values"):
                g.input(f"{name}.{i}", np.float32, shape)
                g.output(f"new_{name}.{i}", np.float32, shape)

    def _attention(self, x: str, i: int, layer: LayerSpec) -> str:
        g, spec = self.g, self.spec
        rope = self.ropes.index(layer.rope)
        inputs = [
            *(v and g.node("Gather", [v, "attended_rows"], axis=1) for v in self._queries_keys_values(x, i)),
            f"keys.{i}",
            f"values.{i}",
            "last_place",
            "total_length",
            f"cos.{rope}",
            f"sin.{rope}",
            "positions",
            *[""] * 6,
            "new_tokens",
        ]
        attended = g.contrib(
            "GroupQueryAttention",
            inputs,
            [f"attended.{i}", f"new_keys.{i}", f"new_values.{i}"],
            num_heads=spec.heads,
            kv_num_heads=spec.kv_heads,
            scale=spec.attention_scale,
            softcap=spec.attention_softcap or 0.0,
            local_window_size=layer.window or -1,
            do_rotary=1,
            rotary_interleaved=int(layer.rope.interleaved),
        )
        kept = g.node("Gather", [attended, "kept_rows"], axis=1)
        return self.weights.linear(kept, [f"blk.{i}.attn_output.weight"])

    def _queries_keys_values(self, x: str, i: int) -> list[str]:
        """GroupQueryAttention's first three inputs: one packed product where the file and the norms allow it."""
        spec = self.spec
        if spec.fused_qkv:
            return [self.weights.linear(x, [f"blk.{i}.attn_qkv.weight"]), "", ""]
        names = [f"blk.{i}.attn_{part}.weight" for part in "qkv"]
        if self.weights.can_stack(names) and not spec.qk_norm:
            return [self.weights.linear(x, names), "", ""]
        q, k, v = (self.weights.linear(x, [name]) for name in names)
        if spec.qk_norm:
            q = self._head_norm(q, spec.heads, f"blk.{i}.attn_q_norm.weight")
            k = self._head_norm(k, spec.kv_heads, f"blk.{i}.attn_k_norm.weight")
        return [q, k, v]

    def _head_norm(self, x: str, heads: int, name: str) -> str:
        """RMSNorm over each head: GroupQueryAttention can do that itself, but not on the CPU."""
        g, size = self.g, self.spec.head_size
        split = g.constant(f"heads_shape.{heads}", np.array([0, 0, heads, size], np.int64))
        whole = g.constant(f"values_shape.{heads}", np.array([0, 0, heads * size], np.int64))
        return g.node("Reshape", [self._norm(g.node("Reshape", [x, split]), name), whole])

    def _feed_forward(self, x: str, i: int) -> str:
        g, spec = self.g, self.spec
        if spec.fused_gate_up:
            both = self.weights.linear(x, [f"blk.{i}.ffn_up.weight"])
            names = [f"gate.{i}", f"up.{i}"]
            g.node("Split", [both], names, axis=-1, num_outputs=2)
            gate, up = names
        else:
            gate, up = (self.weights.linear(x, [f"blk.{i}.ffn_{part}.weight"]) for part in ("gate", "up"))
        if spec.activation == "silu":
            active = g.contrib("QuickGelu", [gate], alpha=1.0)
        else:
            active = g.contrib("FastGelu", [gate])
        return self.weights.linear(g.node("Mul", [active, up]), [f"blk.{i}.ffn_down.weight"])

    def _logits(self, y: str) -> None:
        g, softcap = self.g, self.spec.logit_softcap
        if softcap:
            cap = self._scalar("logit_softcap", softcap)
            y = g.node("Mul", [g.node("Tanh", [g.node("Div", [y, cap])]), cap])
        first = g.constant("first_axis", np.array([0], np.int64))
        g.node("Squeeze", [y, first], ["logits"])
        g.output("logits", np.float32, ["logits_rows", self.spec.vocab_size])

    def _norm(self, x: str, name: str) -> str:
        weight = self.weights.vector(name)
        return self.g.node("SimplifiedLayerNormalization", [x, weight], axis=-1, epsilon=self.spec.norm_epsilon)

    def _add_and_norm(self, x: str, residual: str, name: str) -> tuple[str, str]:
        """(norm(x + residual), x + residual)."""
        total = f"{name}.residual"
        normed = self.g.contrib(
            "SkipSimplifiedLayerNormalization",
            [x, residual, self.weights.vector(name)],
            [f"{name}.normed", "", "", total],
            epsilon=self.spec.norm_epsilon,
        )
        return normed, total

    def _post_norm(self, x: str, name: str) -> str:
        return self._norm(x, name) if self.spec.post_norms else x

    def _scalar(self, name: str, value: float) -> str:
        return self.g.constant(name, np.array(value, np.float32))
