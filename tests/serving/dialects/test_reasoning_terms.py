"""Reasoning is switched and limited in the terms of each API, with every family's way of doing it."""

import pytest

from tests.cases.tiny import byte_vocabulary
from woolly.chat import format_chat
from woolly.sampling import SamplingParams
from woolly.serving.dialects.anthropic.bodies import MessagesBody
from woolly.serving.dialects.completions.bodies import ChatBody
from woolly.serving.dialects.gemini.bodies import GenerateBody
from woolly.serving.dialects.ole.bodies import InferenceBody
from woolly.serving.dialects.ollama.bodies import ChatBody as OllamaBody
from woolly.serving.dialects.reasoning_terms import TERMS, read_thinking
from woolly.serving.dialects.responses.bodies import ResponseBody
from woolly.serving.unknown_fields import body_fields, resolve_unknown_fields
from woolly.templates import ChatTemplate
from woolly.tokens import Tokenizer

TURNS = "{% for message in messages %}{{ message.content }}|{% endfor %}"
OPEN = "{% if add_generation_prompt %}<think>{% endif %}"
FAMILIES = {  # the template, and what its prompt has with reasoning, and without
    "enable_thinking": (f"{TURNS}[{{{{ enable_thinking }}}}]{{# <think></think> #}}", "[True]", "[False]"),
    "thinking": (f"{TURNS}[{{{{ thinking }}}}]{{# <think></think> #}}", "[True]", "[False]"),
    "thinking_mode": (f"{TURNS}[{{{{ thinking_mode }}}}]{{# <think></think> #}}", "[enabled]", "[disabled]"),
    "always": (TURNS + OPEN, "<think>", "<think></think>"),
    "effort": (
        TURNS + "{% if reasoning_effort is not defined %}{% set reasoning_effort = 'no_think' %}{% endif %}"
        "{% if reasoning_effort != 'no_think' %}<think>{% else %}-{% endif %}{# </think> #}",
        "|<think>",
        "|-",
    ),
}
EACH_API = pytest.mark.parametrize("terms", TERMS, ids=lambda terms: terms.api)
EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)
HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_metadata(byte_vocabulary())


def read(terms, fields):
    """Return the chat of a request with these fields."""
    params = SamplingParams()
    if terms.api == "OpenAI responses":
        body = ResponseBody(model="m", input="Hi", **fields)
        return body.to_chat(params, body.items, body.toolbox())
    if terms.api == "Gemini":
        body = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}], **fields}
        return GenerateBody.model_validate(body).to_chat(params)
    if terms.api == "Anthropic":
        return MessagesBody(model="m", messages=HI, max_tokens=9, **fields).to_chat(params)
    if terms.api == "Ollama":
        return OllamaBody(model="m", messages=HI, **fields).to_chat(params)
    fields = dict(fields)
    problems = [{"type": "extra_forbidden", "loc": ("body", name)} for name in fields.keys() - body_fields(ChatBody)]
    resolve_unknown_fields(fields, problems, body_fields(ChatBody))
    return (InferenceBody if terms.api == "Ole" else ChatBody)(messages=HI, **fields).to_chat(params)


@EACH_API
@EACH_FAMILY
def test_switch_changes_the_prompt(terms, family, tokenizer):
    source, on, off = FAMILIES[family]
    template = ChatTemplate(source)
    for fields in terms.off:
        layout = format_chat(read(terms, fields), template, tokenizer)
        assert layout.text.endswith(off) and not layout.is_reasoning, fields
    for fields in (*terms.on, *terms.low):
        assert format_chat(read(terms, fields), template, tokenizer).text.endswith(on), fields


@EACH_API
def test_level_reaches_the_template(terms, tokenizer):
    template = ChatTemplate(TURNS + "<think></think>[{{ reasoning_effort }}]")
    for fields in terms.low:
        assert format_chat(read(terms, fields), template, tokenizer).text.endswith("[low]"), fields


@EACH_API
@EACH_FAMILY
def test_budget_limits_the_reasoning(terms, family, tokenizer):
    for fields in terms.budget:
        layout = format_chat(read(terms, fields), ChatTemplate(FAMILIES[family][0]), tokenizer)
        assert layout.params.reasoning_budget == 100, fields


@EACH_API
def test_request_without_the_fields_has_the_default_of_the_api(terms):
    assert read(terms, {}).reasoning.effort == terms.missing.effort


def test_switches_and_budgets_of_zero_are_off_in_any_combination():
    assert read_thinking(False, "high").effort == read_thinking(True, None, 0).effort == "none"
    assert read_thinking(None, "low", 7) == read_thinking(True, "low", 7)
    assert read_thinking(None, None, -1).effort is None
