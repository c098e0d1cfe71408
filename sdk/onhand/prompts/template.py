"""A chat template: Jinja source from a model, and the text that it makes of messages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import jinja2

from onhand.errors import TemplateError, TemplateLimitError
from onhand.prompts.meter import Meter, with_meter
from onhand.prompts.sandbox import Sandbox
from onhand.types import Message

MAX_SOURCE_CHARS = 64 * 1024
"""The longest template that is compiled. The longest of 786 real ones has 45,602 characters."""

MAX_PROBLEM_CHARS = 400

_CANNOT_COMPILE = (jinja2.TemplateError, SyntaxError, ValueError, OverflowError)
# What foreign template code can run into: it computes with whatever it finds in the messages.
_CANNOT_RENDER = (
    *(jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError),
    *(AssertionError, RuntimeError),
)


class ChatTemplate:
    """A compiled template. Rendering keeps no state: any number of threads may share one.

    source: the Jinja text. bos, eos: the texts of those tokens, "" where the model has none.
    clock: what `strftime_now` reads. extra: more variables, such as {"enable_thinking": False}; plain JSON values.
    Raises TemplateError when it cannot be compiled. That disables chat and nothing else: the caller decides how the
    model goes on without one. No other template ever takes its place.
    """

    def __init__(
        self,
        source: str,
        *,
        bos: str = "",
        eos: str = "",
        clock: Callable[[], datetime] = datetime.now,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        self.source = source
        self.sha256 = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()
        """The hash of the source, in hex: what is shown when a model is imported."""
        self._variables: dict[str, object] = {
            "tools": None,
            "documents": None,
            "bos_token": bos,
            "eos_token": eos,
            **(extra or {}),
        }
        if len(source) > MAX_SOURCE_CHARS:
            raise TemplateLimitError(f"it has {len(source)} characters; at most {MAX_SOURCE_CHARS} are read")
        try:
            self._template = Sandbox(clock).load(source)
        except TemplateError:
            raise
        except (RecursionError, MemoryError) as error:
            raise TemplateLimitError("it is nested too deeply to be compiled") from error
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"line {error.lineno}: {one_line(error.message or 'it does not compile')}") from error
        except _CANNOT_COMPILE as error:
            raise TemplateError(f"it does not compile: {one_line(str(error))}") from error

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The prompt for these messages, as transformers' apply_chat_template writes it.

        add_generation_prompt: end with what opens the assistant's turn.
        Raises TemplateError with the template's own words when it refuses them, TemplateLimitError when it takes more
        work than they call for.
        """
        return self.render_plain(
            [{"role": message.role, "content": message.content} for message in messages], add_generation_prompt
        )

    def render_plain(
        self,
        messages: list[dict[str, object]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] = (),
    ) -> str:
        """The same for messages and tools that already have the form that the template sees."""
        given = self._variables | ({"tools": list(tools)} if tools else {})
        variables = {**given, "messages": messages, "add_generation_prompt": add_generation_prompt}
        meter = Meter(messages, given)
        context = self._template.new_context(with_meter(variables, meter))
        try:
            return "".join(self._template.root_render_func(context))
        except TemplateError:
            raise
        except (RecursionError, MemoryError) as error:
            raise TemplateLimitError("it calls itself without end") from error
        except _CANNOT_RENDER as error:
            raise TemplateError(one_line(str(error)) or type(error).__name__) from error


def one_line(text: str) -> str:
    """Foreign text made fit for an error message: one line, printable, not too long."""
    line = "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))
    return line if len(line) <= MAX_PROBLEM_CHARS else line[: MAX_PROBLEM_CHARS - 3] + "..."
