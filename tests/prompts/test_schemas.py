"""Values fitted to a schema."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onhand.prompts.schemas import MisfitError, conform

TREE = {
    "$defs": {"node": {"type": "object", "properties": {"n": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}}},
    "$ref": "#/$defs/node",
}


@pytest.mark.parametrize(
    ("value", "schema", "fitted"),
    [
        ("3", {"type": "integer"}, 3),
        (3.0, {"type": "integer"}, 3),
        ("3.5", {"type": "number"}, 3.5),
        (3, {"type": "number"}, 3),
        ("True", {"type": "boolean"}, True),
        ("null", {"type": ["string", "null"]}, "null"),
        ("None", {"type": "null"}, None),
        ("[1,2]", {"type": "string"}, "[1,2]"),
        ("[1,2]", {"type": "array", "items": {"type": "integer"}}, [1, 2]),
        ("['1', '2']", {"type": "array", "items": {"type": "integer"}}, [1, 2]),
        ("{'a': '1'}", {"type": "object", "properties": {"a": {"type": "integer"}}}, {"a": 1}),
        (12, {"type": "string"}, "12"),
        ("Celsius", {"enum": ["celsius", "kelvin"]}, "celsius"),
        ("5", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "5"),
        ("5", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 5),
        ({"n": "1", "next": {"n": "2"}}, TREE, {"n": 1, "next": {"n": 2}}),
        ("<b>", True, "<b>"),
    ],
)
def test_what_can_be_read_as_the_type_is(value: Any, schema: Any, fitted: Any) -> None:
    """BR-37, BR-40."""
    found = conform(value, schema)
    assert found == fitted
    assert type(found) is type(fitted)


@pytest.mark.parametrize(
    ("value", "schema", "problem"),
    [
        ("three", {"type": "integer"}, "string in place of integer"),
        ("3.5", {"type": "integer"}, "string in place of integer"),
        (True, {"type": "integer"}, "boolean in place of integer"),
        ({}, {"type": "object", "required": ["city"]}, "city is missing"),
        ({"town": 1}, {"properties": {"city": {}}, "additionalProperties": False}, "has no town, only city"),
        ("warm", {"enum": ["hot", "cold"]}, "must be one of 'hot', 'cold'"),
        ({"a": [1, "x"]}, {"properties": {"a": {"items": {"type": "integer"}}}}, r"a\[1\]: string in place of integer"),
        ("x", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "string in place of integer"),
        (1, False, "nothing may stand there"),
        ({"$ref": 1}, {"$ref": "#/$defs/none", "type": "object"}, None),
    ],
)
def test_what_cannot_says_where_and_why(value: Any, schema: Any, problem: str | None) -> None:
    if problem is None:
        assert conform(value, schema) == value
        return
    with pytest.raises(MisfitError, match=problem):
        conform(value, schema)


def test_references_that_lead_in_a_circle_end() -> None:
    assert conform(1, {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}) == 1


SCHEMAS = st.recursive(
    st.sampled_from([{"type": name} for name in ("string", "integer", "number", "boolean", "null")]),
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(
            lambda properties: {"type": "object", "properties": properties, "additionalProperties": False},
            st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
        )
    ),
    max_leaves=6,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=8,
)


@given(SCHEMAS, JSON)
def test_what_fits_is_valid_and_what_is_valid_stays_as_it_is(schema: Any, value: Any) -> None:
    valid = jsonschema.Draft202012Validator(schema).is_valid(value)
    try:
        fitted = conform(value, schema)
    except MisfitError:
        assert not valid
        return
    assert jsonschema.Draft202012Validator(schema).is_valid(fitted)
    assert not valid or fitted == value
