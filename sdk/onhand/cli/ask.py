"""`onhand ask`: one question, one answer."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from onhand.cli import flags
from onhand.cli.console import say_json
from onhand.cli.flags import DEFAULTS
from onhand.cli.piped import read_stdin
from onhand.cli.replies import joined, show_reply
from onhand.library.catalog import DEFAULT_MODEL
from onhand.options import CacheOptions, GenerationOptions


def ask(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help=f"A model's name or file.  [default: {DEFAULT_MODEL}]")
    ] = None,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="The question; - or nothing reads it from stdin.")
    ] = None,
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
    raw: Annotated[bool, typer.Option("--raw", help="Continue TEXT as it stands, without a chat template.")] = False,
    stdin: Annotated[
        bool | None,
        typer.Option(
            "--stdin/--no-stdin", help="Put stdin before TEXT, or leave it unread.  [default: a pipe or a file is read]"
        ),
    ] = None,
    json: flags.Json = False,
) -> None:
    """Ask one question. The answer is written as it comes. A single argument is the question.

    What is piped in goes before TEXT: onhand ask "Summarise this" < notes.txt
    """
    if text is None:
        model, text = None, model
    options = GenerationOptions(
        temperature=temperature,
        max_tokens=max_tokens,
        seed=seed,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
    )
    question = _question(text, stdin)
    cache = CacheOptions(context_tokens=context, kv_bits=kv_bits, overflow=overflow)
    with flags.opened(model or DEFAULT_MODEL, cache, threads=threads, oversize=oversize, draft=draft) as opened:
        stream = opened.complete(question, options) if raw else opened.chat(system, options).stream(question)
        if json:
            say_json({"model": opened.name} | asdict(joined(stream)))
        else:
            show_reply(stream)


def _question(text: str | None, stdin: bool | None) -> str:
    """What is asked: what is piped in, a blank line, the text; or one of them."""
    if text == "-":
        text, stdin = None, stdin is not False
    parts = [part for part in (read_stdin(stdin, beside_text=text is not None), text) if part and part.strip()]
    if not parts:
        raise typer.BadParameter("there is no question: give TEXT, or pipe it in")
    question = "\n\n".join([*(part.rstrip("\r\n") for part in parts[:-1]), parts[-1]])
    # An argument that is no text in this locale comes with lone surrogates, which no tokenizer takes.
    return question.encode("utf-8", "replace").decode("utf-8")
