"""GGUF's metadata keep their types, and its getters refuse others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from onhand.errors import ModelFormatError
from onhand.formats.gguf import GgufFile
from support.gguf_cases import METADATA, VOCABULARY
from support.gguf_writer import Value, write_gguf


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


NUMPY_TYPES = ["u1", "i1", "u2", "i2", "u4", "i4", "f4", "?", "u8", "i8", "f8"]


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
@pytest.mark.parametrize("length", [0, 1, 5])
def test_an_array_of_numbers_keeps_its_type(path: Path, dtype: str, length: int) -> None:
    values = np.arange(length).astype(dtype)

    with GgufFile.open(write_gguf(path, {"key": values}, {})) as file:
        read = file.numbers("key", values.dtype.type, length)

    assert read.dtype == values.dtype
    np.testing.assert_array_equal(read, values)


@pytest.mark.parametrize("type_id", [0, 1, 2, 3, 4, 5, 10, 11])
def test_an_integer_of_any_width_is_an_integer_and_a_number(path: Path, type_id: int) -> None:
    with GgufFile.open(write_gguf(path, {"key": Value(type_id, 100)}, {})) as file:
        assert file.integer("key") == 100
        assert file.number("key") == 100.0
        assert type(file.number("key")) is float


def test_tokens_that_are_not_utf8_stay_distinct_and_keep_their_bytes(path: Path) -> None:
    tokens = [b"\xff", b"\xfe", b"caf\xc3\xa9", b"\xe4\xbd", b""]

    with GgufFile.open(write_gguf(path, {"tokens": tokens}, {})) as file:
        read = file.strings("tokens", length=5)

    assert len(set(read)) == 5
    assert [text.encode("utf-8", "surrogateescape") for text in read] == tokens
    assert read[2] == "café"


def test_a_string_that_is_not_utf8_can_still_be_shown(path: Path) -> None:
    with GgufFile.open(write_gguf(path, {"general.name": b"caf\xe9"}, {})) as file:
        assert file.string("general.name") == "caf\N{REPLACEMENT CHARACTER}"


GETTERS: list[tuple[Callable[[GgufFile, str], object], str, str, str]] = [
    (GgufFile.integer, "llama.rope.freq_base", "float32", "an integer"),
    (GgufFile.integer, "tokenizer.ggml.add_bos_token", "bool", "an integer"),
    (GgufFile.integer, "tokenizer.ggml.token_type", "array of 4 int32", "an integer"),
    (GgufFile.number, "tokenizer.ggml.add_bos_token", "bool", "a number"),
    (GgufFile.number, "general.architecture", "string", "a number"),
    (GgufFile.boolean, "llama.block_count", "uint32", "a bool"),
    (GgufFile.string, "llama.block_count", "uint32", "a string"),
    (GgufFile.string, "tokenizer.ggml.tokens", "array of 4 string", "a string"),
    (GgufFile.strings, "general.architecture", "string", "an array of string"),
    (GgufFile.strings, "tokenizer.ggml.scores", "array of 4 float32", "an array of string"),
]


@pytest.mark.parametrize(("getter", "key", "found", "expected"), GETTERS)
def test_a_value_of_another_type_is_an_error_that_names_key_found_and_expected(
    path: Path, getter: Callable[[GgufFile, str], object], key: str, found: str, expected: str
) -> None:
    with GgufFile.open(write_gguf(path, METADATA, {})) as file:
        with pytest.raises(ModelFormatError) as caught:
            getter(file, key)
        assert caught.value.problem == f"key {key!r} is of type {found}; expected {expected}"


def test_a_missing_key_is_an_error_unless_there_is_a_default(path: Path) -> None:
    with GgufFile.open(write_gguf(path, METADATA, {})) as file:
        assert file.integer("none", default=0) == 0
        assert file.number("none", default=0.5) == 0.5
        assert file.boolean("none", default=False) is False
        assert file.string("none", default="") == ""
        with pytest.raises(ModelFormatError, match="key 'none' is missing; expected an integer"):
            file.integer("none")
        with pytest.raises(ModelFormatError, match="key 'none' is missing; expected an array of 3 string"):
            file.strings("none", length=3)


def test_a_default_does_not_hide_a_value_of_another_type(path: Path) -> None:
    with (
        GgufFile.open(write_gguf(path, METADATA, {})) as file,
        pytest.raises(ModelFormatError, match="is of type string; expected an integer"),
    ):
        file.integer("general.architecture", default=1)


TOKEN_TYPE_MUTANTS = {
    "uint8": np.array([3, 3, 1, 1], np.uint8),
    "int8": np.array([3, 3, 1, 1], np.int8),
    "uint32": np.array([3, 3, 1, 1], np.uint32),
    "int64": np.array([3, 3, 1, 1], np.int64),
    "float32": np.array([3, 3, 1, 1], np.float32),
    "bool": [True, True, False, False],
    "string": ["3", "3", "1", "1"],
    "one fewer": [3, 3, 1],
    "one more": [3, 3, 1, 1, 1],
    "a single number": 3,
}


@pytest.mark.parametrize("mutant", TOKEN_TYPE_MUTANTS)
def test_br16_an_array_of_another_type_or_length_is_refused_by_name(path: Path, mutant: str) -> None:
    key = "tokenizer.ggml.token_type"
    with GgufFile.open(write_gguf(path, METADATA | {key: TOKEN_TYPE_MUTANTS[mutant]}, {})) as file:
        with pytest.raises(ModelFormatError) as caught:
            file.numbers(key, np.int32, length=len(VOCABULARY))
        assert f"key {key!r} is of type" in caught.value.problem
        assert caught.value.problem.endswith("expected an array of 4 int32")


def test_a_value_larger_than_any_model_needs_is_not_decoded(path: Path) -> None:
    with (
        GgufFile.open(write_gguf(path, {"text": b"x" * (2**24 + 1)}, {})) as file,
        pytest.raises(ModelFormatError, match="key 'text' takes 16777217 bytes; at most 16777216 are read"),
    ):
        file.string("text")
