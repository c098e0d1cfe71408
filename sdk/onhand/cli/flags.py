"""The arguments and options that commands share, and what they are turned into."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from onhand.cli.console import progress_bars
from onhand.options import CacheOptions, DeviceOptions, GenerationOptions
from onhand.options import Overflow as OverflowName

if TYPE_CHECKING:
    from onhand.model import Model

DEFAULTS = GenerationOptions()

System = Annotated[str | None, typer.Option("--system", "-s", help="What the model is told before the conversation.")]
Temperature = Annotated[float, typer.Option(help="0 always takes the likeliest token.")]
MaxTokens = Annotated[int | None, typer.Option(help="Most tokens in a reply.")]
Seed = Annotated[int | None, typer.Option(help="Repeats a reply.  [default: a new one each time]")]
TopK = Annotated[int, typer.Option(help="Choose among this many of the likeliest tokens; 0 among all.")]
TopP = Annotated[float, typer.Option(help="Choose among the likeliest tokens up to this total probability.")]
MinP = Annotated[float, typer.Option(help="Choose among tokens at least this fraction as likely as the likeliest.")]
RepetitionPenalty = Annotated[float, typer.Option(help="Above 1 makes recent tokens less likely: 1.1 ends loops.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads.  [default: physical cores]")]
Context = Annotated[
    int | None, typer.Option(help="The window: tokens that the model sees at a time.  [default: the model's]")
]
KvBits = Annotated[
    Literal[8, 32],
    typer.Option(help="Bits of each number that is kept of the window; 8 takes a quarter of its memory."),
]
Overflow = Annotated[
    OverflowName, typer.Option(help="When the window is full: drop the oldest turns, read the rest anew, or refuse.")
]
Draft = Annotated[
    str | None, typer.Option(metavar="MODEL", help="A smaller model of the same tokenizer that guesses ahead.")
]
Oversize = Annotated[bool, typer.Option("--oversize", help="Load the model even if it does not fit the free memory.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextmanager
def opened(
    name_or_path: str, cache: CacheOptions, *, threads: int | None, oversize: bool, draft: str | None = None
) -> Iterator[Model]:
    """A model, opened behind a progress bar, closed when the block ends."""
    from onhand.model import open as open_model  # not above: it takes numpy and the tokenizers

    device = DeviceOptions(threads=threads, oversize="load" if oversize else "refuse")
    with progress_bars() as progress:
        model = open_model(name_or_path, draft=draft, device=device, cache=cache, progress=progress)
    with model:
        yield model
