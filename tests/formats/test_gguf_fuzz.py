"""Whatever is done to a GGUF file, reading it ends in its contents or in an OnhandError, and takes little memory.

Run as a program, this file is the fuzzing itself: the test starts it in a process of limited memory, so that a crash or
a runaway allocation fails the test and nothing else.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from onhand.errors import OnhandError
from onhand.formats.blocks import BlockType, dequantize
from onhand.formats.gguf import GgufFile
from support.corpora import corpus
from support.gguf_cases import METADATA
from support.gguf_writer import ARRAY, Tensor, Value, gguf_bytes, random_blocks

MAX_ALLOCATED_BYTES = 64 << 20
EXAMPLES = {"tiny": 5000, "real": 1000}
LIMIT_SECONDS = 120

_POWERS = {2**bit + one for bit in (0, 3, 7, 8, 15, 16, 21, 31, 32, 42, 48, 58, 63) for one in (-1, 0, 1)}
NUMBERS = sorted(_POWERS | {2**64 - 1, 2**64 - 32})
STATM = Path("/proc/self/statm")
RECIPES = st.binary(min_size=5, max_size=20)


@pytest.mark.skipif(not STATM.exists(), reason="limits its address space to what /proc says it takes, and 64 MB")
@pytest.mark.parametrize("seed", ["tiny", pytest.param("real", marks=pytest.mark.real_model)])
def test_a_mutated_file_is_read_or_refused_in_little_memory(tmp_path: Path, seed: str) -> None:
    model = str(corpus("smollm2")) if seed == "real" else ""
    command = [sys.executable, "-W", "error", __file__, str(tmp_path), model]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])

    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "read" in done.stdout
    assert "ModelFormatError" in done.stdout
    assert "UnsupportedQuantizationError" in done.stdout


def tiny_seed() -> tuple[bytes, int]:
    """A whole file with a value and a tensor of every kind, and how many bytes follow it: none."""
    rng = np.random.default_rng(0)
    arrays = {code: np.arange(3).astype(code) for code in ("u1", "i2", "u4", "f4", "?", "u8", "f8")}
    tensors = {kind.name: (kind, random_blocks(kind, 1, kind.weights, rng), (kind.weights,)) for kind in BlockType}
    return gguf_bytes(METADATA | arrays | {"general.alignment": 32, "split.count": 1}, tensors), 0


def real_seed(path: Path) -> tuple[bytes, int]:
    """A real model's header, its arrays cut to 30 items, and how many bytes of tensors follow it."""
    with GgufFile.open(path) as file:
        metadata = {}
        for key, entry in file.metadata.entries.items():
            value: Any = file.metadata[key]
            if entry.item:
                metadata[key] = Value(ARRAY, list(value)[:30], entry.item.id)
            else:
                metadata[key] = Value(entry.type.id, value)
        first = min(tensor.offset for tensor in file.tensors.values())
        last = max(tensor.stop for tensor in file.tensors.values())
        empty = np.zeros(0, np.uint8)
        tensors = [
            (name, Tensor(tensor.type, empty, tensor.shape, offset=tensor.offset - first))
            for name, tensor in file.tensors.items()
        ]
    return gguf_bytes(metadata, tensors), last - first


def read_all(path: Path) -> str:
    """Read everything in a file; say what came of it. Lets through only what onhand raises on purpose."""
    try:
        with GgufFile.open(path) as file:
            for _ in file.metadata.values():
                pass
            for name, tensor in file.tensors.items():
                raw = file.raw(name)
                if raw.size < 1 << 16:
                    dequantize(tensor.type, raw)
    except OnhandError as error:
        return type(error).__name__
    return "read"


def mutated(seed: bytes, recipe: bytes) -> tuple[bytes, bool]:
    """A mutant, and whether it is cut short.

    Every five bytes of the recipe are an edit: where (two bytes), what to do, and two more to do it with. One draw of
    bytes and not a list of edits, for drawing is what takes hypothesis its time.
    """
    mutant = bytearray(seed)
    for start in range(0, len(recipe) - 4, 5):
        where, what, one, two = struct.unpack_from("<HBBB", recipe, start)
        at = where % len(seed)
        match what % 8:
            case 0:
                return bytes(mutant[:at]), True
            case 1 | 2 | 3:
                mutant[at] = one
            case 4:
                mutant[at : at + 2] = bytes([one, two])
            case 5:
                mutant[at : at + 4] = (NUMBERS[one % len(NUMBERS)] % 2**32).to_bytes(4, "little")
            case _:
                mutant[at : at + 8] = NUMBERS[one % len(NUMBERS)].to_bytes(8, "little")
    return bytes(mutant), False


def fuzz(path: Path, seed: bytes, following: int, examples: int) -> Counter[str]:
    """Read so many mutants of a file, each with that many zero bytes after it, and count what came of them."""
    outcomes: Counter[str] = Counter()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(RECIPES)
    def one(recipe: bytes) -> None:
        mutant, cut = mutated(seed, recipe)
        os.pwrite(descriptor, mutant, 0)
        os.ftruncate(descriptor, len(mutant) if cut else len(mutant) + following)
        outcomes[read_all(path)] += 1

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    one()
    return outcomes


def limit_memory(mapped: int) -> None:
    """From here on allocating more than MAX_ALLOCATED_BYTES while so many bytes are mapped is a MemoryError."""
    import resource

    limit = int(STATM.read_text().split()[0]) * resource.getpagesize() + MAX_ALLOCATED_BYTES + mapped
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main(folder: str, model: str) -> None:
    seed, following = real_seed(Path(model)) if model else tiny_seed()
    path = Path(folder) / "mutant.gguf"
    path.write_bytes(seed)
    os.truncate(path, len(seed) + following)  # a hole: nothing is written
    assert read_all(path) == "read"
    limit_memory(len(seed) + following)
    print(dict(fuzz(path, seed, following, EXAMPLES["real" if model else "tiny"])))


if __name__ == "__main__":
    main(*sys.argv[1:])
