"""Fits conversations to templates that know fewer roles or orders than we do, and proves that nothing was lost.

Some templates have no system role, want user and assistant to take turns, drop silently what they do not know, or
leave a turn open where they did not expect the next one. One look at a template with known messages finds that out;
the policy says in words what is done about it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from onhand.errors import TemplateError, TemplateLimitError
from onhand.prompts.template import ChatTemplate, one_line
from onhand.prompts.turns import Turns, probe, stand_in
from onhand.types import Message, Role, ToolSpec

SEPARATOR = "\n\n"
"""Stands between texts that are merged into one turn."""

END_OF_THOUGHT = "</think>"
"""What comes before it in an assistant's turn may be left out: templates of reasoning models do so on purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How messages are changed for a template. str() says it in words.

    content_parts: a content is handed over as a list of one text part, as templates of vision models want it.
    merge_system: system messages become part of the user turn that follows them.
    merge_late_system: only those do that come after the first turn.
    join_system: several system messages at the start become one.
    merge_neighbours: neighbours of one role become one turn.
    open_with_user: an empty user turn stands before an assistant turn that opens the conversation.
    """

    content_parts: bool = False
    merge_system: bool = False
    merge_late_system: bool = False
    join_system: bool = False
    merge_neighbours: bool = False
    open_with_user: bool = False

    def __str__(self) -> str:
        said = {
            "content as a list of parts": self.content_parts,
            "system merged into the first user turn": self.merge_system,
            "later system messages merged into the next user turn": self.merge_late_system,
            "system messages joined into one": self.join_system,
            "neighbours of the same role merged": self.merge_neighbours,
            "an empty user turn before an opening assistant turn": self.open_with_user,
        }
        return "; ".join(words for words, true in said.items() if true) or "messages as they are"


_Probe = tuple[Sequence[Sequence[Role]], Policy]
# Conversations that must come out whole, and what to try when one does not: first the plain ones.
_PLAIN_PROBES: Sequence[_Probe] = (
    ([["user"]], Policy(content_parts=True)),
    ([["system", "user"]], Policy(merge_system=True)),
)
_PROBES: Sequence[_Probe] = (
    ([["user", "user"], ["user", "assistant", "assistant", "user"]], Policy(merge_neighbours=True)),
    ([["system", "system", "user"], ["system", "system", "system", "user"]], Policy(join_system=True)),
    (
        [
            ["user", "assistant", "system", "user"],
            ["system", "user", "system", "user"],
            ["user", "assistant", "system", "system", "user"],
        ],
        Policy(merge_late_system=True),
    ),
    (
        [["assistant", "user"], ["system", "assistant", "user"], ["assistant", "assistant", "user"]],
        Policy(open_with_user=True),
    ),
)


class MessageAdapter:
    """One template and the policy that was found for it. `policy` is what to show."""

    def __init__(self, template: ChatTemplate) -> None:
        """Look at the template once. Raises TemplateLimitError when it exceeds its limits even then."""
        self._template = template
        self.policy = Policy()
        self._adopt(_PLAIN_PROBES, self._holds)
        self._turns = Turns(template.source, lambda messages: self._try(messages, self.policy))
        self._adopt(_PROBES, self._carries)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The prompt, with every message's text in it, in order.

        Raises TemplateError with the template's own words when it refuses, naming the message (counted from 0) whose
        text it drops, or naming the roles whose turns it lets run into each other; TemplateLimitError.
        """
        text = self._render(messages, self.policy, add_generation_prompt)
        lost = first_lost(messages, text)
        if lost is not None:
            raise TemplateError(
                f"it has no place for message {lost} ({messages[lost].role}): its text is missing or out of order in "
                "the prompt; leave it out, or use another template"
            )
        if not _is_usual(messages) and not self._carries(stand_in(messages), self.policy):
            turns = ", ".join(
                message.role if message.content.strip() else f"blank {message.role}" for message in messages
            )
            raise TemplateError(f"it does not keep these turns apart, use another template: {one_line(turns)}")
        return text

    @property
    def source(self) -> str:
        """The template."""
        return self._template.source

    def written(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, tools: Sequence[ToolSpec] = ()
    ) -> str:
        """What the template makes of the messages, unchecked. Raises TemplateError, TemplateLimitError."""
        return self._render(messages, self.policy, add_generation_prompt, tools)

    def _render(
        self,
        messages: Sequence[Message],
        policy: Policy,
        add_generation_prompt: bool = True,
        tools: Sequence[ToolSpec] = (),
    ) -> str:
        plain = [_plain(message, policy) for message in adapt(messages, policy)]
        return self._template.render_plain(plain, add_generation_prompt, [as_function(spec) for spec in tools])

    def _adopt(self, probes: Sequence[_Probe], fits: Callable[[Sequence[Message], Policy], bool]) -> None:
        """Change the policy where that is what it takes for a conversation to fit."""
        for conversations, remedy in probes:
            changed = {name: True for name in Policy.__slots__ if getattr(remedy, name)}
            for policy in (self.policy, replace(self.policy, **changed)):
                if all(fits(probe(roles), policy) for roles in conversations):
                    self.policy = policy
                    break

    def _holds(self, messages: Sequence[Message], policy: Policy) -> bool:
        """Whether the prompt holds every text of a probe once and in order."""
        return self._whole(messages, policy) is not None

    def _carries(self, messages: Sequence[Message], policy: Policy) -> bool:
        """Whether besides that every turn is closed, and none runs into the next."""
        text = self._whole(messages, policy)
        return text is not None and self._turns.keeps(messages, text)

    def _whole(self, messages: Sequence[Message], policy: Policy) -> str | None:
        text = self._try(messages, policy)
        if text is None or first_lost(messages, text) is not None:
            return None
        later = [message.content for message in messages[_opening(messages) :] if message.content.strip()]
        return text if all(text.count(content) == 1 for content in later) else None

    def _try(self, messages: Sequence[Message], policy: Policy) -> str | None:
        """The prompt, or None when the template refuses the messages."""
        try:
            return self._render(messages, policy)
        except TemplateLimitError:
            raise
        except TemplateError:
            return None


def adapt(messages: Sequence[Message], policy: Policy) -> list[Message]:
    """The messages as a template with this policy can take them. Every text stays, in its order."""
    turns: list[Message] = []
    open_system = False  # the last turn is system text that waits for its user turn
    late = False
    for message in messages:
        late = late or message.role != "system"
        moved = message.role == "system" and (policy.merge_system or (policy.merge_late_system and late))
        turn = Message("user", message.content) if moved else message
        last = turns[-1] if turns else None
        same = last is not None and last.role == turn.role and not (last.tool_calls or turn.tool_calls)
        joined = (
            (open_system and turn.role == "user")
            or (same and policy.merge_neighbours and turn.role in ("user", "assistant"))
            or (same and policy.join_system and turn.role == "system")
        )
        if joined and last is not None:
            turns[-1] = Message(turn.role, SEPARATOR.join(text for text in (last.content, turn.content) if text))
        else:
            turns.append(turn)
        open_system = moved
    opening = _opening(turns)
    if policy.open_with_user and opening < len(turns) and turns[opening].role == "assistant":
        turns.insert(opening, Message("user", ""))
    return turns


def as_function(spec: ToolSpec) -> dict[str, object]:
    """A tool in the form that templates take."""
    function = {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
    return {"type": "function", "function": function}


def _plain(message: Message, policy: Policy) -> dict[str, object]:
    """A message in the form that templates take."""
    content = [{"type": "text", "text": message.content}] if policy.content_parts else message.content
    plain: dict[str, object] = {"role": message.role, "content": content}
    if message.thinking:
        plain["reasoning_content"] = message.thinking
    if message.tool_calls:
        plain["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
            for call in message.tool_calls
        ]
    if message.tool_name:
        plain["name"] = message.tool_name
    if message.tool_call_id:
        plain["tool_call_id"] = message.tool_call_id
    return plain


def _is_usual(messages: Sequence[Message]) -> bool:
    """Whether the policy was found for conversations like this one.

    A tool that speaks, nobody who asks, or a blank text may still make a template leave a turn open.
    """
    roles = {message.role for message in messages}
    return "user" in roles and "tool" not in roles and all(message.content.strip() for message in messages)


def first_lost(messages: Sequence[Message], text: str) -> int | None:
    """The index of the first message whose content is not in the text after the one before it, or None.

    The system message that opens a conversation may stand anywhere: some templates write it into the last user turn.
    """
    position = 0
    opening = _opening(messages)
    for index, message in enumerate(messages):
        start = 0 if index < opening else position
        found = _find(message, text, start)
        if found is None:
            return index
        if index >= opening:
            position = found
    return None


def _find(message: Message, text: str, start: int) -> int | None:
    """Where the content ends in the text, or None. Of its forms the one counts that begins first.

    A template may leave the thoughts out of a reply and keep them in a later one that says the same.
    """
    found = [(text.find(form, start), -len(form)) for form in _forms(message)]
    begin, length = min(((begin, length) for begin, length in found if begin >= 0), default=(-1, 0))
    return None if begin < 0 else begin - length


def _opening(messages: Sequence[Message]) -> int:
    """How many system messages open the conversation."""
    return next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))


def _forms(message: Message) -> Iterator[str]:
    """What a template may make of a content: trim it, write it as a JSON string, leave out the thoughts."""
    content = message.content.strip()
    yield content
    yield json.dumps(content, ensure_ascii=False)[1:-1]
    yield json.dumps(content)[1:-1]
    if message.role == "assistant" and END_OF_THOUGHT in content:
        yield content.rpartition(END_OF_THOUGHT)[2].strip()
