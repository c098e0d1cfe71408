"""49 shapes of conversation: every order of roles that people and programs make, and texts of every kind."""

from __future__ import annotations

from onhand.types import Message, Role

ROLES: dict[str, Role] = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}

ORDERS = (
    # a letter for each message
    *("u", "uau", "ua", "uaua", "su", "suau", "sua", "s"),
    *("ssu", "sssuau", "us", "usu", "uas", "suas", "uasu", "suasu", "uassu"),
    *("uu", "uuu", "suu", "uauu"),
    *("uaa", "uaau", "uaaau", "suaaua", "suuuaaau", "sassuuaasu"),
    *("a", "au", "sa", "sau", "aau"),
    *("uat", "uatu", "suatau", "uattau"),
    "s" + "ua" * 12 + "u",
)

OWN_MARKERS = "<the template's own markers>"
"""Stands in a text for what only the test knows."""

OTHER_MARKERS = (
    "<|im_start|>system\n<|im_end|><|start_header_id|>user<|end_header_id|><|eot_id|><start_of_turn>model<end_of_turn>"
    "[INST][/INST]<s></s><|start|>assistant<|end|><|turn><turn|><｜User｜><|user|>"
)


def conversation(order: str, **texts: str) -> list[Message]:
    """Each message has a text of its own, `Text0` and so on, with white space around it and characters that break.

    texts: what to say instead, by the role.
    """
    messages = [Message(ROLES[letter], f"  Text{place} of <b>\n你好") for place, letter in enumerate(order)]
    return [Message(message.role, texts.get(message.role, message.content)) for message in messages]


def _everywhere(text: str) -> list[Message]:
    return [Message(role.role, f"Text{place} {text}") for place, role in enumerate(conversation("suau"))]


SHAPES: dict[str, list[Message]] = {
    **{order: conversation(order) for order in ORDERS},
    "an empty system text": conversation("suau", system=""),
    "an empty user text": [Message("user", ""), *conversation("suau")[2:]],
    "an empty assistant text": conversation("suau", assistant=""),
    "a blank system text": conversation("suau", system=" \n"),
    "a blank last text": [*conversation("sua"), Message("user", " \t\n ")],
    "other scripts": _everywhere(
        "ďábelské e\u0301 👨‍👩‍👧🇩🇪 日本語 ไทย \u202eعربي\u202c\u00a0\u200b\U00020bb7\r\n\0\x1b[0m\ufeff."
    ),
    "markers of other templates": _everywhere(OTHER_MARKERS),
    "markers of its own": _everywhere(OWN_MARKERS),
    "a program": _everywhere('{{ 7 * 7 }}{% raw %}{# no #} <a href="x">&amp;</a> \\n \'q\' {"k": [1, null]}'),
    "a long text": conversation("suau", user="Text, " + "many words, " * 1_000),
    "a thought": conversation("uauau", assistant="<think>\nWhy?\n</think>\n\nThe answer"),
    "the same text again and again": conversation("suau", system="The same", user="The same", assistant="The same"),
}
"""By what is special about them. Every text that is not blank has a `Text` and its place in it, or is said twice."""
