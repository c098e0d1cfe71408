"""A reply that is held to a grammar never leaves it, and a grammar that cannot be held to is refused beforehand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest
from llguidance import LLMatcher

from onhand.decoding.constraints import Grammars
from onhand.errors import GrammarError, OptionError
from onhand.grammar import Grammar
from onhand.options import GenerationOptions
from onhand.testing import ScriptedRuntime
from support.constrained import babble
from support.corpora import corpus
from support.scripted import byte_tokenizer, over, reply_of
from support.tiny import END, VOCAB

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@cache
def grammars() -> Grammars:
    return Grammars(byte_tokenizer())


def texts(grammar: Grammar, count: int = 5) -> list[str]:
    return [babble(grammars().constraint(grammar), byte_tokenizer(), seed) for seed in range(count)]


def suite() -> Iterator[tuple[str, Any]]:
    for path in sorted((corpus("json-schema-suite") / "jsonschema-4.26.0/json/tests/draft2020-12").glob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            yield f"{path.stem}: {group['description']}", group["schema"]


def test_of_the_schema_test_suite_all_that_is_accepted_gives_what_is_valid() -> None:
    """BR-24, BR-25, BR-27; and no less is accepted than llguidance does of itself."""
    accepted, by_itself = 0, 0
    refused: list[tuple[str, str]] = []
    for name, schema in suite():
        problem = LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(schema)))
        by_itself += not problem or problem.startswith("WARNING")
        try:
            found = texts(Grammar.json_schema(schema))
        except GrammarError as error:
            refused.append((name, error.problem))
            continue
        accepted += 1
        for text in found:
            jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    assert all(problem for _, problem in refused), refused
    assert accepted >= by_itself >= 160


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "array", "uniqueItems": True}, 'not supported: ["uniqueItems"]'),
        ({"properties": {"a": {"not": {"type": "string"}}}}, 'not supported: ["not"]'),
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, "oneOf constraints are not supported"),
        ({"$ref": "http://example.com/schema.json"}, "does not fetch"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, "there is no such text"),
        (
            {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}},
            "there is no such text",
        ),
        (False, "allows no value"),
        ({"type": "nonsense"}, "nonsense"),
        ({"type": "string", "format": "nonsense"}, "nonsense"),
        ({"type": "string", "pattern": "(?=x)"}, "look-around"),
    ],
)
def test_a_schema_that_is_not_supported_names_what_is_not(schema: Any, problem: str) -> None:
    """BR-24: nothing is fetched, and a cycle that never ends is refused at once."""
    with pytest.raises(GrammarError, match=re.escape(problem)):
        grammars().constraint(Grammar.json_schema(schema))


@pytest.mark.parametrize("depth", [300, 900, 20_000])
def test_a_deep_schema_neither_overflows_nor_takes_others_along(depth: int) -> None:
    """BR-24."""
    with pytest.raises(GrammarError, match="recursion limit"):
        grammars().constraint(Grammar("json_schema", '{"items":' * depth + "{}" + "}" * depth))
    deep: Any = {}
    for _ in range(20_000):
        deep = {"items": deep}
    with pytest.raises(OptionError, match="recursion"):
        Grammar.json_schema(deep)
    assert texts(Grammar.json_schema(PERSON))


@pytest.mark.parametrize(
    "make", [Grammar.regex, lambda t: Grammar.lark(f"start: {t}"), lambda t: Grammar.gbnf(f"root ::= {t}")]
)
def test_deep_grammars_do_no_harm_either(make: Callable[[str], Grammar]) -> None:
    with pytest.raises(GrammarError, match=r"nested|recursion"):
        grammars().constraint(make("(" * 20_000 + '"a"' + ")" * 20_000))
    assert texts(Grammar.json_schema(PERSON))


def test_a_linked_list_is_no_endless_cycle() -> None:
    """BR-24."""
    node = {
        "type": "object",
        "properties": {"value": {"type": "integer", "maximum": 9, "minimum": 0}, "next": {}},
        "required": ["value", "next"],
        "additionalProperties": False,
    }
    node["properties"]["next"] = {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}  # type: ignore[index]
    schema = {"$ref": "#/$defs/node", "$defs": {"node": node}}
    for text in texts(Grammar.json_schema(schema)):
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))


def test_an_enum_behind_a_ref_is_the_same_enum() -> None:
    """BR-25: values exact, quotes and other scripts among them."""
    who = {"enum": ["Alice", "Biff", 'd"Arc', 7, None, "日本"]}
    inline = Grammar.json_schema({"type": "array", "items": who, "maxItems": 4})
    behind = Grammar.json_schema({"type": "array", "items": {"$ref": "#/$defs/W"}, "maxItems": 4, "$defs": {"W": who}})
    assert texts(inline, 100) == texts(behind, 100)
    assert {value for text in texts(behind, 100) for value in json.loads(text)} == set(who["enum"])


@pytest.mark.parametrize("schema", [{}, {"type": "object", "properties": {}}, {"type": "string", "maxLength": 100_000}])
def test_odd_schemas_work(schema: Any) -> None:
    """BR-26."""
    for text in texts(Grammar.json_schema(schema)):
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (Grammar.regex(r"[A-Z][a-z]{2,5} \d{4}"), r"[A-Z][a-z]{2,5} \d{4}"),
        (Grammar.lark('start: "yes" | "no" | "maybe " start'), r"(maybe )*(yes|no)"),
        (Grammar.gbnf('root ::= "a" [0-9]+ ("-" [b-d]){2}'), r"a[0-9]+(-[b-d]){2}"),
    ],
)
def test_other_grammars_hold_a_reply_too(grammar: Grammar, pattern: str) -> None:
    for text in texts(grammar, 20):
        assert re.fullmatch(pattern, text), text


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        (Grammar.regex("("), "unclosed group"),
        (Grammar.lark("start: foo"), "foo"),
        (Grammar.gbnf("root ::= foo"), "foo"),
        (Grammar.gbnf("???"), "Expected name"),
        (Grammar.lark(""), "Empty grammar"),
    ],
)
def test_other_grammars_that_are_none_are_refused(grammar: Grammar, problem: str) -> None:
    with pytest.raises(GrammarError, match=problem):
        grammars().constraint(grammar)


@pytest.mark.parametrize("wrong", [5, "text", None, [1], {"a": float("nan")}, {"a": object()}, {1: 2, "b": {3}}])
def test_what_is_no_schema_is_refused(wrong: Any) -> None:
    with pytest.raises(OptionError):
        Grammar.json_schema(wrong)


def reply_to(logits: Iterator[Any], options: GenerationOptions, vocab_size: int = VOCAB) -> Any:
    runtime = ScriptedRuntime(logits, vocab_size=vocab_size, end_id=END, context_tokens=100_000)
    return reply_of(over(runtime).stream([1, 2], options))


@pytest.mark.parametrize("favourite", [" ", "\n", "\t", "{", '"', "0"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_that_is_fond_of_one_character_writes_the_schema_all_the_same(
    favourite: str, temperature: float
) -> None:
    """BR-23: white space is bounded, and when the value is whole the reply ends."""
    (token,) = byte_tokenizer().encode(favourite)
    for seed in range(30):
        numbers = np.random.default_rng(seed)

        def logits(numbers: np.random.Generator = numbers) -> Iterator[Any]:
            while True:
                row = numbers.standard_normal(VOCAB).astype(np.float32)
                row[token] += 20
                yield row

        options = GenerationOptions(
            temperature=temperature, seed=seed, max_tokens=80, grammar=Grammar.json_schema(PERSON), top_k=0, top_p=1
        )
        reply = reply_to(logits(), options)
        assert reply.finish_reason == "stop"
        jsonschema.Draft202012Validator(PERSON).validate(json.loads(reply.text))


@pytest.mark.parametrize("grammar", [None, Grammar.json_schema(PERSON), Grammar.regex(r"(?s:.){1,50}")])
@pytest.mark.parametrize("temperature", [0.0, 5.0])
def test_ids_beyond_the_tokenizer_are_never_chosen(grammar: Grammar | None, temperature: float) -> None:
    """BR-28: the model gives 267 logits more than there are tokens, and likes those best."""
    numbers = np.random.default_rng(1)

    def logits() -> Iterator[Any]:
        while True:
            row = numbers.standard_normal(VOCAB + 267).astype(np.float32)
            row[VOCAB:] += 30
            yield row

    for seed in range(10):
        options = GenerationOptions(temperature=temperature, seed=seed, max_tokens=100, grammar=grammar, top_k=0)
        reply = reply_to(logits(), options, VOCAB + 267)
        assert reply.usage.completion_tokens > 0


def test_control_tokens_are_no_text_of_any_grammar() -> None:
    """Invariant 7: a grammar of anything allows the tokens of text, and the end."""
    constraint = grammars().constraint(Grammar.regex(r"(?s:.)*"))
    allowed = np.flatnonzero(np.isfinite(constraint.allowed(np.zeros(VOCAB, np.float32))))
    tokenizer = byte_tokenizer()
    assert {token for token in allowed.tolist() if tokenizer.is_hidden(token)} <= tokenizer.end_ids


def test_guesses_change_nothing_of_a_constrained_reply() -> None:
    """Invariant 6; what the grammar leaves no choice about is guessed."""
    numbers = np.random.default_rng(9)
    rows = numbers.standard_normal((4000, VOCAB)).astype(np.float32)

    class Fixed(ScriptedRuntime):
        """Logits by place, whatever was guessed."""

        def forward(self, batch: Any) -> Any:
            super().forward(batch)
            (chunk,) = batch
            end = self.length(chunk.slot)
            wanted = {"none": 0, "last": 1, "all": len(chunk.tokens)}[chunk.rows]
            return rows[end - wanted : end].copy()

    replies = []
    for speculate in (False, True):
        runtime = Fixed([0] * 100_000, vocab_size=VOCAB, end_id=END)
        options = GenerationOptions(
            temperature=1, seed=3, max_tokens=80, speculate=speculate, grammar=Grammar.json_schema(PERSON)
        )
        replies.append(reply_of(over(runtime).stream([1, 2], options)))
    assert replies[0].text == replies[1].text
    assert replies[1].usage.guessed_tokens > 8
    jsonschema.Draft202012Validator(PERSON).validate(json.loads(replies[0].text))


def test_where_the_model_itself_rules_out_all_that_may_come_an_error_says_so() -> None:
    row = np.full(VOCAB, -np.inf, np.float32)
    row[97] = 1
    options = GenerationOptions(temperature=0, max_tokens=5, grammar=Grammar.regex("b"))
    with pytest.raises(ArithmeticError, match="no token is possible"):
        reply_to(iter([row]), options)
