"""`woolly show` says how a model's calls and reasoning are read."""

import json
from types import SimpleNamespace

import pytest

from woolly.cli.commands.show_template import describe_template

CALLS = (
    "{{ tools }}{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}"
    "<args>{{ c.function.arguments|tojson }}</call>{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def described(template):
    metadata = {} if template is None else {"tokenizer.chat_template": template}
    return describe_template(SimpleNamespace(metadata=metadata))


def test_derived_formats_are_shown_with_a_call():
    found = described(CALLS)
    assert found["tool_format"] == "derived from the chat template"
    assert found["reasoning"] == {"start": "<think>", "end": "</think>"} and found["reasoning_format"] == "derived"
    assert (
        found["call"]
        == f"<call>function_name<args>{json.dumps({'argument_1': 'value_1', 'argument_2': 'value_2'})}</call>"
    )


@pytest.mark.parametrize(
    ("template", "shown"),
    [(None, {}), ("{{ messages }}", "generic: "), ("{{ tools }}<tool_call>{{ messages }}", "hermes: "), ("{{", None)],
)
def test_row_is_shown_with_its_reason(template, shown):
    found = described(template)
    if isinstance(shown, str):
        assert found["tool_format"].startswith(shown) and len(found["tool_format"]) > 20 and "call" not in found
    elif shown is None:
        assert "broken" in found["cannot_render"]
    else:
        assert found == shown


def test_unknown_form_of_calls_is_reported():
    source = "{{ tools }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
    found = described(source + ": {{ c.function.arguments.values() | list | join(';') }}{% endfor %}{% endfor %}")
    assert found["tool_format"].startswith("generic: the form of calls in the chat template is not known")
