"""Reasoning is switched by the variable that a template reads."""

import pytest

from tests.cases.tiny import byte_vocabulary
from woolly.chat import ChatRequest, Message, ReasoningOptions, format_chat, render_prompt
from woolly.chat.reasoning_switches import find_effort_switch
from woolly.chat.template_format import find_template_format
from woolly.sampling import SamplingParams
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


@pytest.mark.parametrize(
    ("source", "efforts"),
    [
        ("{{ reasoning_effort }}", {"minimal": "low", "medium": "medium", "xhigh": "high", "max": "high"}),
        ("{% if reasoning_effort == 'max' %}!{% endif %}", {"minimal": "low", "xhigh": "max", "max": "max"}),
        (
            "{% if reasoning_effort not in ['low', 'high', 'no_think'] %}{{ raise_exception('no') }}{% endif %}",
            {"minimal": "low", "medium": "high", "max": "high"},
        ),
    ],
)
def test_effort_that_the_template_lacks_becomes_the_nearest(source, efforts):
    switch = find_effort_switch(ChatTemplate(TURNS + source))
    assert {effort: switch.level(effort) for effort in efforts} == efforts
    assert switch.off == ("no_think" if "no_think" in source else None)


def test_reasoning_that_is_off_is_closed_only_once(tokenizer):
    source = "{% if reasoning_effort == 'high' %}<think>{% elif reasoning_effort == 'none' %}<think></think>{% endif %}"
    template = ChatTemplate("{% for message in messages %}{{ message.content }}{% endfor %}" + source)
    for effort, prompt in (("none", "Hi<think></think>"), ("high", "Hi<think>")):
        asked = ChatRequest((Message("user", "Hi"),), reasoning=ReasoningOptions(effort))
        assert render_prompt(asked, template, tokenizer) == prompt


def test_template_is_given_the_budget(tokenizer):
    template = ChatTemplate(f"{TURNS}[{{{{ thinking_budget }}}}]")
    asked = ChatRequest((Message("user", "Hi"),), SamplingParams(reasoning_budget=100))
    assert render_prompt(asked, template, tokenizer).endswith("[100]")


def test_channels_have_no_reasoning_with_a_budget_of_zero(tokenizer):
    template = ChatTemplate(
        "{# <|channel|> <|message|> #}{% for message in messages %}{{ message.content }}{% endfor %}"
        "[{{ reasoning_effort }}]"
    )
    asked = ChatRequest((Message("user", "Hi"),), reasoning=ReasoningOptions("none"))
    layout = format_chat(asked, template, tokenizer)
    assert layout.params.reasoning_budget == 0 and layout.text.endswith("[low]")


def test_switch_within_a_namespace_is_not_a_variable(tokenizer):
    template = ChatTemplate(
        "{% set ns = namespace(enable_thinking=true) %}{% for message in messages %}{{ message.content }}{% endfor %}"
        "{% if ns.enable_thinking %}<think>{% endif %}"
    )
    asked = ChatRequest((Message("user", "Hi"),), reasoning=ReasoningOptions("none"))
    assert render_prompt(asked, template, tokenizer) == "Hi<think></think>"
    client = ChatRequest((Message("user", "Hi"),), variables={"enable_thinking": False})
    assert render_prompt(client, template, tokenizer) == "Hi<think></think>"
