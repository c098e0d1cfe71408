"""Opening models: by name, by path, with and without a template, twice."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import onhand
from support.scripted import reply_of
from support.tiny import TOKENS, write_tiny

BRIEF = onhand.GenerationOptions(temperature=0, max_tokens=6)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("ONHAND_HOME", str(folder))
    return folder


def test_a_file_is_opened_by_its_path_and_then_by_its_name(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    with onhand.open(path) as model:
        first = reply_of(model.chat().stream("Hello", BRIEF))
        assert (model.name, model.backend) == ("tiny", "cpu")
        assert model.spec.architecture == "llama"
    with onhand.open("tiny") as model:
        assert model.chat().ask("Hello", BRIEF).text == first.text


def test_two_conversations_of_one_model_do_not_disturb_each_other(tmp_path: Path) -> None:
    with onhand.open(write_tiny(tmp_path / "tiny.gguf")) as model:
        alone = model.chat()
        expected = [alone.ask(text, BRIEF).text for text in ("one", "two")]
        first, second = model.chat(), model.chat("Be brief.")
        found = []
        for text in ("one", "two"):
            found.append(first.ask(text, BRIEF).text)
            second.ask(f"other {text}", BRIEF)
    assert found == expected


def test_the_second_turn_reuses_the_first(tmp_path: Path) -> None:
    with onhand.open(write_tiny(tmp_path / "tiny.gguf")) as model:
        chat = model.chat()
        first = chat.ask("Hello", BRIEF).usage
        second = chat.ask("Again", BRIEF).usage
    assert first.cached_tokens == 0
    assert second.cached_tokens >= first.prompt_tokens


def test_a_draft_model_changes_no_reply_and_must_number_its_tokens_alike(tmp_path: Path) -> None:
    large, small = write_tiny(tmp_path / "large.gguf"), write_tiny(tmp_path / "small.gguf", seed=1)
    swapped = [TOKENS[1], TOKENS[0], *TOKENS[2:], "ab"]
    other = write_tiny(tmp_path / "other.gguf", extra={"tokenizer.ggml.tokens": swapped})
    with onhand.open(large) as model:
        expected = model.chat().ask("Hello", BRIEF).text
    with onhand.open(large, draft=small) as model:
        assert model.chat().ask("Hello", BRIEF).text == expected
    with pytest.raises(onhand.OptionError, match="same tokenizer"):
        onhand.open(large, draft=other)


def test_a_base_model_completes_text_and_refuses_to_chat(tmp_path: Path) -> None:
    with onhand.open(write_tiny(tmp_path / "base.gguf", template=None)) as model:
        assert reply_of(model.complete("Once upon", BRIEF)).usage.prompt_tokens == len("Once upon")
        with pytest.raises(onhand.TemplateError, match="base model"):
            model.chat()


def test_a_template_that_does_not_compile_disables_chat_alone(tmp_path: Path) -> None:
    """BR-11, BR-14: it says so, and no other template takes its place."""
    with onhand.open(write_tiny(tmp_path / "broken.gguf", template="{% if %}")) as model:
        assert reply_of(model.complete("Once upon", BRIEF)).usage.completion_tokens > 0
        with pytest.raises(onhand.TemplateError):
            model.chat().ask("Hello")


@pytest.mark.parametrize(("add_bos", "tokens"), [(True, 4), (False, 3)])
def test_a_raw_completion_gets_the_bos_that_the_tokenizer_asks_for(add_bos: bool, tokens: int, tmp_path: Path) -> None:
    """BR-10."""
    extra = {"tokenizer.ggml.add_bos_token": add_bos}
    with onhand.open(write_tiny(tmp_path / "tiny.gguf", extra=extra)) as model:
        assert reply_of(model.complete("xyz", BRIEF)).usage.prompt_tokens == tokens


def test_a_context_longer_than_the_model_was_trained_for_is_refused(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    with pytest.raises(onhand.OptionError, match="at most 128"):
        onhand.open(path, cache=onhand.CacheOptions(context_tokens=129))


def test_a_device_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    with pytest.raises(onhand.OptionError, match="auto or one of cpu"):
        onhand.open(path, device="npu")


def test_a_name_that_is_not_here_says_what_to_run() -> None:
    with pytest.raises(onhand.ModelNotFoundError, match="onhand pull smollm2-135m"):
        onhand.open("smollm2-135m")


def test_a_damaged_saved_tokenizer_is_made_again(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    with onhand.open(path) as model:
        expected = model.chat().ask("Hello", BRIEF).text
        saved = next(model.package.folder.glob("tokenizer-*.npz"))
    saved.write_bytes(saved.read_bytes()[:-30])
    with onhand.open("tiny") as model:
        assert model.chat().ask("Hello", BRIEF).text == expected


def test_threads_that_open_a_new_model_at_once_all_get_it(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    onhand.open(path).close()
    for folder in (tmp_path / "home/models/tiny").iterdir():
        if folder.name == "cpu":
            shutil.rmtree(folder)
        elif folder.suffix == ".npz":
            folder.unlink()

    def answer(_: int) -> str:
        with onhand.open("tiny") as model:
            return model.chat().ask("Hello", BRIEF).text

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(answer, range(4)))) == 1


def test_weights_that_were_edited_in_place_are_noticed(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    onhand.open(path).close()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    with path.open("rb+") as file:
        file.write(data)
    with pytest.raises(onhand.ModelFormatError, match="was changed"):
        onhand.open("tiny")


def test_weights_that_were_only_touched_are_accepted(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    onhand.open(path).close()
    os.utime(path, ns=(1, 1))
    onhand.open("tiny").close()


@pytest.mark.parametrize("wrong", [None, b"bytes", 5])
def test_what_is_no_text_is_a_typed_error(wrong: object, tmp_path: Path) -> None:
    with pytest.raises(onhand.OptionError):
        onhand.open(wrong)  # type: ignore[arg-type]
    with onhand.open(write_tiny(tmp_path / "tiny.gguf")) as model, pytest.raises(onhand.OptionError):
        model.chat().ask(wrong)  # type: ignore[call-overload]
    with onhand.open(tmp_path / "tiny.gguf") as model, pytest.raises(onhand.OptionError):
        list(model.complete(wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"max_tokens": 3}, 5, onhand.DeviceOptions(), "fast"])
def test_what_are_no_settings_is_a_typed_error(wrong: object, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    with pytest.raises(onhand.OptionError, match=r"onhand\.CacheOptions"):
        onhand.open(path, cache=wrong)  # type: ignore[arg-type]
    with onhand.open(path) as model:
        asked: list[Callable[[], object]] = [
            lambda: model.chat(options=wrong),  # type: ignore[arg-type]
            lambda: model.chat().ask("Hello", wrong),  # type: ignore[call-overload]
            lambda: list(model.complete("Hello", wrong)),  # type: ignore[arg-type]
        ]
        for ask in asked:
            with pytest.raises(onhand.OptionError, match=r"options is .*onhand\.GenerationOptions"):
                ask()


def test_closing_a_model_ends_the_replies_in_progress_after_their_step(tmp_path: Path) -> None:
    with onhand.open(write_tiny(tmp_path / "tiny.gguf"), cache=onhand.CacheOptions(slots=2)) as model:
        endless = onhand.GenerationOptions(temperature=0, max_tokens=None, deadline_seconds=60)
        with ThreadPoolExecutor(3) as pool:
            replies = [pool.submit(model.chat(options=endless).ask, "Hello" * count) for count in (1, 2, 3)]
            time.sleep(0.2)
            model.close()
            for reply in replies:
                with pytest.raises(onhand.BackendError, match="the model was closed"):
                    reply.result(timeout=10)


def test_a_closed_model_refuses_and_closes_again(tmp_path: Path) -> None:
    model = onhand.open(write_tiny(tmp_path / "tiny.gguf"))
    chat = model.chat()
    chat.ask("Hello", BRIEF)
    model.close()
    model.close()
    with pytest.raises(onhand.BackendError, match="closed"):
        chat.ask("Hello")
