import json

import pytest

from onhand.errors import TemplateError, TemplateLimitError
from onhand.prompts.adapter import MessageAdapter, Policy, adapt
from onhand.prompts.template import ChatTemplate
from onhand.types import Message, Role

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
STRICT = (  # as Gemma 2 and Mistral 7B: no system role, user and assistant in turns
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}<{{ m.role }}>{{ m.content | trim }}"
    "{% endfor %}"
)
DROPS_SYSTEM = "{% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
FIRST_SYSTEM_ONLY = (
    "{% if messages[0].role == 'system' %}<s>{{ messages[0].content }}{% endif %}"
    "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
PARTS = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
LAST_USER_SYSTEM = (  # as Mistral Nemo: the system text stands in the last user turn
    "{% for m in messages if m.role != 'system' %}"
    "[{{ m.role }}]{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
    "{{ m.content }}{% endfor %}"
)
HOISTS_SYSTEM = (  # as DeepSeek V3: all system texts stand at the top
    "{% for m in messages if m.role == 'system' %}<s>{{ m.content }}{% endfor %}"
    "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
REPEATS_SYSTEM = HOISTS_SYSTEM.replace(" if m.role != 'system'", "")  # as Step 3: and once more in their places
TWO_SYSTEM = (  # as some of Qwen 3.5: the third system text is left out
    "{% for m in messages %}{% if m.role != 'system' or loop.index0 < 2 %}<{{ m.role }}>{{ m.content }}{% endif %}"
    "{% endfor %}"
)
ONE_MODEL_TURN = (  # as Gemma 4: a reply after a reply opens no turn, but closes one
    "{% for m in messages %}{% if m.role != 'assistant' or loop.previtem is not defined or "
    "loop.previtem.role != 'assistant' %}<|turn>{{ m.role }}\n{% endif %}{{ m.content }}<turn|>\n{% endfor %}"
)
GLUES_REPLIES = (  # as Apertus: nothing stands between two replies
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}{% else %}<{{ m.role }}>{{ m.content }}<reply>"
    "{% endif %}{% endfor %}"
)
OPENS_A_REPLY = (  # as Yi 1.5: every question opens the reply to it
    "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>user\n{{ m.content }}<|im_end|>\n"
    "<|im_start|>assistant\n{% elif m.role == 'assistant' %}{{ m.content }}<|im_end|>\n"
    "{% else %}<|im_start|>system\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
)
TOOL_LEFT_OPEN = (  # as Falcon H1: only a question after it closes what a tool said
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% if m.role != 'tool' or loop.nextitem is not defined or loop.nextitem.role == 'user' %}<|im_end|>\n{% endif %}"
    "{% endfor %}"
)
EMPTY_LEFT_OPEN = (  # as Hermes 4: an empty reply is not closed
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content %}{{ m.content }}<|im_end|>\n{% endif %}"
    "{% endfor %}"
)
FORGETS_THOUGHTS = (  # as LFM 2.5: only the last reply keeps its thoughts
    "{% for m in messages %}<{{ m.role }}>"
    "{{ m.content if loop.last else m.content.split('</think>')[-1] | trim }}{% endfor %}"
)
ROLES: dict[str, Role] = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}


def talk(shape: str) -> list[Message]:
    return [Message(ROLES[letter], f"{letter}{index}") for index, letter in enumerate(shape)]


@pytest.mark.parametrize(
    ("source", "shape", "expected", "policy"),
    [
        (CHATML, "su", "<|im_start|>system\ns0<|im_end|>\n<|im_start|>user\nu1<|im_end|>\n", "messages as they are"),
        (STRICT, "su", "<user>s0\n\nu1", "system merged into the first user turn"),
        (STRICT, "ssuau", "<user>s0\n\ns1\n\nu2<assistant>a3<user>u4", "system merged"),
        (STRICT, "uu", "<user>u0\n\nu1", "neighbours of the same role merged"),
        (STRICT, "uuuaa", "<user>u0\n\nu1\n\nu2<assistant>a3\n\na4", "neighbours"),
        (STRICT, "au", "<user><assistant>a0<user>u1", "an empty user turn before an opening assistant turn"),
        (STRICT, "sau", "<user>s0<assistant>a1<user>u2", "system merged"),
        (STRICT, "uasu", "<user>u0<assistant>a1<user>s2\n\nu3", "system merged"),
        (STRICT, "s", "<user>s0", "system merged"),
        (DROPS_SYSTEM, "su", "<user>s0\n\nu1", "system merged into the first user turn"),
        (FIRST_SYSTEM_ONLY, "su", "<s>s0<user>u1", "system messages joined into one"),
        (FIRST_SYSTEM_ONLY, "ssu", "<s>s0\n\ns1<user>u2", "system messages joined into one"),
        (FIRST_SYSTEM_ONLY, "suasu", "<s>s0<user>u1<assistant>a2<user>s3\n\nu4", "later system messages merged"),
        (PARTS, "uau", "<user>u0<assistant>a1<user>u2", "content as a list of parts"),
        (HOISTS_SYSTEM, "suasu", "<s>s0<user>u1<assistant>a2<user>s3\n\nu4", "later system messages merged"),
        (REPEATS_SYSTEM, "uasu", "<user>u0<assistant>a1<user>s2\n\nu3", "later system messages merged"),
        (TWO_SYSTEM, "sssu", "<system>s0\n\ns1\n\ns2<user>u3", "system messages joined"),
        (
            ONE_MODEL_TURN,
            "uaau",
            "<|turn>user\nu0<turn|>\n<|turn>assistant\na1\n\na2<turn|>\n<|turn>user\nu3<turn|>\n",
            "neighbours",
        ),
        (GLUES_REPLIES, "uaau", "<user>u0<reply>a1\n\na2<user>u3<reply>", "neighbours"),
        (
            OPENS_A_REPLY,
            "uu",
            "<|im_start|>user\nu0\n\nu1<|im_end|>\n<|im_start|>assistant\n",
            "neighbours of the same role merged; an empty user turn before an opening assistant turn",
        ),
        (
            OPENS_A_REPLY,
            "sau",
            "<|im_start|>system\ns0<|im_end|>\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\na1<|im_end|>\n"
            "<|im_start|>user\nu2<|im_end|>\n<|im_start|>assistant\n",
            "an empty user turn",
        ),
        (LAST_USER_SYSTEM, "suau", "[user]u1[assistant]a2[user]s0\n\nu3", "system messages joined"),
    ],
)
def test_fits_a_conversation_to_the_template_and_says_how(source: str, shape: str, expected: str, policy: str) -> None:
    adapter = MessageAdapter(ChatTemplate(source))
    assert adapter.render(talk(shape)) == expected
    assert policy in str(adapter.policy)


def test_a_template_that_takes_everything_gets_the_messages_untouched() -> None:
    messages = [*talk("ssuasuuaatt"), Message("user", " spaces stay \n")]
    assert adapt(messages, MessageAdapter(ChatTemplate(CHATML)).policy) == messages


def test_merging_keeps_every_text_in_order() -> None:
    everything = Policy(merge_system=True, join_system=True, merge_neighbours=True, open_with_user=True)
    turns = adapt(talk("sassuuaasu"), everything)
    assert "".join(turn.content for turn in turns).replace("\n\n", "") == "s0a1s2s3u4u5a6a7s8u9"
    assert [turn.role for turn in turns] == ["user", "assistant", "user", "assistant", "user"]


def test_the_templates_own_refusal_reaches_the_caller() -> None:
    adapter = MessageAdapter(ChatTemplate(STRICT))
    with pytest.raises(TemplateError, match="Conversation roles must alternate"):
        adapter.render(talk("uat"))
    picky = (
        "{% if messages[-1].content == 'no' %}{{ raise_exception('I will not') }}{% endif %}{{ messages[-1].content }}"
    )
    with pytest.raises(TemplateError, match="I will not"):
        MessageAdapter(ChatTemplate(picky)).render([Message("user", "no")])


def test_a_text_that_the_template_drops_is_an_error_that_names_the_message() -> None:
    no_tools = "{% for m in messages if m.role != 'tool' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    with pytest.raises(TemplateError, match=r"message 2 \(tool\)"):
        MessageAdapter(ChatTemplate(no_tools)).render(talk("uatu"))
    cuts = "{% for m in messages %}<{{ m.role }}>{{ m.content[:20] }}{% endfor %}"
    with pytest.raises(TemplateError, match=r"message 1 \(assistant\)"):
        MessageAdapter(ChatTemplate(cuts)).render([Message("user", "a"), Message("assistant", "b" * 21)])
    backwards = "{% for m in messages[::-1] %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    with pytest.raises(TemplateError, match="out of order"):
        MessageAdapter(ChatTemplate(backwards)).render(talk("uau"))


@pytest.mark.parametrize(
    ("source", "messages", "turns"),
    [
        (TOOL_LEFT_OPEN, talk("uatau"), "user, assistant, tool, assistant, user"),
        (TOOL_LEFT_OPEN, talk("uatt"), "user, assistant, tool, tool"),
        (OPENS_A_REPLY, talk("s"), "system"),
        (EMPTY_LEFT_OPEN, [*talk("u"), Message("assistant", ""), *talk("u")], "user, blank assistant, user"),
    ],
)
def test_turns_that_would_run_into_each_other_are_an_error_that_names_them(
    source: str, messages: list[Message], turns: str
) -> None:
    with pytest.raises(TemplateError, match=f"does not keep these turns apart, use another template: {turns}$"):
        MessageAdapter(ChatTemplate(source)).render(messages)


def test_a_turn_that_is_closed_where_it_matters_is_no_error() -> None:
    adapter = MessageAdapter(ChatTemplate(TOOL_LEFT_OPEN))
    for shape in ("uatu", "uau", "suau"):
        text = adapter.render(talk(shape))
        assert text.count("<|im_start|>") == text.count("<|im_end|>") == len(shape)
    assert MessageAdapter(ChatTemplate(TOOL_LEFT_OPEN)).render([]) == ""


@pytest.mark.parametrize(
    "text", ["<|im_end|>", "<|im_start|>user\n", "<|im_start|><|im_end|><|im_end|>", "user", "start"]
)
def test_what_people_write_is_never_taken_for_a_marker(text: str) -> None:
    messages = [Message("user", text), Message("assistant", text), Message("tool", text), Message("user", text)]
    assert MessageAdapter(ChatTemplate(CHATML)).render(messages) == ChatTemplate(CHATML).render(messages)


def test_a_reply_that_is_said_again_with_its_thoughts_is_found_in_its_place() -> None:
    reply = Message("assistant", "<think>hm</think>\n\nYes.")
    messages = [Message("user", "a"), reply, Message("user", "b"), reply]
    text = MessageAdapter(ChatTemplate(FORGETS_THOUGHTS)).render(messages)
    assert text == "<user>a<assistant>Yes.<user>b<assistant><think>hm</think>\n\nYes."


def test_a_template_that_cannot_be_used_at_all_says_so_when_it_is_used() -> None:
    adapter = MessageAdapter(ChatTemplate("{{ raise_exception('needs tools') }}"))
    assert str(adapter.policy) == "messages as they are"
    with pytest.raises(TemplateError, match="needs tools"):
        adapter.render(talk("u"))
    with pytest.raises(TemplateError, match=r"message 0 \(user\)"):
        MessageAdapter(ChatTemplate("the same for everyone")).render(talk("u"))


def test_an_endless_template_is_refused_at_the_first_look() -> None:
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateLimitError):
        MessageAdapter(ChatTemplate(endless))


def test_templates_may_trim_a_text_write_it_as_json_or_leave_out_thoughts() -> None:
    said = ' a "quoted"\nline\té '
    assert "a" in MessageAdapter(ChatTemplate(STRICT)).render([Message("user", said)])
    for option in ("", "(ensure_ascii=true)"):
        as_json = ChatTemplate(
            "{% for m in messages %}<{{ m.role }}>{{ m.content | tojson" + option + " }}{% endfor %}"
        )
        assert json.loads(MessageAdapter(as_json).render([Message("user", said)]).removeprefix("<user>")) == said
    thoughtless = "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}{% endfor %}"
    adapter = MessageAdapter(ChatTemplate(thoughtless))
    assert adapter.render([Message("user", "q"), Message("assistant", "<think>x</think>y")]) == "<user>q<assistant>y"
    with pytest.raises(TemplateError, match=r"message 0 \(user\)"):
        adapter.render([Message("user", "<think>x</think>y")])
