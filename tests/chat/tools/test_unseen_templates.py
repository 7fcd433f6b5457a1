"""Call formats of templates that no row knows: derived, read back whole and by character, and forced by a grammar."""

import pytest

from tests.cases.grammars import allowed_tokens, may_end
from tests.cases.templates import TEXT, THOUGHT, TOOLS, TemplateModel, call
from tests.cases.tiny import byte_vocabulary
from woolly.chat import Message, ToolChoice
from woolly.grammar import GrammarCompiler
from woolly.tokens import Tokenizer

# The turns of each template differ in `answer`, which shows the calls of a message.
FRAME = """{prelude}{{%- if tools %}}TOOLS: {{{{ tools | tojson }}}}
{{% endif %}}
{{%- for message in messages %}}
{{%- if message.role == 'assistant' %}}<|ai|>{reasoning}{{{{ message.content or '' }}}}
{{%- if message.tool_calls %}}{calls}{{%- endif %}}<|im_end|>
{{% elif message.role == 'tool' %}}{result}
{{% else %}}<|{{{{ message.role }}}}|>{{{{ message.content }}}}<|im_end|>
{{% endif %}}{{%- endfor %}}
{{%- if add_generation_prompt %}}<|ai|>{{% endif %}}"""
EACH_CALL = "{%- for call in message.tool_calls %}{%- set f = call.function %}"
ARGUMENTS = "{%- for key, value in f.arguments.items() %}"
CALLS = {
    "other markers": EACH_CALL + "⟦call⟧{{ f.name }}⟦with⟧{{ f.arguments | tojson }}⟦end⟧{%- endfor %}",
    "XML attributes": EACH_CALL + '<invoke tool="{{ f.name }}">' + ARGUMENTS + '<arg key="{{ key }}">'
    "{{ value if value is string else value | tojson }}</arg>{%- endfor %}</invoke>{%- endfor %}",
    "Python literals": "<|run|>[{%- for call in message.tool_calls %}{%- set f = call.function %}{{ f.name }}("
    "{%- for key, value in f.arguments.items() %}{{ key }}={{ value.__repr__() if false else value | tojson }}"
    "{{ '' if loop.last else ', ' }}{%- endfor %}){{ '' if loop.last else ', ' }}{%- endfor %}]<|ran|>",
    "keys on lines": EACH_CALL
    + "<do>{{ f.name ~ '\\n' }}"
    + ARGUMENTS
    + "{{ key }}: {{ value if value is string else value | tojson }}{{ '\\n' }}{%- endfor %}</do>{%- endfor %}",
    "tool and args": EACH_CALL + '<act>{"tool": "{{ f.name }}", "args": {{ f.arguments | tojson }}}</act>{%- endfor %}',
    "function_name and parameters": "<|plan|>[{%- for call in message.tool_calls %}{%- set f = call.function %}"
    '{"function_name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}{{ "" if loop.last else ", " }}'
    "{%- endfor %}]<|/plan|>",
    "macro": EACH_CALL + "{{ show(f.name, f.arguments) }}{%- endfor %}",
    "namespace": "{%- set ns = namespace(text='') %}"
    + EACH_CALL
    + "{%- set ns.text = ns.text ~ '<<' ~ f.name ~ '>>' ~ (f.arguments | tojson) ~ '<<done>>' %}"
    "{%- endfor %}{{ ns.text }}",
    "ids": EACH_CALL + '<use>{"id": "{{ call.id }}", "name": "{{ f.name }}", "input": {{ f.arguments | tojson }}}</use>'
    "{%- endfor %}",
    "arguments as a JSON string": EACH_CALL
    + '<fn>{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson | tojson }}}</fn>{%- endfor %}',
    "reasoning in own delimiters": EACH_CALL + "<op>{{ f.name }}|{{ f.arguments | tojson }}</op>{%- endfor %}",
}
PRELUDES = {"macro": "{%- macro show(name, arguments) %}[[{{ name }} {{ arguments | tojson }}]]{% endmacro %}"}
RESULTS = {
    "other markers": "<|ipython|>{{ message.content }}<|im_end|>",
    "ids": "<|user|><output id={{ message.tool_call_id }}>{{ message.content }}</output><|im_end|>",
}
OWN_REASONING = "{%- if message.reasoning_content %}<ponder>{{ message.reasoning_content }}</ponder>{%- endif %}"
# Arguments on lines have no end that the template determines, so the generic format stands in.
UNDERIVED = "keys on lines"
DERIVED = [name for name in CALLS if name != UNDERIVED]
EACH = pytest.mark.parametrize("name", DERIVED)
ROME = {"city": "Rome", "count": 3}
ONE, TWO = call(1, "weather", ROME), call(2, "clock", {"zone": "UTC"})


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_metadata(byte_vocabulary())


@pytest.fixture
def model(name, tokenizer):
    reasoning = OWN_REASONING if "reasoning" in name else ""
    result = RESULTS.get(name, "<|tool|>{{ message.content }}<|im_end|>")
    prelude = PRELUDES.get(name, "")
    return TemplateModel(
        FRAME.format(prelude=prelude, reasoning=reasoning, calls=CALLS[name], result=result), tokenizer
    )


@EACH
def test_calls_are_derived_and_read_back(name, model):
    assert model.format.is_derived, model.format.calls
    for calls in ((ONE,), (ONE, TWO)):
        shown = model.shown(Message("assistant", "", calls=calls))
        answer = model.read(shown)
        expected = [("weather", ROME), ("clock", {"zone": "UTC"})][: len(calls)]
        assert (answer.text.strip(), answer.calls, answer.is_streamed) == ("", expected, True), shown
    shown = model.shown(Message("assistant", TEXT, calls=(ONE,)))
    answer = model.read(shown)
    assert (answer.text.strip(), answer.calls) == (TEXT, [("weather", ROME)]), shown


@EACH
def test_grammar_allows_the_call(name, model):
    shown = model.shown(Message("assistant", "", calls=(ONE,))).strip()
    if name == "arguments as a JSON string":
        shown = shown.replace('"{', "{").replace('}"', "}").replace('\\"', '"')  # the grammar has an object
        assert model.read(shown).calls == [("weather", ROME)]
    assert_allowed(model, shown)


def assert_allowed(model, shown):
    """Assert that the grammar of a required call allows this answer."""
    layout = model.layout(tools=ToolChoice.of(TOOLS, "required"))
    constraint = GrammarCompiler(model.tokenizer).compile("lark", layout.params.lark).start()
    for token in model.tokenizer.encode(shown, add_special=False):
        assert allowed_tokens(constraint)[token], (shown, layout.params.lark)
        constraint.accept(token)
    assert may_end(constraint)


@pytest.mark.parametrize("name", ["reasoning in own delimiters"])
def test_reasoning_between_own_delimiters_is_split(name, model):
    shown = model.shown(Message("assistant", "", calls=(ONE,), reasoning=THOUGHT))
    answer = model.read(shown)
    assert (answer.reasoning, answer.calls) == (THOUGHT, [("weather", ROME)]), shown


@pytest.mark.parametrize("name", [UNDERIVED])
def test_format_that_is_not_derived_is_generic_json(name, model):
    assert not model.format.is_derived and model.format.calls.name == "generic"
    shown = '{"name": "weather", "arguments": {"city": "Rome", "count": 3}}'
    answer = model.read(shown)
    assert (answer.text, answer.calls, answer.is_streamed) == ("", [("weather", ROME)], True)
    assert_allowed(model, shown)
    written = model.shown(Message("assistant", "", calls=(ONE,)))
    assert model.read(written).text == written  # no character of a call that is not recognized is lost


@EACH
def test_results_are_rendered_after_their_calls(name, model):
    text = model.layout(Message("assistant", None, calls=(ONE,)), Message("tool", "rain", call_id=ONE.id)).text
    assert text.index("Rome") < text.index("rain")
