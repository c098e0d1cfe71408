"""Whatever was said, edited, regenerated, cancelled or switched between before: a reply is that of a fresh session."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onhand.backends import Chunk
from onhand.decoding.engine import Engine
from onhand.decoding.window import Prompt
from onhand.formats.package import ModelPackage
from onhand.options import CacheOptions, DeviceOptions, GenerationOptions
from onhand.types import Event, EvictedEvent, Reply
from onhand_cpu import CpuRuntime, backend
from support.bits import BitsWitness
from support.packages import tiny_package
from support.scripted import byte_tokenizer, reply_of
from support.tiny import ARCHITECTURES, VOCAB

CONTEXT = 120
OPTIONS = GenerationOptions(temperature=0, max_tokens=10)
OUTGROWS = GenerationOptions(temperature=0, max_tokens=40)

Action = tuple[str, int, list[int]]
texts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)
actions = st.lists(
    st.tuples(
        st.sampled_from(["append", "edit", "regenerate", "delete", "switch", "cancel"]), st.integers(0, 9), texts
    ),
    min_size=1,
    max_size=10,
)


@dataclass
class Conversation:
    """Turns of token ids; the reply to the last is asked for."""

    turns: list[list[int]] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return [token for turn in self.turns for token in turn]

    def apply(self, action: str, place: int, text: list[int]) -> None:
        if action == "edit" and self.turns:
            self.turns[place % len(self.turns)] = text
        elif action == "delete" and self.turns:
            del self.turns[-1]
        elif action != "regenerate":
            self.turns.append(text)
        if not self.turns:
            self.turns.append(text)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelPackage:
    made = tiny_package(tmp_path_factory.mktemp("tiny"), request.param)
    backend.prepare(made)
    return made


def load(package: ModelPackage, cache: CacheOptions) -> CpuRuntime:
    return backend.load(package, cache, DeviceOptions(threads=2))


def runtime(package: ModelPackage, slots: int) -> CpuRuntime:
    return load(package, CacheOptions(context_tokens=CONTEXT, slots=slots))


def said(events: Iterable[Event]) -> Reply:
    """The reply at the end of events, whatever was dropped on the way."""
    return reply_of(event for event in events if not isinstance(event, EvictedEvent))


@pytest.fixture(scope="module")
def cold(package: ModelPackage) -> CpuRuntime:
    return runtime(package, 1)


@pytest.fixture(scope="module", params=[1, 3])
def warm(request: pytest.FixtureRequest, package: ModelPackage) -> Engine:
    return Engine(runtime(package, request.param), byte_tokenizer(), CacheOptions(overflow="error"), chunk_tokens=7)


@given(script=actions)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_reply_is_that_of_a_fresh_session(cold: CpuRuntime, warm: Engine, script: list[Action]) -> None:
    """BR-02, BR-32. The warm engine is never reset, so each script begins with what all before it left."""
    conversations = [Conversation(), Conversation()]
    for action, place, text in script:
        if action == "switch":
            conversations.reverse()
        conversation = conversations[0]
        conversation.apply(action, place, text)
        ids = conversation.ids[-90:]
        if action == "cancel":
            with closing(warm.stream(Prompt(ids), OPTIONS)) as events:
                list(islice(events, place))
            continue
        cold.truncate(0, 0)
        fresh = Engine(cold, byte_tokenizer(), CacheOptions(overflow="error"))
        expected = reply_of(fresh.stream(Prompt(ids), OPTIONS))
        found = reply_of(warm.stream(Prompt(ids), OPTIONS))
        assert found.text == expected.text
        assert found.usage.completion_tokens == expected.usage.completion_tokens


@pytest.fixture(scope="module", params=["slide", "recompute"])
def sliding(request: pytest.FixtureRequest, package: ModelPackage) -> Iterable[tuple[Engine, Engine]]:
    """Two engines alike, of a window that every long reply outgrows. One thread, for steps so small."""
    options = CacheOptions(context_tokens=40, overflow=request.param, sinks=4, evict_tokens=6)
    runtimes = [backend.load(package, options, DeviceOptions(threads=1)) for _ in range(2)]
    warm, cold = (Engine(runtime, byte_tokenizer(), options) for runtime in runtimes)
    yield warm, cold
    for runtime in runtimes:
        runtime.close()


@given(script=actions)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_behind_windows_that_slid_a_prompt_that_fits_is_answered_as_in_a_fresh_session(
    sliding: tuple[Engine, Engine], script: list[Action]
) -> None:
    """BR-02, invariant 3: what replies longer than the window dropped, the next prompt sees again."""
    warm, cold = sliding
    conversation = Conversation()
    for action, place, text in script:
        conversation.apply(action, place, text)
        prompt = Prompt(conversation.ids[:36])
        cold.slots[0].clear()
        expected, found = (said(engine.stream(prompt, OUTGROWS)) for engine in (cold, warm))
        assert found.text == expected.text
        assert found.usage.evicted_tokens == expected.usage.evicted_tokens


@pytest.fixture(scope="module")
def unlike(package: ModelPackage) -> Iterable[list[Engine]]:
    """Engines that slide, cut prompts and share slots each in its own way; one memory of which bits came of what."""
    seen: dict[bytes, bytes] = {}
    engines, witnesses = [], []
    for slots, threads, chunk_tokens in [(1, 1, 64), (2, 2, 33), (3, 1, 7)]:
        options = CacheOptions(context_tokens=CONTEXT, slots=slots, sinks=4, evict_tokens=30)
        witnesses.append(BitsWitness(backend.load(package, options, DeviceOptions(threads=threads)), seen))
        engines.append(Engine(witnesses[-1], byte_tokenizer(), options, chunk_tokens=chunk_tokens))
    yield engines
    assert sum(witness.compared for witness in witnesses) > 0
    for engine in engines:
        engine.close()


def test_the_witness_of_bits_can_fail(package: ModelPackage) -> None:
    """8-bit keys and values are others."""
    seen: dict[bytes, bytes] = {}
    wide, narrow = (
        BitsWitness(backend.load(package, CacheOptions(context_tokens=CONTEXT, kv_bits=bits), DeviceOptions()), seen)
        for bits in (32, 8)
    )
    chunk = Chunk(slot=0, tokens=[1, 2, 3])
    wide.forward([chunk])
    with pytest.raises(AssertionError, match="other bits"):
        narrow.forward([chunk])
    wide.close()
    narrow.close()


@given(script=actions, left=st.lists(st.integers(1, 30), min_size=10, max_size=10))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_read_behind_the_same_tokens_gets_the_same_bits(
    unlike: list[Engine], script: list[Action], left: list[int]
) -> None:
    """Invariants 1 to 3 and 6 to the last bit, which a text seldom shows: behind a window that slid, too.

    Streams are left open where they are, so that replies run together, lose their slots and go on.
    """
    conversations = [Conversation(), Conversation(), Conversation()]
    streams: list[Generator[Event, None, None]] = []
    for number, (action, place, text) in enumerate(script):
        conversation = conversations[place % 3]
        conversation.apply(action, place, text * (1 + place % 5))
        prompt, options = Prompt(conversation.ids[-100:]), replace(OPTIONS, speculate=place % 2 == 0, max_tokens=25)
        for engine in unlike:
            streams.append(engine.stream(prompt, options))
            for stream in streams[-4:]:
                list(islice(stream, left[number]))
    for stream in streams:
        stream.close()


@given(cuts=st.lists(st.integers(1, 30), min_size=1, max_size=6), text=st.lists(st.integers(0, VOCAB - 1), max_size=80))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_chunking_gives_the_same_reply(cold: CpuRuntime, cuts: list[int], text: list[int]) -> None:
    prompt = Prompt([1, *text])
    replies = set()
    for chunk_tokens in (1, *cuts, 512):
        cold.truncate(0, 0)
        engine = Engine(cold, byte_tokenizer(), CacheOptions(overflow="error"), chunk_tokens=chunk_tokens)
        replies.add(reply_of(engine.stream(prompt, OPTIONS)).text)
    assert len(replies) == 1
