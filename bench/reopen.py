"""A conversation that is opened again: how soon it answers, from a file of its cache and read anew.

python bench/reopen.py [--rounds 5] [--model smollm2] [--tokens 1000]

cold: the whole prompt is read. file: the file is loaded, what is new is read; from the disk: after the system was asked
to drop the file from memory. Seconds are to the first piece of text.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from contextlib import closing
from pathlib import Path

from common import interleaved, machine, median_ratio, timed

from onhand.decoding.engine import Engine
from onhand.decoding.window import Prompt
from onhand.formats.gguf import GgufFile
from onhand.formats.gguf_spec import read_spec
from onhand.options import GenerationOptions
from onhand.types import TextEvent
from onhand_cpu import CpuRuntime
from onhand_cpu.artifact import artifact_folder
from support.real import MODELS, prose_ids, real_package, real_tokenizer

QUESTION_TOKENS = 12
OPTIONS = GenerationOptions(temperature=0, max_tokens=16)


def to_first_text(engine: Engine, ids: list[int]) -> None:
    with closing(engine.stream(Prompt(ids), OPTIONS)) as events:
        for event in events:
            if isinstance(event, TextEvent):
                return


def forget(engine: Engine) -> None:
    engine.slots[0].cut_back(0)


def drop_from_memory(path: Path) -> None:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--model", choices=MODELS, default="smollm2")
    arguments = parser.parse_args()
    package, window = real_package(arguments.model), arguments.tokens + 64
    with GgufFile.open(package.weights) as source:
        spec = read_spec(source)
    graph = artifact_folder(package) / "decoder.onnx"
    engine = Engine(CpuRuntime(spec, graph, threads=2, context_tokens=window), real_tokenizer(arguments.model))
    ids = prose_ids(arguments.model, arguments.tokens + QUESTION_TOKENS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "conversation.kv"
        to_first_text(engine, ids)
        saving = timed(lambda: engine.save(ids[: arguments.tokens], path))
        size, full = path.stat().st_size, 4 * arguments.tokens * spec.kv_values_per_token

        def cold() -> float:
            forget(engine)
            return timed(lambda: to_first_text(engine, ids))

        def reopened() -> float:
            forget(engine)

            def load_and_ask() -> None:
                engine.load(path)
                to_first_text(engine, ids)

            return timed(load_and_ask)

        def reopened_from_disk() -> float:
            drop_from_memory(path)
            return reopened()

        def loading() -> float:
            forget(engine)
            return timed(lambda: engine.load(path))

        runs = {"cold": cold, "file": reopened, "file from the disk": reopened_from_disk, "of it loading": loading}
        seconds = interleaved(runs, arguments.rounds)
    print(
        f"{machine()}; {arguments.model}, {arguments.rounds} rounds, {arguments.tokens} tokens, {QUESTION_TOKENS} new"
    )
    print(f"the file has {size / 1e6:.1f} MB, {size / full:.3f} of float32; saving it took {saving:.3f} s")
    for name, found in seconds.items():
        ratio = median_ratio(found, seconds["cold"])
        print(f"{name:20s} {statistics.median(found):.3f} s, {ratio:.3f} of cold")


if __name__ == "__main__":
    main()
