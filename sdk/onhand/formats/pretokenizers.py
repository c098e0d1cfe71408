"""How text is cut before byte-level BPE: one entry for each name that `tokenizer.ggml.pre` may hold.

A pre-tokenizer is part of what a model was trained on. With a similar one the model still answers, only worse, so a
name that is not in this table is refused and never replaced. The expressions are those in the models' own
tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_PREFIX = r"[^\r\n\p{L}\p{N}]?"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K = rf"{_CONTRACTION}|{_PREFIX}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN = rf"{_CONTRACTION}|{_PREFIX}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_O200K = (
    rf"{_PREFIX}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_PREFIX}{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_TEKKEN = rf"{_PREFIX}{_UPPER}*{_LOWER}+|{_PREFIX}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_DIGIT = r"\p{N}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizer:
    """What happens to text before BPE.

    splits: expressions (Oniguruma syntax), each applied to the pieces that the one before left; every match and every
        gap between matches is a piece.
    nfc: the text is first brought to Unicode normal form C.
    whole_words: a piece that is in the vocabulary is one token, whatever the merges say.
    add_bos: what holds when the file does not say whether a prompt starts with the BOS token.
    """

    splits: Sequence[str]
    nfc: bool = False
    whole_words: bool = False
    add_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """The same for the tokenizers library; it ends with the byte-level alphabet."""
        cuts = [pre_tokenizers.Split(Regex(split), "isolated") for split in self.splits]
        alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*cuts, alphabet])


_PLAIN = PreTokenizer(splits=[_GPT2])
_DIGITS = PreTokenizer(splits=[_DIGIT, _GPT2])
_LLAMA3 = PreTokenizer(splits=[_CL100K], whole_words=True, add_bos=True)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "gpt-2": _PLAIN,
    "phi-2": _PLAIN,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "dbrx": PreTokenizer(splits=[_CL100K]),  # Phi-4 names this one too
    "qwen2": PreTokenizer(splits=[_QWEN], nfc=True),
    "tekken": PreTokenizer(splits=[_TEKKEN], whole_words=True, add_bos=True),
    "gpt-4o": PreTokenizer(splits=[_O200K]),
}
"""By the name that a GGUF file gives it."""
