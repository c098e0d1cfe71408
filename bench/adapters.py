"""One engine in a process of its own, which takes commands on stdin: engines then need not fit in one environment.

python bench/adapters.py ENGINE MODEL THREADS CONTEXT

A command is a line of JSON: {"do": "prefill", "ids": [...]} reads a prompt anew and gives {"seconds"};
{"do": "decode", "ids": [...], "steps": n} goes on greedily behind a prompt, whose KV is kept from the last time, and
gives {"seconds", "tokens"}, the seconds those of n steps. The first line of the answer is {"seconds"} of loading, the
first token included. Needs nothing but its engine and numpy; what an engine prints goes to stderr.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Ids = list[int]


class Adapter(Protocol):
    """An engine with one model loaded."""

    def prefill(self, ids: Ids) -> float:
        """Seconds to read a prompt of which nothing is known."""

    def decode(self, ids: Ids, steps: int) -> tuple[float, Ids]:
        """Seconds of so many greedy steps behind the prompt, and the tokens."""


class Onhand:
    """The product's own loop: chunks, choice of tokens, text and all. MODEL: a package folder."""

    def __init__(self, model: str, threads: int, context: int) -> None:
        from onhand.decoding.engine import Engine
        from onhand.formats.gguf import GgufFile
        from onhand.formats.gguf_spec import read_spec
        from onhand.formats.package import ModelPackage
        from onhand.formats.tokenizer import Tokenizer
        from onhand_cpu import CpuRuntime
        from onhand_cpu.artifact import artifact_folder

        package = ModelPackage.open(Path(model))
        with GgufFile.open(package.weights) as file:
            spec, tokenizer = read_spec(file), Tokenizer.from_gguf(file)
        graph = artifact_folder(package) / "decoder.onnx"
        self._engine = Engine(CpuRuntime(spec, graph, threads=threads, context_tokens=context), tokenizer)

    def _reply(self, ids: Ids, tokens: int) -> tuple[float, Ids]:
        from onhand.decoding.window import Prompt
        from onhand.options import GenerationOptions
        from onhand.types import DoneEvent

        options = GenerationOptions(temperature=0, max_tokens=tokens, speculate=False)
        *_, done = self._engine.stream(Prompt(ids), options)
        assert isinstance(done, DoneEvent)
        usage = done.reply.usage
        if usage.completion_tokens < tokens:
            raise RuntimeError(f"the model ended its reply after {usage.completion_tokens} tokens: take another prompt")
        return usage.decode_seconds, self._engine.slots[0].ids[len(ids) :]

    def prefill(self, ids: Ids) -> float:
        self._engine.slots[0].cut_back(0)
        return _seconds(lambda: self._reply(ids, 0))

    def decode(self, ids: Ids, steps: int) -> tuple[float, Ids]:
        return self._reply(ids, steps + 1)


class LlamaCpp:
    """MODEL: a GGUF file."""

    def __init__(self, model: str, threads: int, context: int) -> None:
        llama_cpp = importlib.import_module("llama_cpp")
        self._model = llama_cpp.Llama(
            model, n_ctx=context, n_threads=threads, n_threads_batch=threads, n_batch=512, n_ubatch=512, verbose=False
        )
        self._held: Ids = []

    def prefill(self, ids: Ids) -> float:
        self._held, self._model.n_tokens = ids, 0
        return _seconds(lambda: self._model.eval(ids))

    def decode(self, ids: Ids, steps: int) -> tuple[float, Ids]:
        if self._held != ids:
            self.prefill(ids)
        self._model.n_tokens = len(ids) - 1
        self._model.eval(ids[-1:])
        tokens = [self._best()]

        def run() -> None:
            for _ in range(steps):
                self._model.eval(tokens[-1:])
                tokens.append(self._best())

        return _seconds(run), tokens[:steps]

    def _best(self) -> int:
        logits = self._model._ctx.get_logits_ith(-1)
        return int(np.ctypeslib.as_array(logits, shape=(self._model._n_vocab,)).argmax())


class OpenVino:
    """The paged pipeline, which keeps prefixes. MODEL: a GGUF file, which OpenVINO converts as it loads it."""

    def __init__(self, model: str, threads: int, context: int) -> None:
        self._genai = importlib.import_module("openvino_genai")
        self._ov = importlib.import_module("openvino")
        scheduler = self._genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.max_num_batched_tokens = max(512, context)
        self._pipeline = self._genai.LLMPipeline(
            model, "CPU", scheduler_config=scheduler, ATTENTION_BACKEND="PA", INFERENCE_NUM_THREADS=threads
        )
        self._salt = 0

    def _generate(self, ids: Ids, tokens: int) -> Any:
        config = self._genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True, do_sample=False)
        prompt = np.array([ids], np.int64)
        inputs = self._genai.TokenizedInputs(self._ov.Tensor(prompt), self._ov.Tensor(np.ones_like(prompt)))
        return self._pipeline.generate(inputs, config)

    def prefill(self, ids: Ids) -> float:
        self._salt += 1  # another first token, so that no prefix is known
        return _seconds(lambda: self._generate([100 + self._salt, *ids[1:]], 1))

    def decode(self, ids: Ids, steps: int) -> tuple[float, Ids]:
        found = self._generate(ids, steps + 1)
        durations = found.perf_metrics.raw_metrics.m_durations  # of each token, microseconds
        return sum(durations[-steps:]) / 1e6, list(found.tokens[0][:steps])


class OnnxRuntimeGenAi:
    """MODEL: a folder that `genai_model` wrote; the number of threads stands in its config."""

    def __init__(self, model: str, threads: int, context: int) -> None:
        self._genai = importlib.import_module("onnxruntime_genai")
        self._model = self._genai.Model(model)
        parameters = self._genai.GeneratorParams(self._model)
        parameters.set_search_options(max_length=context, do_sample=False)
        self._generator = self._genai.Generator(self._model, parameters)
        self._held: Ids = []

    def prefill(self, ids: Ids) -> float:
        self._generator.rewind_to(0)
        self._held = ids
        return _seconds(lambda: self._generator.append_tokens(np.array(ids, np.int32)))

    def decode(self, ids: Ids, steps: int) -> tuple[float, Ids]:
        if self._held != ids:
            self.prefill(ids)
        self._generator.rewind_to(len(ids) - 1)
        self._generator.append_tokens(np.array(ids[-1:], np.int32))
        self._generator.generate_next_token()  # chooses from the logits that are there

        def run() -> None:
            for _ in range(steps):
                self._generator.generate_next_token()

        seconds = _seconds(run)
        return seconds, [int(token) for token in self._generator.get_sequence(0)[len(ids) : len(ids) + steps]]


ADAPTERS: dict[str, Callable[[str, int, int], Adapter]] = {
    "onhand": Onhand,
    "llama.cpp": LlamaCpp,
    "openvino": OpenVino,
    "ort-genai": OnnxRuntimeGenAi,
}


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def main(arguments: Sequence[str]) -> None:
    engine, model, threads, context = arguments
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    started = time.perf_counter()
    adapter = ADAPTERS[engine](model, int(threads), int(context))
    adapter.decode([1, 2], 1)
    print(json.dumps({"seconds": time.perf_counter() - started}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "prefill":
            answer: dict[str, object] = {"seconds": adapter.prefill(request["ids"])}
        else:
            seconds, tokens = adapter.decode(request["ids"], request["steps"])
            answer = {"seconds": seconds, "tokens": tokens}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main(sys.argv[1:])
