"""Values as models write them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onhand.prompts.literals import MAX_DEPTH, LiteralError, UnfinishedError, read_arguments, read_value

KEYS = st.text(max_size=8)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | FINITE | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=5)


@given(OBJECTS, st.booleans(), st.sampled_from([None, 1]))
def test_json_reads_back(value: dict[str, Any], ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert read_value(text) == (value, len(text))


@given(OBJECTS)
def test_python_literals_read_back(value: dict[str, Any]) -> None:
    """BR-37."""
    text = repr(value)
    assert read_value(text) == (value, len(text))


@given(OBJECTS, st.data())
def test_what_is_cut_off_is_unfinished_and_never_another_value(value: dict[str, Any], data: st.DataObject) -> None:
    """BR-41."""
    text = data.draw(st.sampled_from([json.dumps(value), repr(value)]))
    cut = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(UnfinishedError):
        read_value(text[:cut])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'q': ['a','b'], 'n': True, 'x': None,}", {"q": ["a", "b"], "n": True, "x": None}),
        ("{\"a\": \"it's\", 'b': \"say \\\"x\\\"\", 'c': 'it\\'s'}", {"a": "it's", "b": 'say "x"', "c": "it's"}),
        ('{"table": "| a | b |\n|---|---|\n"}', {"table": "| a | b |\n|---|---|\n"}),
        ('{"path": "C:\\\\new", "odd": "\\x41\\d"}', {"path": "C:\\new", "odd": "A\\d"}),
        ("{city:<escape>São Paulo, {SP}<escape>,days:<escape>3<escape>}", {"city": "São Paulo, {SP}", "days": "3"}),
        ('{place:{lat:1.5,tags:[<|"|>a, b<|"|>]},on:true}', {"place": {"lat": 1.5, "tags": ["a, b"]}, "on": True}),
        ("{unit: celsius, n: -3, far: 1e3}", {"unit": "celsius", "n": -3, "far": 1000.0}),
        ('("a", 1,)', ["a", 1]),
    ],
)
def test_what_models_write(text: str, value: Any) -> None:
    """BR-37, BR-38, BR-40."""
    assert read_value(f"  {text} and so on") == (value, len(text) + 2)


def test_keyword_arguments() -> None:
    text = "f(city='Köln', days=3, tags=('a', \"it's\")) then"
    assert read_arguments(text, 2) == ({"city": "Köln", "days": 3, "tags": ["a", "it's"]}, text.index(" then"))


@pytest.mark.parametrize("text", ["}", "{,}", '{"a" 1}', '{"a": }', '{"a": "b" c"}', "[" * (MAX_DEPTH + 2) + "1"])
def test_what_is_no_value(text: str) -> None:
    with pytest.raises(LiteralError) as raised:
        read_value(text + " ")
    assert not isinstance(raised.value, UnfinishedError)
