"""The vocabulary of a GGUF file: what each token id is, checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from onhand.errors import ModelFormatError
from onhand.formats.pretokenizers import PRE_TOKENIZERS, PreTokenizer

Number = TypeVar("Number", bound=np.generic)

KEY = "tokenizer.ggml."
MODELS = ("gpt2", "llama")
MAX_TOKEN_CHARS = 1024
_NAMED_IDS = ("bos", "eos", "unknown", "padding", "eot", "eom")

_NO_ID = 2**32 - 1  # some converters write "none" as -1 in an unsigned field

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")

# Ends of a turn or of the text, by the names that the families give them. Files often name only one of them as EOS
# while the model answers with another. Names with bars are nothing else; the others are also HTML or plain words, so
# they count only where the file says that they are control tokens (Gemma's "</s>" is the end of a strike-through).
_END_NAMES = frozenset(
    {
        *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot|>"),
        *("<|endofturn|>", "<|end_of_turn|>", "<｜end▁of▁sentence｜>", "<end_of_turn>"),
    }
)
_END_NAMES_OF_CONTROL_TOKENS = frozenset({"</s>", "<eos>", "<EOS>", "<end_of_utterance>", "<turn|>", "[EOS]"})

_NEVER_TEXT = re.compile(r"<unused\d+>|<\|reserved_special_token_\d+\|>")
_MARKER = re.compile(
    r"<\|[^\s<>|]+\|>|<\|[^\s<>|]+>|<[^\s<>|]+\|>|<｜[^<>｜]+｜>"  # <|im_start|>, <|turn>, <turn|>, <｜User｜>
    r"|</?(?:start|end)_of_\w+>|\[/?[A-Z_]{3,}\]"  # <start_of_turn>, [/INST]
    r"|</?(?:think|tool_call|tool_response|tools)>"
)


class Kind(IntEnum):
    """What a token is; the values are those of tokenizer.ggml.token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_HIDDEN = np.isin(np.arange(7), [Kind.UNKNOWN, Kind.CONTROL, Kind.UNUSED])


class Metadata(Protocol):
    """What is read from a GGUF file.

    Each getter raises ModelFormatError naming the key, and the type found where it is another. Without a default a
    missing key is an error.
    """

    path: Path

    def string(self, key: str, default: str | None = None) -> str:
        """One string."""

    def integer(self, key: str, default: int | None = None) -> int:
        """One whole number."""

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """True or false."""

    def strings(self, key: str, length: int | None = None) -> list[str]:
        """An array of strings: this many, if a length is given."""

    def numbers(self, key: str, dtype: type[Number], length: int | None = None) -> npt.NDArray[Number]:
        """An array of numbers of exactly that type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Every token of a model.

    model: "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE).
    texts, kinds: (size,) the tokens; kinds uint8 of `Kind`, mended where files are known to be wrong.
    scores: (size,) float32 for "llama", empty otherwise. merges: pairs for "gpt2" in order of rank, empty otherwise.
    pre_tokenizer: for "gpt2". space_prefix: for "llama", whether text gets a space in front.
    scaffold: text to id of the tokens that only a chat template may write.
    end_ids: every token that ends a turn or the text.
    """

    model: str
    texts: Sequence[str]
    kinds: npt.NDArray[np.uint8]
    scores: npt.NDArray[np.float32]
    merges: Sequence[tuple[str, str]]
    pre_tokenizer: PreTokenizer | None
    space_prefix: bool
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    pad_id: int | None
    add_bos: bool
    chat_template: str | None
    scaffold: dict[str, int]
    end_ids: frozenset[int]

    def hidden(self) -> npt.NDArray[np.bool_]:
        """(size,) whether a token is never shown."""
        hidden = _HIDDEN[self.kinds]
        hidden[sorted(self.end_ids)] = True
        return hidden

    def ids_in_text(self) -> dict[str, int]:
        """Text to id of every token that text may become. Of tokens with one text the first counts."""
        allowed = np.isin(self.kinds, [Kind.NORMAL, Kind.USER_DEFINED, Kind.BYTE])
        allowed[[*self.scaffold.values(), *self.end_ids]] = False
        return _first_ids(self.texts, np.flatnonzero(allowed).tolist())


def byte_value(text: str) -> int | None:
    """The byte that a SentencePiece byte token stands for; None for every text but exactly <0xHH>."""
    match = _BYTE.fullmatch(text)
    return int(match[1], 16) if match else None


def read_vocabulary(file: Metadata) -> Vocabulary:
    """Read and check the tokenizer of a GGUF file. Raises ModelFormatError naming the key and what is wrong with it."""
    model = file.string(KEY + "model")
    if model not in MODELS:
        raise ModelFormatError(
            file.path,
            f"tokenizer {model!r} is not supported; supported are {', '.join(MODELS)} (byte-level, SentencePiece)",
        )
    texts = file.strings(KEY + "tokens")
    if not texts:
        raise ModelFormatError(file.path, f"{KEY}tokens is empty")
    _check_texts(file, texts)
    pre_tokenizer = _pre_tokenizer(file) if model == "gpt2" else None
    template = file.string("tokenizer.chat_template", default="") or None
    kinds = _kinds(file, texts, model)
    ids = {
        name: _id(file, f"{name}_token_id", len(texts)) for name in ("bos", "eos", "unknown", "padding", "eot", "eom")
    }
    end_ids = _end_ids(texts, kinds, [ids["eos"], ids["eot"], ids["eom"]])
    return Vocabulary(
        model=model,
        texts=texts,
        kinds=kinds,
        scores=_scores(file, len(texts)) if model == "llama" else np.empty(0, np.float32),
        merges=_merges(file) if model == "gpt2" else (),
        pre_tokenizer=pre_tokenizer,
        space_prefix=model == "llama" and file.boolean(KEY + "add_space_prefix", default=True),
        bos_id=ids["bos"],
        eos_id=ids["eos"],
        unk_id=ids["unknown"],
        pad_id=ids["padding"],
        add_bos=ids["bos"] is not None
        and file.boolean(KEY + "add_bos_token", default=pre_tokenizer is None or pre_tokenizer.add_bos),
        chat_template=template,
        scaffold=_scaffold(texts, kinds, template or ""),
        end_ids=end_ids,
    )


def _check_texts(file: Metadata, texts: Sequence[str]) -> None:
    longest = max(map(len, texts))
    if longest > MAX_TOKEN_CHARS:  # the work to find a token's merges grows with its square
        raise ModelFormatError(
            file.path, f"{KEY}tokens has one of {longest} characters; at most {MAX_TOKEN_CHARS} are read"
        )
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise ModelFormatError(file.path, f"{KEY}tokens holds text that is not UTF-8") from error


def _pre_tokenizer(file: Metadata) -> PreTokenizer:
    name = file.string(KEY + "pre", default="default")
    if name not in PRE_TOKENIZERS:  # "default" is what converters write for a model that they do not know
        raise ModelFormatError(
            file.path, f"pre-tokenizer {name!r} is not supported; supported are {', '.join(PRE_TOKENIZERS)}"
        )
    return PRE_TOKENIZERS[name]


def _kinds(file: Metadata, texts: Sequence[str], model: str) -> npt.NDArray[np.uint8]:
    found = file.numbers(KEY + "token_type", np.int32, len(texts))
    if not np.isin(found, list(Kind)).all():
        raise ModelFormatError(file.path, f"{KEY}token_type must hold numbers from 1 to 6")
    kinds = found.astype(np.uint8)
    # A byte token is one that has the text of one; whatever else claims to be one is ordinary text.
    kinds[kinds == Kind.BYTE] = Kind.NORMAL
    for token in [token for token, text in enumerate(texts) if text.startswith("<")]:
        if model == "llama" and kinds[token] == Kind.NORMAL and byte_value(texts[token]) is not None:
            kinds[token] = Kind.BYTE
        elif kinds[token] == Kind.USER_DEFINED and _NEVER_TEXT.fullmatch(texts[token]):
            kinds[token] = Kind.UNUSED
    return kinds


def _scores(file: Metadata, size: int) -> npt.NDArray[np.float32]:
    scores = file.numbers(KEY + "scores", np.float32, size)
    if np.isnan(scores).any():
        raise ModelFormatError(file.path, f"{KEY}scores holds values that are not numbers")
    return scores


def _merges(file: Metadata) -> list[tuple[str, str]]:
    merges = []
    for rank, merge in enumerate(file.strings(KEY + "merges")):
        left, space, right = merge.partition(" ")
        if not (left and space and right) or " " in right:
            raise ModelFormatError(
                file.path, f"{KEY}merges[{rank}] is {merge[:40]!r}; it must be two pieces and one space"
            )
        merges.append((left, right))
    return merges


def _id(file: Metadata, name: str, size: int) -> int | None:
    value = file.integer(KEY + name, default=-1)
    if value in (-1, _NO_ID):
        return None
    if not 0 <= value < size:
        raise ModelFormatError(file.path, f"{KEY}{name} is {value}; there are {size} tokens")
    return value


def _end_ids(texts: Sequence[str], kinds: npt.NDArray[np.uint8], named: Iterable[int | None]) -> frozenset[int]:
    ends = {token for token in named if token is not None}
    ends |= {token for token in _of_kind(kinds, Kind.USER_DEFINED) if texts[token] in _END_NAMES}
    control_names = _END_NAMES | _END_NAMES_OF_CONTROL_TOKENS
    return frozenset(ends | {token for token in _of_kind(kinds, Kind.CONTROL) if texts[token] in control_names})


def _scaffold(texts: Sequence[str], kinds: npt.NDArray[np.uint8], template: str) -> dict[str, int]:
    """Every control token, and the user-defined ones that are markers or that the template writes."""
    user_defined = [
        token
        for token in _of_kind(kinds, Kind.USER_DEFINED)
        if _MARKER.fullmatch(texts[token]) or (texts[token].strip() and texts[token] in template)
    ]
    return _first_ids(texts, sorted([*_of_kind(kinds, Kind.CONTROL), *user_defined]))


def _first_ids(texts: Sequence[str], tokens: Iterable[int]) -> dict[str, int]:
    """Text to id; of tokens with one text the first counts, and empty ones are nothing."""
    found: dict[str, int] = {}
    for token in tokens:
        if texts[token]:
            found.setdefault(texts[token], token)
    return found


def _of_kind(kinds: npt.NDArray[np.uint8], kind: Kind) -> list[int]:
    found: list[int] = np.flatnonzero(kinds == kind).tolist()
    return found
