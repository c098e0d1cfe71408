"""GGUF files are opened, read and closed."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from onhand.errors import ModelFileNotFoundError, ModelFormatError
from onhand.formats.blocks import BlockType, dequantize
from onhand.formats.gguf import GgufFile
from support.corpora import corpus
from support.gguf_cases import F32, METADATA, TENSORS, VOCABULARY, refused
from support.gguf_writer import random_blocks, write_gguf


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


@pytest.mark.parametrize("version", [2, 3])
def test_a_written_file_is_read_back(path: Path, version: int) -> None:
    with GgufFile.open(write_gguf(path, METADATA, TENSORS, version=version)) as file:
        assert file.path == path
        assert file.version == version
        assert list(file.metadata) == list(METADATA)
        assert file.metadata["tokenizer.ggml.tokens"] == VOCABULARY
        assert list(file.tensors) == ["one", "two"]
        assert file.tensors["two"].shape == (2, 4)
        np.testing.assert_array_equal(dequantize(BlockType.F32, file.raw("two")), F32[1].reshape(2, 4))


@pytest.mark.parametrize("block_type", BlockType, ids=lambda block_type: block_type.name)
def test_tensors_of_every_type_keep_their_bytes(path: Path, block_type: BlockType) -> None:
    data = random_blocks(block_type, 6, 2 * block_type.weights, np.random.default_rng(0))

    with GgufFile.open(write_gguf(path, {}, {"w": (block_type, data, (2, 3, 2 * block_type.weights))})) as file:
        assert file.tensors["w"].type is block_type
        assert file.tensors["w"].nbytes == data.size
        np.testing.assert_array_equal(file.raw("w"), data)


def test_a_tensor_of_one_dimension_is_one_row(path: Path) -> None:
    with GgufFile.open(write_gguf(path, {}, {"norm": (BlockType.F32, np.ones(6, np.float32), (6,))})) as file:
        assert file.raw("norm").shape == (1, 24)


def test_a_view_cannot_be_written_to_and_outlives_the_file(path: Path) -> None:
    file = GgufFile.open(write_gguf(path, METADATA, TENSORS))
    raw = file.raw("one")
    file.close()
    gc.collect()

    assert not raw.flags.writeable
    np.testing.assert_array_equal(raw.view(np.float32), F32[1].reshape(2, 4))


def test_a_closed_file_says_so(path: Path) -> None:
    file = GgufFile.open(write_gguf(path, METADATA, TENSORS))
    file.close()
    file.close()

    with pytest.raises(ValueError, match="closed"):
        file.raw("one")
    with pytest.raises(ValueError, match="released"):
        file.integer("llama.block_count")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks for the mapping in /proc")
def test_a_closed_or_refused_file_is_no_longer_mapped(path: Path, tmp_path: Path) -> None:
    bad = write_gguf(tmp_path / "bad.gguf", {"general.alignment": 3}, TENSORS)
    GgufFile.open(write_gguf(path, METADATA, TENSORS)).close()

    with pytest.raises(ModelFormatError) as caught:
        GgufFile.open(bad)

    assert caught.value.path == bad  # still held here, with its traceback
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_an_alignment_other_than_32_is_followed(path: Path, alignment: int) -> None:
    metadata = {"general.alignment": alignment}

    with GgufFile.open(write_gguf(path, metadata, TENSORS, alignment=alignment)) as file:
        assert file.tensors["two"].offset % alignment == 0
        np.testing.assert_array_equal(file.raw("two").view(np.float32), F32[1].reshape(2, 4))


def test_a_file_of_a_vocabulary_alone_is_sound(path: Path) -> None:
    with GgufFile.open(write_gguf(path, METADATA, {})) as file:
        assert file.tensors == {}


def test_the_shape_of_a_missing_tensor_is_a_format_error(path: Path) -> None:
    with (
        GgufFile.open(write_gguf(path, {}, TENSORS)) as file,
        pytest.raises(ModelFormatError, match=r"no tensor 'output\.weight'"),
    ):
        file.raw("output.weight")


def test_a_file_that_is_not_there_is_named_with_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelFileNotFoundError, match=r"model\.gguf") as caught:
        GgufFile.open(tmp_path / "model.gguf")
    assert isinstance(caught.value, FileNotFoundError)
    assert str(tmp_path) in str(caught.value)


def test_a_folder_is_refused(path: Path) -> None:
    path.mkdir()
    refused(path, "is a folder, not a file")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no named pipes in folders")
def test_a_named_pipe_is_refused_without_waiting_for_it(path: Path) -> None:
    os.mkfifo(path)
    refused(path, "is not a regular file")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read_says_why(path: Path) -> None:
    write_gguf(path, METADATA, TENSORS).chmod(0)
    refused(path, "cannot be read: Permission denied")


@pytest.mark.real_model
def test_br18_smollm2_has_no_output_weight_and_its_blocks_are_read() -> None:
    with GgufFile.open(corpus("smollm2")) as file:
        assert len(file.tensors) == 272
        assert "output.weight" not in file.tensors
        assert file.tensors["token_embd.weight"].type is BlockType.Q8_0
        assert file.tensors["token_embd.weight"].shape == (49152, 576)
        assert {tensor.type.name for tensor in file.tensors.values()} == {"F32", "Q4_1", "Q8_0"}
        assert len(file.strings("tokenizer.ggml.tokens", length=49152)) == 49152
        for name in ("token_embd.weight", "blk.0.ffn_down.weight", "blk.29.attn_q.weight"):
            weights = dequantize(file.tensors[name].type, file.raw(name))
            assert np.isfinite(weights).all()
            assert 0.01 < weights.std() < 1


@pytest.mark.real_model
def test_gemma_has_five_block_types_and_a_vocabulary_of_a_quarter_million() -> None:
    with GgufFile.open(corpus("gemma3")) as file:
        assert {tensor.type.name for tensor in file.tensors.values()} == {"F32", "Q4_K", "Q5_0", "Q6_K", "Q8_0"}
        tokens = file.strings("tokenizer.ggml.tokens", length=262144)
        scores = file.numbers("tokenizer.ggml.scores", np.float32, length=262144)
        assert tokens[:4] == ["<pad>", "<eos>", "<bos>", "<unk>"]
        assert np.isfinite(scores).all()
        name = next(name for name, tensor in file.tensors.items() if tensor.type is BlockType.Q4_K)
        assert np.isfinite(dequantize(BlockType.Q4_K, file.raw(name))).all()
