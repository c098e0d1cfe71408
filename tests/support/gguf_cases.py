"""A small sound GGUF file, and the question whether a file is refused as it should be."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onhand.errors import ModelFormatError
from onhand.formats.blocks import BlockType
from onhand.formats.gguf import GgufFile

MAX_ALLOCATED_BYTES = 1 << 20  # what is allowed is 64 MB

VOCABULARY = ["<s>", "</s>", "a", "b"]
METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.tokens": VOCABULARY,
    "tokenizer.ggml.scores": [0.0, -1.0, -2.0, -3.0],
    "tokenizer.ggml.token_type": [3, 3, 1, 1],
}
F32 = (BlockType.F32, np.arange(8, dtype=np.float32), (2, 4))
TENSORS: dict[str, Any] = {"one": F32, "two": F32}


def refused(path: Path, *said: str, error: type[ModelFormatError] = ModelFormatError) -> None:
    """Opening the file raises that very error, whose message holds each of these, and allocates next to nothing."""
    tracemalloc.start()
    with pytest.raises(error) as caught:
        GgufFile.open(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert type(caught.value) is error
    for words in said:
        assert words in str(caught.value)
    assert peak < MAX_ALLOCATED_BYTES
