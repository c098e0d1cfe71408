"""A GGUF header is refused for every lie that it can tell, and by name."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from onhand.errors import UnsupportedQuantizationError
from onhand.formats.gguf import GgufFile
from support.gguf_cases import F32, METADATA, TENSORS, refused
from support.gguf_writer import ARRAY, BOOL, INT32, STRING, Tensor, Value, gguf_bytes, write_gguf


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def array(content: bytes, item: int, count: int) -> dict[str, Value]:
    """Metadata with an array that says how many items of which type it has, and holds these bytes."""
    return {"tokenizer.ggml.token_type": Value(ARRAY, raw=struct.pack("<IQ", item, count) + content)}


KEY = "key 'tokenizer.ggml.token_type' "
BAD_METADATA: dict[str, tuple[Any, str]] = {
    "array of an unknown type": (array(bytes(16), 99, 4), KEY + "is an array of type 99; expected one of GGUF's"),
    "array of arrays": (array(bytes(64), ARRAY, 4), KEY + "is an array of arrays; expected an array of numbers"),
    "array past the end": (array(bytes(16), INT32, 10**6), KEY + "goes to byte 40000"),
    "array of 2**63 numbers": (array(b"", INT32, 2**63), KEY + "is an array of 9223372036854775808 int32; at most"),
    "array of 2**64 - 1 strings": (array(b"", STRING, 2**64 - 1), "at most 2097152 are read"),
    "array of more strings than there are": (array(bytes(72), STRING, 100), " of " + KEY + "goes to byte"),
    "array of a string of 2**64 - 1 bytes": (array(b"\xff" * 8, STRING, 1), KEY + "goes to byte 184467440737095"),
    "array with a bool of 2": (array(b"\0\1\2", BOOL, 3), KEY + "holds a bool of 2; it takes 0 and 1"),
    "bool of 255": ({"flag": Value(BOOL, raw=b"\xff")}, "key 'flag' holds a bool of 255; it takes 0 and 1"),
    "unknown type": ({"key": Value(13, raw=bytes(8))}, "key 'key' is of type 13; expected one of GGUF's types"),
    "string of 2**63 bytes": ({"key": Value(STRING, raw=struct.pack("<Q", 2**63))}, "key 'key' goes to byte 92233720"),
    "the same key twice": ([("a", 1), ("a", 2)], "key 1 is named 'a', as one before it is"),
    "a key of no bytes": ({"": 1}, "the name of key 0 has 0 bytes; it takes 1 to 256"),
    "a key of 257 bytes": ({"k" * 257: 1}, "the name of key 0 has 257 bytes; it takes 1 to 256"),
    "a key that is not UTF-8": ([(b"\xff", 1)], "the name of key 0 is not UTF-8"),
}


@pytest.mark.parametrize("case", BAD_METADATA)
def test_br16_bad_metadata_is_refused(path: Path, case: str) -> None:
    metadata, said = BAD_METADATA[case]
    refused(write_gguf(path, metadata, {}), said)


def lying(**lies: Any) -> dict[str, Tensor]:
    """A sound tensor, then one with these lies, then a sound one."""
    sound = Tensor(*F32)
    return {"first": sound, "liar": Tensor(*F32, **lies), "last": sound}


BAD_TENSORS: dict[str, tuple[Any, str]] = {
    "a dimension of 0": (lying(dims=(4, 0)), "tensor 'liar' has the shape (0, 4); every dimension takes 1 or more"),
    "a dimension of 2**31": (lying(dims=(4, 2**31)), "tensor 'liar' ends at byte 34359738"),
    "a dimension of 2**42 + 1": (lying(dims=(4, 2**42 + 1)), "tensor 'liar' ends at byte 70368744177"),
    "a dimension of 2**63": (lying(dims=(4, 2**63)), "tensor 'liar' ends at byte 147573952589676"),
    "a dimension of 2**64 - 1": (lying(dims=(4, 2**64 - 1)), "tensor 'liar' ends at byte 295147905179352"),
    "a product of 2**256": (lying(dims=(2**63,) * 4), "tensor 'liar' ends at byte"),
    "a product of 2**64": (lying(dims=(2**32, 2**32)), "tensor 'liar' ends at byte 7378697629483"),
    "a larger dimension": (lying(dims=(4, 3)), "tensor 'liar' ends at byte"),
    "no dimensions": (lying(dimensions=0), "tensor 'liar' has 0 dimensions; it takes 1 to 4"),
    "5 dimensions": (lying(dimensions=5), "tensor 'liar' has 5 dimensions; it takes 1 to 4"),
    "2**32 - 1 dimensions": (lying(dimensions=2**32 - 1), "tensor 'liar' has 4294967295 dimensions"),
    "an unaligned offset": (
        lying(offset=40),
        "tensor 'liar' begins at byte 40 of the tensors; it takes a multiple of 32",
    ),
    "an overlapping offset": (
        lying(offset=0),
        "tensor 'first' ends at byte 192, inside 'liar', which begins at byte 160",
    ),
    "an offset past the end": (lying(offset=2**20), "tensor 'liar' ends at byte 1048768, but the file"),
    "an offset of 2**64 - 32": (lying(offset=2**64 - 32), "tensor 'liar' ends at byte 184467440737095"),
    "rows that are not whole blocks": (
        lying(type_id=2),
        "tensor 'liar' has rows of 4 weights; Q4_0 takes a multiple of 32",
    ),
    "the same name twice": ([("w", F32), ("w", F32)], "tensor 1 is named 'w', as one before it is"),
    "no name": ({"": F32}, "the name of tensor 0 has 0 bytes"),
}


@pytest.mark.parametrize("case", BAD_TENSORS)
def test_br17_a_tensor_that_lies_is_refused_by_name_and_bound(path: Path, case: str) -> None:
    tensors, said = BAD_TENSORS[case]
    refused(write_gguf(path, {}, tensors), said)


@pytest.mark.parametrize(
    ("alignment", "said"),
    [
        (0, "key 'general.alignment' is 0; it takes a power of two from 8 to 2097152"),
        (3, "key 'general.alignment' is 3;"),
        (4, "key 'general.alignment' is 4;"),
        (48, "key 'general.alignment' is 48;"),
        (-32, "key 'general.alignment' is -32;"),
        (2**31, "key 'general.alignment' is 2147483648;"),
        (2**40, "key 'general.alignment' is 1099511627776;"),
        ("32", "key 'general.alignment' is of type string; expected an integer"),
        (32.0, "key 'general.alignment' is of type float32; expected an integer"),
        (True, "key 'general.alignment' is of type bool; expected an integer"),
        ([32], "key 'general.alignment' is of type array of 1 int32; expected an integer"),
    ],
)
def test_br17_an_alignment_that_cannot_be_is_refused(path: Path, alignment: object, said: str) -> None:
    refused(write_gguf(path, {"general.alignment": alignment}, TENSORS), said)


@pytest.mark.parametrize("count", [4097, 2**32, 2**63, 2**64 - 1])
def test_br17_a_claim_of_too_many_keys_is_refused(path: Path, count: int) -> None:
    refused(
        write_gguf(path, METADATA, TENSORS, key_count=count), f"claims {count} metadata keys; at most 4096 are read"
    )


@pytest.mark.parametrize("count", [32769, 2**58, 2**64 - 1])
def test_br17_a_claim_of_too_many_tensors_is_refused(path: Path, count: int) -> None:
    refused(write_gguf(path, METADATA, TENSORS, tensor_count=count), f"claims {count} tensors; at most 32768 are read")


def test_a_claim_of_more_keys_than_the_file_can_hold_is_refused(path: Path) -> None:
    refused(
        write_gguf(path, {}, {}, key_count=1000), "the list of 1000 metadata keys goes to byte 14024, but the file has"
    )


@pytest.mark.parametrize(
    ("type_id", "name"), [(23, "IQ4_XS"), (39, "MXFP4"), (34, "TQ1_0"), (9, "Q8_1"), (28, "F64"), (99, "type 99")]
)
def test_a_block_type_that_cannot_be_read_is_named_at_opening(path: Path, type_id: int, name: str) -> None:
    with pytest.raises(UnsupportedQuantizationError) as caught:
        GgufFile.open(write_gguf(path, METADATA, lying(type_id=type_id)))

    assert caught.value.tensor == "liar"
    assert caught.value.type_name == name
    assert "Q4_K" in caught.value.supported


def test_a_part_of_a_model_in_several_files_is_refused_with_what_to_do(path: Path) -> None:
    metadata = {"split.count": Value(2, 3), "split.no": Value(2, 1)}
    refused(write_gguf(path, metadata, TENSORS), "is part 2 of a model in 3 files", "llama-gguf-split --merge")


def test_a_model_in_a_single_part_is_read(path: Path) -> None:
    with GgufFile.open(write_gguf(path, {"split.count": Value(2, 1)}, TENSORS)) as file:
        assert len(file.tensors) == 2


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (1, "is GGUF of version 1; 2 and 3 can be read"),
        (0, "version 0"),
        (4, "version 4"),
        (2**32 - 1, "version 4294967295"),
        (3 << 24, "is a big-endian GGUF file"),
        (1 << 24, "is a big-endian GGUF file"),
    ],
)
def test_a_version_that_cannot_be_read_is_refused(path: Path, version: int, said: str) -> None:
    refused(write_gguf(path, METADATA, TENSORS, version=version), said)


def test_a_truncated_file_says_how_many_bytes_are_missing(path: Path) -> None:
    whole = gguf_bytes(METADATA, TENSORS)
    path.write_bytes(whole[:-7])

    refused(
        path, f"tensor 'two' ends at byte {len(whole)}, but the file has {len(whole) - 7} bytes and is 7 bytes short"
    )


def test_a_file_truncated_anywhere_is_a_format_error(path: Path) -> None:
    whole = gguf_bytes(METADATA, TENSORS)

    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        refused(path)
