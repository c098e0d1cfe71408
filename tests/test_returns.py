"""Typed replies: of every kind of type, whole or not at all, and piece by piece."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import json
import typing
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal, Optional, TypedDict

import jsonschema
import pydantic
import pytest

from onhand.chat import Chat
from onhand.decoding.constraints import Grammars
from onhand.errors import GrammarError, OptionError, ReplyValueError
from onhand.grammar import Grammar
from onhand.returns import Returns, partial_json
from onhand.types import DoneEvent, Event, Message, PartialEvent, Reply, TypedReply, Usage
from support.constrained import babble
from support.listening import Listening
from support.scripted import GREEDY, byte_tokenizer, said

TOKENIZER = byte_tokenizer()
GRAMMARS = Grammars(TOKENIZER)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class City:
    name: str
    population: int
    colour: Colour = Colour.RED


class Country(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    founded: Annotated[int, pydantic.Field(ge=-3000, le=2100)] | None
    cities: list[City] = pydantic.Field(max_length=2)


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    good: bool


class Tree(pydantic.BaseModel):
    value: int
    children: list[Tree] = pydantic.Field(max_length=2)


class Trip(TypedDict, total=False):
    days: int
    to: typing.Required[str]


Pet = Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]

TYPES: list[Any] = [
    City,
    Country,
    Pet,
    Tree,
    Trip,
    Colour,
    Literal["yes", "no", 7],
    Optional[City],  # noqa: UP045  # as many still write it
    City | str | None,
    list[City],
    dict[str, bool],
    tuple[int, str],
    str,
    int,
    float,
    bool,
    Annotated[str, pydantic.Field(pattern=r"^[a-z]{3}$")],
]


def done(text: str, finish_reason: Any = "stop", stop_string: str | None = None) -> Reply:
    usage = Usage(prompt_tokens=1, cached_tokens=0, completion_tokens=1, prefill_seconds=0, decode_seconds=0)
    return Reply(text=text, finish_reason=finish_reason, usage=usage, seed=0, stop_string=stop_string)


@pytest.mark.parametrize("wanted", TYPES, ids=str)
def test_whatever_a_model_says_in_a_types_grammar_is_a_value_of_that_type(wanted: Any) -> None:
    returns = Returns.of(wanted)
    again = pydantic.TypeAdapter(wanted if wanted is not Trip else dict[str, Any])
    for seed in range(20):
        text = babble(GRAMMARS.constraint(returns.grammar), TOKENIZER, seed, free_tokens=60)
        value = returns.reply(done(text)).value
        assert json.loads(again.dump_json(value)) == json.loads(again.dump_json(again.validate_json(text)))


def test_the_value_has_the_type_itself() -> None:
    assert Returns.of(City).reply(done('{"name": "Rome", "population": 3, "colour": "blue"}')).value == City(
        "Rome", 3, Colour.BLUE
    )
    assert Returns.of(Trip).reply(done('{"to": "Rome"}')).value == {"to": "Rome"}
    assert Returns.of({"type": "integer"}).reply(done("5")).value == 5
    assert Returns.of(Grammar.regex(r"\d+")).reply(done("5")).value == "5"


@pytest.mark.parametrize("wrong", [5, "int", b"", [int], {1, 2}, 1.5, print, lambda: 0, object(), ...])
def test_what_is_no_type_is_refused(wrong: Any) -> None:
    with pytest.raises(OptionError, match="returns is"):
        Returns.of(wrong)


@pytest.mark.parametrize(("wanted", "problem"), [(set[int], "uniqueItems"), ({"not": {}}, "not")])
def test_what_no_grammar_can_hold_to_is_refused_before_anything_is_asked(wanted: Any, problem: str) -> None:
    runtime = Listening([])
    with pytest.raises(GrammarError, match=problem):
        Chat(runtime, None, GREEDY).ask("x?", returns=wanted)
    assert not runtime.completion.runtime.length(0)


def test_a_type_that_json_cannot_say_is_refused() -> None:
    class Model(pydantic.BaseModel, arbitrary_types_allowed=True):
        of: Listening

    with pytest.raises(GrammarError, match="no JSON schema"):
        Returns.of(Model)


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (done('{"name": "Ro', "length"), "cut short by length; allow it more max_tokens"),
        (done('{"name": "Rome", "population": 3}', "cancelled"), "cut short by cancelled"),
        (done('{"name": "Rome"', stop_string="}"), "a stop string"),
        (done("Rome"), "Invalid JSON"),
        (done('{"name": "Rome", "population": "many"}'), "population: Input should be a valid integer"),
    ],
)
def test_a_reply_without_a_value_says_why_and_keeps_its_text(reply: Reply, problem: str) -> None:
    typed = Returns.of(City).reply(reply)
    assert typed.text == reply.text
    with pytest.raises(ReplyValueError, match=problem) as raised:
        _ = typed.value
    assert raised.value.text == reply.text
    assert "Rome" not in str(raised.value)  # what was said stays out of messages, which are logged


def test_a_day_that_does_not_exist_is_no_date() -> None:
    """A grammar knows how dates are written, and not which years have a 29th of February."""
    assert Returns.of(datetime.date).reply(done('"2024-02-29"')).value == datetime.date(2024, 2, 29)
    with pytest.raises(ReplyValueError, match="day value"):
        _ = Returns.of(datetime.date).reply(done('"2023-02-29"')).value


def test_a_validator_of_the_type_itself_has_the_last_word() -> None:
    class Even(pydantic.BaseModel):
        number: int

        @pydantic.field_validator("number")
        @classmethod
        def check(cls, number: int) -> int:
            if number % 2:
                raise ValueError("must be even")
            return number

    assert Returns.of(Even).reply(done('{"number": 4}')).value == Even(number=4)
    with pytest.raises(ReplyValueError, match="number: Value error, must be even"):
        _ = Returns.of(Even).reply(done('{"number": 5}')).value


ROME = '{"name": "Rome", "population": 3}'


def scripted_chat(*texts: str) -> tuple[Chat, Listening]:
    """Of a value the end is not asked for: where it is whole, nothing else can follow."""
    runtime = Listening([token for text in texts for token in said(text)[: -1 if text.endswith("}") else None]])
    return Chat(runtime, "Be brief.", GREEDY), runtime


def test_ask_gives_a_value_and_the_transcript_what_was_said() -> None:
    chat, runtime = scripted_chat(ROME, "Yes.")
    reply = chat.ask("Which city?", returns=City)
    assert reply.value == City("Rome", 3)
    assert chat.messages[1:] == (Message("user", "Which city?"), Message("assistant", ROME))
    told = runtime.asked[0][-1].content
    assert told.startswith("Which city?\n\nAnswer with JSON that matches this schema")
    schema = json.loads(told[told.index("{") :])
    jsonschema.Draft202012Validator.check_schema(schema)
    assert chat.ask("Sure?").text == "Yes."
    assert runtime.asked[1][1].content == "Which city?"


def test_the_value_is_seen_growing() -> None:
    chat, _ = scripted_chat(ROME)
    events = list(chat.stream("Which city?", returns=City))
    parts = [event.value for event in events if isinstance(event, PartialEvent)]
    assert parts[0] == {}
    assert {"name": "Ro"} in parts
    assert parts[-1] == {"name": "Rome", "population": 3}
    assert len(parts) == len({str(part) for part in parts})
    assert isinstance(events[-1], DoneEvent)
    assert isinstance(events[-1].reply, TypedReply)


def value_of(events: Iterator[Event]) -> Any:
    *_, last = events
    assert isinstance(last, DoneEvent)
    assert isinstance(last.reply, TypedReply)
    return last.reply.value


def test_regenerated_edited_and_awaited_replies_have_values_too() -> None:
    other = '{"name": "Bern", "population": 1}'
    chat, _ = scripted_chat(ROME, other, other, ROME)
    chat.ask("Which?", returns=City)
    assert value_of(chat.regenerate(returns=City)) == City("Bern", 1)
    assert value_of(chat.edit(1, "Which else?", returns=City)) == City("Bern", 1)
    assert asyncio.run(chat.aask("And?", returns=City)).value == City("Rome", 3)


def test_a_type_and_a_grammar_at_once_are_refused() -> None:
    chat, _ = scripted_chat()
    with pytest.raises(OptionError, match="returns="):
        chat.ask("x", replace(GREEDY, grammar=Grammar.regex("a")), returns=City)


@pytest.mark.parametrize("end", range(len(ROME) + 1))
def test_any_beginning_of_a_value_is_read(end: int) -> None:
    part = partial_json(ROME[:end])
    assert part is None or part.items() <= {"name": ROME[10:14][: max(0, end - 10)], "population": 3}.items()
    assert (part is None) == (end == 0)
