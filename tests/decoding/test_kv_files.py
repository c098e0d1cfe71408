"""A conversation whose KV cache was kept in a file goes on without being read again; a bad file is a typed error."""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import onhand
from onhand.backends import Chunk, LayerKv, Logits
from onhand.chat import Chat
from onhand.decoding import kv_files
from onhand.decoding.cuts import Cuts
from onhand.decoding.engine import Engine
from onhand.decoding.kv_files import cache_key, read_kv, write_kv
from onhand.decoding.token_chat import TokenChat
from onhand.decoding.window import Prompt
from onhand.errors import BackendError, CacheFileError, StorageError
from onhand.formats.gguf import GgufFile
from onhand.formats.gguf_spec import read_spec
from onhand.formats.spec import RopeScaling
from onhand.options import CacheOptions, DeviceOptions, GenerationOptions, Overflow
from onhand.prompts.encode import PromptEncoder
from onhand.prompts.template import ChatTemplate
from onhand.testing import ScriptedRuntime, Step
from onhand.types import DoneEvent, Message, Reply
from onhand_cpu import CpuRuntime, backend
from onhand_cpu.artifact import artifact_folder
from support.packages import tiny_package
from support.real import MODELS, divergence, prose_ids, real_package, real_tokenizer
from support.scripted import GREEDY, byte_tokenizer, reply_of, said
from support.tiny import ARCHITECTURES, CHATML, END, VOCAB, write_tiny

WINDOW = 64
KEY = b"k" * 32


def scripted_engine(
    script: Iterable[Step] = (), *, window: int = 512, slots: int = 1, overflow: Overflow = "slide"
) -> tuple[Engine, ScriptedRuntime]:
    runtime = ScriptedRuntime(script, vocab_size=VOCAB, end_id=END, context_tokens=window, slots=slots)
    return Engine(runtime, byte_tokenizer(), CacheOptions(overflow=overflow), chunk_tokens=16), runtime


def chat_over(engine: Engine, model: str = "m") -> TokenChat:
    return TokenChat(engine, PromptEncoder(ChatTemplate(CHATML), byte_tokenizer()), model=model)


def whole_reply(engine: Engine, ids: Sequence[int], options: GenerationOptions = GREEDY) -> Reply:
    *_, done = engine.stream(Prompt(list(ids)), options)
    assert isinstance(done, DoneEvent)
    return done.reply


def exported(engine: Engine, slot: int = 0) -> list[LayerKv]:
    return [(keys.copy(), values.copy()) for keys, values in engine.runtime.export(slot)]


@pytest.mark.parametrize("slides", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_is_loaded_is_what_was_saved_to_half_a_step_of_eight_bits(
    architecture: str, slides: bool, tmp_path: Path
) -> None:
    package = tiny_package(tmp_path, architecture)
    backend.prepare(package)
    options = CacheOptions(context_tokens=WINDOW, sinks=4, evict_tokens=9)
    engine, other = (
        Engine(backend.load(package, options, DeviceOptions(threads=2)), byte_tokenizer(), options) for _ in range(2)
    )
    slot = engine.slots[0]
    for seed in range(20):
        told = GenerationOptions(temperature=1, seed=seed, max_tokens=3 * WINDOW if slides else 20, top_p=1, min_p=0)
        whole_reply(engine, range(30), told)
        if slot.cuts.total or not slides:
            break
    assert bool(slot.cuts.total) == slides
    engine.save(slot.ids, tmp_path / "kv")
    assert other.load(tmp_path / "kv") == slot.length == other.slots[0].length == other.runtime.length(0)
    assert (other.slots[0].ids, other.slots[0].cuts) == (slot.ids, slot.cuts)
    for (keys, values), (found_keys, found_values) in zip(exported(engine), exported(other), strict=True):
        assert (np.abs(keys - found_keys) <= np.abs(keys).max(axis=1, keepdims=True) / 253).all()
        assert (np.abs(values - found_values) <= np.abs(values).max(axis=2, keepdims=True) / 253).all()
    size = engine.runtime.cache.bytes_per_token * slot.length
    assert (tmp_path / "kv").stat().st_size < 0.36 * size + 5000  # a head of 16 values has much of its size in scales
    following = [*slot.ids[:-3], 65]  # what a reply left full has no room for more
    assert whole_reply(other, following, GREEDY).usage.cached_tokens == slot.length - 3
    engine.runtime.close()
    other.runtime.close()


def test_a_conversation_that_slid_goes_on_from_its_file_and_reads_what_is_new_alone(tmp_path: Path) -> None:
    questions = [f"Question {number}, what is it?" for number in range(9)]
    engine, runtime = scripted_engine([token for _ in range(9) for token in said("It is a fish.")], window=250)
    runtimes = chat_over(engine)
    chat = Chat(runtimes, "Be brief.", GREEDY)
    for question in questions:
        chat.ask(question)
    assert engine.slots[0].cuts.total
    chat.save_cache(tmp_path / "kv")
    reopened, fresh = scripted_engine(said("Yes."), window=250)
    assert chat_over(reopened).load_cache(tmp_path / "kv") == len(runtime.held[0])
    assert fresh.held[0] == runtime.held[0]
    *_, done = chat_over(reopened).stream([*chat.messages, Message("user", "And now?")], GREEDY)
    assert isinstance(done, DoneEvent)
    assert done.reply.text == "Yes."
    assert done.reply.usage.cached_tokens > 150
    assert sum(fresh.forwarded) < 60


def test_a_file_holds_nothing_of_what_another_conversation_said(tmp_path: Path) -> None:
    """Privacy: what shares a slot, an edited question or the same system prompt, is not in the file."""
    engine, _ = scripted_engine(said("Hi.") + said("The secret is 42."))
    runtimes = chat_over(engine)
    mine, other = (Chat(runtimes, "Be brief.", GREEDY) for _ in range(2))
    mine.ask("Hello")
    other.ask("Hello, and what is the secret?")
    mine.save_cache(tmp_path / "kv")
    assert chat_over(scripted_engine()[0]).load_cache(tmp_path / "kv") > 20
    data = (tmp_path / "kv").read_bytes()
    secret = np.array(said("secret")[:-1], "<u4").tobytes()
    assert secret not in data
    other.ask("What?")
    other.save_cache(tmp_path / "other")
    assert secret in (tmp_path / "other").read_bytes()
    assert stat.S_IMODE((tmp_path / "kv").stat().st_mode) == 0o600 or os.name == "nt"


def test_a_conversation_of_which_nothing_is_held_makes_no_file(tmp_path: Path) -> None:
    engine, _ = scripted_engine(said("Hi."))
    chat = Chat(chat_over(engine), None, GREEDY)
    with pytest.raises(CacheFileError) as caught:
        chat.save_cache(tmp_path / "kv")
    assert caught.value.reason == "not held"
    chat.ask("Hello")
    engine.slots[0].cut_back(0)
    with pytest.raises(CacheFileError):
        chat.save_cache(tmp_path / "kv")
    assert list(tmp_path.iterdir()) == []


def test_a_chat_runtime_that_keeps_no_cache_says_so(tmp_path: Path) -> None:
    class Native:
        def stream(self, messages: object, options: object) -> object:
            raise NotImplementedError

        def close(self) -> None:
            raise NotImplementedError

    with pytest.raises(CacheFileError) as caught:
        Chat(Native(), None, GREEDY).save_cache(tmp_path / "kv")  # type: ignore[arg-type]
    assert caught.value.reason == "not held"


def test_loading_takes_an_empty_slot_then_what_was_unused_longest_and_never_one_in_use(tmp_path: Path) -> None:
    source, _ = scripted_engine()
    for name in "abc":
        whole_reply(source, [ord(name)] * 40)
        source.save([ord(name)] * 40, tmp_path / name)
    engine, runtime = scripted_engine([97] * 500, slots=2)
    with closing(engine.stream(Prompt([1, 2, 3]), GREEDY)) as events:
        next(events)
        engine.load(tmp_path / "a")
        assert runtime.held[1] == [97] * 40
        engine.load(tmp_path / "b")
        assert runtime.held[1] == [98] * 40
        assert runtime.held[0][:3] == [1, 2, 3]
        with closing(engine.stream(Prompt([4, 5]), GREEDY)) as others:
            next(others)
            with pytest.raises(CacheFileError) as caught:
                engine.load(tmp_path / "c")
            assert caught.value.reason == "busy"
    engine.load(tmp_path / "c")
    assert sorted(tokens[:2] for tokens in runtime.held) == [[4, 5], [99, 99]]


def test_what_is_held_already_is_not_loaded_twice(tmp_path: Path) -> None:
    engine, runtime = scripted_engine(slots=2)
    whole_reply(engine, [7] * 40)
    engine.save([7] * 40, tmp_path / "kv")
    assert engine.load(tmp_path / "kv") == 40
    assert sorted(map(len, runtime.held)) == [0, 40]


def test_another_models_file_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    engine, runtime = scripted_engine()
    whole_reply(engine, [7] * 40)
    engine.save([7] * 40, tmp_path / "kv", "one")
    whole_reply(engine, [8] * 40)
    for other, model in ((engine, "two"), (scripted_engine(overflow="recompute")[0], "one")):
        with pytest.raises(CacheFileError) as caught:
            other.load(tmp_path / "kv", model)
        assert (caught.value.reason, caught.value.path) == ("model", tmp_path / "kv")
    assert runtime.held == [[8] * 40]


def test_the_key_knows_what_keys_and_values_depend_on() -> None:
    spec = scripted_engine()[1].spec
    scaling = RopeScaling(kind="factors", factors=(1.0,), long_factors=(2.0,), original_context_tokens=100)
    (layer,) = spec.layers
    longrope = replace(spec, layers=(replace(layer, rope=replace(layer.rope, scaling=scaling)),))
    tokenizer = byte_tokenizer()
    keys = {
        cache_key("m", tokenizer, spec, 99, "slide"),
        cache_key("n", tokenizer, spec, 99, "slide"),
        cache_key("m", tokenizer, spec, 99, "error"),
        cache_key("m", tokenizer, replace(spec, norm_epsilon=1e-6), 99, "slide"),
        cache_key("m", tokenizer, longrope, 99, "slide"),
        cache_key("m", tokenizer, longrope, 101, "slide"),
    }
    assert len(keys) == 6
    assert cache_key("m", tokenizer, spec, 101, "slide") in keys
    assert cache_key("m", tokenizer, longrope, 100, "slide") in keys


def test_a_file_of_a_longer_window_is_refused(tmp_path: Path) -> None:
    engine, _ = scripted_engine()
    whole_reply(engine, [7] * 100)
    engine.save([7] * 100, tmp_path / "kv")
    small, fitting = (Engine(_with_window(tokens), byte_tokenizer()) for tokens in (99, 100))
    with pytest.raises(CacheFileError, match="100 tokens and the window 99") as caught:
        small.load(tmp_path / "kv")
    assert caught.value.reason == "window"
    assert fitting.load(tmp_path / "kv") == 100


def _with_window(tokens: int) -> ScriptedRuntime:
    """The same model, opened with a smaller window."""
    runtime = scripted_engine()[1]
    runtime.cache = replace(runtime.cache, tokens=tokens)
    return runtime


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes in folders")
def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    engine, _ = scripted_engine()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    reasons = {
        "none": "missing",
        "pipe": "unreadable",
        ".": "unreadable",
        "/dev/zero": "unreadable",
        "empty/x": "unreadable",
        "empty": "damaged",
    }
    for name, reason in reasons.items():
        with pytest.raises(CacheFileError) as caught:
            engine.load(tmp_path / name)
        assert caught.value.reason == reason, name


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file with cuts, of a scripted engine's."""
    path = tmp_path_factory.mktemp("good") / "kv"
    spec, ids = scripted_engine()[1].spec, list(range(100, 140))
    keys = np.arange(60, dtype=np.float32).reshape(1, 30, 2)
    write_kv(path, _key(), spec, ids, Cuts(((3, 5), (10, 18))), iter([(keys, keys + 1)]))
    return path.read_bytes()


def _key() -> bytes:
    engine, runtime = scripted_engine()
    return cache_key("", engine.tokenizer, runtime.spec, 512, "slide")


def signed(data: bytes | bytearray) -> bytes:
    return bytes(data[:-32]) + hashlib.sha256(data[:-32]).digest()


def load_bytes(data: bytes, folder: Path) -> str | None:
    """The reason for which a file is refused, or None; the engine must be in order either way."""
    engine, runtime = scripted_engine()
    whole_reply(engine, [7] * 30)
    path = folder / "kv"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        engine.load(path)
        reason = None
    except CacheFileError as error:
        reason = error.reason
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 10**6
    slot = engine.slots[0]
    if reason is not None:
        assert runtime.held == [[7] * 30]
    held = slot.length
    assert held == runtime.length(0)
    following = [*slot.ids, 5]
    whole = slot.cuts.start_of_cut_after(-1, held)  # what fits the window is read whole
    expected = whole if len(following) <= engine.window.tokens else held
    assert whole_reply(engine, following).usage.cached_tokens == expected
    return reason


LAX = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_a_good_file_is_loaded(good: bytes, tmp_path: Path) -> None:
    assert load_bytes(good, tmp_path) is None
    assert load_bytes(signed(good), tmp_path) is None


@given(place=st.integers(0, 10**6), flip=st.integers(1, 255))
@LAX
def test_no_byte_can_be_altered_unnoticed(good: bytes, tmp_path: Path, place: int, flip: int) -> None:
    data = bytearray(good)
    data[place % len(data)] ^= flip
    assert load_bytes(bytes(data), tmp_path) in ("damaged", "version", "model", "window")


@given(length=st.integers(0, 10**6), more=st.binary(max_size=40))
@LAX
def test_a_file_that_was_cut_short_or_grew_is_refused(good: bytes, tmp_path: Path, length: int, more: bytes) -> None:
    changed = good[: length % (len(good) + 1)] + more
    for data in (changed, signed(changed)):
        assert (load_bytes(data, tmp_path) is None) == (data == good)


@given(
    fields=st.dictionaries(
        st.integers(0, 5), st.one_of(st.integers(0, 2**32 - 1), st.integers(0, 200)), min_size=1, max_size=3
    ),
    body=st.lists(st.tuples(st.integers(68, 400), st.integers(0, 255)), max_size=6),
)
@LAX
def test_counts_and_contents_that_somebody_signed_anew_are_still_not_trusted(
    good: bytes, tmp_path: Path, fields: dict[int, int], body: list[tuple[int, int]]
) -> None:
    data = bytearray(good)
    for field, value in fields.items():
        struct.pack_into("<I", data, 44 + 4 * field, value)
    for place, value in body:
        data[place % len(data)] = value
    load_bytes(signed(data), tmp_path)


@pytest.mark.parametrize(
    ("at", "values"),
    [
        ("cuts", (3, 3, 10, 20)),
        ("cuts", (5, 3, 6, 18)),
        ("cuts", (3, 10, 10, 13)),
        ("cuts", (10, 18, 3, 5)),
        ("cuts", (3, 5, 34, 42)),
        ("cuts", (3, 5, 10, 19)),
        ("cuts", (0, 2**32 - 1, 0, 10)),
        ("ids", (VOCAB,)),
        ("ids", (2**32 - 1,)),
        ("scales", (0x7FC00000,)),  # not a number
        ("scales", (0x7F800000,)),  # infinite
        ("scales", (0x7F7FFFFF,)),  # the largest float32, whose multiples are infinite
        ("scales", (0xBF800000,)),  # -1
    ],
)
def test_contents_that_make_no_sense_are_refused_though_they_are_signed(
    good: bytes, tmp_path: Path, at: str, values: tuple[int, ...]
) -> None:
    data = bytearray(good)
    place = {"ids": 68, "cuts": 68 + 4 * 40, "scales": 68 + 4 * 40 + 16}[at]
    struct.pack_into(f"<{len(values)}I", data, place, *values)
    engine, runtime = scripted_engine()
    (tmp_path / "kv").write_bytes(signed(data))
    with pytest.raises(CacheFileError) as caught:
        engine.load(tmp_path / "kv")
    assert caught.value.reason == "damaged"
    assert runtime.length(0) == engine.slots[0].length == 0


def test_a_file_that_shrinks_while_it_is_read_leaves_an_empty_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, runtime = scripted_engine(window=4000)
    path = tmp_path / "kv"
    whole_reply(engine, [8] * 3000)
    engine.save([8] * 3000, path)
    whole_reply(engine, [7] * 30)
    check = kv_files._check_digest

    def check_and_truncate(*arguments: object) -> None:
        check(*arguments)  # type: ignore[arg-type]
        os.truncate(path, path.stat().st_size - 70)

    monkeypatch.setattr(kv_files, "_check_digest", check_and_truncate)
    with pytest.raises(CacheFileError) as caught:
        engine.load(path)
    assert caught.value.reason == "damaged"
    assert engine.slots[0].length == runtime.length(0) == 0
    assert whole_reply(engine, [7] * 30).usage.cached_tokens == 0


def test_numbers_of_every_size_come_back(tmp_path: Path) -> None:
    spec = scripted_engine()[1].spec
    for largest in (0.0, 1e-45, 2e-43, 1e-30, 1.0, 1e30):
        x = np.linspace(-1, 1, 40, dtype=np.float32).reshape(1, 20, 2) * np.float32(largest)
        path = tmp_path / f"{largest}"
        write_kv(path, KEY, spec, list(range(20)), Cuts(), iter([(x, np.asfortranarray(x))]))
        with read_kv(path, KEY, spec, 20) as file:
            for found in next(file.layers):
                assert np.abs(found - x).max() <= largest / 250 + 2e-43


def test_what_is_no_number_makes_a_file_that_is_refused(tmp_path: Path) -> None:
    spec = scripted_engine()[1].spec
    for bad in (np.nan, np.inf, -np.inf):
        x = np.full((1, 20, 2), bad, np.float32)
        path = tmp_path / f"{bad}"
        write_kv(path, KEY, spec, list(range(20)), Cuts(), iter([(x, x)]))
        with pytest.raises(CacheFileError), read_kv(path, KEY, spec, 20) as file:
            list(file.layers)


def test_saving_while_others_stream_disturbs_none_and_every_file_is_sound(tmp_path: Path) -> None:
    package = tiny_package(tmp_path)
    backend.prepare(package)
    options = CacheOptions(slots=3, overflow="error")
    engine = Engine(backend.load(package, options, DeviceOptions(threads=2)), byte_tokenizer(), options, chunk_tokens=8)
    prompts = [list(b"The first prompt of two"), list(b"Another one, a little longer")]
    told = GenerationOptions(temperature=1, seed=3, max_tokens=60, top_k=0, top_p=1, min_p=0)
    expected = [whole_reply(engine, prompt, told).text for prompt in prompts]
    held = list(b"What is saved again and again, while the others are at work. " * 2)[:110]
    whole_reply(engine, held, replace(told, max_tokens=1))
    texts: dict[int, list[str]] = {0: [], 1: []}
    stop = threading.Event()

    def stream(number: int) -> None:
        while not stop.is_set():
            texts[number].append(whole_reply(engine, prompts[number], told).text)

    threads = [threading.Thread(target=stream, args=(number,)) for number in texts]
    for thread in threads:
        thread.start()
    try:
        for number in range(40):
            engine.save([*prompts[number % 2], 1] if number % 4 == 3 else held, tmp_path / f"kv{number}")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    for number, replies in texts.items():
        assert set(replies) == {expected[number]}
        assert len(replies) > 1
    sound = Engine(backend.load(package, options, DeviceOptions(threads=2)), byte_tokenizer(), options)
    for number in range(40):
        assert sound.load(tmp_path / f"kv{number}") >= 20
    engine.runtime.close()
    sound.runtime.close()


def test_saving_waits_for_a_step_and_not_for_a_reply(tmp_path: Path) -> None:
    class Slow(ScriptedRuntime):
        def forward(self, batch: Sequence[Chunk]) -> Logits:
            time.sleep(0.005)
            return super().forward(batch)

    runtime = Slow([97] * 10**6, vocab_size=VOCAB, end_id=END, context_tokens=10**5)
    engine = Engine(runtime, byte_tokenizer())
    with closing(engine.stream(Prompt([1] * 40), GenerationOptions(temperature=0, max_tokens=None))) as events:
        next(events)
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                next(events)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for _ in range(20):
                started = time.monotonic()
                engine.save([1] * 40, tmp_path / "kv")
                assert time.monotonic() - started < 2
                time.sleep(0.002)
        finally:
            stop.set()
            reader.join()


def test_whoever_streams_can_save_between_two_events(tmp_path: Path) -> None:
    engine, runtime = scripted_engine([97] * 100)
    with closing(engine.stream(Prompt([1, 2, 3]), GREEDY)) as events:
        for _ in range(5):
            next(events)
        engine.save([1, 2, 3, *[97] * 50], tmp_path / "kv")
    assert 5 <= scripted_engine()[0].load(tmp_path / "kv") <= len(runtime.held[0])


def test_a_closed_model_saves_and_loads_nothing(tmp_path: Path) -> None:
    engine, runtime = scripted_engine()
    whole_reply(engine, [7] * 40)
    engine.save([7] * 40, tmp_path / "kv")
    engine.slots[0].cut_back(0)
    whole_reply(engine, [8] * 40)
    runtime.close()
    with pytest.raises(BackendError):
        engine.save([8] * 40, tmp_path / "other")
    with pytest.raises(BackendError):
        engine.load(tmp_path / "kv")
    assert [path.name for path in tmp_path.iterdir()] == ["kv"]


FULL_DISK = """
import resource, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from onhand.decoding.engine import Engine
from onhand.decoding.window import Prompt
from onhand.errors import CacheFileError, StorageError
from onhand.testing import ScriptedRuntime
from support.scripted import GREEDY, byte_tokenizer
from support.tiny import END, VOCAB

engine = Engine(ScriptedRuntime([], vocab_size=VOCAB, end_id=END, context_tokens=9000), byte_tokenizer())
path = Path(sys.argv[1]) / "kv"
list(engine.stream(Prompt([7] * 8000), GREEDY))
engine.save([7] * 40, path)
before = path.read_bytes()
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
try:
    engine.save([7] * 8000, path)
except StorageError as error:
    assert not isinstance(error, CacheFileError)
    print(error)
assert path.read_bytes() == before
engine.save([7] * 50, path)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of a file's size")
def test_a_full_disk_is_a_storage_error_and_leaves_the_old_file(tmp_path: Path) -> None:
    paths = [path for path in sys.path if path]
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path), *paths, str(Path(__file__).parent.parent)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "cannot be written" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["kv"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions")
def test_a_folder_that_cannot_be_written_to_is_a_storage_error(tmp_path: Path) -> None:
    engine, _ = scripted_engine()
    whole_reply(engine, [7] * 40)
    for path in (tmp_path / "none" / "kv", Path("/proc/onhand"), tmp_path):
        with pytest.raises(StorageError):
            engine.save([7] * 40, path)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_opened_again_goes_on_from_a_chats_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONHAND_HOME", str(tmp_path / "home"))
    brief = GenerationOptions(temperature=0, max_tokens=6)
    with onhand.open(write_tiny(tmp_path / "tiny.gguf")) as model:
        chat = model.chat("Be brief.")
        chat.ask("Hello there", brief)
        chat.save_cache(str(tmp_path / "kv"))
        warm = chat.ask("Again", brief).usage
    with onhand.open("tiny") as model:
        assert model.load_cache(str(tmp_path / "kv")) == warm.cached_tokens
        messages = [*chat.messages[:-2], Message("user", "Again")]
        usage = reply_of(model._runtime.stream(messages, brief)).usage
        assert usage.cached_tokens == warm.cached_tokens > 30
    with (
        onhand.open(write_tiny(tmp_path / "other.gguf", seed=1)) as model,
        pytest.raises(onhand.CacheFileError) as caught,
    ):
        model.load_cache(tmp_path / "kv")
    assert caught.value.reason == "model"
    assert isinstance(caught.value, onhand.StorageError)
    assert isinstance(caught.value, ValueError)


def real_engine(name: str, context_tokens: int, graph: str = "decoder.onnx") -> Engine:
    package = real_package(name)
    with GgufFile.open(package.weights) as file:
        spec = read_spec(file)
    runtime = CpuRuntime(spec, artifact_folder(package) / graph, threads=2, context_tokens=context_tokens)
    return Engine(runtime, real_tokenizer(name), CacheOptions(overflow="error"))


@pytest.mark.real_model
@pytest.mark.parametrize("name", MODELS)
def test_a_real_model_hardly_notices_that_it_goes_on_from_a_file(name: str, tmp_path: Path) -> None:
    """In float32, where nothing else is rounded, so that what is measured is the file."""
    engine, ids = real_engine(name, 256, "exact.onnx"), prose_ids(name)
    whole_reply(engine, ids[:150], GenerationOptions(temperature=0, max_tokens=1))
    engine.save(ids[:150], tmp_path / "kv")
    assert (tmp_path / "kv").stat().st_size < 0.27 * engine.runtime.cache.bytes_per_token * 150
    warm = engine.runtime.forward([Chunk(slot=0, tokens=ids[150:], rows="all")]).copy()
    engine.slots[0].cut_back(0)
    engine.load(tmp_path / "kv")
    reopened = engine.runtime.forward([Chunk(slot=0, tokens=ids[150:], rows="all")])
    assert divergence(warm, reopened).mean() < 5e-4
    engine.runtime.close()


@pytest.mark.real_model
def test_a_real_reply_from_a_file_is_mostly_the_reply_that_would_have_come(tmp_path: Path) -> None:
    engine, options = real_engine("smollm2", 512), GenerationOptions(temperature=0, max_tokens=20)
    same = 0
    for length in (100, 150, 200, 250, 300):
        ids = prose_ids("smollm2", length)
        engine.slots[0].cut_back(0)
        whole_reply(engine, ids[:-8], GenerationOptions(temperature=0, max_tokens=1))
        engine.save(ids[:-8], tmp_path / "kv")
        warm = whole_reply(engine, ids, options)
        engine.slots[0].cut_back(0)
        engine.load(tmp_path / "kv")
        reopened = whole_reply(engine, ids, options)
        assert reopened.usage.cached_tokens == warm.usage.cached_tokens == length - 8
        same += warm.text == reopened.text
    assert same >= 3
    engine.runtime.close()
