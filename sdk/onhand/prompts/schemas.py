"""Values fitted to a JSON schema: what a model wrote as another type than the schema's, and what is wrong with it.

Not a validator: keywords that bound a value (`minimum`, `pattern`) are left to whoever takes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from onhand.prompts.literals import LiteralError, read_value

MAX_REFERENCES = 32
"""How many `$ref` may follow each other."""

_WHOLE = re.compile(r"[+-]?\d+")

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


class MisfitError(ValueError):
    """The value does not fit the schema; says where and why, without the value."""


def conform(value: Any, schema: Any, root: Any = None) -> Any:
    """The value in the schema's types, where it can be read as one: "3" as an integer, a JSON text as its object.

    A string stays one where the schema says so. Raises MisfitError.
    """
    return _conform(value, schema, schema if root is None else root, "the arguments")


def _conform(value: Any, schema: Any, root: Any, place: str) -> Any:
    if schema is False:
        raise MisfitError(f"{place}: nothing may stand there")
    if not isinstance(schema, Mapping):
        return value
    schema = _resolved(schema, root)
    for choice in (schema.get("anyOf"), schema.get("oneOf")):
        if isinstance(choice, Sequence):
            value = _first_fit(value, choice, root, place)
    for part in schema.get("allOf", ()):
        value = _conform(value, part, root, place)
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types:
        value = _typed(value, types, place)
    if "enum" in schema or "const" in schema:
        allowed = schema.get("enum", [schema.get("const")])
        value = _one_of(value, allowed, place)
    if isinstance(value, dict):
        return _object(value, schema, root, place)
    if isinstance(value, list) and "items" in schema:
        return [_conform(item, schema["items"], root, f"{place}[{index}]") for index, item in enumerate(value)]
    return value


def _first_fit(value: Any, choice: Sequence[Any], root: Any, place: str) -> Any:
    """The value by the first of the schemas that takes it: as it is, or else read as another type."""
    problems = []
    fitted = []
    for schema in choice:
        try:
            fitted.append(_conform(value, schema, root, place))
        except MisfitError as error:
            problems.append(str(error))
    for found in fitted:
        if found == value and type(found) is type(value):
            return found
    if fitted:
        return fitted[0]
    raise MisfitError(problems[0] if problems else f"{place}: nothing may stand there")


def _typed(value: Any, types: Sequence[str], place: str) -> Any:
    if any(_is(value, name) for name in types):
        return value
    for name in types:
        found = _read_as(value, name)
        if found is not None or (name == "null" and value in ("null", "None")):
            return found
    raise MisfitError(f"{place}: {_name(value)} in place of {' or '.join(types)}")


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return False
    return isinstance(value, _TYPES.get(name, (object,)))


def _read_as(value: Any, name: str) -> Any:
    """The value as this type, None if it is none."""
    if name == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    if name == "string" and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or name == "string":
        return None
    text = value.strip()
    if name == "integer" and not _WHOLE.fullmatch(text):
        return None
    try:
        found, end = read_value(f"{text}\n,")
    except LiteralError:
        return None
    return found if not text[end:].strip() and end <= len(text) and _is(found, name) else None


def _one_of(value: Any, allowed: Sequence[Any], place: str) -> Any:
    for one in allowed:
        if one == value and isinstance(one, bool) == isinstance(value, bool):
            return one
    if isinstance(value, str):
        for one in allowed:
            if isinstance(one, str) and one.casefold() == value.strip().casefold():
                return one
    raise MisfitError(f"{place}: must be one of {', '.join(map(repr, allowed[:10]))}")


def _object(value: dict[str, Any], schema: Mapping[str, Any], root: Any, place: str) -> dict[str, Any]:
    properties = schema.get("properties", {})
    missing = [name for name in schema.get("required", ()) if name not in value]
    if missing:
        raise MisfitError(f"{place}: {', '.join(missing)} is missing")
    others = schema.get("additionalProperties", True)
    unknown = [name for name in value if name not in properties]
    if others is False and unknown and not schema.get("patternProperties"):
        raise MisfitError(f"{place}: has no {', '.join(unknown)}, only {', '.join(properties) or 'an empty object'}")
    return {
        name: _conform(one, properties.get(name, others), root, f"{place}.{name}" if place != "the arguments" else name)
        for name, one in value.items()
    }


def _resolved(schema: Mapping[str, Any], root: Any) -> Mapping[str, Any]:
    """What a `$ref` within the schema stands for; one that leads elsewhere allows everything."""
    for _ in range(MAX_REFERENCES):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        found: Any = root
        for key in reference.removeprefix("#").split("/")[1:]:
            key = key.replace("~1", "/").replace("~0", "~")
            found = found.get(key, {}) if isinstance(found, Mapping) else {}
        if not isinstance(found, Mapping):
            return {}
        schema = found
    return {}


def _name(value: Any) -> str:
    return next((name for name in _TYPES if _is(value, name)), type(value).__name__)
