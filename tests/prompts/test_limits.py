"""A chat template is code out of a model file. Every payload ends in a typed error, soon and in little memory."""

import json
import subprocess
import sys
import threading
import time

import pytest

from onhand.errors import TemplateError, TemplateLimitError
from onhand.prompts.adapter import MessageAdapter
from onhand.prompts.meter import BASE_UNITS, Meter
from onhand.prompts.template import MAX_SOURCE_CHARS, ChatTemplate
from onhand.types import Message

MAX_SECONDS = 1.0
MAX_MEGABYTES = 200
HELLO = [Message("user", "Hello")]


def growing(start: str, step: str, end: str = "") -> str:
    loop = "{% for i in range(60) %}{% set ns.s = " + step + " %}{% endfor %}"
    return "{% set ns = namespace(s=" + start + ", t=" + start + ") %}" + loop + end


FORBIDDEN = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ (''|attr('__class__')).x }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context.x }}",
    "{% for i in [1] %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{{ raise_exception.__globals__.x }}",
    "{{ '{0.__class__.x}'.format('') }}",
    "{{ '{0.__class__.x}'.format_map({'0': ''}) }}",
    "{{ (messages|map(attribute='__class__')|list)[0].x }}",
    "{{ (['a']|map('attr', '__class__')|list)[0].x }}",
    "{{ dict.mro() }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='system') }}",
    "{{ messages[0].pop('role') }}",
    "{{ {}.fromkeys(range(100000), 1) }}",
    "{{ 'a'.encode() }}",
    "{{ 'a'.translate({97: 'b' * 1000}) }}",
    "{{ (1).to_bytes(1000000000, 'big') }}",
    "{{ lipsum(n=1000000000) }}",
]
ENDLESS = [
    "{% for i in range(10**9) %}x{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
    "{% block a %}{{ self.a() }}{% endblock %}",
    "{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
    "{% set c = cycler(1) %}{% for i in range(99) %}{% for j in range(99999) %}{{ c.next() }}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{{ 'q' in range(99999) }}{% endfor %}",
    "{{ range(99999)|select('in', range(99999)|list)|list }}",
    "{{ [1]|slice(10**9)|list }}",
    "{{ (range(99999)|list)|sort(attribute='a.' * 10000) }}",
    "{{ range(99999)|sort(attribute='real')|length }}",
    "{{ messages|groupby('role.' * 5000) }}",
    "{{ ([[1]] * 20000)|sum(start=[]) }}",
    "{{ ('a' * 1000000).rfind('b' + 'a' * 500000) }}",
    "{{ ('a' * 1000000).strip('b' * 500000 ~ 'a') }}",
    "{{ 5|round(-1000000000) }}",
    "{{ 5.5|round(1000000000, 'ceil') }}",
    "{{ 7 ** 9999999 }}",
    "{{ (2 ** 4000) * 'a' }}",
    growing("3", "ns.s * ns.s"),
    "{{ ('f' * 100000)|int(0, 16) }}",
    growing("(1,)", "(ns.s, ns.s)", "{{ {ns.s: 1} }}"),
    growing("(1,)", "(ns.s, ns.s)", "{{ {}[ns.s] }}"),
    growing("(1,)", "(ns.s, ns.s)", "{{ ns.s in {} }}"),
    growing("(1,)", "(ns.s, ns.s)", "{% set t = ns.s %}") + growing("(1,)", "(ns.s, ns.s)", "{{ t == ns.s }}"),
]
HUGE = [
    "{{ 'a' * 10**10 }}",
    "{{ 10**10 * 'a' }}",
    "{{ [0] * 10**9 }}",
    "{{ ('a'|safe) * 10**9 }}",
    "{{ 'a'|center(10**9) }}",
    "{{ 'a'|center(1000000000) }}",
    "{% set f = 'a'.center %}{{ f(10**9) }}",
    "{% filter center(1000000000) %}a{% endfilter %}",
    "{{ ['a']|map('center', 10**9)|list }}",
    "{{ 'a'.ljust(1000000000) }}",
    "{{ 'a'.zfill(1000000000) }}",
    "{{ ('\t' * 1000).expandtabs(10**8) }}",
    "{{ '%1000000000d'|format(1) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%.1000000000f' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ ('%(a)s' * 1000) % {'a': 'a' * 10000} }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=1000000000) }}",
    "{{ ('{0}' * 1000).format('a' * 10000) }}",
    "{{ ('a' * 100000)|replace('a', 'b' * 100000) }}",
    "{{ ('a' * 100000).replace('', 'b' * 100000) }}",
    "{{ ('a\n' * 100000)|indent(1000000) }}",
    "{{ 'a'|indent(10**9, first=true) }}",
    "{{ range(100000)|join('a' * 100000) }}",
    "{{ ('a' * 100000).join(range(1000)|map('string')) }}",
    "{{ range(99999)|map('string')|map('replace', '', 'a' * 30)|join }}",
    "{{ [1]|tojson(indent=10**9) }}",
    "{{ range(50000)|list|tojson(indent=64) }}",
    "{{ ('\x01' * 3000000)|tojson }}",
    "{{ ('é' * 3000000)|urlencode }}",
    "{{ [1]|batch(10**9, 0)|list }}",
    growing("'aaaa'", "ns.s ~ ns.s"),
    growing("'aaaa'", "ns.s + ns.s"),
    growing("[1]", "ns.s + ns.s"),
    growing("[1]", "[ns.s, ns.s]", "{{ ns.s }}"),
    growing("[1]", "[ns.s, ns.s]", "{{ ns.s|tojson }}"),
    growing("namespace()", "namespace(a=ns.s, b=ns.s)", "{{ ns.s }}"),
    "{% set a = namespace() %}{% set a.x = a %}{{ a }}",
    "{% for i in range(99999) %}" + "x" * 60000 + "{% endfor %}",
    "{% macro m() %}{% for i in range(99999) %}" + "x" * 60000 + "{% endfor %}{% endmacro %}{% set a = m() %}",
    "{% set a %}{% for i in range(99999) %}" + "x" * 60000 + "{% endfor %}{% endset %}",
    "{% for i in range(99999) %}{% set a = [" + "{}," * 2000 + "] %}{% endfor %}",
    "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l, {}, {}, {}] %}{% endfor %}{{ 1 }}",
    "{{ strftime_now('%c' * 10000000) }}",
    "{% set j = joiner('a' * 100000) %}{% for i in range(99999) %}{{ j() }}{% endfor %}",
    "{{ ['a' * 1000000] * 16 }}",
]
MONSTERS = [
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "not " * 10000 + "1 }}",
    "{{ " + "1+" * 3000 + "1 }}",
    "{{ [" + "{}," * 15000 + "] }}",
    "{% if 1 %}" * 200 + "{% endif %}" * 200,
    "{% for i in [1] %}" * 30 + "{% endfor %}" * 30,
    "{{ a }}" * 9000,
    "x" * (MAX_SOURCE_CHARS + 1),
]


@pytest.mark.parametrize("source", FORBIDDEN)
def test_a_template_reaches_nothing_but_its_values(source: str) -> None:
    with pytest.raises(TemplateError):
        ChatTemplate(source).render(HELLO)


@pytest.mark.parametrize("source", ENDLESS + HUGE, ids=lambda source: source[:60])
def test_a_template_that_would_run_or_grow_for_ever_is_stopped(source: str) -> None:
    start = time.thread_time()
    with pytest.raises(TemplateLimitError) as caught:
        ChatTemplate(source).render(HELLO)
    assert time.thread_time() - start < MAX_SECONDS
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", MONSTERS, ids=lambda source: source[:30])
def test_a_monstrous_source_is_refused(source: str) -> None:
    start = time.thread_time()
    with pytest.raises(TemplateError):
        ChatTemplate(source)
    assert time.thread_time() - start < 2 * MAX_SECONDS


def test_all_payloads_together_stay_within_the_memory_limit() -> None:
    code = (
        "import json, resource, sys\n"
        "from onhand.errors import TemplateError\n"
        "from onhand.prompts.template import ChatTemplate\n"
        "from onhand.types import Message\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for source in json.load(sys.stdin):\n"
        "    try: ChatTemplate(source).render([Message('user', 'Hello')])\n"
        "    except TemplateError: pass\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)\n"
    )
    if sys.platform == "win32":
        pytest.skip("the peak of a process's memory is read with the resource module, which Windows lacks")
    payloads = json.dumps(FORBIDDEN + HUGE + ENDLESS + MONSTERS)
    done = subprocess.run([sys.executable, "-c", code], input=payloads, capture_output=True, text=True, check=True)
    kilobytes_are_bytes = 1024 if sys.platform == "darwin" else 1
    assert float(done.stdout) / kilobytes_are_bytes < MAX_MEGABYTES


def test_the_limit_holds_on_any_thread_and_leaves_other_renderings_alone() -> None:
    endless = ChatTemplate("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
    sound = ChatTemplate("{% for i in range(1000) %}{{ messages[0].content }}{% endfor %}")
    stopped, texts = [], []

    def run_endless() -> None:
        try:
            endless.render(HELLO)
        except TemplateLimitError as error:
            stopped.append(error)

    threads = [threading.Thread(target=run_endless) for _ in range(3)]
    threads += [threading.Thread(target=lambda: texts.append(sound.render(HELLO))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stopped) == 3
    assert texts == ["Hello" * 1000] * 3


def test_a_rendering_that_was_stopped_does_not_spoil_the_next() -> None:
    template = ChatTemplate("{% for i in range(messages|length * 90000) %}{{ messages[0].content[:9] }}{% endfor %}")
    with pytest.raises(TemplateLimitError):
        template.render([Message("user", "x" * 9)])
    assert ChatTemplate("{{ messages[0].content }}").render(HELLO) == "Hello"


def test_the_account_grows_with_the_messages() -> None:
    long = [Message("user", "word " * 200_000)]
    template = ChatTemplate("{{ messages[0].content|trim }}{{ messages[0].content.split(' ')|length }}")
    assert template.render(long).endswith("200001")


def test_a_long_conversation_is_rendered_by_a_template_that_compares_all_pairs() -> None:
    source = (
        "{% for a in messages %}{% set ns = namespace(n=0) %}{% for b in messages %}"
        "{% if a.role == b.role %}{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}{{ ns.n }},{% endfor %}"
    )
    assert ChatTemplate(source).render(HELLO * 150) == "150," * 150


def test_constants_are_not_computed_while_compiling() -> None:
    start = time.thread_time()
    template = ChatTemplate("{% if false %}{{ 'a'|center(1000000000) }}{{ 'a' * 1000000000 }}{% endif %}ok")
    assert template.render(HELLO) == "ok"
    assert time.thread_time() - start < MAX_SECONDS


def test_a_template_that_names_thousands_of_turn_markers_is_looked_at_soon() -> None:
    markers = " ".join(f"<|start{number}|><|end{number}|>" for number in range(2_200))
    source = "{# " + markers + " #}{{ 'x' * 900000 }}{% for m in messages %}{{ m.content }}{% endfor %}"
    start = time.thread_time()
    MessageAdapter(ChatTemplate(source))
    assert time.thread_time() - start < 3 * MAX_SECONDS  # 30 renderings; counting every marker took 46


def test_an_empty_account_stays_empty() -> None:
    meter = Meter([], {})
    assert meter.limit == BASE_UNITS + 256 * 64
    with pytest.raises(TemplateLimitError):
        meter.spend(meter.limit + 1)
    with pytest.raises(TemplateLimitError):
        meter.spend(1)
