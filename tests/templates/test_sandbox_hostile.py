"""A hostile template ends soon, in little memory, with an error or harmless text."""

import re
import time
from pathlib import Path

import pytest

from woolly.errors import TemplateError
from woolly.templates.template import ChatTemplate

CONVERSATION = [{"role": "user", "content": "hello"}]
MAX_SECONDS = 10.0  # of the processor; about 1 on a usual machine
MAX_MEGABYTES = 100

GROW = "{% set ns = namespace(x='ab') %}{% for i in range(100) %}"
FOREVER = "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% for j in range(100000) %}"
END = "{% endfor %}{% endfor %}"
LAUGHS = (
    "{% set ns = namespace(x=[0], y=[0], t=(0,)) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% set ns.y = [ns.y, ns.y] %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}"
)
DEEP = (
    "{% set ns = namespace(x=[], y=[], t=()) %}{% for i in range(30000) %}{% set ns.x = [ns.x] %}"
    "{% set ns.y = [ns.y] %}{% set ns.t = (ns.t,) %}{% endfor %}"
)

RUNS_LONG = {
    "nested loops": "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
    "silent nested loops": "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "loops that skip all": "{% for a in range(100000) %}{% for b in range(100000) if false %}{% endfor %}{% endfor %}",
    "loop over a wide body": "{% for a in range(100000) %}" + "{% set b = a %}" * 900 + "{% endfor %}",
    "macro that calls itself": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "macro tree": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "loop lengths": FOREVER + "{% for b in [1]|map('string') %}{{ loop.length }}{% endfor %}" + END,
    "count": "{% set s = 'a' * 2000000 %}{% for i in range(100000) %}{{ s.count('a' * 50 ~ 'b') }}{% endfor %}",
    "strip": "{% set s = 'a' * 2000000 %}{{ s.strip('b' * 1000000 ~ 'a') }}",
    "compare texts": "{% set a = 'a' * 5000000 %}{% set b = a ~ 'b' %}{% set c = a ~ 'c' %}"
    "{% for i in range(100000) %}{% if b == c %}{% endif %}{% endfor %}",
    "text in text": "{% set a = 'a' * 5000000 %}{% for i in range(100000) %}{% if 'b' in a %}{% endif %}{% endfor %}",
    "number in list": "{% set a = [1] * 999999 %}{% for i in range(100000) %}{% if i in a %}{% endif %}{% endfor %}",
    "text in range": "{% for i in range(100000) %}{% if 'x' in range(100000) %}{% endif %}{% endfor %}",
    "test in list": "{% set a = [1] * 999999 %}{% for i in range(100000) %}{% if i is in a %}{% endif %}{% endfor %}",
    "startswith": "{% set s = 'a' * 5000000 %}{% for i in range(100000) %}{{ s.startswith(s) }}{% endfor %}",
    "sort": "{% for i in range(1000) %}{% set x = range(100000)|sort %}{% endfor %}",
    "min": "{% for i in range(1000) %}{% set x = range(100000)|min %}{% endfor %}",
    "sort by a long path": "{{ ([{'a': {}}] * 10000)|sort(attribute='a.' * 50000)|length }}",
    "map a long path": "{{ ([{'a': 1}] * 10000)|map(attribute='a.' * 50000)|list|length }}",
    "colliding keys": "{% set p = 1152921504606846976 * 2 - 1 %}{{ range(0, 100000 * p, p)|unique|list|length }}",
    "star arguments": "{% macro f() %}{% endmacro %}{% for i in range(100000) %}{{ f(*range(100000)) }}{% endfor %}",
    "refilled budget": "{{ [-1000000000]|map('#charge')|list }}" + FOREVER + END,
}

GROWS = {
    "repeated text": "{{ 'x' * 10000000000 }}",
    "repeated list": "{% set x = [0] * 1000000000 %}",
    "repeated tuple": "{% set x = 1000000000 * (1, 2) %}",
    "doubling +": GROW + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "doubling ~": GROW + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubling set block": GROW + "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
    "doubling join": GROW + "{% set ns.x = [ns.x, ns.x]|join %}{% endfor %}",
    "doubling str.join": GROW + "{% set ns.x = ns.x.join([ns.x, ns.x]) %}{% endfor %}",
    "doubling format": GROW + "{% set ns.x = '{0}{0}'.format(ns.x) %}{% endfor %}",
    "doubling replace": GROW + "{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
    "doubling replace filter": GROW + "{% set ns.x = ns.x|replace('a', ns.x) %}{% endfor %}",
    "doubling tojson": GROW + "{% set ns.x = (ns.x ~ '\"')|tojson %}{% endfor %}",
    "doubling repr": GROW + "{% set ns.x = [ns.x ~ '\\\\']|string %}{% endfor %}",
    "doubling macro": "{% macro f(n) %}{% set x = f(n - 1) if n else '0123' %}{{ x }}{{ x }}{% endmacro %}{{ f(50) }}",
    "doubling filter block": "{% macro f(n) %}{% filter replace('a', 'aaaaaaaaaa') %}"
    "{% if n %}{{ f(n - 1) }}{% else %}a{% endif %}{% endfilter %}{% endmacro %}{{ f(20) }}",
    "replace of nothing": "{{ ('a' * 100000).replace('', 'b' * 100000) }}",
    "indent": "{{ 'a\nb'|indent(1000000000) }}",
    "indent by text": "{{ ('a\n' * 10000)|indent('x' * 100000) }}",
    "format width": "{{ '{:999999999}'.format(1) }}",
    "format of many": "{{ ('{0}' * 10000).format('x' * 100000) }}",
    "join by text": "{{ range(100000)|join('x' * 100000) }}",
    "split": FOREVER + "{% set ns.x = [ns.x, ('a ' * 100000).split()] %}" + END,
    "characters": FOREVER + "{% set ns.x = [ns.x, ('é€' * 10000)|list] %}" + END,
    "slices": FOREVER + "{% set ns.x = [ns.x, ('a' * 10000)[1:]] %}" + END,
    "from_json": FOREVER + "{% set ns.x = [ns.x, ('[{\"\":0}' ~ ',{\"\":0}' * 10000 ~ ']')|from_json] %}" + END,
    "tojson indent": "{{ [1, 2]|tojson(indent=1000000000) }}",
    "tojson separators": "{{ ([1] * 100000)|tojson(separators=('x' * 100000, ':')) }}",
    "output": "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}{{ s }}{% endfor %}",
    "template's own text": "{% for i in range(100000) %}" + "x" * 100000 + "{% endfor %}",
    "long filter name": "{{ [1]|map('\x01' * 9000000)|list }}",
    "repeated squares": "{% set ns = namespace(x=3) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "int of text": "{{ ('9' * 1000000)|int }}",
    "round": "{{ 5|round(-1000000000) }}",
    "round up": "{{ 1.5|round(1000000000, 'ceil') }}",
    "range": "{{ range(10000000000)|list }}",
    "ranges kept": FOREVER + "{% set ns.x = [ns.x, range(100000)|list] %}" + END,
    "containers kept": FOREVER + "{% set ns.x = [ns.x, {}, [], (), {'a': 1}] %}" + END,
    "namespaces kept": FOREVER + "{% set ns.x = namespace(a=ns.x) %}" + END,
    "methods kept": FOREVER + "{% set ns.x = (ns.x, 'a'.strip, {}.items()) %}" + END,
    "numbers kept": FOREVER + "{% set ns.x = (ns.x, i / 3, j + 1000) %}" + END,
    "undefined values kept": FOREVER + "{% set ns.x = (ns.x, a, b, c, {}.d) %}" + END,
    "macros kept": FOREVER + "{% macro f() %}{% endmacro %}{% set ns.x = (ns.x, f) %}" + END,
    "small texts kept": FOREVER + "{% set ns.x = (ns.x, i ~ j, i|string, 'ab'.upper(), j|tojson) %}" + END,
}

SMALL_THAT_STANDS_FOR_HUGE = {
    "printed": LAUGHS + "{{ ns.x }}",
    "concatenated": LAUGHS + "{{ 'a' ~ ns.x }}",
    "tojson": LAUGHS + "{{ ns.x|tojson }}",
    "equal": LAUGHS + "{{ ns.x == ns.y }}",
    "less": LAUGHS + "{{ 0 < 1 < ns.x < ns.y }}",
    "in": LAUGHS + "{{ ns.x in [ns.y] }}",
    "is eq": LAUGHS + "{{ ns.x is eq(ns.y) }}",
    "sort": LAUGHS + "{{ [ns.x, ns.y]|sort|length }}",
    "format": LAUGHS + "{{ '{}'.format(ns.x) }}",
    "rejection": LAUGHS + "{{ raise_exception(ns.x) }}",
    "hashed as a key": LAUGHS + "{{ {ns.t: 1}|length }}",
    "hashed by get": LAUGHS + "{{ {}.get(ns.t) }}",
    "hashed by in": LAUGHS + "{{ ns.t in {} }}",
    "hashed by unique": LAUGHS + "{{ [ns.t, ns.t]|unique|list|length }}",
    "hashed as a filter's name": LAUGHS + "{{ [1]|map(ns.t)|list }}",
    "missing element": LAUGHS + "{{ {}[ns.t].y }}",
    "namespaces": "{% set ns = namespace(x=0) %}{% for i in range(60) %}"
    "{% set ns.x = namespace(a=ns.x, b=ns.x) %}{% endfor %}{{ ns }}",
    "a namespace in itself": "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
    "a namespace in itself compared": "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns.a == [[ns]] }}",
    "deep, printed": DEEP + "{{ ns.x }}",
    "deep, compared": DEEP + "{{ ns.x == ns.y }}",
    "deep, hashed": DEEP + "{{ {ns.t: 1} }}",
    "deep, from_json": "{{ ('[' * 90000 ~ ']' * 90000)|from_json }}",
    "deep, tojson": DEEP + "{{ ns.x|tojson }}",
}

REACHES_OUT = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "class by item": "{{ ''['__class__']['__mro__'] }}",
    "class by format": "{{ '{0.__class__.__mro__}'.format(1) }}",
    "class by attr": "{{ ''|attr('__class__') }}",
    "class of undefined": "{{ nope.__class__ }}",
    "function's globals": "{{ range.function.__globals__ }}",
    "method's globals": "{{ ''.strip.function.__globals__.os }}",
    "namespace's globals": "{{ namespace().__init__.__globals__ }}",
    "macro's function": "{% macro f() %}{% endmacro %}{{ f._func.__globals__ }}",
    "macro's environment": "{% macro f() %}{% endmacro %}{{ f._environment.globals }}",
    "context": "{{ self._TemplateReference__context.environment }}",
    "lipsum": "{{ lipsum.__globals__ }}",
    "bytes": "{{ 'a'.encode() }}",
    "translate": "{{ 'abc'.translate({97: 'x'}) }}",
    "append": "{{ messages.append(1) }}",
    "pop": "{{ messages[0].pop('role') }}",
    "attribute by format": "{{ '{0.x}'.format({'x': 1}) }}",
    "item by format": "{{ '{0[x]}'.format({'x': 1}) }}",
    "% formatting": "{{ '%s' % 'a' }}",
    "power": "{{ 2 ** 3 }}",
    "call block": "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}{% endcall %}",
    "recursive loop": "{% for x in [[1]] recursive %}{{ loop([]) }}{% endfor %}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "extends": "{% extends 'x' %}",
    "block": "{% block a %}{{ self.a() }}{% endblock %}",
    "autoescape": "{% autoescape true %}{{ '<' }}{% endautoescape %}",
    "guard by name": "{{ [1]|map('#weigh')|list }}",
    "time format": "{{ strftime_now('%999999999d') }}",
    "random": "{{ [1, 2]|random }}",
}

HARD_TO_COMPILE = {
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "not": "{{ " + "not " * 7000 + "1 }}",
    "sum": "{{ " + "1+" * 7000 + "1 }}",
    "filters": "{{ 1" + "|string" * 7000 + " }}",
    "attributes": "{{ a" + ".a" * 7000 + " }}",
    "calls": "{{ a" + "()" * 7000 + " }}",
    "ifs": "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
    "fors": "{% for a in b %}" * 100 + "{% endfor %}" * 100,
    "macros": "{% macro f() %}" * 100 + "{% endmacro %}" * 100,
    "length": "x" * 3000000,
    "tokens": "{{ a }}" * 20000,
    "long number": "{{ " + "9" * 100000 + " }}",
    "hex number": "{{ 0x" + "f" * 100000 + " }}",
    "colliding numbers": "{{ {" + ",".join(f"{i * (2**61 - 1)}:1" for i in range(1, 3500)) + "} }}",
    "comments": "{#" * 60000,
    "quotes": "{{ '" * 3000,
    "keyword twice": "{{ dict(a=1, a=2) }}",
}


def peak_megabytes() -> float:
    status = Path("/proc/self/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+)", status)
    return int(match[1]) / 1024 if match else 0.0


def run_measured(source: str) -> str | TemplateError:
    try:
        # Sets the peak back to the present, so that each template is measured alone.
        Path("/proc/self/clear_refs").write_text("5")
        before: float | None = peak_megabytes()
    except OSError:
        before = None
    start = time.process_time()
    outcome: str | TemplateError
    try:
        outcome = ChatTemplate(source).render(CONVERSATION)
    except TemplateError as error:
        outcome = error
    assert time.process_time() - start < MAX_SECONDS
    if before is not None:
        assert peak_megabytes() - before < MAX_MEGABYTES
    return outcome


def battery(*groups: dict[str, str]) -> list[object]:
    return [pytest.param(source, id=name) for group in groups for name, source in group.items()]


@pytest.mark.parametrize("source", battery(RUNS_LONG, GROWS, SMALL_THAT_STANDS_FOR_HUGE, REACHES_OUT, HARD_TO_COMPILE))
def test_hostile_template_is_rejected_soon_with_little_memory(source):
    outcome = run_measured(source)
    assert isinstance(outcome, TemplateError)
    assert len(str(outcome)) < 2500


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ ['']|map(attribute='__class__')|list }}", "[Undefined]"),
        ("{{ range.__globals__ }}", ""),
        ("{{ namespace()._Namespace__attrs }}", ""),
        ("{% for i in [1] %}{{ loop._iterable }}{{ loop.__init__ }}{% endfor %}", ""),
        ("{{ messages.append }}{{ ''.strip }}", "<function>"),
        ("{% for x in range(3) %}{{ x }}{% endfor %}" + "{{ '<' * 10 }}", "012<<<<<<<<<<"),
    ],
)
def test_forbidden_objects_do_not_exist(source, expected):
    assert run_measured(source) == expected


def test_given_conversation_is_never_changed():
    messages = [{"role": "user", "content": "a"}]
    source = "{% set messages = messages + [1] %}{{ messages|length }}"
    assert ChatTemplate(source).render(messages) == "2"
    assert messages == [{"role": "user", "content": "a"}]
