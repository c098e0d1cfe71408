"""Tool calls in text: how the families of models write them, and how they are read, with much patience.

The dialects were read off the templates of the models, and off what such models are seen to write instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from onhand.prompts.literals import LiteralError, UnfinishedError, read_arguments, read_value
from onhand.types import ToolCall

Syntax = Literal["json", "named_json", "gemma", "xml"]
"""{"name": N, "arguments": {}}; N[ARGS]{}; call:N{k:v}; <function=N><parameter=k>v</parameter></function>."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a family of models writes a call.

    sign: stands in the templates of the family and in no earlier one's. opening, closing: around a call; empty where
    nothing is. listed: whether all the calls of a message stand in one array. arguments: the key of the arguments.
    """

    name: str
    sign: str
    syntax: Syntax = "json"
    opening: str = ""
    closing: str = ""
    listed: bool = False
    arguments: str = "arguments"
    response: str = ""

    def write(self, calls: Sequence[ToolCall]) -> str:
        """The calls as an assistant's text, for a template that knows no tools; as JSON."""
        objects = [
            json.dumps({"name": call.name, self.arguments: dict(call.arguments)}, ensure_ascii=False) for call in calls
        ]
        bodies = [f"[{', '.join(objects)}]"] if self.listed else objects
        return "\n".join(f"{self.opening}{self._gap}{body}{self._gap}{self.closing}" for body in bodies)

    @property
    def _gap(self) -> str:
        return "\n" if self.closing and not self.listed else ""


HERMES = Dialect(name="hermes", sign="<tool_call>", opening="<tool_call>", closing="</tool_call>")
"""What models are asked for whose templates know no tools: more have been trained on it than on any other."""

DIALECTS: Sequence[Dialect] = (
    Dialect(
        name="gemma4",
        sign="<|tool_call>",
        syntax="gemma",
        opening="<|tool_call>",
        closing="<tool_call|>",
        response="<|tool_response>",
    ),
    Dialect(
        name="functiongemma",
        sign="<start_function_call>",
        syntax="gemma",
        opening="<start_function_call>",
        closing="<end_function_call>",
        response="<start_function_response>",
    ),
    Dialect(name="mistral", sign="[ARGS]", syntax="named_json", opening="[TOOL_CALLS]"),
    Dialect(name="mistral-list", sign="[TOOL_CALLS]", opening="[TOOL_CALLS]", listed=True),
    Dialect(name="phi", sign="<|tool_call|>", opening="<|tool_call|>", closing="<|/tool_call|>", listed=True),
    Dialect(name="qwen-coder", sign="<function=", syntax="xml", opening="<tool_call>", closing="</tool_call>"),
    HERMES,
    Dialect(name="llama", sign="<|python_tag|>", opening="<|python_tag|>", arguments="parameters"),
    Dialect(name="llama", sign='"parameters":', opening="<|python_tag|>", arguments="parameters"),
    Dialect(name="smollm", sign="named SmolLM", opening="<tool_call>", closing="</tool_call>", listed=True),
)


def dialect_of(template: str) -> Dialect:
    """The dialect of a model, by its template."""
    return next((dialect for dialect in DIALECTS if dialect.sign in template), HERMES)


_BEGINS = re.compile(r"(?:call:)?[\w.\-]*\s*(?:\[[A-Z_]*\]?\s*[\w\-]*\s*)*")
_NAMED = re.compile(
    r"\s*(?:call:|\[TOOL_CALLS\])?\s*([\w.\-]+)\s*(?:\[CALL_ID\]\s*([\w\-]+)\s*)?(?:\[ARGS\]\s*)?(?=\{)"
)
_PYTHONIC = re.compile(r"\s*([A-Za-z_][\w.]*)\(")
_NAME_BEGINS = re.compile(r"(?:[A-Za-z_][\w.]*)?\s*\Z")
_XML_CALL = re.compile(r"\s*<function=([\w.\-]+)>(.*?)</function>", re.DOTALL)
_XML_ARGUMENT = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_BETWEEN = re.compile(r"[\s;,]*")
_NAME_KEYS = ("name", "function", "tool_name", "tool", "function_name")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input", "kwargs")


def read_calls(text: str, start: int = 0) -> tuple[list[ToolCall], int]:
    """The calls that stand in the text from `start` on, one after another, and where the last of them ends.

    At least one: raises UnfinishedError where the text ends within the first, LiteralError where there is none.
    """
    calls, end = _read_one(text, start)
    while True:
        between = _BETWEEN.match(text, end)
        assert between is not None
        try:
            more, end = _read_one(text, between.end())
        except LiteralError:
            return calls, end
        calls += more


def _read_one(text: str, start: int) -> tuple[list[ToolCall], int]:
    """One call, or an array of them."""
    rest = text[start:].lstrip()
    if not rest:
        raise UnfinishedError("no call yet")
    if rest.startswith("<function=") or "<function=".startswith(rest):
        return _read_xml(text, start)
    if found := _NAMED.match(text, start):
        arguments, end = read_value(text, found.end())
        return [ToolCall(found[1], arguments, found[2] or "")], end
    if found := _PYTHONIC.match(text, start):
        arguments, end = read_arguments(text, found.end())
        return [ToolCall(found[1], arguments)], end
    if rest[0] == "[" and _PYTHONIC.match(rest, 1):
        return _read_pythonic_list(text, text.index("[", start) + 1)
    if rest[0] in "{[":
        value, end = read_value(text, start)
        return _from_json(value), end
    if _BEGINS.fullmatch(rest):
        raise UnfinishedError("only the beginning of a call")
    raise LiteralError("no call")


def _read_pythonic_list(text: str, at: int) -> tuple[list[ToolCall], int]:
    calls: list[ToolCall] = []
    while found := _PYTHONIC.match(text, at):
        arguments, at = read_arguments(text, found.end())
        calls.append(ToolCall(found[1], arguments))
        between = _BETWEEN.match(text, at)
        assert between is not None
        at = between.end()
    if _NAME_BEGINS.match(text, at):
        raise UnfinishedError("the array has no end")
    if text[at] != "]":
        raise LiteralError("no call in an array of calls")
    return calls, at + 1


def _read_xml(text: str, start: int) -> tuple[list[ToolCall], int]:
    found = _XML_CALL.match(text, start)
    if found is None:
        raise UnfinishedError("</function> is missing")
    return [ToolCall(found[1], dict(_XML_ARGUMENT.findall(found[2])))], found.end()


def _from_json(value: Any) -> list[ToolCall]:
    objects = value if isinstance(value, list) else [value]
    calls = list(_calls_of(objects))
    if not calls:
        raise LiteralError("an empty array")
    return calls


def _calls_of(objects: Sequence[Any]) -> Iterator[ToolCall]:
    for one in objects:
        if not isinstance(one, Mapping):
            raise LiteralError("no object")
        inner = one.get("function")
        body = inner if isinstance(inner, Mapping) else one
        name = next((body[key] for key in _NAME_KEYS if isinstance(body.get(key), str)), None)
        if name is None:
            raise LiteralError("an object without a tool's name")
        arguments: Any = next((body[key] for key in _ARGUMENT_KEYS if key in body), {})
        if isinstance(arguments, str):
            arguments = read_value(arguments)[0] if arguments.strip() else {}
        if not isinstance(arguments, dict):
            raise LiteralError("arguments that are no object")
        id_ = one.get("id")
        yield ToolCall(name, arguments, id_ if isinstance(id_, str) else "")
