"""Many replies at once: each is what it would be alone, none holds up the others, and what is full says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onhand.backends import Batch, Logits
from onhand.decoding.engine import Engine
from onhand.decoding.window import Prompt
from onhand.errors import BackendError, NumericalError, QueueFullError
from onhand.formats.package import ModelPackage
from onhand.options import CacheOptions, DeviceOptions, GenerationOptions
from onhand.testing import ScriptedRuntime
from onhand.types import DoneEvent, PrefillEvent, TextEvent
from onhand_cpu import backend
from support.packages import tiny_package
from support.scripted import GREEDY, PlainText, byte_tokenizer, over, reply_of, said, scripted
from support.tiny import END, VOCAB

RNG = np.random.default_rng(3)
PROMPTS = [bytes(RNG.integers(32, 127, int(size)).tolist()) for size in RNG.integers(1, 60, 12)]
OPTIONS = [
    GenerationOptions(temperature=0, max_tokens=20),
    GenerationOptions(temperature=1, top_k=0, top_p=1, min_p=0, seed=5, max_tokens=20),
]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> ModelPackage:
    made = tiny_package(tmp_path_factory.mktemp("tiny"))
    backend.prepare(made)
    return made


def engine(package: ModelPackage, slots: int, *, chunk_tokens: int = 8) -> PlainText:
    cache = CacheOptions(slots=slots, overflow="error")
    return over(backend.load(package, cache, DeviceOptions(threads=2)), cache, chunk_tokens=chunk_tokens)


@pytest.fixture(scope="module")
def alone(package: ModelPackage) -> dict[tuple[int, int], str]:
    """What each prompt gives with each of the options in an engine that does nothing else."""
    single = engine(package, 1)
    return {
        (p, o): reply_of(single.stream(list(prompt), options)).text
        for p, prompt in enumerate(PROMPTS)
        for o, options in enumerate(OPTIONS)
    }


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_replies_of_many_threads_are_what_each_would_be_alone(
    package: ModelPackage, alone: dict[tuple[int, int], str], slots: int
) -> None:
    many = engine(package, slots)
    with ThreadPoolExecutor(len(alone)) as pool:

        def text(prompt: int, options: int) -> str:
            return reply_of(many.stream(list(PROMPTS[prompt]), OPTIONS[options])).text

        futures = {(prompt, options): pool.submit(text, prompt, options) for prompt, options in alone}
    assert {key: future.result() for key, future in futures.items()} == alone


@given(script=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=40), slots=st.integers(1, 3))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_streams_that_one_thread_reads_in_any_order_or_abandons_are_what_each_would_be_alone(
    package: ModelPackage, alone: dict[tuple[int, int], str], script: list[tuple[int, int]], slots: int
) -> None:
    """More streams than slots, in one thread: whoever is read goes on. 9 closes the stream."""
    many = engine(package, slots)
    streams = {p: many.stream(list(PROMPTS[p]), OPTIONS[0]) for p in range(6)}
    texts = dict.fromkeys(streams, "")
    for p, action in script:
        if action == 9:
            streams[p].close()
        for _ in range(action if action < 9 else 0):
            event = next(streams[p], None)
            texts[p] += event.text if isinstance(event, TextEvent) else ""
        assert alone[p, 0].startswith(texts[p])
    for stream in streams.values():
        stream.close()
    assert reply_of(many.stream(list(PROMPTS[7]), OPTIONS[1])).text == alone[7, 1]


def test_conversations_that_run_together_share_the_runs_of_the_model(package: ModelPackage) -> None:
    calls: list[int] = []
    many = engine(package, 4)
    forward = many.runtime.forward

    def counted(batch: Batch) -> Logits:
        calls.append(len(batch))
        return forward(batch)

    many.runtime.forward = counted  # type: ignore[method-assign]
    barrier = threading.Barrier(4)

    def run(prompt: bytes) -> int:
        barrier.wait()
        return reply_of(
            many.stream(list(prompt[:1]), GenerationOptions(temperature=0, max_tokens=40))
        ).usage.completion_tokens

    with ThreadPoolExecutor(4) as pool:
        tokens = sum(pool.map(run, PROMPTS[:4]))
    assert len(calls) < 0.6 * tokens
    assert max(calls) == 4


def test_a_long_prompt_does_not_hold_up_a_reply_in_progress(package: ModelPackage) -> None:
    many = engine(package, 2)
    short = many.stream(list(b"ab"), GenerationOptions(temperature=1, seed=1, max_tokens=100))
    next(short)
    with closing(many.stream([1] * 100, GREEDY)) as long:
        assert isinstance(next(long), PrefillEvent)
        for _ in range(5):
            assert isinstance(next(short), TextEvent | DoneEvent)
    short.close()


def test_a_shared_beginning_is_read_once_and_both_conversations_keep_their_own(package: ModelPackage) -> None:
    many = engine(package, 2)
    system = [7] * 50
    first = reply_of(many.stream([*system, 1, 2, 3], OPTIONS[0]))
    second = reply_of(many.stream([*system, 4, 5, 6, *[9] * 50][:60], OPTIONS[0]))
    assert (first.usage.cached_tokens, second.usage.cached_tokens) == (0, 50)
    assert reply_of(many.stream([*system, 1, 2, 3], OPTIONS[0])).usage.cached_tokens == 52
    assert first.text == reply_of(engine(package, 1).stream([*system, 1, 2, 3], OPTIONS[0])).text


def test_more_replies_than_may_wait_are_refused_and_the_others_go_on() -> None:
    runtime = ScriptedRuntime(said("x" * 60), vocab_size=VOCAB, end_id=END)
    full = Engine(runtime, byte_tokenizer(), max_waiting=2)
    streams = [full.stream(Prompt([1, 2]), GREEDY) for _ in range(4)]
    next(streams[0])
    waiting = [
        threading.Thread(target=lambda s=stream: suppress_all(lambda: next(s)), daemon=True) for stream in streams[1:3]
    ]
    for thread in waiting:
        thread.start()
    while len(full._sequences) < 3:
        time.sleep(0.001)
    with pytest.raises(QueueFullError, match="2 replies wait"):
        next(streams[3])
    for stream in (streams[0],):
        stream.close()
    for thread in waiting:
        thread.join(5)
        assert not thread.is_alive()


def suppress_all(call: Callable[[], object]) -> None:
    with suppress(StopIteration):
        call()


def test_numbers_that_are_none_end_one_reply_and_no_other() -> None:
    bad = np.full(VOCAB, np.nan, np.float32)
    runtime = ScriptedRuntime([5, 6, 7, bad, 8, END], vocab_size=VOCAB, end_id=END, slots=2)
    both = over(runtime)
    first, second = both.stream([1, 2], GREEDY), both.stream([3, 4], GREEDY)
    assert isinstance(next(first), TextEvent)
    assert isinstance(next(second), TextEvent)
    with pytest.raises(NumericalError):
        for _ in first:
            pass
    assert isinstance(list(second)[-1], DoneEvent)
    assert runtime.held[0] == []


def test_a_failed_run_ends_the_replies_in_it_and_the_next_is_as_from_scratch() -> None:
    broken = scripted([5, BackendError("scripted", "the device was lost"), *said("fine")])
    with pytest.raises(BackendError, match="lost"):
        reply_of(broken.stream([1, 2], GREEDY))
    assert reply_of(broken.stream([1, 2], GREEDY)).text == "fine"


@pytest.mark.parametrize("seconds", [0, 0.05])
def test_a_deadline_ends_a_reply_with_what_it_has(package: ModelPackage, seconds: float) -> None:
    options = GenerationOptions(temperature=0, max_tokens=None, deadline_seconds=seconds)
    runtime = ScriptedRuntime([97] * 10**5, vocab_size=VOCAB, end_id=END, context_tokens=10**6)
    reply = reply_of(over(runtime).stream([1, 2], options))
    assert reply.finish_reason == "deadline"
    assert bool(reply.text) == bool(seconds)


@pytest.mark.parametrize("slots", [1, 2])
def test_a_reply_that_another_thread_cancels_ends_wherever_it_is_and_no_other_does(
    package: ModelPackage, alone: dict[tuple[int, int], str], slots: int
) -> None:
    """BR-44: one is being generated or waits for a slot; whoever waits for it gets what it has."""
    cache = CacheOptions(slots=slots)
    many = over(backend.load(package, cache, DeviceOptions(threads=2)), cache).engine
    endless = GenerationOptions(temperature=0, max_tokens=None, deadline_seconds=60)
    cancels = [threading.Event() for _ in range(3)]
    with ThreadPoolExecutor(len(cancels) + 1) as pool:
        replies = [
            pool.submit(list, many.stream(Prompt(list(prompt)), endless, cancel))
            for prompt, cancel in zip(PROMPTS, cancels, strict=False)
        ]
        other = pool.submit(lambda: reply_of(many.stream(Prompt(list(PROMPTS[4])), OPTIONS[0])))
        time.sleep(0.2)
        for cancel, reply in zip(cancels, replies, strict=True):
            cancel.set()
            *_, last = reply.result(timeout=10)
            assert isinstance(last, DoneEvent)
            assert last.reply.finish_reason == "cancelled"
        assert other.result(timeout=10).text == alone[4, 0]
    assert many._sequences == []


def test_a_prompt_that_another_thread_cancels_is_read_no_further(package: ModelPackage) -> None:
    """BR-44: from where the reader cannot act, in the middle of the model's run."""
    runtime = Cancelling()
    engine = over(runtime, chunk_tokens=8).engine
    (*_, last) = engine.stream(Prompt([1] * 400), GREEDY, runtime.cancel)
    assert isinstance(last, DoneEvent)
    assert (last.reply.finish_reason, last.reply.text) == ("cancelled", "")
    assert runtime.forwarded == [8, 8, 8]
    assert reply_of(engine.stream(Prompt([1] * 30), GREEDY)).usage.cached_tokens == 24


class Cancelling(ScriptedRuntime):
    """Its third run is cancelled from elsewhere."""

    def __init__(self) -> None:
        super().__init__([97] * 9, vocab_size=VOCAB, end_id=END)
        self.cancel = threading.Event()

    def forward(self, batch: Batch) -> Logits:
        if len(self.forwarded) == 2:
            self.cancel.set()
        return super().forward(batch)


def test_a_reader_who_stops_reading_does_not_make_the_model_run_on(package: ModelPackage) -> None:
    """BR-44: the reply gets ahead by a few events, then waits; the others go on."""
    runtime = ScriptedRuntime([97] * 1000, vocab_size=VOCAB, end_id=END, slots=2)
    both = over(runtime)
    idle = both.stream([1, 2], GREEDY)
    next(idle)
    reply_of(both.stream([3, 4], GenerationOptions(temperature=0, max_tokens=200)))
    assert len(runtime.held[0]) < 30
    idle.close()


def test_abandoned_streams_leave_the_engine_idle(package: ModelPackage) -> None:
    """BR-44."""
    many = engine(package, 2)
    for prompt in PROMPTS * 4:
        next(many.stream(list(prompt), GREEDY))
    started = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - started < 0.1
    assert many.engine._sequences == []
