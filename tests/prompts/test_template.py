import hashlib
import json
import os
import subprocess
import sys
from datetime import datetime, timedelta

import pytest

from onhand.errors import TemplateError, TemplateLimitError
from onhand.prompts.clock import strftime
from onhand.prompts.template import MAX_PROBLEM_CHARS, ChatTemplate
from onhand.types import Message
from support.corpora import corpus

HELLO = [Message("user", "Hello")]
MOMENT = datetime(2024, 7, 4, 16, 5, 9, 120)
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' "
    "+ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def rendered(source: str, **extra: object) -> str:
    return ChatTemplate(source, clock=lambda: MOMENT, extra=extra).render(HELLO)


def test_renders_messages_and_the_generation_prompt() -> None:
    template = ChatTemplate(CHATML)
    assert template.render(HELLO) == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert template.render(HELLO, add_generation_prompt=False) == "<|im_start|>user\nHello<|im_end|>\n"


def test_names_a_template_by_the_hash_of_its_source() -> None:
    assert ChatTemplate(CHATML).sha256 == hashlib.sha256(CHATML.encode()).hexdigest()


def test_gives_messages_as_plain_mappings_and_absent_tools_as_none() -> None:
    assert rendered("{{ messages }}") == "[{'role': 'user', 'content': 'Hello'}]"
    assert rendered("{{ tools is none and documents is none and tools is defined }}") == "True"
    assert rendered("{{ messages[0].tool_calls is defined }}") == "False"


def test_gives_the_texts_of_bos_and_eos() -> None:
    assert ChatTemplate("{{ bos_token }}|{{ eos_token }}", bos="<s>", eos="</s>").render(HELLO) == "<s>|</s>"
    assert ChatTemplate("[{{ bos_token }}]").render(HELLO) == "[]"


def test_trims_blocks_as_transformers_does() -> None:
    assert rendered("{% if true %}\n    {% if true %}\nx\n    {% endif %}\n{% endif %}\n") == "x\n"


def test_knows_loop_controls_and_the_generation_tag() -> None:
    loop = "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}"
    assert rendered(loop + "{% endfor %}") == "023"
    assert rendered("a{% generation %}b{% set x = 1 %}{% endgeneration %}{{ x is defined }}") == "abFalse"


@pytest.mark.parametrize(
    ("filtered", "expected"),
    [
        ("{'b': '<é>', 'a': [1, true, none]} | tojson", '{"b": "<é>", "a": [1, true, null]}'),
        ("{'b': 1, 'a': 2} | tojson(sort_keys=true)", '{"a": 2, "b": 1}'),
        ("[1, 2] | tojson(indent=2)", "[\n  1,\n  2\n]"),
        ("{'a': 1} | tojson(separators=(',', ':'))", '{"a":1}'),
        ("'é' | tojson(ensure_ascii=true)", '"\\u00e9"'),
        ("'</script>&' | tojson", '"</script>&"'),
    ],
)
def test_tojson_writes_what_transformers_writes(filtered: str, expected: str) -> None:
    assert rendered("{{ " + filtered + " }}") == expected


def test_filters_methods_and_operators_give_what_jinja_gives() -> None:
    assert rendered("{{ ['a', 'b'] | join(', ') }} {{ [1, 2, 3] | sum }} {{ 'x' ~ 1 ~ none }}") == "a, b 6 x1None"
    assert (
        rendered("{{ ', '.join(['a'] | map('upper')) }}{{ '%s-%02d' % ('a', 5) }}{{ 'n={}'.format(7) }}") == "Aa-05n=7"
    )
    assert rendered("{{ (1, 2) }}{{ [1, 2, 3][::-1] }}{{ 'abc'[1:] }}{{ 2 ** 8 }}") == "(1, 2)[3, 2, 1]bc256"
    assert rendered("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}") == "1"
    assert rendered("{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}a{% endcall %}") == "[a]"
    assert rendered("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{{ loop.last }}{% endfor %}") == "a1True"
    assert (
        rendered("{% set ns = namespace(n=0) %}{% for i in [1, 2] if i > 1 %}{% set ns.n = i %}{% endfor %}{{ ns.n }}")
        == "2"
    )


def test_passes_extra_variables() -> None:
    assert rendered("{{ enable_thinking }}", enable_thinking=False) == "False"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%d %b %Y", "04 Jul 2024"),
        ("%Y-%m-%d %H:%M:%S", "2024-07-04 16:05:09"),
        ("%A, %B %-d, %Y at %-I:%M %p", "Thursday, July 4, 2024 at 4:05 PM"),
        ("%a|%c|%x|%X", "Thu|Thu Jul  4 16:05:09 2024|07/04/24|16:05:09"),
        ("%r|%D|%F|%T|%R", "04:05:09 PM|07/04/24|2024-07-04|16:05:09|16:05"),
        ("%j %U %W %V %G %g %u %w %y %C %f %e %k %l %P %h", "186 26 27 27 2024 24 4 4 24 20 000120  4 16  4 pm Jul"),
        ("%_d|%^a|%0e|%n|%t|%%|%Q|%", " 4|THU|04|\n|\t|%|%Q|%"),
        ("[%z][%Z]", "[][]"),
    ],
)
def test_strftime_now_knows_every_format(text: str, expected: str) -> None:
    assert rendered("{{ strftime_now(" + json.dumps(text) + ") }}") == expected


def test_weeks_and_days_agree_with_the_c_library_on_every_day_of_eight_years() -> None:
    for day in range(365 * 8 + 2):
        now = datetime(2018, 1, 1, day % 24, 7) + timedelta(days=day)
        text = "%j %U %W %V %G %u %w %d %m %y %H %I"
        assert strftime(now, text) == now.strftime(text)


@pytest.mark.parametrize("locale", ["de_DE.UTF-8", "C", "tr_TR.UTF-8", "zh_CN.UTF-8"])
def test_names_of_days_and_months_are_english_whatever_the_locale(locale: str) -> None:
    code = (
        "import contextlib, locale\n"
        "with contextlib.suppress(locale.Error): locale.setlocale(locale.LC_ALL, '')\n"
        "from datetime import datetime\n"
        "from onhand.prompts.template import ChatTemplate\n"
        "from onhand.types import Message\n"
        "template = ChatTemplate(\"{{ strftime_now('%A %d %B %Y %p %c') }}\", clock=lambda: datetime(2024, 3, 12, 9))\n"
        "print(template.render([Message('user', 'x')]))\n"
    )
    environment = {**os.environ, "LC_ALL": locale, "LANG": locale, "PYTHONUTF8": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "Tuesday 12 March 2024 AM Tue Mar 12 09:00:00 2024"


def test_a_template_that_does_not_compile_names_the_line() -> None:
    with pytest.raises(TemplateError, match=r"line 2: .*endfor"):
        ChatTemplate("\n{% for a in b %}")


@pytest.mark.parametrize(
    "source",
    [
        "{% include 'a' %}",
        "{% import 'a' as b %}",
        "{% from 'a' import b %}",
        "{% extends 'a' %}",
        "{% autoescape true %}{% endautoescape %}",
    ],
)
def test_a_template_reaches_no_other_template_and_no_html_escaping(source: str) -> None:
    with pytest.raises(TemplateError, match="is not allowed in a chat template"):
        ChatTemplate(source)


def test_the_words_of_raise_exception_reach_the_caller_on_one_clean_line() -> None:
    with pytest.raises(TemplateError) as caught:
        rendered("{{ raise_exception('Conversation roles\n must alternate \x1b[31m' + 'x' * 5000) }}")
    assert caught.value.problem.startswith("Conversation roles must alternate ?[31mxxx")
    assert len(caught.value.problem) == MAX_PROBLEM_CHARS


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 / 0 }}",
        "{{ nothing.at.all }}",
        "{{ messages + 1 }}",
        "{{ [1]['a'].b }}",
        "{{ none | tojson(b=1) }}",
        "{{ namespace() | tojson }}",
    ],
)
def test_whatever_a_template_runs_into_is_a_template_error(source: str) -> None:
    with pytest.raises(TemplateError) as caught:
        rendered(source)
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, TemplateLimitError)


def qwen3(**extra: object) -> ChatTemplate:
    (path,) = corpus("tokenizer-qwen3").rglob("tokenizer_config.json")
    return ChatTemplate(json.loads(path.read_text(encoding="utf-8"))["chat_template"], extra=extra)


TALK: list[dict[str, object]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Two and two?"},
    {"role": "assistant", "content": "<think>\nEasy.\n</think>\n\nFour."},
    {"role": "user", "content": "And three?"},
]
TALK_TEXT = """<|im_start|>system
Be brief.<|im_end|>
<|im_start|>user
Two and two?<|im_end|>
<|im_start|>assistant
Four.<|im_end|>
<|im_start|>user
And three?<|im_end|>
<|im_start|>assistant
"""


def test_the_real_qwen3_template_with_its_reversed_slice_gives_the_golden_prompts() -> None:
    assert qwen3().render_plain(TALK) == TALK_TEXT
    assert qwen3(enable_thinking=True).render_plain(TALK) == TALK_TEXT
    assert qwen3(enable_thinking=False).render_plain(TALK) == TALK_TEXT + "<think>\n\n</think>\n\n"


def test_the_real_qwen3_template_writes_tools_calls_and_results() -> None:
    tool = {"type": "function", "function": {"name": "time", "description": "Ask <b>", "parameters": {}}}
    call = {"type": "function", "function": {"name": "time", "arguments": {"place": "Zürich"}}}
    messages: list[dict[str, object]] = [
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "12:00"},
    ]
    assert qwen3(tools=[tool]).render_plain(messages) == (
        "<|im_start|>system\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
        '{"type": "function", "function": {"name": "time", "description": "Ask <b>", "parameters": {}}}\n</tools>\n\n'
        "For each function call, return a json object with function name and arguments within <tool_call></tool_call> "
        'XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nTime?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "time", "arguments": {"place": "Zürich"}}\n</tool_call>'
        "<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n12:00\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
