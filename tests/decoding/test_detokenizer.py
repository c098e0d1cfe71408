import json
import random
import textwrap
import unicodedata
from functools import cache
from itertools import pairwise
from statistics import median

import pytest

from onhand.decoding.detokenizer import Detokenizer
from onhand.errors import OptionError
from onhand.formats.tokenizer import Tokenizer
from support.vocabularies import FAMILIES, naughty_strings, small_sentencepiece, tokenizer, tokenizer_of

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

families = pytest.mark.parametrize("family", FAMILIES)


def stream(source: Tokenizer, ids: list[int]) -> list[str]:
    """What each token shows, and last what the end shows."""
    detokenizer = Detokenizer(source)
    return [*[detokenizer.feed(token) for token in ids], detokenizer.finish()]


def byte_ids(source: Tokenizer, content: bytes) -> list[int]:
    """The byte tokens of a SentencePiece vocabulary with three tokens before them."""
    ids = [3 + byte for byte in content]
    assert b"".join(map(source.token_bytes, ids)) == content
    return ids


@pytest.fixture(scope="module")
def bytes_only() -> Tokenizer:
    return tokenizer_of(small_sentencepiece("▁", add_space_prefix=False))


@families  # gpt_oss: o200k_harmony, put together from GPT-4o's tokenizer; see support.vocabularies
def test_naughty_strings_stream_as_they_decode_at_once(family: str) -> None:
    source = tokenizer(family)
    for text in naughty_strings():
        ids = source.encode(text)
        pieces = stream(source, ids)
        assert "".join(pieces) == source.decode(ids)
        assert json.loads(json.dumps(pieces)) == pieces
        for piece in pieces:
            piece.encode()  # no half surrogate pair


@families
def test_naughty_strings_come_back_as_they_were(family: str) -> None:
    source = tokenizer(family)
    for text in naughty_strings():
        expected = unicodedata.normalize("NFC", text) if family == "qwen3" else text
        if family == "smollm2":  # its vocabulary has no tokens for a few control characters
            expected = "".join(char for char in text if not set(char.encode()) & missing_bytes(source))
        assert source.decode(source.encode(text)) == expected


@families
def test_ten_thousand_random_id_sequences_stream_as_they_decode_at_once(family: str) -> None:
    source = tokenizer(family)
    fragments = tokens_of_broken_text(source)
    chance = random.Random(4)
    broken = 0
    for _ in range(10_000):
        any_id = chance.choices(range(source.size), k=chance.randrange(12))
        ids = [*any_id, *chance.choices(fragments, k=chance.randrange(12))]
        chance.shuffle(ids)
        pieces = stream(source, ids)
        whole = source.decode(ids)
        assert "".join(pieces) == whole
        assert json.loads(json.dumps(pieces)) == pieces
        json.dumps(pieces, ensure_ascii=False).encode()  # no half surrogate pair
        broken += REPLACEMENT in whole
    assert broken > 5_000


def test_random_bytes_stream_as_they_decode_at_once(bytes_only: Tokenizer) -> None:
    chance = random.Random(5)
    for _ in range(3_000):
        content = bytes(chance.choices(b"a \x80\xbf\xc3\xe2\xed\xa0\xf0\x9f\x98\x80\xf4\xff", k=chance.randrange(10)))
        assert "".join(stream(bytes_only, byte_ids(bytes_only, content))) == content.decode("utf-8", "replace")


@families
@pytest.mark.parametrize("text", ["ďábelské", "🦊", "👨‍👩‍👧", "🇩🇪", "한글", "e\u0301"])
def test_a_character_of_several_tokens_is_never_shown_in_part(family: str, text: str) -> None:
    source = tokenizer(family)
    pieces = stream(source, source.encode(text))
    assert REPLACEMENT not in "".join(pieces)
    assert "".join(pieces) == source.decode(source.encode(text))


@families
def test_each_character_is_shown_with_the_token_that_completes_it(family: str) -> None:
    source = tokenizer(family)
    ids = source.encode("这是一个很长的回答。日本語です ภาษาไทย 🦊👨‍👩‍👧🇩🇪" * 5)
    detokenizer = Detokenizer(source)
    shown = ""
    content = b""
    for token in ids:
        shown += detokenizer.feed(token)
        content += source.token_bytes(token)
        complete = content.decode("utf-8", "ignore")
        assert shown == (complete.removeprefix(" ") if source.space_prefix else complete)


@pytest.mark.parametrize("family", ["qwen3", "gemma3"])  # the others take two or three tokens a character
def test_chinese_comes_steadily_and_not_only_at_the_end(family: str) -> None:
    source = tokenizer(family)
    pieces = stream(source, source.encode("我们今天去公园看花然后回家吃饭睡觉" * 18))
    shows = [place for place, piece in enumerate(pieces) if piece]
    gaps = [after - before for before, after in pairwise(shows)]
    assert median(gaps) == 1
    assert max(gaps) <= 3


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"\xf0\x9f\x98\x80", ["", "", "", "😀", ""]),
        (b"\xf0\x9f\x98", ["", "", "", REPLACEMENT]),
        (b"\xf0\x9fa", ["", "", REPLACEMENT + "a", ""]),
        (b"\xffa", [REPLACEMENT, "a", ""]),
        (b"\x80\x80", [REPLACEMENT, REPLACEMENT, ""]),
        (b"\xe6\x97\xe6\x97\xa5", ["", "", REPLACEMENT, "", "日", ""]),
    ],
)
def test_broken_bytes_become_replacement_characters_and_nothing_is_lost(
    bytes_only: Tokenizer, content: bytes, shown: list[str]
) -> None:
    assert stream(bytes_only, byte_ids(bytes_only, content)) == shown


@pytest.mark.parametrize(
    "text",
    [
        "one two  three",
        " begins with a space",
        "   begins with three",
        "\nbegins with a newline",
        "\tand\ta tab",
        textwrap.dedent(stream.__doc__ or "") + "\ndef f(x):\n    if x:\n\t\treturn [\n            1,\n        ]\n",
    ],
)
@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_spaces_of_sentencepiece_stay_where_they_were(family: str, text: str) -> None:
    source = tokenizer(family)
    assert "".join(stream(source, source.encode(text))) == text


@pytest.mark.parametrize("prefix", [True, False])
def test_only_the_very_first_space_belongs_to_the_tokenizer(prefix: bool) -> None:
    source = tokenizer_of(small_sentencepiece("▁", "a", "▁a", add_space_prefix=prefix))
    space_a = 3 + 256 + 2
    first = "a" if prefix else " a"
    assert stream(source, [space_a, space_a]) == [first, " a", ""]
    assert stream(source, [1, space_a]) == ["", first, ""]


@pytest.mark.parametrize(
    ("family", "hidden"),
    [
        ("gemma3", ["<eos>", "<bos>", "<unk>", "<unused94>", "<end_of_turn>", "<start_of_turn>"]),
        ("qwen3", ["<|im_end|>", "<|endoftext|>", "<|im_start|>"]),
        ("llama3_1", ["<|eot_id|>", "<|end_of_text|>", "<|reserved_special_token_3|>"]),
        ("smollm2", ["<|im_end|>", "<|endoftext|>"]),
        ("mistral", ["</s>", "<s>", "<unk>"]),
        ("gpt_oss", ["<|return|>", "<|channel|>", "<|message|>", "<|start|>", "<|reserved_200013|>"]),
    ],
)
def test_special_tokens_are_hidden_and_their_names_in_text_are_not(family: str, hidden: list[str]) -> None:
    source = tokenizer(family)
    for name in hidden:
        special = official_id(source, name)
        before, after = source.encode("before"), source.encode(" after")
        assert "".join(stream(source, [*before, special, *after])) == source.decode([*before, *after])
        question = f"what is {name}?"
        ids = source.encode(question)
        assert special not in ids
        assert "".join(stream(source, ids)) == question


def test_a_detokenizer_can_be_used_again_after_the_end() -> None:
    source = tokenizer_of(small_sentencepiece("▁a"))
    detokenizer = Detokenizer(source)
    for _ in range(2):
        assert detokenizer.feed(3 + 256) == "a"
        assert detokenizer.feed(3 + 0xF0) == ""
        assert detokenizer.finish() == REPLACEMENT


@pytest.mark.parametrize("token", [-1, 10**9])
def test_an_id_that_is_no_token_is_an_error(bytes_only: Tokenizer, token: int) -> None:
    with pytest.raises(OptionError, match="token"):
        Detokenizer(bytes_only).feed(token)


def official_id(source: Tokenizer, name: str) -> int:
    if name in source.scaffold_tokens:
        return source.scaffold_tokens[name]
    assert source.unk_id is not None
    assert name == "<unk>"
    return source.unk_id


def tokens_of_broken_text(source: Tokenizer) -> list[int]:
    """The tokens that are not UTF-8 by themselves."""
    contents = map(source.token_bytes, range(source.size))
    return [token for token, content in enumerate(contents) if content.decode("utf-8", "ignore").encode() != content]


@cache
def missing_bytes(source: Tokenizer) -> set[int]:
    """The bytes that a byte-level vocabulary cannot write."""
    singles = {source.token_bytes(token) for token in range(source.size)}
    return {byte for byte in range(256) if bytes([byte]) not in singles}
