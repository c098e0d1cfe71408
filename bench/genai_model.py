"""Writes a GGUF file of the Llama family as ONNX Runtime GenAI wants its models: a decoder of its layout, and a config.

The graph is the one that GenAI's own builder makes for a CPU in 4 bits with `prune_lm_head`: MatMulNBits in int8
arithmetic, GroupQueryAttention over caches that are written in place, the logits of the last token alone. The weights
are the file's own, carried over as onhand carries them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onhand.formats.gguf import GgufFile
from onhand.formats.gguf_spec import read_spec
from onhand.formats.package import write_json, write_whole
from onhand.formats.spec import DecoderSpec, rope_tables
from onhand_cpu.artifact import INT8
from onhand_cpu.graph import Graph, TensorFile
from onhand_cpu.weights import Weights

CONFIG = "genai_config.json"


def genai_folder(weights: Path, folder: Path, context_tokens: int) -> Path:
    """The folder of GenAI's form of a model, written when it is not there yet. Raises ValueError for other families."""
    with GgufFile.open(weights) as file:
        spec = read_spec(file)
        if spec.architecture != "llama" or not spec.tied_embeddings or any(layer.window for layer in spec.layers):
            raise ValueError(f"{spec.architecture} is not laid out for ONNX Runtime GenAI here")
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / CONFIG).exists():
            with TensorFile(folder / "decoder.bin") as tensors:
                model = _Layout(spec, file, tensors, context_tokens).build()
            data = model.SerializeToString()
            write_whole(folder / "decoder.onnx", lambda part: part.write_bytes(data))
            write_json(folder / CONFIG, _config(spec, context_tokens))
    return folder


class _Layout:
    def __init__(self, spec: DecoderSpec, file: GgufFile, tensors: TensorFile, context_tokens: int) -> None:
        self.spec = spec
        self.g = Graph(tensors)
        self.weights = Weights(file, self.g, INT8, lambda _: None)
        for name, table in zip(("cos", "sin"), rope_tables(spec.ropes[0], context_tokens, context_tokens), strict=True):
            self.g.store(name, table)

    def build(self) -> Any:
        spec, g = self.spec, self.g
        g.input("input_ids", np.int64, ["batch", "tokens"])
        g.input("attention_mask", np.int64, ["batch", "total"])
        last_axis = g.constant("last_axis", np.array([-1], np.int64))
        one = g.constant("one", np.array([1], np.int64))
        places = g.node("Sub", [g.node("ReduceSum", ["attention_mask", last_axis], keepdims=0), one])
        g.node("Cast", [places], ["last_place"], to=onnx.TensorProto.INT32)
        total = g.node("Gather", [g.node("Shape", ["attention_mask"]), g.constant("first", np.array(1, np.int64))])
        g.node("Cast", [total], ["total_length"], to=onnx.TensorProto.INT32)
        embedding = self.weights.store(["token_embd.weight"])
        residual = self.weights.gather("input_ids", embedding)
        norm = self.weights.vector("blk.0.attn_norm.weight")
        x = g.node("SimplifiedLayerNormalization", [residual, norm], axis=-1, epsilon=spec.norm_epsilon)
        for i in range(len(spec.layers)):
            x, residual = self._add_and_norm(self._attention(x, i), residual, f"blk.{i}.ffn_norm.weight")
            last = i + 1 == len(spec.layers)
            following = "output_norm.weight" if last else f"blk.{i + 1}.attn_norm.weight"
            x, residual = self._add_and_norm(self._feed_forward(x, i), residual, following)
        end = g.constant("end", np.array([-1], np.int64))
        logits = self.weights.multiply(g.node("Gather", [x, end], axis=1), embedding)
        g.node("Identity", [logits], ["logits"])
        g.output("logits", np.float32, ["batch", 1, spec.vocab_size])
        return g.finish()

    def _attention(self, x: str, i: int) -> str:
        g, spec = self.g, self.spec
        outputs = [f"attended.{i}"]
        for kind in ("key", "value"):
            g.input(f"past_key_values.{i}.{kind}", np.float32, ["batch", spec.kv_heads, "past", spec.head_size])
            g.output(f"present.{i}.{kind}", np.float32, ["batch", spec.kv_heads, "total", spec.head_size])
            outputs.append(f"present.{i}.{kind}")
        names = [f"blk.{i}.attn_{part}.weight" for part in "qkv"]
        if self.weights.can_stack(names):
            projected = [self.weights.linear(x, names), "", ""]
        else:
            projected = [self.weights.linear(x, [name]) for name in names]
        past = [f"past_key_values.{i}.{kind}" for kind in ("key", "value")]
        attended = g.contrib(
            "GroupQueryAttention",
            [*projected, *past, "last_place", "total_length", "cos", "sin"],
            outputs,
            num_heads=spec.heads,
            kv_num_heads=spec.kv_heads,
            scale=spec.attention_scale,
            do_rotary=1,
            rotary_interleaved=int(spec.layers[i].rope.interleaved),
        )
        return self.weights.linear(attended, [f"blk.{i}.attn_output.weight"])

    def _feed_forward(self, x: str, i: int) -> str:
        gate, up = (self.weights.linear(x, [f"blk.{i}.ffn_{part}.weight"]) for part in ("gate", "up"))
        active = self.g.contrib("QuickGelu", [gate], alpha=1.0)
        return self.weights.linear(self.g.node("Mul", [active, up]), [f"blk.{i}.ffn_down.weight"])

    def _add_and_norm(self, x: str, residual: str, name: str) -> tuple[str, str]:
        total = f"{name}.residual"
        inputs = [x, residual, self.weights.vector(name)]
        outputs = [f"{name}.normed", "", "", total]
        self.g.contrib("SkipSimplifiedLayerNormalization", inputs, outputs, epsilon=self.spec.norm_epsilon)
        return outputs[0], total


def _config(spec: DecoderSpec, context_tokens: int) -> dict[str, object]:
    decoder = {
        "session_options": {"log_id": "genai", "provider_options": []},
        "filename": "decoder.onnx",
        "head_size": spec.head_size,
        "hidden_size": spec.hidden_size,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
        "num_attention_heads": spec.heads,
        "num_hidden_layers": len(spec.layers),
        "num_key_value_heads": spec.kv_heads,
    }
    model = {
        "type": "llama",
        "vocab_size": spec.vocab_size,
        "context_length": context_tokens,
        "bos_token_id": 1,
        "eos_token_id": [],  # a run is as long as it was asked for
        "pad_token_id": 0,
        "decoder": decoder,
    }
    return {"model": model, "search": {"do_sample": False, "past_present_share_buffer": True}}


def set_threads(folder: Path, threads: int) -> None:
    """Write into the config with how many threads it runs."""
    config = json.loads((folder / CONFIG).read_text())
    config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = threads
    (folder / CONFIG).write_text(json.dumps(config, indent=1))
