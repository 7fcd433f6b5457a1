"""Reasoning is switched by the variable that a template reads."""

import pytest

from tests.cases.tiny import byte_vocabulary
from woolly.chat import ChatRequest, Message, ReasoningOptions, render_prompt
from woolly.chat.template_format import find_template_format
from woolly.templates import ChatTemplate
from woolly.tokens import Tokenizer

TURNS = "{% for message in messages %}{{ message.content }}{% endfor %}<think></think>"


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_metadata(byte_vocabulary())


@pytest.mark.parametrize(
    ("variable", "off", "high"),
    [
        ("enable_thinking", "False", "True"),
        ("thinking", "False", "True"),
        ("thinking_mode", "disabled", "enabled"),
        ("thinking_budget", "0", "unset"),
        ("reasoning_effort", "unset", "high"),
        ("thinking_effort", "unset", "high"),
        ("reasoning_strength", "unset", "high"),
    ],
)
def test_effort_sets_the_variable_of_the_family(variable, off, high, tokenizer):
    template = ChatTemplate(f"{TURNS}[{{{{ {variable} if {variable} is defined else 'unset' }}}}]")
    for effort, value in (("none", off), ("high", high)):
        asked = ChatRequest((Message("user", "Hi"),), reasoning=ReasoningOptions(effort))
        assert f"[{value}]" in render_prompt(asked, template, tokenizer)


def test_effort_becomes_a_word_of_the_template(tokenizer):
    template = ChatTemplate(f"{TURNS}[{{{{ thinking_effort }}}}]{{{{ thinking }}}}")
    for effort, word in (("minimal", "low"), ("medium", "high"), ("xhigh", "max"), ("low", "low")):
        asked = ChatRequest((Message("user", "Hi"),), reasoning=ReasoningOptions(effort))
        assert f"[{word}]" in render_prompt(asked, template, tokenizer)
    known = find_template_format(template)
    assert known.switch is not None and known.switch.name == "thinking"


def test_message_fields_are_no_switches():
    template = ChatTemplate("{% for message in messages %}{{ message.thinking }}{{ message.content }}{% endfor %}")
    assert find_template_format(template).switch is None
