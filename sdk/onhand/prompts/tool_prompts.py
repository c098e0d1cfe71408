"""Conversations with tools for a template: by what it has for them, or, where that loses anything, in words.

Whether a template shows the tools, the calls and what came of them is found out as everything is here: by a look at
what it makes of a known conversation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from onhand.errors import TemplateError, TemplateLimitError
from onhand.prompts.adapter import SEPARATOR, MessageAdapter, as_function, first_lost
from onhand.prompts.calls import Dialect, dialect_of
from onhand.types import Message, ToolCall, ToolSpec

_PROBED = ToolSpec(
    "probe_tool",
    "ProbeDescription",
    {
        "type": "object",
        "properties": {"probe_key": {"type": "string", "description": "ProbeMeaning"}},
        "required": ["probe_key"],
    },
)
_ASKS = Message("user", "ProbeQuestion")
_CALL = ToolCall("probe_tool", {"probe_key": "ProbeValue"}, "probe0001")
_OTHER = ToolCall("probe_tool", {"probe_key": "ProbeOther"}, "probe0002")
_ANSWER = Message("tool", "ProbeResult", tool_name="probe_tool", tool_call_id="probe0001")
_SECOND = Message("tool", "ProbeSecond", tool_name="probe_tool", tool_call_id="probe0002")
_CALLED = [_ASKS, Message("assistant", "", tool_calls=(_CALL,)), _ANSWER]
_WHOLE = [Message("system", "ProbeSystem"), *_CALLED, Message("assistant", "ProbeAnswer"), Message("user", "ProbeMore")]
_PARALLEL = [_ASKS, Message("assistant", "", tool_calls=(_CALL, _OTHER)), _ANSWER, _SECOND]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicy:
    """How a template is told of tools. str() says it in words.

    native: by what it has for them; else they are described in the system prompt, calls are text, and results are the
    user's. one_call: messages with several calls become several, since the template takes but one in each.
    """

    native: bool
    one_call: bool = False

    def __str__(self) -> str:
        if not self.native:
            return "tools described in the system prompt"
        return "tools by the template" + ("; one call a message" if self.one_call else "")


class ToolAdapter:
    """One template with tools. dialect: how its model writes calls. policy: what to show."""

    def __init__(self, adapter: MessageAdapter) -> None:
        """Look at the template once. Raises TemplateLimitError when it exceeds its limits even then."""
        self._adapter = adapter
        self.dialect: Dialect = dialect_of(adapter.source)
        native = all(self._shows(messages) for messages in (_CALLED, _WHOLE))
        self.policy = ToolPolicy(native=native)
        if native and not self._shows(_PARALLEL):
            self.policy = ToolPolicy(native=True, one_call=True)

    def render(self, messages: Sequence[Message], specs: Sequence[ToolSpec], add_generation_prompt: bool = True) -> str:
        """The prompt, with the tools, and every text, call and result in order.

        Raises TemplateError when the template refuses, or naming the message (counted from 0) that it drops.
        """
        if not self.policy.native:
            return self._adapter.render(described(messages, specs, self.dialect), add_generation_prompt)
        shaped = list(_one_by_one(messages)) if self.policy.one_call else messages
        text = self._adapter.written(shaped, add_generation_prompt, specs)
        lost = _first_lost(shaped, text)
        if lost is not None:
            raise TemplateError(f"with tools it has no place for a message ({shaped[lost].role}), or not in its order")
        missing = next((spec.name for spec in specs if spec.name not in text), None)
        if missing is not None:
            raise TemplateError(f"it does not show the tool {missing}")
        return text

    def _shows(self, messages: Sequence[Message]) -> bool:
        """Whether the template shows a probe's tool, calls and results, in order."""
        try:
            text = self._adapter.written(messages, True, [_PROBED])
        except TemplateLimitError:
            raise
        except TemplateError:
            return False
        asked = text.find(_ASKS.content)
        defined = "ProbeDescription" in text and "ProbeMeaning" in text
        calls = [call for message in messages for call in message.tool_calls]
        values = [text.find(str(call.arguments["probe_key"]), asked) for call in calls]
        results = [text.find(message.content, max(values)) for message in messages if message.role == "tool"]
        found = [*values, *results]
        return (
            defined
            and asked >= 0
            and min(found) >= 0
            and found == sorted(found)
            and _first_lost(messages, text) is None
        )


def described(messages: Sequence[Message], specs: Sequence[ToolSpec], dialect: Dialect) -> list[Message]:
    """The conversation in words: for a template that knows no tools."""
    system = list(messages[:1]) if messages and messages[0].role == "system" else []
    rest = messages[len(system) :]
    if specs:
        told = tool_text(specs, dialect)
        system = [Message("system", SEPARATOR.join([*(message.content for message in system), told]))]
    shaped = system
    for answers, run in groupby(rest, key=lambda message: message.role == "tool"):
        if answers:
            results = (f"<tool_response>\n{message.content}\n</tool_response>" for message in run)
            shaped.append(Message("user", "\n".join(results)))
        else:
            shaped += (_in_words(message, dialect) for message in run)
    return shaped


def _in_words(message: Message, dialect: Dialect) -> Message:
    """What was said, with the calls as text."""
    if not message.tool_calls:
        return message
    return Message("assistant", "\n".join(filter(None, [message.content, dialect.write(message.tool_calls)])))


def tool_text(specs: Sequence[ToolSpec], dialect: Dialect) -> str:
    """What the system prompt says of the tools."""
    example = dialect.write([ToolCall("NAME", {"ARGUMENT": "VALUE"})])
    functions = "\n".join(json.dumps(as_function(spec), ensure_ascii=False) for spec in specs)
    return (
        f"You can call these functions, given as JSON, one a line:\n<tools>\n{functions}\n</tools>\n"
        f"To call one, answer with its name and its arguments like this, and with nothing else:\n{example}\n"
        "What it says comes back to you between <tool_response> and </tool_response>. Call a function only where you "
        "need it; else answer in words."
    )


def _one_by_one(messages: Sequence[Message]) -> Iterator[Message]:
    """Each call in a message of its own, followed by its result: results stand in the order of the calls."""
    waiting: list[Message] = []  # calls whose turn it is when the one before has its result
    for message in messages:
        if message.role != "tool":
            yield from waiting
            first, *waiting = _split(message)
            yield first
        else:
            yield message
            if waiting:
                yield waiting.pop(0)
    yield from waiting


def _split(message: Message) -> list[Message]:
    if len(message.tool_calls) < 2:
        return [message]
    first, *others = message.tool_calls
    return [replace(message, tool_calls=(first,)), *(Message("assistant", "", tool_calls=(call,)) for call in others)]


def _first_lost(messages: Sequence[Message], text: str) -> int | None:
    """The index of the first message that the prompt does not show. Text beside calls is left out by many templates."""
    seen: list[Message] = []
    origins: list[int] = []
    for index, message in enumerate(messages):
        parts = [replace(message, content=call.name) for call in message.tool_calls] or [message]
        seen += parts
        origins += [index] * len(parts)
    lost = first_lost(seen, text)
    return None if lost is None else origins[lost]
