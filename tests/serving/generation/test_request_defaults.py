"""The server's defaults of a chat, below what a request sets."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.cases.tiny import byte_vocabulary
from woolly.chat import ChatRequest, Message, ReasoningOptions, format_chat
from woolly.sampling import SamplingParams
from woolly.serving.generation.request_defaults import with_defaults
from woolly.serving.settings.table import Settings
from woolly.templates import ChatTemplate
from woolly.tokens import Tokenizer

TEMPLATE = ChatTemplate("{{ messages[0].content }}[{{ enable_thinking }} {{ reasoning_effort }}]{# <think></think> #}")
HI = ChatRequest((Message("user", "Hi"),))


@pytest.mark.parametrize(
    ("chat", "effort", "end"),
    [
        (HI, "high", "[True high]"),
        (replace(HI, variables={"enable_thinking": True}), "high", "[True high]"),
        (replace(HI, params=SamplingParams(reasoning_budget=9)), "high", "[True high]"),
        (replace(HI, reasoning=ReasoningOptions("low")), "low", "[True low]"),
        (replace(HI, variables={"enable_thinking": False}), None, "[False ]"),
        (replace(HI, params=SamplingParams(reasoning_budget=0)), None, "[False ]"),
    ],
)
def test_default_effort_does_not_switch_reasoning_on_again(chat, effort, end):
    llm = SimpleNamespace(template=TEMPLATE, preset=None)
    found = with_defaults(chat, llm, Settings(reasoning_effort="high"))
    assert found.reasoning.effort == effort
    assert format_chat(found, TEMPLATE, Tokenizer.from_metadata(byte_vocabulary())).text.endswith(end)
