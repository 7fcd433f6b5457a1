"""Random templates made of dangerous pieces end soon, with text or a TemplateError."""

import time

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from woolly.errors import TemplateError
from woolly.templates.template import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi", "more": {"a": [1, 2.5, None]}}]
START = "{% set ns = namespace(x=['ab'], y='ab') %}{% macro f(a) %}{{ a }}{{ varargs }}{% endmacro %}"

ATOMS = """
1|0|-3|2.5|1000000000|576460752303423488|''|'ab'|'{}'|'{0}{0}'|'{:9}'|true|none|nope|ns|ns.x|ns.y|[]|{}|range(99999)
messages|messages[0]|loop|f|''.__class__|self|dict|'é€'|'a' * 100000|[0] * 9999|'[[1],{"a":2}]'|range(0, 9999)|caller
"""
FILTERS = """
string|list|tojson|tojson(indent=9)|length|sort|unique|from_json|join(ns.x)|upper|indent(1000000)|min|max
replace('a', ns.x)|map('string')|map(ns.x)|reverse|map('indent', 100000000)|select('in', ns.x)|map(attribute='x.y')
dictsort|items|int|round(300)|first|last|default(ns.x)|selectattr('a', 'eq', ns.x)|map('map', 'map', 'string')
sort(attribute='a,a')|trim(ns.y)|tojson(separators=ns.x)|map('from_json')
"""
METHODS = """
strip(ns.x)|split(ns.x)|split()|join(ns.x)|format(ns.x, ns.y)|replace('', ns.x)|items()|x|length|get(ns.x)|append(1)
count(ns.x)|find(ns.x)|startswith(ns.x)|splitlines()|upper()|__init__|function|target|__class__.__mro__|values()
"""


def one_of(table: str) -> st.SearchStrategy[str]:
    return st.sampled_from([entry for line in table.split("\n") if line for entry in line.split("|")])


EXPRESSION = st.recursive(
    one_of(ATOMS),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, one_of("+|*|%|~|-|//|/|==|<|in|not in|and|or"), inner),
        st.builds("({}|{})".format, inner, one_of(FILTERS)),
        st.builds("({}.{})".format, inner, one_of(METHODS)),
        st.builds("({} is {})".format, inner, one_of("eq ns.x|in ns.x|iterable|mapping|ne 3")),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("({}, {})".format, inner, inner),
        st.builds("{{'a': {}, 1: {}}}".format, inner, inner),
        st.builds("{{{}: 1}}".format, inner),
        st.builds("({})[{}]".format, inner, inner),
        st.builds("({})[{}:]".format, inner, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("f({}, *{})".format, inner, inner),
    ),
    max_leaves=8,
)
STATEMENT = st.recursive(
    st.one_of(
        st.builds("{{{{ {} }}}}".format, EXPRESSION),
        st.builds("{{% set ns.x = {} %}}".format, EXPRESSION),
        st.builds("{{% set ns.y = {} %}}".format, EXPRESSION),
    ),
    lambda inner: st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("{{% for i in {} %}}{}{{% endfor %}}".format, EXPRESSION, inner),
        st.builds("{{% for i in range(60) %}}{}{{% endfor %}}".format, inner),
        st.builds("{{% for i in range(9999) if {} %}}{}{{% endfor %}}".format, EXPRESSION, inner),
        st.builds("{{% if {} %}}{}{{% endif %}}".format, EXPRESSION, inner),
        st.builds("{{% set ns.x %}}{}{{% endset %}}".format, inner),
        st.builds("{{% filter replace('a', 'aaa') %}}{}{{% endfilter %}}".format, inner),
        st.builds("{{% macro f(a) %}}{}{{{{ f(a) if ns.y else a }}}}{{% endmacro %}}".format, inner),
    ),
    max_leaves=6,
)


@given(STATEMENT)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_templates_end_soon_with_text_or_a_template_error(body):
    start = time.process_time()
    try:
        result = ChatTemplate(START + body).render(MESSAGES)
    except TemplateError as error:
        result = str(error)
    assert isinstance(result, str)
    assert time.process_time() - start < 10.0


@given(st.text(alphabet="{}%#-|.()[]'\"\\ \nabif for set endif01~*", max_size=60))
@settings(max_examples=150, deadline=None)
def test_random_source_compiles_or_is_rejected(source):
    try:
        ChatTemplate(source)
    except TemplateError as error:
        assert "chat template" in str(error)
