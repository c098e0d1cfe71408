"""A model's tokenizer: text to token ids and back."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import tokenizers

from onhand.errors import ModelFormatError, OptionError, StorageError
from onhand.formats.bpe import build_bpe, token_bytes
from onhand.formats.package import write_whole
from onhand.formats.vocabulary import Metadata, Vocabulary, read_vocabulary

FORMAT = 1
"""The version of what `Tokenizer.save` writes."""

AGAIN = "import the model again"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """The ids that a prompt is put together from; see the attributes of `Tokenizer`."""

    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    pad_id: int | None
    add_bos: bool
    space_prefix: bool
    chat_template: str | None
    scaffold_tokens: dict[str, int]
    end_ids: list[int]


class Tokenizer:
    """Text to token ids and back, rebuilt from a model file.

    A special token is an id and never text: `encode` cannot produce one, whatever the text looks like. The tokens of a
    chat template's own come from `scaffold_tokens`.

    size: number of tokens; a model may give more logits than that, which are padding.
    bos_id, eos_id, unk_id, pad_id: what the file names, or None. add_bos: whether a prompt starts with bos_id.
    end_ids: every token that ends a turn or the text in this family of models.
    scaffold_tokens: text to id of the tokens that only a chat template may write.
    space_prefix: SentencePiece puts a space before the first word; `encode` adds it, decoding takes it away.
    chat_template: the Jinja source in the file, or None.
    fingerprint: sha256 (hex) of all of this; equal fingerprints mean equal ids.
    """

    def __init__(
        self,
        encoder: tokenizers.Tokenizer,
        special: SpecialTokens,
        pieces: bytes,
        ends: npt.NDArray[np.uint32],
        hidden: npt.NDArray[np.bool_],
        fingerprint: str | None = None,
    ) -> None:
        """Put the parts together; `from_gguf` and `load` make them.

        pieces, ends: the bytes of every token one after another, and (size,) where each ends. hidden: (size,).
        fingerprint: None computes it.
        """
        self._encoder = encoder
        self._special = special
        self._pieces = pieces
        self._ends = ends
        self._hidden = hidden
        self.size = len(ends)
        self.bos_id = special.bos_id
        self.eos_id = special.eos_id
        self.unk_id = special.unk_id
        self.pad_id = special.pad_id
        self.add_bos = special.add_bos
        self.space_prefix = special.space_prefix
        self.chat_template = special.chat_template
        self.scaffold_tokens: Mapping[str, int] = MappingProxyType(special.scaffold_tokens)
        self.end_ids = frozenset(special.end_ids)
        self.fingerprint = fingerprint or _fingerprint(self._arrays())

    @classmethod
    def from_gguf(cls, file: Metadata) -> Self:
        """Rebuild it from GGUF metadata. Raises ModelFormatError naming the key, or the kind that is not supported."""
        vocabulary = read_vocabulary(file)
        encoder = build_bpe(vocabulary, file.path)
        table = token_bytes(vocabulary)
        ends = np.cumsum([len(piece) for piece in table]).astype(np.uint32)
        return cls(encoder, _special_tokens(vocabulary), b"".join(table), ends, vocabulary.hidden())

    def encode(self, text: str) -> list[int]:
        """The ids of text that begins the prompt or follows a special token; none of them is special.

        Half a surrogate pair, which no encoding can hold, counts as U+FFFD, as on the web.
        """
        if not text:
            return []
        if not text.isascii():
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if self.space_prefix:
            text = " " + text
        ids: list[int] = self._encoder.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without hidden tokens. Bytes that are not UTF-8 become U+FFFD."""
        text = b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.space_prefix else text

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; none for a hidden one. Raises OptionError for an id that is not one."""
        self._check(token)
        begin = int(self._ends[token - 1]) if token else 0
        return self._pieces[begin : int(self._ends[token])]

    def is_hidden(self, token: int) -> bool:
        """Whether the token is never shown: control, unknown, unused, or an end. Raises OptionError."""
        self._check(token)
        return bool(self._hidden[token])

    def speaks_like(self, other: Tokenizer) -> bool:
        """Whether both give every id the same meaning; what their templates write may differ."""
        same_pieces = self._pieces == other._pieces and np.array_equal(self._ends, other._ends)
        return same_pieces and np.array_equal(self._hidden, other._hidden) and self.end_ids == other.end_ids

    def save(self, path: Path) -> None:
        """Write it to one file, from which `load` is quick. Raises StorageError; no half-written file stays."""

        def write(part: Path) -> None:
            with part.open("wb") as file:
                np.savez(file, allow_pickle=False, fingerprint=_as_array(self.fingerprint), **self._arrays())

        try:
            write_whole(path, write)
        except OSError as error:
            raise StorageError(f"the tokenizer cannot be written to {path}: {error.strerror or error}") from error

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote. Raises ModelFormatError when it was altered or is of another version."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            claimed = arrays.pop("fingerprint").tobytes().decode("ascii")
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ModelFormatError(path, f"is not a saved tokenizer ({error}); {AGAIN}") from error
        # Everything that follows trusts the arrays, so first they must be the ones that were saved.
        if _fingerprint(arrays) != claimed:
            raise ModelFormatError(path, f"the saved tokenizer was altered; {AGAIN}")
        settings: dict[str, Any] = json.loads(arrays["settings"].tobytes())
        if settings.pop("format") != FORMAT:
            raise ModelFormatError(path, f"was saved by another version; {AGAIN}")
        try:
            encoder = tokenizers.Tokenizer.from_buffer(arrays["encoder"].tobytes())
        except ValueError as error:  # what another version of the tokenizers library wrote
            raise ModelFormatError(path, f"cannot be read by tokenizers {tokenizers.__version__}; {AGAIN}") from error
        special = SpecialTokens(**settings)
        return cls(encoder, special, arrays["pieces"].tobytes(), arrays["ends"], arrays["hidden"], claimed)

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        settings = json.dumps({"format": FORMAT} | asdict(self._special))
        return {
            "settings": _as_array(settings),
            "encoder": _as_array(self._encoder.to_str()),
            "pieces": np.frombuffer(self._pieces, np.uint8),
            "ends": self._ends,
            "hidden": self._hidden,
        }

    def _check(self, token: int) -> None:
        if not 0 <= token < self.size:
            raise OptionError("token", token, f"an id from 0 to {self.size - 1}")


def _special_tokens(vocabulary: Vocabulary) -> SpecialTokens:
    return SpecialTokens(
        bos_id=vocabulary.bos_id,
        eos_id=vocabulary.eos_id,
        unk_id=vocabulary.unk_id,
        pad_id=vocabulary.pad_id,
        add_bos=vocabulary.add_bos,
        space_prefix=vocabulary.space_prefix,
        chat_template=vocabulary.chat_template,
        scaffold_tokens=vocabulary.scaffold,
        end_ids=sorted(vocabulary.end_ids),
    )


def _as_array(text: str) -> npt.NDArray[np.uint8]:
    return np.frombuffer(text.encode(), np.uint8)


def _fingerprint(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    total = hashlib.sha256()
    for name in sorted(arrays):
        total.update(f"{name} {arrays[name].dtype.str} {arrays[name].size}\n".encode())
        total.update(np.ascontiguousarray(arrays[name]).data)
    return total.hexdigest()
