"""A conversation becomes a prompt; what cannot be rendered is one clear TemplateError."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from woolly.errors import TemplateError
from woolly.text.template import CHATML, ChatTemplate

HELLO = {"role": "user", "content": "Hello"}


def test_metadata_brings_the_template_and_its_variant_for_tools():
    metadata = {
        "tokenizer.chat_template": "{{ bos_token }}plain",
        "tokenizer.chat_template.tool_use": "{{ eos_token }}{{ tools|length }}",
        "tokenizer.chat_templates": ["tool_use"],
    }
    template = ChatTemplate.from_metadata(metadata, bos_token="<s>", eos_token="</s>")
    assert (template.source, template.is_fallback) == ("{{ bos_token }}plain", False)
    assert template.render([HELLO]) == template.render([HELLO], tools=[]) == "<s>plain"
    assert template.render([HELLO], tools=[{"type": "function"}]) == "</s>1"


@pytest.mark.parametrize("metadata", [{}, {"tokenizer.chat_template": " \n"}])
def test_a_file_without_a_template_gets_chatml(metadata):
    template = ChatTemplate.from_metadata(metadata, bos_token="", eos_token="")
    assert template.is_fallback
    assert template.source == CHATML


def test_metadata_of_the_wrong_type_is_refused():
    with pytest.raises(TemplateError, match=r"tokenizer\.chat_template must be a string, not int"):
        ChatTemplate.from_metadata({"tokenizer.chat_template": 5}, bos_token="", eos_token="")


def test_a_broken_template_is_refused_at_once_with_its_line():
    with pytest.raises(TemplateError, match="broken at line 3: "):
        ChatTemplate("a\nb\n{% if x %}{{ y }")


class Loud:
    def __str__(self):
        raise AssertionError("never called")


def in_itself():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("messages", "options", "complaint"),
    [
        ("hello", {}, "messages must be a list of messages, not str"),
        (None, {}, "not NoneType"),
        ([], {}, "messages is empty"),
        (["hello"], {}, "message 1 must be a mapping with a role, not str"),
        ([HELLO, {"content": "x"}], {}, "message 2 needs a 'role' that is a string"),
        ([{"role": 5, "content": "x"}], {}, "message 1 needs a 'role'"),
        ([{"role": "user", "content": Loud()}], {}, "message 1 holds a value of type Loud"),
        ([{"role": "user", "content": b"x"}], {}, "message 1 holds a value of type bytes"),
        ([{"role": "user", 5: "x"}], {}, "message 1 has the key 5, which must be a string"),
        ([HELLO], {"tools": [len]}, "tools holds a value of type builtin_function_or_method"),
        ([HELLO], {"documents": in_itself()}, "documents is nested more than 80 deep"),
        ([HELLO], {"switch": {1}}, "switch holds a value of type set"),
        ([HELLO], {"switch": 10**400}, "switch holds a value of type int"),
    ],
)
def test_a_conversation_that_is_none_is_refused(messages, options, complaint):
    with pytest.raises(TemplateError, match=re.escape(complaint)):
        ChatTemplate("x").render(messages, **options)


def test_any_name_may_be_a_variable():
    template = ChatTemplate("{{ self_ }}{{ range|string }}{{ bos_token }}", bos_token="<s>")
    assert template.render([HELLO], self=1, self_=2, range="r", bos_token="<t>") == "2r<t>"


def test_what_a_template_does_not_know_is_empty():
    assert ChatTemplate("[{{ nope }}{{ messages[0].nope }}{{ tools }}{{ documents }}]").render([HELLO]) == "[NoneNone]"


def test_two_threads_may_render_one_template():
    template = ChatTemplate(CHATML)
    conversations = [[{"role": "user", "content": f"{number} " * number}] * number for number in range(1, 40)]
    alone = [template.render(messages) for messages in conversations]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(template.render, conversations)) == alone


def test_a_long_conversation_is_not_taken_for_an_attack():
    looks_back = (
        "{% set ns = namespace(text='') %}{% for m in messages %}{% set ns.n = 0 %}{% for o in messages %}"
        "{% if o.role == m.role %}{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}"
        "{% set ns.text = ns.text + m.content.strip() + ns.n|string %}{% endfor %}{{ ns.text }}"
    )
    messages = [{"role": "user", "content": "some words " * 20}] * 400
    assert len(ChatTemplate(looks_back).render(messages)) == 400 * (219 + 3)
