"""Models of real shapes with random weights: what a run costs does not depend on what the weights say.

python bench/shapes.py llama-3b [--matrices q4_0] [--embedding q6_k]      writes the file and prints where it lies

The files, about 0.8 and 1.9 GB, lie below $ONHAND_BENCH_CACHE, or .cache/bench in the repository. Their words are made
up: a prompt's text becomes bytes, and what such a model says is visible nonsense.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import shutil
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import common  # noqa: F401 - finds the tests' helpers
import numpy as np

from onhand.formats.blocks import BlockType
from onhand.formats.package import ModelPackage
from onhand_cpu.artifact import compile_package
from support.gguf_writer import Tensor, gguf_bytes, random_blocks
from support.packages import package_of
from support.tiny import vocabulary

ALIGNMENT = 32
SLAB_WEIGHTS = 1 << 24

FILE_TYPES = {"q4_0": 2, "q4_k_m": 15}
"""llama.cpp's numbers for the mixtures of types; OpenVINO asks for one."""

Matrices = Literal["q4_0", "q4_k_m"]
Embedding = Literal["q4_0", "q6_k", "q8_0"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A decoder of the Llama family with tied embeddings."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_size: int
    vocab: int = 128_256
    context: int = 131_072
    rope_base: float = 500_000.0

    def metadata(self) -> dict[str, Any]:
        return {
            "general.architecture": "llama",
            "general.alignment": ALIGNMENT,
            "general.quantization_version": 2,
            "llama.block_count": self.layers,
            "llama.context_length": self.context,
            "llama.embedding_length": self.hidden,
            "llama.feed_forward_length": self.ffn,
            "llama.attention.head_count": self.heads,
            "llama.attention.head_count_kv": self.kv_heads,
            "llama.attention.key_length": self.head_size,
            "llama.attention.value_length": self.head_size,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "llama.rope.freq_base": self.rope_base,
            "llama.rope.dimension_count": self.head_size,
            "llama.vocab_size": self.vocab,
        }

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Every tensor with its shape, (rows, columns) or (columns,)."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        yield "token_embd.weight", (self.vocab, self.hidden)
        yield "output_norm.weight", (self.hidden,)
        for i in range(self.layers):
            yield f"blk.{i}.attn_norm.weight", (self.hidden,)
            yield f"blk.{i}.attn_q.weight", (queries, self.hidden)
            yield f"blk.{i}.attn_k.weight", (keys, self.hidden)
            yield f"blk.{i}.attn_v.weight", (keys, self.hidden)
            yield f"blk.{i}.attn_output.weight", (self.hidden, queries)
            yield f"blk.{i}.ffn_norm.weight", (self.hidden,)
            yield f"blk.{i}.ffn_gate.weight", (self.ffn, self.hidden)
            yield f"blk.{i}.ffn_up.weight", (self.ffn, self.hidden)
            yield f"blk.{i}.ffn_down.weight", (self.hidden, self.ffn)


SHAPES = {
    "llama-1b": Shape(layers=16, hidden=2048, ffn=8192, heads=32, kv_heads=8, head_size=64),
    "llama-3b": Shape(layers=28, hidden=3072, ffn=8192, heads=24, kv_heads=8, head_size=128),
}
"""Those of Llama 3.2."""


def bench_folder() -> Path:
    """Where the benchmarks keep their files."""
    return Path(os.environ.get("ONHAND_BENCH_CACHE") or Path(__file__).parent.parent / ".cache/bench")


def shape_package(name: str, matrices: Matrices = "q4_0", embedding: Embedding = "q6_k") -> ModelPackage:
    """A compiled package of a random model, made when it is not there yet."""
    source = shape_file(name, matrices, embedding)
    folder = source.with_suffix("")
    package = ModelPackage.open(folder) if (folder / "model.json").exists() else package_of(source, folder)
    compile_package(package)
    return package


def shape_file(name: str, matrices: Matrices = "q4_0", embedding: Embedding = "q6_k") -> Path:
    """The GGUF file of a random model, written when it is not there yet. embedding: the type of token_embd."""
    path = bench_folder() / f"{name}-{matrices}-{embedding}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        try:
            _write(part, SHAPES[name], matrices, BlockType[embedding.upper()])
            part.rename(path)
        finally:
            part.unlink(missing_ok=True)
    return path


def _write(path: Path, shape: Shape, matrices: Matrices, embedding: BlockType) -> None:
    types = {name: _type_of(name, len(size), matrices, embedding, shape.layers) for name, size in shape.tensors()}
    offsets, end = {}, 0
    for name, size in shape.tensors():
        offsets[name] = end
        end += -(-math.prod(size) * types[name].bytes // types[name].weights // ALIGNMENT) * ALIGNMENT
    free = shutil.disk_usage(path.parent).free
    if free < 3 * end:  # the compiled form takes another file of that size, and more
        raise SystemExit(f"{3 * end / 1e9:.1f} GB of disk are needed for {path.name}, {free / 1e9:.1f} GB are free")
    nothing = np.empty(0, np.uint8)
    header = gguf_bytes(
        shape.metadata() | {"general.file_type": FILE_TYPES[matrices]} | _vocabulary(shape.vocab),
        {name: Tensor(types[name], nothing, size, offset=offsets[name]) for name, size in shape.tensors()},
        alignment=ALIGNMENT,
    )
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(header)
        for name, size in shape.tensors():
            file.seek(len(header) + offsets[name])
            if len(size) == 1:
                file.write(np.ones(size, np.float32).tobytes())
                continue
            rows, columns = size
            largest = 0.05 if name == "token_embd.weight" else math.sqrt(3 / columns)  # which keeps the variance
            step = max(1, SLAB_WEIGHTS // columns)
            for first in range(0, rows, step):
                file.write(random_blocks(types[name], min(step, rows - first), columns, rng, largest).tobytes())
        file.truncate(len(header) + end)


def _type_of(name: str, dimensions: int, matrices: Matrices, embedding: BlockType, layers: int) -> BlockType:
    if dimensions == 1:
        return BlockType.F32
    if name == "token_embd.weight":
        return embedding
    if matrices == "q4_0":
        return BlockType.Q4_0
    # As llama.cpp's Q4_K_M: more bits for values and the way down in the first and last layers and every third between.
    layer, eighth = int(name.split(".")[1]), layers // 8
    fine = layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
    return BlockType.Q6_K if fine and ("attn_v" in name or "ffn_down" in name) else BlockType.Q4_K


def _vocabulary(size: int) -> dict[str, Any]:
    """The tests' vocabulary of bytes, filled up with made-up words, which no merge leads to."""
    metadata = vocabulary()
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    words = ("Ġ" + "".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=4))
    missing = size - len(tokens)
    return metadata | {
        "tokenizer.ggml.tokens": [*tokens, *itertools.islice(words, missing)],
        "tokenizer.ggml.token_type": [*types, *[1] * missing],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--matrices", choices=get_args(Matrices), default="q4_0")
    parser.add_argument("--embedding", choices=get_args(Embedding), default="q6_k")
    arguments = parser.parse_args()
    print(shape_file(arguments.shape, arguments.matrices, arguments.embedding))


if __name__ == "__main__":
    main()
