"""A chat never hits a wall: the window slides, and what the model then computes is what plain numpy does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from onhand.backends import Batch, LayerKv, Logits
from onhand.chat import Chat
from onhand.decoding.engine import Engine
from onhand.decoding.token_chat import TokenChat
from onhand.decoding.window import Prompt, Turn
from onhand.errors import ContextOverflowError, OptionError
from onhand.formats.blocks import BlockType
from onhand.formats.gguf import GgufFile
from onhand.formats.gguf_spec import read_spec
from onhand.options import CacheOptions, DeviceOptions, GenerationOptions, Overflow
from onhand.prompts.encode import PromptEncoder
from onhand.prompts.template import ChatTemplate
from onhand.testing import ScriptedRuntime
from onhand.types import DoneEvent, EvictedEvent, Message
from onhand_cpu import CpuRuntime, backend
from onhand_cpu.artifact import artifact_folder, compile_package
from support.packages import tiny_package
from support.reference import ReferenceDecoder
from support.scripted import GREEDY, byte_tokenizer, over, reply_of, said
from support.tiny import ARCHITECTURES, CHATML, END, VOCAB

WINDOW = 48


class Witness:
    """A runtime that has plain numpy do the same, and compares."""

    def __init__(self, runtime: CpuRuntime, reference: ReferenceDecoder) -> None:
        self._runtime, self._reference = runtime, reference
        self.spec, self.cache = runtime.spec, runtime.cache
        self.evictions = 0
        self.longest = 0
        self.error = 0.0

    def forward(self, batch: Batch) -> Logits:
        (chunk,) = batch
        expected = self._reference.append(chunk.tokens)
        logits = self._runtime.forward(batch)
        self.longest = max(self.longest, self._runtime.length(0))
        if len(logits):
            error = np.abs(logits - expected[-len(logits) :]).max() / (expected.max() - expected.min())
            self.error = max(self.error, float(error))
        return logits

    def evict(self, slot: int, first: int, count: int) -> None:
        self.evictions += 1
        self._reference.evict(first, count)
        self._runtime.evict(slot, first, count)

    def truncate(self, slot: int, length: int) -> None:
        if length < self._runtime.length(slot):
            self._reference.evict(length, self._runtime.length(slot) - length)
        self._runtime.truncate(slot, length)

    def length(self, slot: int) -> int:
        return self._runtime.length(slot)

    def copy(self, source: int, target: int, length: int) -> None:
        raise NotImplementedError

    def export(self, slot: int) -> Iterator[LayerKv]:
        return self._runtime.export(slot)

    def restore(self, slot: int, layers: Iterable[LayerKv], tokens: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._runtime.close()


def witness(folder: Path, architecture: str) -> Witness:
    package = tiny_package(folder, architecture, block_type=BlockType.Q8_0)
    compile_package(package)
    file = GgufFile.open(package.weights)
    spec = read_spec(file)
    runtime = CpuRuntime(spec, artifact_folder(package) / "exact.onnx", threads=2, context_tokens=WINDOW)
    return Witness(runtime, ReferenceDecoder(file, spec, WINDOW))


@pytest.mark.parametrize("overflow", ["slide", "recompute"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_reply_many_windows_long_is_what_numpy_computes(
    architecture: str, overflow: Overflow, tmp_path: Path
) -> None:
    """BR-01, for each architecture: interleaved windows, a rope for each layer, soft caps, every kind of rope."""
    runtime = witness(tmp_path, architecture)
    engine = Engine(runtime, byte_tokenizer(), CacheOptions(overflow=overflow, sinks=4, evict_tokens=9))
    options = GenerationOptions(temperature=1, seed=1, max_tokens=5 * WINDOW, top_k=0, top_p=1, min_p=0)
    generated = 0
    while generated < 3 * WINDOW:
        reply = reply_of(e for e in engine.stream(Prompt(list(range(30))), options) if not isinstance(e, EvictedEvent))
        generated += reply.usage.completion_tokens
        options = GenerationOptions(temperature=1, seed=generated, max_tokens=5 * WINDOW, top_k=0, top_p=1, min_p=0)
    assert runtime.longest == WINDOW
    assert runtime.error < 1e-3
    if overflow == "slide":
        assert runtime.evictions > 5
    runtime.close()


def test_however_many_tokens_come_at_a_time_the_window_holds_no_more_than_its_size(tmp_path: Path) -> None:
    """BR-03: 10,000 tokens, in turns of 1 to 65; read one by one they give the same replies."""
    package = tiny_package(tmp_path, "gemma3")
    backend.prepare(package)
    options = CacheOptions(context_tokens=96, sinks=4)
    numbers = np.random.default_rng(3)
    turns = [numbers.integers(0, 256, size).tolist() for _ in range(70) for size in (1, 2, 5, 7, 64, 65)]
    texts: dict[int, list[str]] = {1: [], 512: []}
    for chunk_tokens, replies in texts.items():
        runtime = backend.load(package, options, DeviceOptions(threads=1))
        engine = Engine(runtime, byte_tokenizer(), options, chunk_tokens=chunk_tokens)
        ids: list[int] = []
        starts: list[Turn] = []
        for number, turn in enumerate(turns):
            starts.append(Turn(len(ids), number))
            ids += turn
            events = list(engine.stream(Prompt(ids, tuple(starts), number + 1), replace(GREEDY, max_tokens=3)))
            replies.append(reply_of(event for event in events if not isinstance(event, EvictedEvent)).text)
            assert runtime.length(0) <= 96
        assert len(ids) > 10_000
        runtime.close()
    assert texts[1] == texts[512]


ANSWERS = ("Yes.", "It is a fish, I think, or a bird.", "No", "Because of the rain in the mountains of the north.")


def talk(
    window: int,
    questions: Sequence[str],
    *,
    overflow: Overflow = "slide",
    system: str | None = "Be brief.",
    evict_tokens: int | None = None,
) -> tuple[Chat, ScriptedRuntime, PromptEncoder, list[list[EvictedEvent]]]:
    """A conversation with a scripted model, and what was evicted in each turn."""
    script = [token for turn in range(len(questions)) for token in said(ANSWERS[turn % len(ANSWERS)])]
    runtime = ScriptedRuntime(script, vocab_size=VOCAB, end_id=END, context_tokens=window)
    encoder = PromptEncoder(ChatTemplate(CHATML), byte_tokenizer())
    engine = Engine(runtime, byte_tokenizer(), CacheOptions(overflow=overflow, evict_tokens=evict_tokens))
    chat = Chat(TokenChat(engine, encoder), system, GenerationOptions(temperature=0, speculate=False))
    evicted = []
    for question in questions:
        events = list(chat.stream(question))
        assert isinstance(events[-1], DoneEvent)
        evicted.append([event for event in events if isinstance(event, EvictedEvent)])
    return chat, runtime, encoder, evicted


@pytest.mark.parametrize("overflow", ["slide", "recompute"])
@pytest.mark.parametrize("system", ["Be brief.", None])
def test_whole_turns_go_and_what_stays_is_the_conversation_without_them(overflow: Overflow, system: str | None) -> None:
    questions = [f"Question {number}, what is it?" for number in range(12)]
    chat, runtime, encoder, evicted = talk(250, questions, overflow=overflow, system=system)
    assert len(runtime.held[0]) <= 250
    assert chat.unseen
    first = 1 if system else 0
    assert list(chat.unseen) == list(range(first, first + len(chat.unseen)))
    assert len(chat.unseen) % 2 == 0
    visible = [message for place, message in enumerate(chat.messages) if place not in chat.unseen]
    expected = encoder.encode(visible, add_generation_prompt=False)
    assert runtime.held[0] == expected[: len(runtime.held[0])]
    assert len(runtime.held[0]) >= len(expected) - 3  # what the template writes behind the last reply is not read yet
    for before, after in pairwise([events[-1].tokens for events in evicted if events]):
        assert before <= after
    assert len(chat.messages) == 24 + first


def test_the_window_slides_once_in_a_while_and_not_with_every_turn() -> None:
    questions = [f"Question {number}" for number in range(30)]
    *_, evicted = talk(400, questions)
    totals = [events[-1].tokens if events else 0 for events in evicted]
    slides = sum(a != b for a, b in pairwise(totals))
    assert 3 <= slides < 15


def test_a_slide_reads_nothing_again() -> None:
    questions = [f"Question {number}, what is it?" for number in range(12)]
    _, runtime, encoder, _ = talk(250, questions)
    written = sum(len(encoder.encode([Message("user", question)])) for question in questions)
    replies = sum(len(said(ANSWERS[turn % 4])) for turn in range(12))
    assert sum(runtime.forwarded) <= written + replies + 40


def test_a_pinned_message_stays_in_sight() -> None:
    runtime = ScriptedRuntime([], vocab_size=VOCAB, end_id=END, context_tokens=200)
    encoder = PromptEncoder(ChatTemplate(CHATML), byte_tokenizer())
    engine = Engine(runtime, byte_tokenizer(), CacheOptions())
    turns = [
        message
        for number in range(8)
        for message in (Message("user", f"Q{number} says", pinned=number == 1), Message("assistant", f"A{number}"))
    ]
    messages = [Message("system", "S"), *turns, Message("user", "last")]
    events = list(TokenChat(engine, encoder).stream(messages, GenerationOptions(temperature=0)))
    (event,) = [event for event in events if isinstance(event, EvictedEvent)]
    assert 1 in event.messages
    assert 2 in event.messages
    assert 3 not in event.messages
    assert 4 not in event.messages
    assert 5 in event.messages
    held = byte_tokenizer().decode(runtime.held[0])
    assert "Q1 says" in held
    assert "A1" in held
    assert "Q2" not in held


@pytest.mark.parametrize("surplus", range(-3, 4))
def test_a_question_that_cannot_fit_is_refused_with_both_numbers_and_nothing_is_lost(surplus: int) -> None:
    """BR-04, BR-05: lengths around the limit."""
    encoder = PromptEncoder(ChatTemplate(CHATML), byte_tokenizer())
    frame = len(encoder.encode([Message("system", "S"), Message("user", "")]))
    runtime = ScriptedRuntime(said("x"), vocab_size=VOCAB, end_id=END, context_tokens=120)
    chat = Chat(TokenChat(Engine(runtime, byte_tokenizer(), CacheOptions()), encoder), "S", GenerationOptions())
    question = "q" * (120 - frame + surplus)
    if surplus < 0:
        assert chat.ask(question, GenerationOptions(temperature=0)).text == "x"
        return
    with pytest.raises(ContextOverflowError) as caught:
        chat.ask(question)
    assert (caught.value.prompt_tokens, caught.value.context_tokens) == (120 + surplus, 120)
    assert len(chat.messages) == 1
    assert chat.ask("hi", GenerationOptions(temperature=0)).text == "x"


def test_a_runtime_that_cannot_slide_says_so_and_recomputes() -> None:
    """Nothing else takes the place of what was asked for."""
    runtime = ScriptedRuntime(said("a" * 200), vocab_size=VOCAB, end_id=END, context_tokens=64)
    runtime.cache = replace(runtime.cache, slides=False)
    with pytest.raises(OptionError, match=r"it takes recompute or error: .* cannot slide"):
        over(runtime, CacheOptions())
    engine = over(runtime, CacheOptions(overflow="recompute"))
    events = engine.stream([1] * 40, GREEDY)
    reply = reply_of(event for event in events if not isinstance(event, EvictedEvent))
    assert reply.text == "a" * 200


def test_with_overflow_error_a_full_window_is_an_error() -> None:
    questions = [f"Question {number}, what is it?" for number in range(12)]
    with pytest.raises(ContextOverflowError):
        talk(250, questions, overflow="error")


@pytest.mark.parametrize("pinned", [0, 5, 60, 100, 124, 125, 126, 127, 128, 129])
def test_a_system_prompt_of_any_length_ends_in_a_reply_or_an_error(pinned: int) -> None:
    """BR-04: never a shift that frees nothing, never a loop."""
    encoder = PromptEncoder(ChatTemplate(CHATML), byte_tokenizer())
    runtime = ScriptedRuntime([97] * 400, vocab_size=VOCAB, end_id=END, context_tokens=128)
    engine = Engine(runtime, byte_tokenizer(), CacheOptions())
    options = GenerationOptions(temperature=0, max_tokens=300)
    messages = [Message("system", "s" * pinned), Message("user", "go")]
    try:
        events = list(TokenChat(engine, encoder).stream(messages, options))
    except ContextOverflowError:
        assert pinned > 60
        return
    done = events[-1]
    assert isinstance(done, DoneEvent)
    assert done.reply.usage.completion_tokens == 300
    assert len(runtime.held[0]) <= 128


def test_two_conversations_that_fill_their_windows_in_turn_go_on() -> None:
    """BR-05."""
    encoder = PromptEncoder(ChatTemplate(CHATML), byte_tokenizer())
    runtime = ScriptedRuntime(said("An answer of some length.") * 60, vocab_size=VOCAB, end_id=END, context_tokens=200)
    shared = TokenChat(Engine(runtime, byte_tokenizer(), CacheOptions()), encoder)
    chats = [Chat(shared, f"You are {name}.", GenerationOptions(temperature=0)) for name in "AB"]
    for number in range(20):
        for chat in chats:
            assert chat.ask(f"Question {number}").text == "An answer of some length."
    assert all(chat.unseen for chat in chats)
