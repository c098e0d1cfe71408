import hashlib
import json
import random
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from onhand.errors import ModelFormatError, StorageError
from onhand.formats.tokenizer import Tokenizer
from support.gguf_writer import Value
from support.vocabularies import (
    BYTE,
    CONTROL,
    FAMILIES,
    KEY,
    NORMAL,
    PRE_TOKENIZERS,
    UNUSED,
    USER_DEFINED,
    naughty_strings,
    official,
    prose,
    small_sentencepiece,
    tokenizer,
    tokenizer_of,
)

ALPHABET = (
    " \t\n\r ab'sZ19½.,-_/\u00e9e\u0301日本語한국👧🇩🇪Ǆǅ\0\x04\x7f\xa0\u200b\ufeff"
    "\U0001f468\u200d\U0001f469“”—▁|[]#@١٢ไทย"
)

families = pytest.mark.parametrize("family", FAMILIES)


def texts() -> list[str]:
    chance = random.Random(0)
    mixed = ["".join(chance.choices(ALPHABET, k=chance.randrange(40))) for _ in range(1_000)]
    spaces = [" " * count + "x" + "\n" * count + "\t" * count + "y" for count in range(1, 70)]
    return [*naughty_strings(), prose(), Path(json.__file__).read_text("utf-8"), *mixed, *spaces]


def small_byte_level(*pieces: str, **changes: Any) -> dict[str, Any]:
    """<|end|>, the letters a to c and a space, then pieces. changes: keys without "tokenizer.ggml."."""
    tokens = ["<|end|>", "a", "b", "c", "Ġ", *pieces]
    metadata = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [CONTROL, *[NORMAL] * (len(tokens) - 1)],
        "merges": ["a b"] if "ab" in pieces else Value(9, [], 8),
    } | changes
    return {KEY + name: value for name, value in metadata.items()}


@pytest.mark.parametrize("family", [*PRE_TOKENIZERS, "gemma3", "mistral"])
def test_ids_are_those_of_the_official_tokenizer(family: str) -> None:
    ours, theirs = tokenizer(family), official(family)
    for text in texts():
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids


def test_gpt_oss_has_the_tokens_that_openai_gives_it() -> None:
    """tiktoken names this hash of o200k_base.tiktoken for o200k_base, GPT-4o's, and for o200k_harmony, GPT-OSS's."""
    source = tokenizer("gpt_oss")
    ranks = b"".join(b64encode(source.token_bytes(token)) + b" %d\n" % token for token in range(199_998))
    assert hashlib.sha256(ranks).hexdigest() == "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"


def test_smollm2_takes_digits_one_by_one_and_leaves_out_what_it_has_no_bytes_for() -> None:
    source = tokenizer("smollm2")
    assert [source.token_bytes(token) for token in source.encode("in 2024")] == [b"in", b" ", b"2", b"0", b"2", b"4"]
    assert source.decode(source.encode("a\x04b")) == "ab"


@families
def test_text_never_becomes_a_special_token(family: str) -> None:
    source = tokenizer(family)
    special = set(source.scaffold_tokens.values()) | source.end_ids
    forged = ["<|im_start|>system\n", "hi<|im_end|>\n", "[INST]", "</think>", "<start_of_turn>", "<unk>", "</s>"]
    for text in [*forged, *list(source.scaffold_tokens)[:300]]:
        for variant in (text, f"a{text}b", text.replace("|", "\u200b|"), text.upper()):
            ids = source.encode(variant)
            assert special.isdisjoint(ids)
            assert source.decode(ids) == variant


def test_scaffold_tokens_are_the_control_tokens_and_those_of_the_template() -> None:
    qwen = tokenizer("qwen3").scaffold_tokens
    assert qwen["<|im_start|>"] == 151644
    assert qwen["<think>"] == 151667
    gemma = tokenizer("gemma3").scaffold_tokens
    assert gemma["<start_of_turn>"] == 105
    assert "<table>" not in gemma
    assert "\n" not in gemma


def test_user_defined_text_is_one_token_inside_text() -> None:
    gemma = tokenizer("gemma3")
    assert gemma.encode("<table>") == [168]
    assert gemma.encode("\n\n") == [108]
    assert gemma.encode("a    b")[1] == 140


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("qwen3", {"<|im_end|>", "<|endoftext|>"}),
        ("llama3_1", {"<|eot_id|>", "<|end_of_text|>"}),
        ("gemma3", {"<eos>", "<end_of_turn>"}),
        ("smollm2", {"<|im_end|>", "<|endoftext|>"}),
        ("mistral", {"</s>"}),
        ("gpt_oss", {"<|return|>", "<|end|>", "<|endoftext|>"}),
    ],
)
def test_every_end_of_the_family_ends_a_reply(family: str, names: set[str]) -> None:
    source = tokenizer(family)
    assert source.end_ids == {source.scaffold_tokens[name] for name in names}
    assert all(source.is_hidden(token) and source.token_bytes(token) == b"" for token in source.end_ids)


def test_a_strike_through_is_no_end_of_text() -> None:
    gemma = tokenizer("gemma3")
    (strike,) = gemma.encode("</s>")
    assert strike not in gemma.end_ids
    assert gemma.decode([strike]) == "</s>"


def test_unused_tokens_are_hidden_and_thinking_is_not() -> None:
    gemma, qwen = tokenizer("gemma3"), tokenizer("qwen3")
    assert gemma.is_hidden(gemma.scaffold_tokens["<unused94>"])
    assert not qwen.is_hidden(qwen.scaffold_tokens["<think>"])


def test_named_ids_and_bos_are_the_files() -> None:
    gemma, smollm = tokenizer("gemma3"), tokenizer("smollm2")
    assert (gemma.bos_id, gemma.eos_id, gemma.unk_id, gemma.pad_id, gemma.add_bos) == (2, 1, 3, 0, True)
    assert (smollm.bos_id, smollm.eos_id, smollm.add_bos, smollm.size) == (1, 2, False, 49152)
    assert smollm.chat_template is not None
    assert gemma.chat_template is None


@families
def test_a_saved_tokenizer_is_the_same(family: str, tmp_path: Path) -> None:
    source = tokenizer(family)
    source.save(tmp_path / "tokenizer.npz")
    loaded = Tokenizer.load(tmp_path / "tokenizer.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.npz"]
    assert loaded.fingerprint == source.fingerprint
    for name in ("size", "bos_id", "eos_id", "unk_id", "pad_id", "add_bos", "end_ids", "chat_template", "space_prefix"):
        assert getattr(loaded, name) == getattr(source, name)
    assert dict(loaded.scaffold_tokens) == dict(source.scaffold_tokens)
    for text in naughty_strings():
        ids = source.encode(text)
        assert loaded.encode(text) == ids
        assert loaded.decode(ids) == source.decode(ids)


def test_tokenizers_that_differ_have_different_fingerprints() -> None:
    prints = {
        tokenizer_of(metadata).fingerprint
        for metadata in (
            small_byte_level("ab"),
            small_byte_level("ab", merges=Value(9, [], 8)),
            small_byte_level("ab", pre="qwen2"),
            small_byte_level("ab", token_type=[CONTROL, *[NORMAL] * 4, CONTROL]),
            small_byte_level("ab", eos_token_id=1),
            small_byte_level("ab") | {"tokenizer.chat_template": "{{ messages }}"},
        )
    }
    assert len(prints) == 6


@pytest.mark.parametrize("damage", ["missing", "empty", "text", "cut", "altered", "of another version"])
def test_a_damaged_save_is_an_error(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokenizer.npz"
    if damage == "of another version":
        monkeypatch.setattr("onhand.formats.tokenizer.FORMAT", 999)
    tokenizer_of(small_byte_level()).save(path)
    monkeypatch.undo()
    content = path.read_bytes()
    match damage:
        case "missing":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "text":
            path.write_text("hello")
        case "cut":
            path.write_bytes(content[: len(content) // 2])
        case "altered":
            with np.load(path) as stored:
                arrays = dict(stored)
            arrays["hidden"] = ~arrays["hidden"]
            np.savez(path, **arrays)
    with pytest.raises(ModelFormatError, match="import the model again"):
        Tokenizer.load(path)


def test_a_folder_that_is_not_there_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        tokenizer_of(small_byte_level()).save(tmp_path / "nowhere" / "tokenizer.npz")


@pytest.mark.parametrize("text", ["\ud83d", "a\udc00b", "\ud83d\ude00"])
def test_half_a_surrogate_pair_becomes_a_replacement_character(text: str) -> None:
    source = tokenizer("qwen3")
    assert source.decode(source.encode(text)) == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@families
def test_no_text_has_no_ids(family: str) -> None:
    assert tokenizer(family).encode("") == []
    assert tokenizer(family).decode([]) == ""


def test_only_exact_byte_names_are_bytes() -> None:
    odd = ["<0x-1>", "<0x100>", "<0xZZ>", "<0xGG>", "<0x4a>", "<0x41>"]
    metadata = small_sentencepiece("▁", *odd, add_space_prefix=False)
    metadata[KEY + "token_type"][-len(odd) :] = [BYTE] * len(odd)
    source = tokenizer_of(metadata)
    assert [source.decode([260 + place]) for place in range(len(odd))] == [*odd[:-1], "A"]
    assert source.encode("A\xff") == [3 + 0x41, 3 + 0xC3, 3 + 0xBF]
    for text in odd:
        assert source.decode(source.encode(text)) == text


def test_a_character_whose_bytes_are_missing_is_unknown() -> None:
    metadata = small_sentencepiece("▁", "a", add_space_prefix=False)
    metadata[KEY + "tokens"][3 + 0x00] = "<0xQQ>"
    metadata[KEY + "tokens"][3 + 0xC3] = "<0xQR>"
    source = tokenizer_of(metadata)
    assert source.encode("a\0éa") == [260, 0, 260]
    assert source.decode([260, 0, 260]) == "aa"


def test_missing_bytes_without_an_unknown_token_are_an_error() -> None:
    metadata = small_sentencepiece("▁")
    del metadata[KEY + "unknown_token_id"]
    assert tokenizer_of(metadata).encode("é") == [259, 3 + 0xC3, 3 + 0xA9]
    metadata[KEY + "tokens"][3] = "<0xQQ>"
    with pytest.raises(ModelFormatError, match="256 byte tokens"):
        tokenizer_of(metadata)


def test_the_best_score_is_merged_first_and_the_left_one_on_ties() -> None:
    first_ab = tokenizer_of(small_sentencepiece("a", "b", "c", "ab", "bc", add_space_prefix=False))
    first_bc = tokenizer_of(small_sentencepiece("a", "b", "c", "bc", "ab", add_space_prefix=False))
    aa = tokenizer_of(small_sentencepiece("a", "aa", add_space_prefix=False))
    assert [first_ab.token_bytes(token) for token in first_ab.encode("abc")] == [b"ab", b"c"]
    assert [first_bc.token_bytes(token) for token in first_bc.encode("abc")] == [b"a", b"bc"]
    assert [aa.token_bytes(token) for token in aa.encode("aaa")] == [b"aa", b"a"]


def test_the_first_of_two_tokens_with_one_text_is_used() -> None:
    source = tokenizer_of(small_byte_level("ab", "ab"))
    assert source.encode("ab") == [5]
    assert source.decode([6]) == "ab"


def test_a_merge_cannot_make_a_control_token() -> None:
    source = tokenizer_of(small_byte_level("ab", token_type=[CONTROL, *[NORMAL] * 4, CONTROL]))
    assert source.encode("ab") == [1, 2]


def test_user_defined_markers_are_scaffold_and_other_user_defined_text_is_text() -> None:
    kinds = [CONTROL, *[NORMAL] * 4, USER_DEFINED, USER_DEFINED, USER_DEFINED]
    metadata = small_byte_level("<|tool|>", "cab", "[img]", token_type=kinds)
    source = tokenizer_of(metadata | {"tokenizer.chat_template": "{{ '[img]' }}"})
    assert dict(source.scaffold_tokens) == {"<|end|>": 0, "<|tool|>": 5, "[img]": 7}
    assert source.encode("acab") == [1, 6]


@pytest.mark.parametrize("pre", ["default", "falcon", "something-new", ""])
def test_an_unknown_pre_tokenizer_is_refused_by_name(pre: str) -> None:
    with pytest.raises(ModelFormatError, match=f"pre-tokenizer '{pre}' is not supported; supported are gpt-2"):
        tokenizer_of(small_byte_level(pre=pre))


def test_a_file_that_names_no_pre_tokenizer_is_refused() -> None:
    metadata = small_byte_level()
    del metadata[KEY + "pre"]
    with pytest.raises(ModelFormatError, match="pre-tokenizer 'default'"):
        tokenizer_of(metadata)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model": "bert"}, "tokenizer 'bert' is not supported"),
        ({"model": 3}, "tokenizer.ggml.model"),
        ({"tokens": Value(9, [], 8)}, "tokens is empty"),
        ({"tokens": [1, 2]}, "tokenizer.ggml.tokens"),
        ({"tokens": [b"\xff\xfe", "a", "b", "c", "d"]}, "not UTF-8"),
        ({"tokens": ["a" * 2000, "a", "b", "c", "d"]}, "one of 2000 characters; at most 1024"),
        ({"token_type": [1] * 4}, "tokenizer.ggml.token_type"),
        ({"token_type": [1] * 6}, "tokenizer.ggml.token_type"),
        ({"token_type": np.ones(5, np.uint8)}, "tokenizer.ggml.token_type"),
        ({"token_type": ["1"] * 5}, "tokenizer.ggml.token_type"),
        ({"token_type": [True] * 5}, "tokenizer.ggml.token_type"),
        ({"token_type": [1, 1, 1, 1, 0]}, "from 1 to 6"),
        ({"token_type": [1, 1, 1, 1, 99]}, "from 1 to 6"),
        ({"eos_token_id": 5}, "eos_token_id is 5; there are 5 tokens"),
        ({"bos_token_id": -2}, "bos_token_id is -2"),
        ({"unknown_token_id": "0"}, "unknown_token_id"),
        ({"add_bos_token": 1, "bos_token_id": 0}, "add_bos_token"),
        ({"merges": ["ab"]}, r"merges\[0\] is 'ab'"),
        ({"merges": ["a b c"]}, r"merges\[0\]"),
        ({"merges": ["a "]}, r"merges\[0\]"),
        ({"merges": ["a b"]}, "not all tokens"),
        ({"merges": ["x y"]}, "not all tokens"),
        ({"merges": [1]}, "tokenizer.ggml.merges"),
    ],
)
def test_wrong_byte_level_metadata_is_an_error_that_says_what(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelFormatError, match=problem):
        tokenizer_of(small_byte_level(**changes))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"scores": np.zeros(3, np.float32)}, "tokenizer.ggml.scores"),
        ({"scores": np.zeros(260, np.uint8)}, "tokenizer.ggml.scores"),
        ({"scores": np.full(260, np.nan, np.float32)}, "not numbers"),
        ({"add_space_prefix": 2}, "add_space_prefix"),
    ],
)
def test_wrong_sentencepiece_metadata_is_an_error_that_says_what(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelFormatError, match=problem):
        tokenizer_of(small_sentencepiece("▁", **changes))


@pytest.mark.parametrize("key", ["model", "tokens", "token_type", "merges"])
def test_a_missing_key_is_an_error_that_names_it(key: str) -> None:
    metadata = small_byte_level()
    del metadata[KEY + key]
    with pytest.raises(ModelFormatError, match=KEY + key):
        tokenizer_of(metadata)


def test_an_id_that_stands_for_none_is_none() -> None:
    assert tokenizer_of(small_byte_level(padding_token_id=2**32 - 1, bos_token_id=-1)).pad_id is None


def test_unused_tokens_cannot_be_reached_and_are_hidden() -> None:
    source = tokenizer_of(small_byte_level("ab", token_type=[CONTROL, *[NORMAL] * 4, UNUSED]))
    assert source.encode("ab") == [1, 2]
    assert source.decode([1, 5, 2]) == "ab"


def test_the_library_that_encodes_is_never_given_a_special_token() -> None:
    encoder: tokenizers.Tokenizer = tokenizer("qwen3")._encoder
    assert encoder.token_to_id("<|im_start|>") is None
