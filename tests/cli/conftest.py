"""What the tests of the command share."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

SCRIPT = """
    import os, sys, time
    from contextlib import contextmanager
    from onhand.chat import Chat
    from onhand.cli import flags, main, piped
    from onhand.errors import ContextOverflowError
    from onhand.options import GenerationOptions
    from onhand.types import DoneEvent, PrefillEvent, Reply, TextEvent, Usage

    piped.SILENCE_SECONDS = float(os.environ.get("TEST_SILENCE_SECONDS", piped.SILENCE_SECONDS))

    def reply(pieces, finish_reason="stop"):
        counts = dict(prompt_tokens=1, cached_tokens=0, completion_tokens=len(pieces))
        usage = Usage(**counts, prefill_seconds=0, decode_seconds=0)
        for piece in pieces:
            time.sleep(0.01)
            yield TextEvent(piece)
        yield DoneEvent(Reply(text="".join(pieces), finish_reason=finish_reason, usage=usage, seed=7))

    class Runtime:
        def stream(self, messages, options, cancel=None, tools=None):
            question = messages[-1].content
            if question == "long":
                yield from reply([f"word{n} " for n in range(3000)])
            elif question == "read":
                for done in range(0, 10_000, 10):
                    time.sleep(0.01)
                    yield PrefillEvent(done, 10_000)
            elif question == "escape":
                yield from reply(["\\x1b]0;owned\\x07", "end"])
            elif question == "full":
                raise ContextOverflowError(9000, 8192)
            elif question == "limit":
                yield from reply(["cut"], "length")
            elif question == "said?":
                yield from reply([f"heard {len(messages)}: {[m.content[:11] for m in messages]}"])
            else:
                yield from reply([f"you said {question}"])

        def close(self):
            pass

    class Model:
        name = "scripted"

        def chat(self, system=None, options=GenerationOptions()):
            return Chat(Runtime(), system, options)

        def complete(self, text, options):
            yield from reply([f"after {text}"])

    @contextmanager
    def opened(*_, **__):
        yield Model()

    flags.opened = opened
    main()
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home for onhand."""
    monkeypatch.setenv("ONHAND_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ONHAND_DEBUG", raising=False)
    return tmp_path / "home"


@pytest.fixture
def script(tmp_path: Path) -> list[str]:
    """The arguments to Python that run `onhand` with a scripted model."""
    path = tmp_path / "onhand_scripted.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return [str(path)]
