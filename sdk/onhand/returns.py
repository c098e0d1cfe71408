"""Typed replies: a Python type, a JSON schema or a grammar, and what a reply that follows it means.

Imported when it is used: pydantic takes a while to load.
"""

from __future__ import annotations

import json
import sys
import typing
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, fields
from types import FunctionType
from typing import Any, Generic, TypeVar

import pydantic
import pydantic_core

from onhand.errors import GrammarError, OptionError, ReplyValueError
from onhand.grammar import Grammar
from onhand.types import DoneEvent, Event, PartialEvent, Reply, TextEvent, TypedReply

T = TypeVar("T")

MAX_INTEGER = 2**53 - 1
"""Of an integer that its type does not bound: what JSON carries exactly everywhere (RFC 8259)."""

BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}


@dataclass(frozen=True, slots=True)
class Returns(Generic[T]):
    """What a reply is to be. grammar: what holds it to that. parse: its text to the value; raises ValueError.

    description: what tells the model so, behind the question; empty where the grammar alone does. partial: whether a
    part of it is JSON, too.
    """

    grammar: Grammar
    parse: Callable[[str], T]
    description: str
    partial: bool

    @classmethod
    def of(cls, wanted: Any) -> Returns[Any]:
        """From a type that pydantic knows, a JSON schema as a dict, or a Grammar.

        Raises OptionError for what is neither, GrammarError for a type that has no JSON schema.
        """
        if isinstance(wanted, Grammar):
            return Returns(wanted, _parser(wanted), "", wanted.kind == "json_schema")
        if isinstance(wanted, Mapping):
            grammar = Grammar.json_schema(wanted)
            return Returns(grammar, json.loads, _description(grammar), True)
        adapter = _adapter(wanted)
        try:
            schema = adapter.json_schema()
        except pydantic.PydanticUserError as error:
            raise GrammarError("json_schema", f"{wanted!r} has no JSON schema: {error.message}") from error
        grammar = Grammar.json_schema(_closed(schema))
        return Returns(grammar, adapter.validate_json, _description(grammar), True)

    def typed(self, events: Generator[Event, None, None]) -> Generator[Event, None, None]:
        """The events with, after each piece of text, what is there of the value; the last one's reply has the value."""
        text, before = "", None
        try:
            for event in events:
                if isinstance(event, DoneEvent):
                    yield DoneEvent(self.reply(event.reply))
                    continue
                yield event
                if isinstance(event, TextEvent) and self.partial:
                    text += event.text
                    found = partial_json(text)
                    if found is not None and found != before:
                        before = found
                        yield PartialEvent(found)
        finally:
            events.close()

    def reply(self, reply: Reply) -> TypedReply[T]:
        """The reply with its value, or with what is wrong with it."""
        outcome: T | ReplyValueError
        try:
            outcome = self.parse(reply.text)
        except pydantic.ValidationError as error:
            outcome = ReplyValueError(reply.text, reply.finish_reason, _problems(error))
        except ValueError:
            outcome = ReplyValueError(reply.text, reply.finish_reason, "it is no JSON")
        cut = "a stop string" if reply.stop_string is not None else reply.finish_reason
        if cut != "stop":  # what there is may look whole by chance
            outcome = ReplyValueError(reply.text, reply.finish_reason, f"it was cut short by {cut}")
        return TypedReply(**{field.name: getattr(reply, field.name) for field in fields(Reply)}, outcome=outcome)


def partial_json(text: str) -> Any:
    """What the beginning of a JSON text holds already, an unfinished string included; None for nothing yet."""
    try:
        return pydantic_core.from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return None


def _parser(grammar: Grammar) -> Callable[[str], Any]:
    return json.loads if grammar.kind == "json_schema" else str


def _description(grammar: Grammar) -> str:
    return f"Answer with JSON that matches this schema, and with nothing else: {grammar.text}"


def _adapter(wanted: Any) -> pydantic.TypeAdapter[Any]:
    if wanted is None or isinstance(wanted, str | bytes | int | float | list | tuple | set | FunctionType):
        raise OptionError("returns", wanted, "a type, a JSON schema as a dict, or onhand.Grammar")
    if sys.version_info < (3, 12) and typing.is_typeddict(wanted):
        wanted = _typed_dict(wanted)
    try:
        return pydantic.TypeAdapter(wanted)
    except (pydantic.PydanticUserError, pydantic_core.SchemaError) as error:
        problem = " ".join(str(error).split())[:200]
        raise OptionError("returns", wanted, f"a type that pydantic knows ({problem})") from error


def _typed_dict(wanted: Any) -> Any:
    """The same in the form that pydantic takes before Python 3.12."""
    import typing_extensions

    hints = typing.get_type_hints(wanted, include_extras=True)
    keys = {
        name: hint if name in wanted.__required_keys__ else typing_extensions.NotRequired[hint]
        for name, hint in hints.items()
    }
    make: Any = typing_extensions.TypedDict
    made = make(wanted.__name__, keys)
    made.__doc__ = wanted.__doc__
    return made


def _closed(schema: Any) -> Any:
    """The schema of a type, its objects without properties but their own and its integers with an end.

    Models like to make properties up, and to go on with digits for ever. A tagged union's members exclude each other
    by their tag, so any of them is one of them.
    """
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    named = {"properties", "$defs"}  # there the keys are names and not keywords
    kept = {"enum", "const", "default", "examples"}  # and these are values
    closed = {
        key: {name: _closed(part) for name, part in value.items()}
        if key in named
        else value
        if key in kept
        else _closed(value)
        for key, value in schema.items()
    }
    if "discriminator" in closed and "oneOf" in closed:
        closed["anyOf"] = closed.pop("oneOf")
        del closed["discriminator"]
    if closed.get("type") == "object" and "properties" in closed:
        closed.setdefault("additionalProperties", False)
    if closed.get("type") == "integer" and not BOUNDS & closed.keys():
        closed |= {"minimum": -MAX_INTEGER, "maximum": MAX_INTEGER}
    return closed


def _problems(error: pydantic.ValidationError) -> str:
    """What is wrong and where, without what was said: that belongs in no log."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, detail['loc'])) or 'it'}: {detail['msg']}" for detail in details[:5])
