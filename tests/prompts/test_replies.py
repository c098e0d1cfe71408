# ruff: noqa: E501 (the tables of replies have one a line)
"""Replies taken apart: thoughts, text and calls, whatever the pieces they come in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onhand.prompts.calls import DIALECTS, HERMES, Dialect
from onhand.prompts.replies import THOUGHTS, ReplyReader, Shape
from onhand.types import TextEvent, ThinkingEvent, ToolCall, ToolCallEvent, ToolOffer, ToolSpec

WEATHER = ToolSpec(
    "get_weather",
    "",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "where": {"type": "object"}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
NOTE = ToolSpec("save-note", "", {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]})
OFFER = ToolOffer((WEATHER, NOTE))
BY_NAME = {dialect.name: dialect for dialect in DIALECTS}
PARIS = ("get_weather", {"city": "Paris"})

Said = tuple[str, list[tuple[str, dict[str, Any]]]]


def read(
    pieces: Sequence[str], dialect: Dialect | None = HERMES, *, cut: bool = False, **shape: Any
) -> tuple[Any, ...]:
    """(text, calls, thinking, problem)."""
    reader = ReplyReader(Shape(dialect=dialect, offer=OFFER if dialect else None, **shape))
    events = [event for piece in pieces for event in reader.feed(piece)] + reader.finish(cut=cut)
    text = "".join(event.text for event in events if isinstance(event, TextEvent))
    thinking = "".join(event.text for event in events if isinstance(event, ThinkingEvent))
    calls = [(event.call.name, event.call.arguments) for event in events if isinstance(event, ToolCallEvent)]
    return text, calls, thinking, reader.problem


BARE = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
TAGGED = f"<tool_call>\n{BARE}\n</tool_call>"
HERMES_REPLIES: list[tuple[str, str | None, list[Any]]] = [
    (TAGGED, "", [PARIS]),
    (f"Let me look.\n{TAGGED}", "Let me look.", [PARIS]),
    (f"{TAGGED}\nDone.", "Done.", [PARIS]),
    (f"Before.\n{TAGGED}\nAfter.", "Before.After.", [PARIS]),
    (f"{TAGGED}\n{TAGGED}", "", [PARIS, PARIS]),
    (TAGGED.replace("\n", ""), "", [PARIS]),
    (f"<tool_call>[{BARE}, {BARE}]</tool_call>", "", [PARIS, PARIS]),
    (f"<tool_call>\n{BARE}", "", [PARIS]),
    ("<tool_call>{'name': 'get_weather', 'arguments': {'city': 'Paris',}}</tool_call>", "", [PARIS]),
    (TAGGED.replace("arguments", "parameters"), "", [PARIS]),
    ('<tool_call>{"name":"get_weather","arguments":"{\\"city\\": \\"Paris\\"}"}</tool_call>', "", [PARIS]),
    ('<tool_call>{"name":"get_weather","arguments":{"city":"</tool_call>"}}</tool_call>', "", [("get_weather", {"city": "</tool_call>"})]),
    ('<tool_call>{"name":"nothing","arguments":{"x":1}}</tool_call>', "", [("nothing", {"x": 1})]),
    ('<tool_call>{"name":"get_weather","arguments":{"city":"Paris","days":"3"}}</tool_call>', "", [("get_weather", {"city": "Paris", "days": 3})]),
    (BARE, "", [PARIS]),
    (f"Sure: {BARE} there", "Sure:there", [PARIS]),
    (f"```json\n{BARE}\n```", "", [PARIS]),
    (f"I call it:\n```json\n{BARE}\n```\nand wait.", "I call it:and wait.", [PARIS]),
    (f"```\n{BARE}\n```", "", [PARIS]),
    (f"```json\n[{BARE},\n {BARE}]\n```", "", [PARIS, PARIS]),
    (f"{BARE}\n{BARE}", "", [PARIS, PARIS]),
    (f"[{BARE}]", "", [PARIS]),
    ('{"type": "function", "function": ' + BARE + "}", "", [PARIS]),
    ("```tool_code\nget_weather(city='Paris')\n```", "", [PARIS]),
    ("get_weather(city='Köln', days=3)", "", [("get_weather", {"city": "Köln", "days": 3})]),
    ("[get_weather(city='Paris'), get_weather(city=\"Paris\")]", "", [PARIS, PARIS]),
    ('{"name": "Bob", "arguments": {"city": "Paris"}}', None, []),
    ('{"name": "get_weather", "arguments": {"town": "Paris"}}', None, []),
    ('{"name": "get_weather"}', None, []),
    ('{"name": "get_weather", "arguments": {"city": "Paris"', None, []),
    ('```json\n{"city": "Paris"}\n```', None, []),
    ("```python\nprint('x')\n```\n", None, []),
    ("```\nget_wea", None, []),
    ("A list: [1, 2, 3] and {x: y}.", None, []),
    ("Use `get_weather(...)` for that.", None, []),
    ("2 < 3, and <tool is no marker", None, []),
    ("  \n", None, []),
    ("Trailing space \n", None, []),
    ('[{"id": 1}, {"id": 2}]', None, []),
    ("get_weather is a tool", None, []),
]  # fmt: skip


@pytest.mark.parametrize(("said", "text", "calls"), HERMES_REPLIES)
def test_what_small_models_say(said: str, text: str | None, calls: list[Any]) -> None:
    """BR-36, BR-37: forty replies, each whole, by the character, and cut in two at every place."""
    expected = (said if text is None else text, calls, "", "")
    assert read([said]) == expected
    assert read(list(said)) == expected
    for at in range(1, len(said)):
        assert read([said[:at], said[at:]]) == expected


def test_there_are_forty() -> None:
    assert len(HERMES_REPLIES) >= 40


DIALECT_REPLIES: list[tuple[str, str, str, list[Any]]] = [
    ("llama", '<|python_tag|>{"name":"get_weather","parameters":{"city":"Paris"}}', "", [PARIS]),
    ("llama", '{"name": "get_weather", "parameters": {"city": "}"}} and then...', "and then...", [("get_weather", {"city": "}"})]),
    ("llama", f"{BARE.replace('arguments', 'parameters')}; {BARE.replace('arguments', 'parameters')}", "", [PARIS, PARIS]),
    ("llama", f"<|python_tag|>{BARE}\n{BARE}", "", [PARIS, PARIS]),
    ("mistral-list", f"[TOOL_CALLS] [{BARE}]", "", [PARIS]),
    ("mistral-list", '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "abcdefghi"}]', "", [PARIS]),
    ("mistral", '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}', "", [PARIS]),
    ("mistral", 'Yes.[TOOL_CALLS]get_weather[CALL_ID]abc123def[ARGS]{"city": "Paris"}[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}', "Yes.", [PARIS, PARIS]),
    ("phi", f"<|tool_call|>[{BARE}]<|/tool_call|>", "", [PARIS]),
    ("smollm", f"<tool_call>[{BARE}]</tool_call>", "", [PARIS]),
    ("qwen-coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\nSão\nPaulo\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>", "", [("get_weather", {"city": "São\nPaulo", "days": 3})]),
    ("functiongemma", "<start_function_call>call:get_weather{city:<escape>São Paulo, {SP}<escape>,days:<escape>3<escape>}<end_function_call>", "", [("get_weather", {"city": "São Paulo, {SP}", "days": 3})]),
    ("functiongemma", "<start_function_call>call:save-note{text:<escape>a}<escape>}<end_function_call><start_function_call>call:get_weather{city:<escape>Paris<escape>,where:{a:{b:true}}}<end_function_call>", "", [("save-note", {"text": "a}"}), ("get_weather", {"city": "Paris", "where": {"a": {"b": True}}})]),
    ("gemma4", '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,where:{n:[1,2]}}<tool_call|>', "", [("get_weather", {"city": "Paris", "where": {"n": [1, 2]}})]),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "said", "text", "calls"), DIALECT_REPLIES)
def test_each_family_in_its_dialect_over_all_cuts(dialect: str, said: str, text: str, calls: list[Any]) -> None:
    """BR-39, BR-40."""
    expected = (text, calls, "", "")
    assert read([said], BY_NAME[dialect]) == expected
    assert read(list(said), BY_NAME[dialect]) == expected
    for at in range(1, len(said)):
        assert read([said[:at], said[at:]], BY_NAME[dialect]) == expected


MARKED = [(name, said) for name, said, *_ in DIALECT_REPLIES if BY_NAME[name].closing] + [("hermes", TAGGED)]


@pytest.mark.parametrize(("dialect", "said"), MARKED)
def test_a_call_that_is_cut_off_is_none(dialect: str, said: str) -> None:
    """BR-40, BR-41: at no cut is there a call that was not whole; what there was of it is text, without markers."""
    kind = BY_NAME[dialect]
    for end in range(1, len(said)):
        text, calls, _, problem = read(list(said[:end]), kind, cut=True)
        whole = said[:end].count(kind.closing)
        assert len(calls) >= whole
        assert (len(calls) == whole) or said.startswith("<tool_call>[")
        assert kind.opening not in text
        inside = said[:end].count(kind.opening) > whole
        assert bool(problem) == inside


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "save-note", "arguments": {"text": "he said "no" and left"}}',
        '{"name": "save-note", "arguments": ["text"]}',
        '{"note": "text"}',
        "no call at all",
    ],
)
def test_a_call_that_cannot_be_read_is_text_with_the_problem(body: str) -> None:
    """BR-38: nothing runs on guessed arguments, and nothing is lost."""
    said = f"Well.\n<tool_call>\n{body}\n</tool_call>"
    for pieces in ([said], list(said)):
        text, calls, _, problem = read(pieces)
        assert text == f"Well.{body}"
        assert not calls
        assert problem


def test_long_arguments_with_raw_breaks_and_tables_come_through() -> None:
    """BR-38."""
    long = "| a | b |\n|---|---|\n" + "it's 'so'\n" * 400
    said = '<tool_call>{"name": "save-note", "arguments": {"text": "' + long + '"}}</tool_call>'
    assert read([said[at : at + 7] for at in range(0, len(said), 7)])[1] == [("save-note", {"text": long})]


@pytest.mark.parametrize("thought", THOUGHTS)
@pytest.mark.parametrize("in_thought", [True, False])
def test_thoughts_are_told_apart(thought: tuple[str, str], in_thought: bool) -> None:
    opening, closing = thought
    said = f"{'' if in_thought else opening}Hm, {opening[:-1]} {{x}}.{closing}\n\nParis.{TAGGED}"
    for pieces in ([said], list(said)):
        text, calls, thinking, _ = read(pieces, thought=thought, in_thought=in_thought)
        assert (text, calls, thinking) == ("Paris.", [PARIS], f"Hm, {opening[:-1]} {{x}}.")


def test_a_marker_in_a_thought_is_no_call() -> None:
    said = f"<think>I could {TAGGED}</think>No."
    assert read(list(said), thought=THOUGHTS[0])[:3] == ("No.", [], f"I could {TAGGED}")


def test_without_tools_and_thoughts_text_passes_as_it_comes() -> None:
    said = f" {TAGGED} "
    assert read(list(said), None) == (said, [], "", "")


@pytest.mark.parametrize("dialect", [d for d in DIALECTS if d.syntax == "json"], ids=lambda dialect: dialect.name)
@given(texts=st.lists(st.text(max_size=20), min_size=1, max_size=3))
def test_what_is_written_reads_back(dialect: Dialect, texts: list[str]) -> None:
    calls = [ToolCall("save-note", {"text": text}) for text in texts]
    said = dialect.write(calls)
    if dialect.opening and not dialect.closing and not dialect.listed:
        said = said.replace("\n" + dialect.opening, "\n")
    assert read([said], dialect)[:2] == ("", [(call.name, json.loads(json.dumps(call.arguments))) for call in calls])


@given(st.text(alphabet="ab{}[]\"'`\n:,(get_weather <tool_call>", max_size=60), st.data())
def test_pieces_do_not_matter(said: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(said)))
    assert read([said]) == read(list(said)) == read([said[:at], said[at:]])
