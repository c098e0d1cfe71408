"""Builds the tokenizers library's BPE from a vocabulary, and the bytes that each token stands for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import AddedToken, models, normalizers

from onhand.errors import ModelFormatError
from onhand.formats.pretokenizers import PreTokenizer
from onhand.formats.vocabulary import Kind, Vocabulary

SPACE = "▁"  # how SentencePiece writes a space


def _byte_alphabet() -> dict[str, int]:
    """Character to byte in GPT-2's alphabet: printable bytes stand for themselves, the others follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


_BYTE_ALPHABET = _byte_alphabet()


def build_bpe(vocabulary: Vocabulary, path: Path) -> tokenizers.Tokenizer:
    """The encoder of text without special tokens: no control token is in it, so no text can become one.

    path: the file, for messages. Raises ModelFormatError where the merges and the vocabulary contradict each other.
    """
    ids = vocabulary.ids_in_text()
    rules = vocabulary.pre_tokenizer
    encoder = _byte_level(vocabulary, rules, ids, path) if rules else _sentencepiece(vocabulary, ids, path)
    kinds = vocabulary.kinds.tolist()
    user_defined = [text for text, token in ids.items() if kinds[token] == Kind.USER_DEFINED]
    encoder.add_tokens([AddedToken(text, normalized=True) for text in user_defined])
    return encoder


def token_bytes(vocabulary: Vocabulary) -> list[bytes]:
    """For each id the bytes that it stands for; nothing for a hidden one."""
    hidden = vocabulary.hidden().tolist()
    kinds = vocabulary.kinds.tolist()
    normal = _byte_level_bytes if vocabulary.model == "gpt2" else _sentencepiece_bytes
    table: list[bytes] = []
    for text, kind, is_hidden in zip(vocabulary.texts, kinds, hidden, strict=True):
        if is_hidden:
            table.append(b"")
        elif kind == Kind.NORMAL:
            table.append(normal(text))
        elif kind == Kind.BYTE:
            table.append(bytes.fromhex(text[3:5]))
        else:
            table.append(text.encode())
    return table


def _byte_level_bytes(text: str) -> bytes:
    try:
        return bytes([_BYTE_ALPHABET[char] for char in text])
    except KeyError:  # an added token that the file calls a normal one: its text is plain
        return text.encode()


def _sentencepiece_bytes(text: str) -> bytes:
    return text.replace(SPACE, " ").encode()


def _byte_level(vocabulary: Vocabulary, rules: PreTokenizer, ids: dict[str, int], path: Path) -> tokenizers.Tokenizer:
    """Byte-level BPE after Radford et al. 2019.

    A byte that the vocabulary lacks is left out of the ids, as the models' own tokenizers do it: such a file has no
    unknown token but a control token, and text must not become one.
    """
    merges = _possible_merges(vocabulary, ids, path)
    encoder = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=rules.whole_words))
    if rules.nfc:
        encoder.normalizer = normalizers.NFC()
    encoder.pre_tokenizer = rules.build()
    return encoder


def _possible_merges(vocabulary: Vocabulary, ids: dict[str, int], path: Path) -> Sequence[tuple[str, str]]:
    """The merges of tokens that text may become; one that leads to a control token is left out."""
    known = set(vocabulary.texts)
    merges = []
    for rank, (left, right) in enumerate(vocabulary.merges):
        if left in ids and right in ids and left + right in ids:
            merges.append((left, right))
        elif not known >= {left, right, left + right}:
            raise ModelFormatError(
                path, f"tokenizer.ggml.merges[{rank}] joins {left[:40]!r} and {right[:40]!r}, which are not all tokens"
            )
    return merges


def _sentencepiece(vocabulary: Vocabulary, ids: dict[str, int], path: Path) -> tokenizers.Tokenizer:
    """SentencePiece BPE (Kudo and Richardson 2018): the best-scored piece that two neighbours can form comes first.

    Characters that are no piece become byte tokens; where a byte token is missing, the unknown token.
    """
    unknown = None if vocabulary.unk_id is None else vocabulary.texts[vocabulary.unk_id]
    all_bytes = np.count_nonzero(vocabulary.kinds == Kind.BYTE) >= 256
    if unknown is None and not all_bytes:
        raise ModelFormatError(path, "the tokenizer has neither all 256 byte tokens nor an unknown token")
    with_unknown = ids if unknown is None else ids | {unknown: vocabulary.unk_id or 0}
    model = models.BPE(
        vocab=with_unknown, merges=_merges_by_score(vocabulary), unk_token=unknown, fuse_unk=True, byte_fallback=True
    )
    encoder = tokenizers.Tokenizer(model)
    encoder.normalizer = normalizers.Replace(" ", SPACE)
    return encoder


def _merges_by_score(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Every way to make a piece from two pieces: the best-scored piece first, then the lower ids."""
    normal = np.flatnonzero(vocabulary.kinds == Kind.NORMAL)
    best_first = normal[np.argsort(-vocabulary.scores[normal], kind="stable")].tolist()
    texts = vocabulary.texts
    ids = {texts[token]: token for token in reversed(normal.tolist())}
    merges: list[tuple[str, str]] = []
    for token in best_first:
        text = texts[token]
        if ids[text] != token:
            continue  # a second token with the same text
        ways = []
        for cut in range(1, len(text)):
            left = ids.get(text[:cut])
            if left is not None and (right := ids.get(text[cut:])) is not None:
                ways.append((left, right))
        merges += [(texts[left], texts[right]) for left, right in sorted(ways)]
    return merges
