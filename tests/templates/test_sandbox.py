"""The sandbox means what Jinja means, for all that chat templates use."""

import json
from typing import Any

import pytest
from jinja2 import ext, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from woolly.errors import TemplateError
from woolly.templates.template import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}]
DATA: dict[str, Any] = {
    "text": "  Hello, wörld! <b>\nsecond line\n\nfourth  ",
    "word": "abcabc",
    "numbers": [3, 1, 2, 3],
    "nested": [{"name": "b", "n": 2, "tags": ["x"]}, {"name": "A", "n": 1, "tags": []}],
    "table": {"b": 1, "a": [1, 2, {"c": None}], "é": True, "items": "shadow"},
}


def plain_environment() -> ImmutableSandboxedEnvironment:
    """Jinja set up the way that chat templates are written for."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols])
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, **{"ensure_ascii": False, **options})
    return environment


PLAIN = plain_environment()


def data_for(source: str) -> dict[str, Any]:
    """Variables of DATA that a template reads; others would be rejected."""
    names = meta.find_undeclared_variables(PLAIN.parse(source))
    return {name: value for name, value in DATA.items() if name in names}


def expect_same(source: str) -> None:
    expected = PLAIN.from_string(source).render(messages=MESSAGES, **DATA)
    assert ChatTemplate(source).render(MESSAGES, **data_for(source)) == expected


STRING_METHODS = """
strip() | lstrip() | rstrip() | upper() | lower() | title() | capitalize() | strip(' Hh') | join(['a', 'b'])
split() | split('l') | split('l', 1) | split(sep='l', maxsplit=2) | splitlines() | splitlines(true)
replace('l', 'LL') | replace('l', '', 1) | replace('', '-') | count('l') | find('l')
startswith('  H') | endswith(('a', '  ')) | removeprefix('  H') | removesuffix(' ')
"""

FILTERS = {
    "text": """
    trim | upper | lower | capitalize | length | safe | string | list | first | last | reverse | trim(' H') | tojson
    indent | indent(2, true) | indent('> ', first=true, blank=true) | replace('l', 1) | replace('l', 'x', 1)
    default('d') | int
    """,
    "numbers": """
    sort | sort(reverse=true) | min | max | join | join('-') | first | last | count | tojson
    unique ; list | reverse ; list | map('string') ; list | select ; list | reject('eq', 2) ; list
    select('in', [1, 2]) ; join | reject('ne', 3) ; first | map('default', 0) ; max
    """,
    "nested": """
    map(attribute='name') ; list | map(attribute='nope', default=0) ; list | map(attribute='tags.0') ; list | tojson
    selectattr('n', 'equalto', 1) ; list | selectattr('tags') ; list | rejectattr('n', '==', 1) ; first
    sort(attribute='name') ; map(attribute='n') ; list | join(', ', attribute='name') | max(attribute='n') | string
    unique(attribute='n') ; list | sort(attribute='name', case_sensitive=true) ; tojson | map('tojson') ; list
    """,
    "table": """
    tojson | tojson(indent=2) | tojson(sort_keys=true) | tojson(separators=(',', ':')) | tojson(ensure_ascii=true)
    items ; list | dictsort | dictsort(reverse=true) | dictsort(by='key') ; length | length | list | first | string
    """,
}

EXPRESSIONS = """
'{} {}'.format('x', [1]), '{0}{a}{0}{{}}'.format(word, a=none), 'plain'.format()
word[1:3] ~ word[::-1] ~ word[-1] ~ word[10:] ~ word[:-2], numbers[1:], numbers[::2], (1, 2, 3)[1:]
1 + 2 * 3 - 4 / 5 // 1 % 3, 7 // 2, 7 % 4, -7 // 2, 1.5 * 2, true + 1
'a' + 'b' ~ 1 ~ none ~ true ~ [1, 'x'] ~ nope, [1] + [2], (1,) + (2,), 'ab' * 2, 2 * [0]
1 < 2 <= 2 != 3 > 1 >= 0 == 0, numbers == [3, 1, 2, 3], table != {}, numbers > [1], nested[0] == nested[1]
'a' in word, 'z' not in word, 1 in numbers, 'b' in table, [1] in [[1]], 1 in numbers|map('int'), 2 in range(3)
not nope, nope or 'x', 1 and 0, 'a' if nope, 'a' if false else 'b', -numbers[0], +1
numbers[0], numbers[-1], numbers[9], table['b'], table.b, table['nope'], table[[1]], table['items']
table.keys()|list, table.values()|list, {'a': 1}.items()|list, table.get('b'), table.get('zz'), table.get('zz', 5)
'é<'|tojson, none|tojson, 1.5|tojson, []|tojson(indent=4), nested|tojson(indent=2)
nope|default('d'), ''|default('d', true), none|default('d'), none|d('d', true), nope|length, nope|list
'42'|int, '4.7'|int, 'x'|int, 'x'|int(7), 'ff'|int(base=16), true|int
2.567|round(1), 2.5|round, 42|round(-1), 2.1|round(0, 'ceil')
[]|first, []|last, []|min, []|map('upper')|list, nope|items|list, 'y' if [0]|select else 'n'
(numbers|map('string')) is iterable, (numbers|map('string')) is sequence
1 is eq 1, 1 is ne 1, 1 is in [1], 'a' is equalto 'a'
range(3)|list, range(1, 9, 3)|list, range(3)|length, range(5)[1:3], dict(a=1), dict([['a', 2]], b=3)
"""

STATEMENTS = [
    "{% for a in numbers %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}"
    "{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.revindex0 }}{{ loop.nope }}{% endfor %}",
    "{% for a in numbers if a > 1 %}{{ a }}{{ loop.length }}{% else %}none{% endfor %}",
    "{% for a in [] %}x{% else %}none{% endfor %}{% for c in 'abc' %}{{ c }}{% endfor %}",
    "{% for a in nope %}x{% else %}none{% endfor %}",
    "{% for k in table %}{{ k }}{% endfor %}{% for k, v in table|dictsort %}{{ k }}{{ v }}{% endfor %}",
    "{% for k, v in table.items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in table|items %}{{ k }}{% endfor %}",
    "{% for a in numbers %}{% if a == 1 %}{% continue %}{% elif a == 2 %}{% break %}{% endif %}{{ a }}{% endfor %}",
    "{% for a in numbers[::-1] %}{{ a }}{% endfor %}{% for a in numbers|reverse %}{{ a }}{{ loop.last }}{% endfor %}",
    "{% for a in numbers|select('ne', 1) %}{{ a }}{{ loop.length }}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for a in numbers %}{% set ns.n = ns.n + a %}{% endfor %}{{ ns.n }}",
    "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns['a'] }}{{ ns }}",
    "{% set x = 1 %}{% for a in [1] %}{% set x = 2 %}{% endfor %}{{ x }}{% if true %}{% set x = 3 %}{% endif %}{{ x }}",
    "{% set a, b = 1, [2] %}{{ a }}{{ b }}{% set c %}block {{ a }}{% endset %}{{ c }}",
    "{% set d | upper %}x{{ word }}{% endset %}{{ d }}{{ d is string }}",
    "{% macro m(a, b='x') %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }}{{ m(1, 2, 3, k=4) }}",
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1], **{'b': 5}) }}{{ m(b=1) }}",
    "{% macro down(n) %}{{ n }}{% if n %}{{ down(n - 1) }}{% endif %}{% endmacro %}{{ down(5)|length }}{{ down(5) }}",
    "{% macro m() %}{{ inner }}{% set inner = 1 %}{{ inner }}{% endmacro %}{{ m() }}{{ m() is string }}",
    "{% filter upper %}a{{ word }}{% endfilter %}{{ a }}",
    "  {% if true %}  \n  x\n  {%- endif %}\n\n{{- 'y' -}}  \nz\n{# comment #}\n{% raw %}{{ x }}{% endraw %}\n",
    "{{ messages[0]['role'] }}{{ messages[0].content }}{{ messages|length }}{{ messages[-1].nope }}",
]


def entries(table: str) -> list[str]:
    """One entry for each part of a line between bars; `;` stands for the bar of a filter."""
    lines = [line for line in table.splitlines() if line.strip()]
    return [entry.strip().replace(" ; ", "|") for line in lines for entry in line.split(" | ")]


@pytest.mark.parametrize("call", entries(STRING_METHODS))
def test_string_methods_match_jinja(call):
    expect_same(f"{{{{ [text.{call}, word.{call}, ''.{call}] }}}}")


@pytest.mark.parametrize(
    ("value", "name"), [(value, name) for value, table in FILTERS.items() for name in entries(table)]
)
def test_filters_match_jinja(value, name):
    expect_same(f"{{{{ {value}|{name} }}}}")


@pytest.mark.parametrize("expression", [line for line in EXPRESSIONS.splitlines() if line])
def test_expressions_match_jinja(expression):
    expect_same(f"{{% set x = ({expression}) %}}{{{{ x }}}}")


@pytest.mark.parametrize("value", ["text", "numbers", "table", "nope", "none", "1", "1.5", "true", "false"])
def test_tests_match_jinja(value):
    names = "string mapping iterable sequence defined undefined none number integer float boolean true false"
    expect_same("".join(f"{{{{ {value} is {name} }}}}{{{{ {value} is not {name} }}}}" for name in names.split()))


@pytest.mark.parametrize("source", STATEMENTS)
def test_statements_match_jinja(source):
    expect_same(source)


def test_generation_blocks_render_as_their_content():
    source = (
        "{% for m in messages %}{% generation %}{{ m.content }}{% set x = 1 %}{% endgeneration %}{{ x }}{% endfor %}"
    )
    assert ChatTemplate(source).render(MESSAGES) == "hi"


def test_safe_text_stays_plain_text():
    assert ChatTemplate("{{ 'a'|safe + '<b>' }}").render(MESSAGES) == "a<b>"


def test_from_json_reads_what_tojson_writes():
    source = "{% set x = text|from_json %}{% for k, v in x.items() %}{{ k }}={{ v|tojson }};{% endfor %}"
    assert ChatTemplate(source).render(MESSAGES, text='{"a": [1, 2.5, null], "é": {}}') == "a=[1, 2.5, null];é={};"


@pytest.mark.parametrize("text", ["{", "", '{"a": 1' + "0" * 400 + "}", [1]])
def test_from_json_rejects_invalid_json(text):
    with pytest.raises(TemplateError, match="failed at line 1"):
        ChatTemplate("{{ text|from_json }}").render(MESSAGES, text=text)


@pytest.mark.parametrize(
    "source",
    [
        *("{{ nope.x }}", "{{ nope() }}", "{{ nope + 1 }}", "{{ numbers.nope() }}", "{{ 'a' + 1 }}", "{{ 1 / 0 }}"),
        *("{{ numbers|map|list }}", "{{ 5|list }}", "{{ 'x'() }}", "{{ nested|sort }}", "{{ [1, 'a']|max }}"),
    ],
)
def test_jinja_errors_are_reported_with_their_line(source):
    with pytest.raises(Exception):  # noqa: B017
        PLAIN.from_string(source).render(**DATA)
    with pytest.raises(TemplateError, match="failed at line 3"):
        ChatTemplate("\n\n" + source).render(MESSAGES, **data_for(source))
