"""A conversation becomes a prompt; what cannot be rendered is one clear TemplateError."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from woolly.errors import TemplateError
from woolly.templates.template import CHATML, ChatTemplate

HELLO = {"role": "user", "content": "Hello"}


def test_metadata_has_the_template_and_its_tool_variant():
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
def test_file_without_a_template_gets_chatml(metadata):
    template = ChatTemplate.from_metadata(metadata, bos_token="", eos_token="")
    assert template.is_fallback
    assert template.source == CHATML


def test_metadata_of_the_wrong_type_is_rejected():
    with pytest.raises(TemplateError, match=r"tokenizer\.chat_template must be a string, not int"):
        ChatTemplate.from_metadata({"tokenizer.chat_template": 5}, bos_token="", eos_token="")


def test_broken_template_is_rejected_immediately_with_its_line():
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
def test_invalid_conversation_is_rejected(messages, options, complaint):
    with pytest.raises(TemplateError, match=re.escape(complaint)):
        ChatTemplate("x{{ tools }}{{ documents }}{{ switch }}").render(messages, **options)


def test_any_name_may_be_a_variable():
    template = ChatTemplate("{{ name }}{{ source }}{{ range|string }}{{ bos_token }}", bos_token="<s>")
    assert template.render([HELLO], name=1, source=2, range="r", bos_token="<t>") == "12r<t>"


# What a template never looks at.
TOOLS = {"tools": [{"type": "function"}]}
DOCUMENTS = {"documents": [{"text": "Facts."}]}
BLIND = {
    "no word of it": "x",
    "only a text": "tools documents think{{ 'tools documents think' }}",
    "its own": "{% set tools = 1 %}{% set documents = 1 %}{% set think = 1 %}{{ tools }}{{ documents }}{{ think }}",
    "parameters of a macro": "{% macro f(tools, documents, think) %}{{ tools }}{{ documents }}{{ think }}{% endmacro %}"
    "{{ f(1, 2, 3) }}",
    "attributes": "{{ messages[0].tools }}{{ messages[0]['documents'] }}{{ messages.think }}",
    "names of loops": "{% for tools, documents, think in [] %}{{ tools }}{{ documents }}{{ think }}{% endfor %}",
}


@pytest.mark.parametrize("source", BLIND.values(), ids=BLIND)
def test_unused_variable_is_rejected(source):
    template = ChatTemplate(source)
    with pytest.raises(TemplateError, match=r"^this model's chat template takes no tools$"):
        template.render([HELLO], **TOOLS)
    with pytest.raises(TemplateError, match=r"^this model's chat template takes no documents$"):
        template.render([HELLO], **DOCUMENTS)
    with pytest.raises(TemplateError, match=r"takes no variable 'think'; those that it takes: none$"):
        template.render([HELLO], think=False)
    assert template.render([HELLO], tools=[], documents=[]) == template.render([HELLO], tools=None, documents=None)


@pytest.mark.parametrize(
    "source",
    [
        "{{ NAME }}",
        "{% if NAME is defined %}x{% endif %}",
        "{% if not NAME %}{% set NAME = none %}{% endif %}",
        "{% if messages %}{% set NAME = 1 %}{% endif %}{{ NAME }}",
        "{% macro f() %}{% if NAME %}x{% endif %}{% endmacro %}{{ f() }}",
        "{% for m in messages %}{% for t in NAME or [] %}x{% endfor %}{% endfor %}",
        "{% generation %}{{ NAME }}{% endgeneration %}",
        "{{ messages|selectattr('role', 'eq', NAME)|list|length }}",
    ],
)
def test_any_read_of_a_name_counts_as_use(source):
    assert ChatTemplate(source.replace("NAME", "tools")).render([HELLO], **TOOLS) is not None
    assert ChatTemplate(source.replace("NAME", "documents")).render([HELLO], **DOCUMENTS) is not None
    assert ChatTemplate(source.replace("NAME", "think")).render([HELLO], think=False) is not None


def test_misspelt_variable_suggests_the_right_one():
    template = ChatTemplate("{{ enable_thinking }}{{ custom }}{{ messages }}{{ add_generation_prompt }}")
    with pytest.raises(TemplateError, match=r"no variable 'enable_thinkng'; did you mean 'enable_thinking'\?$"):
        template.render([HELLO], enable_thinkng=False)
    with pytest.raises(TemplateError, match=r"no variable 'zzz'; those that it takes: 'custom', 'enable_thinking'$"):
        template.render([HELLO], zzz=False)
    with pytest.raises(TemplateError, match="no variable 'self'"):
        ChatTemplate("x").render([HELLO], self=1)


def test_names_in_an_error_are_few_and_short():
    template = ChatTemplate("".join(f"{{{{ {'n' * 90}{i} }}}}{{{{ v{i} }}}}" for i in range(500)))
    with pytest.raises(TemplateError) as error:
        template.render([HELLO], **{"x" * 5000: 1})
    assert len(str(error.value)) < 300


def test_tools_are_looked_up_in_the_tool_variant():
    def template(tool_use: str) -> ChatTemplate:
        metadata = {"tokenizer.chat_template": "{{ tools }}{{ a }}", "tokenizer.chat_template.tool_use": tool_use}
        return ChatTemplate.from_metadata(metadata, bos_token="", eos_token="")

    with pytest.raises(TemplateError, match="takes no tools"):
        template("x").render([HELLO], **TOOLS)
    with pytest.raises(TemplateError, match="takes no variable 'a'"):
        template("{{ tools|length }}").render([HELLO], a=1, **TOOLS)
    assert template("{{ tools|length }}{{ a }}").render([HELLO], a=1, **TOOLS) == "11"


def test_chatml_takes_neither_tools_nor_documents_nor_variables():
    for given in (TOOLS, DOCUMENTS, {"enable_thinking": True}):
        with pytest.raises(TemplateError, match=r"brings no chat template, and ChatML.* takes no "):
            ChatTemplate(None).render([HELLO], **given)


def test_chatml_takes_an_answer_without_text():
    for answer in ({"role": "assistant"}, {"role": "assistant", "content": None}):
        text = ChatTemplate(None).render([HELLO, answer], add_generation_prompt=False)
        assert text.endswith("<|im_start|>assistant\n<|im_end|>\n")


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": 5}, {"content": {"text": "x"}}])
def test_chatml_names_the_message_without_text(content):
    with pytest.raises(TemplateError, match=r"message 2 of role 'user' needs a 'content' that is a string"):
        ChatTemplate(None).render([HELLO, {"role": "user", **content}])


def test_undefined_names_are_empty():
    assert ChatTemplate("[{{ nope }}{{ messages[0].nope }}{{ tools }}{{ documents }}]").render([HELLO]) == "[NoneNone]"


def test_two_threads_may_render_one_template():
    template = ChatTemplate(CHATML)
    conversations = [[{"role": "user", "content": f"{number} " * number}] * number for number in range(1, 40)]
    alone = [template.render(messages) for messages in conversations]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(template.render, conversations)) == alone


def test_long_conversation_is_not_mistaken_for_an_attack():
    looks_back = (
        "{% set ns = namespace(text='') %}{% for m in messages %}{% set ns.n = 0 %}{% for o in messages %}"
        "{% if o.role == m.role %}{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}"
        "{% set ns.text = ns.text + m.content.strip() + ns.n|string %}{% endfor %}{{ ns.text }}"
    )
    messages = [{"role": "user", "content": "some words " * 20}] * 400
    assert len(ChatTemplate(looks_back).render(messages)) == 400 * (219 + 3)


def test_template_gets_the_variables_of_llama_cpp():
    template = ChatTemplate("{{ date_string }}|{{ strftime_now('%d %b %Y') }}|{{ enable_thinking }}|{{ functions }}")
    date, now, thinking, functions = template.render([HELLO], tools=[{"name": "é"}]).split("|")
    assert date == now and thinking == "True" and json.loads(functions) == [{"name": "é"}]
    assert template.render([HELLO]).endswith("|")
    asks = ChatTemplate("{% if functions is defined %}some{% else %}none{% endif %}")
    assert asks.render([HELLO]) == "none" and asks.render([HELLO], tools=[{"name": "x"}]) == "some"
    assert template.render([HELLO], date_string="today", enable_thinking=False).startswith("today|")
    assert template.render([HELLO]).endswith("True|")


def test_template_is_probed_once_for_its_roles():
    template = ChatTemplate(
        "{% if messages|length > 1 %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}"
    )
    assert template.takes("user") and template.takes("system") and not template.takes("user", "user")
    assert template._taken == {("user",): True, ("system",): True, ("user", "user"): False}


def test_template_may_append_to_its_own_lists_only():
    own = "{% set ns = namespace(ids=[]) %}{% for m in messages %}{% set _ = ns.ids.append(m.role) %}{% endfor %}"
    assert ChatTemplate(own + "{{ ns.ids|join(',') }}").render([HELLO, HELLO]) == "user,user"
    with pytest.raises(TemplateError, match="append"):
        ChatTemplate("{{ messages.append(1) }}").render([HELLO])
    shown = "{{ tools|length }}{% for part in messages[0].content %}{{ part.text }}{% endfor %}"
    parts = {"role": "user", "content": [{"type": "text", "text": "x"}]}
    for given in ("tools", "messages[0].content"):
        with pytest.raises(TemplateError, match="append"):
            ChatTemplate(f"{shown}{{{{ {given}.append(1) }}}}").render([parts], **TOOLS)
    endless = "{% set ns = namespace(ids=[1]) %}{% for i in ns.ids %}{% set _ = ns.ids.append(i) %}{% endfor %}"
    with pytest.raises(TemplateError, match="stopped"):
        ChatTemplate(endless).render([HELLO])


def test_iterators_become_json_lists():
    source = "{{ tools|map(attribute='function')|tojson }}{{ {'a': [tools|map(attribute='type')]}|tojson(indent=1) }}"
    tool = {"type": "function", "function": {"name": "é"}}
    assert (
        ChatTemplate(source).render([HELLO], tools=[tool])
        == '[{"name": "é"}]{\n "a": [\n  [\n   "function"\n  ]\n ]\n}'
    )
