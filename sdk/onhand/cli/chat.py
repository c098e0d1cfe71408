"""`onhand chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from onhand.cli import flags
from onhand.cli.console import complain, escapes_allowed, note
from onhand.cli.flags import DEFAULTS
from onhand.cli.replies import InterruptNotes, show_reply
from onhand.errors import OnhandError, StorageError
from onhand.library.catalog import DEFAULT_MODEL
from onhand.options import CacheOptions, GenerationOptions

if TYPE_CHECKING:
    from onhand.chat import Chat

HELP = "/help shows this · /reset begins anew · /quit or Ctrl-D leaves · Ctrl-C stops a reply"


def chat(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model's name or file.")] = DEFAULT_MODEL,
    system: flags.System = None,
    temperature: flags.Temperature = DEFAULTS.temperature,
    max_tokens: flags.MaxTokens = DEFAULTS.max_tokens,
    seed: flags.Seed = DEFAULTS.seed,
    top_k: flags.TopK = DEFAULTS.top_k,
    top_p: flags.TopP = DEFAULTS.top_p,
    min_p: flags.MinP = DEFAULTS.min_p,
    repetition_penalty: flags.RepetitionPenalty = DEFAULTS.repetition_penalty,
    threads: flags.Threads = None,
    context: flags.Context = None,
    kv_bits: flags.KvBits = 32,
    overflow: flags.Overflow = "slide",
    draft: flags.Draft = None,
    oversize: flags.Oversize = False,
) -> None:
    """Chat in the terminal. When stdin is piped, each of its lines is a question."""
    options = GenerationOptions(
        temperature=temperature,
        max_tokens=max_tokens,
        seed=seed,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
    )
    cache = CacheOptions(context_tokens=context, kv_bits=kv_bits, overflow=overflow)
    with flags.opened(model, cache, threads=threads, oversize=oversize, draft=draft) as opened:
        if sys.stdin.isatty() and sys.stdout.isatty():
            note(f"{opened.name} · {HELP}")
            _converse(lambda: opened.chat(system=system, options=options))
        else:
            piped = opened.chat(system=system, options=options)
            for question in filter(None, map(str.strip, sys.stdin)):
                show_reply(piped.stream(question))


def _converse(begin: Callable[[], Chat]) -> None:
    """Talk with the person at the terminal until they leave. begin: starts an empty conversation."""
    with suppress(ImportError):
        import readline  # input() then edits lines and remembers them, in memory alone

        if escapes_allowed():
            # What is pasted is one question, however many lines it has.
            readline.parse_and_bind("set enable-bracketed-paste on")
    chat = begin()
    for question in _questions():
        if question == "/help":
            note(HELP)
        elif question == "/reset":
            chat = begin()
            note("a new conversation")
        elif question.startswith("/") and question[1:].isalpha():
            note(f"there is no command {question} · {HELP}")
        else:
            _answer(chat, question)


def _answer(chat: Chat, question: str) -> None:
    unseen = len(chat.unseen)
    try:
        with InterruptNotes() as interrupts:
            show_reply(chat.stream(question), stop=lambda: interrupts.noted)
        if len(chat.unseen) > unseen:
            note(f"(the window slid: the model no longer sees {len(chat.unseen)} of {len(chat.messages)} messages)")
    except StorageError:
        raise  # the terminal has gone
    except OnhandError as error:
        complain(str(error))  # the conversation is as it was before the question
        note("/reset begins anew")


def _questions() -> Iterator[str]:
    """What is typed, line by line, until /quit, Ctrl-D, or a second Ctrl-C in a row."""
    interrupted = False
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            note("")
            return
        except KeyboardInterrupt:
            note("")
            if interrupted:
                return
            interrupted = True
            note("Ctrl-C once more leaves")
            continue
        interrupted = False
        if line == "/quit":
            return
        if line:
            yield line
