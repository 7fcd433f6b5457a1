"""Chat templates of published models: answers that a template shows are read back, whole and character by character."""

import time

import numpy as np
import pytest

from tests.cases.grammars import allowed_tokens, may_end
from tests.cases.templates import (
    QUOTED,
    RICH,
    TEXT,
    THOUGHT,
    TOOLS,
    TemplateModel,
    call,
    find_templates,
    need_templates,
)
from tests.cases.tiny import byte_vocabulary
from woolly.chat import Message, ToolChoice
from woolly.chat.template_format import find_template_format
from woolly.grammar import GrammarCompiler
from woolly.templates import ChatTemplate
from woolly.tokens import Tokenizer

# Templates that show no calls, with one that the model writes.
WRITTEN = {
    "LFM2-8B-A1B": "<|tool_call_start|>[weather(city='Rome')]<|tool_call_end|>",
    "LFM2.5-Instruct": "<|tool_call_start|>[weather(city='Rome')]<|tool_call_end|>",
    "ibm-granite-granite-3.3-2B-Instruct": """<|tool_call|>[{"name": "weather", "arguments": {"city": "Rome"}}]""",
}
# Models that write calls in another form than their template, or whose grammar has JSON in place of it.
OTHERWISE = (
    "openai-gpt-oss-120b",
    "google-gemma-4-31B-it",
    "google-gemma-4-31B-it-interleaved",
    "CohereForAI-c4ai-command-r-plus-tool_use",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",  # shows one call without the end of the section
)
# Templates that show one call at most.
SINGLE = (
    "GigaChat3-10B-A1.8B",
    "GigaChat3.1-10B-A1.8B",
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.2-3B-Instruct",
    "meta-llama-Llama-3.3-70B-Instruct",
    "openai-gpt-oss-120b",
)
MAX_SECONDS = 0.15

ROME = {"city": "Rome"}
ONE = call(1, "weather", ROME)
CALLED = [("weather", ROME)]
EACH = pytest.mark.parametrize("path", find_templates() or [None], ids=lambda path: path.stem if path else "none")


def answer_of(text="", calls=(), reasoning=None):
    return Message("assistant", text, calls=calls, reasoning=reasoning)


# What an answer holds: its message, and the text, reasoning and calls that a client gets.
ANSWERS = {
    "text": (answer_of(TEXT), (TEXT, "", [])),
    "reasoning": (answer_of(TEXT, reasoning=THOUGHT), (TEXT, THOUGHT, [])),
    "one call": (answer_of(calls=(ONE,)), ("", "", CALLED)),
    "two calls": (answer_of(calls=(ONE, call(2, "clock", {}))), ("", "", [*CALLED, ("clock", {})])),
    "reasoning and call": (answer_of(calls=(ONE,), reasoning=THOUGHT), ("", THOUGHT, CALLED)),
    "values of every type": (answer_of(calls=(call(1, "weather", RICH),)), ("", "", [("weather", RICH)])),
    "quotes": (answer_of(calls=(call(1, "weather", QUOTED),)), ("", "", [("weather", QUOTED)])),
}


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_metadata(byte_vocabulary())


@pytest.fixture(scope="module")
def lfm_tokenizer():
    """A vocabulary that has the markers of LFM2, which its templates do not show."""
    vocabulary = byte_vocabulary()
    marks = ["<|tool_call_start|>", "<|tool_call_end|>"]
    types = [*vocabulary["tokenizer.ggml.token_type"], *[3] * len(marks)]
    tokens = [*vocabulary["tokenizer.ggml.tokens"], *marks]
    return Tokenizer.from_metadata(
        vocabulary | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": np.asarray(types, np.int32)}
    )


@pytest.fixture
def model(path, tokenizer, lfm_tokenizer):
    need_templates()
    return TemplateModel(path.read_text(), lfm_tokenizer if path.stem.startswith("LFM2") else tokenizer)


@EACH
def test_answers_are_read_as_the_template_shows_them(path, model):
    read = {}
    for name, (message, expected) in ANSWERS.items():
        if name == "two calls" and path.stem in SINGLE:
            continue
        shown = WRITTEN.get(path.stem) if name == "one call" else None
        if (shown := shown or model.shown(message)) is None:
            assert name != "text" and ("call" not in name or "reasoning" in name or path.stem in WRITTEN), name
            continue
        answer = model.read(shown)
        assert (answer.text.strip(), answer.reasoning, answer.calls) == expected, (name, shown)
        assert answer.is_streamed, (name, shown)
        read[name] = shown
    assert {"text", "one call"} <= read.keys()


@EACH
def test_conversation_with_calls_and_results_is_rendered(path, model):
    turns = (
        Message("assistant", None, calls=(ONE,), reasoning=THOUGHT),
        Message("tool", "rain", call_id=ONE.id),
        Message("assistant", "It rains."),
        Message("user", "Thanks"),
    )
    text = model.layout(*turns).text
    assert "rain" in text and "It rains." in text and text.index("rain") < text.index("Thanks")


@EACH
def test_forced_call_is_allowed_as_the_template_shows_it(path, model, tokenizer):
    if path.stem in OTHERWISE:
        pytest.skip("the model does not write calls as its template shows them")
    shown = WRITTEN.get(path.stem) or model.shown(answer_of(calls=(ONE,)))
    layout = model.layout(tools=ToolChoice.of(TOOLS, "required"))
    if not layout.is_reasoning and layout.marks is not None:
        shown = shown.removeprefix(layout.marks.end)
    shown = shown.strip()
    constraint = GrammarCompiler(model.tokenizer).compile("lark", layout.params.lark).start()
    for token in model.tokenizer.encode(shown, add_special=False):
        assert allowed_tokens(constraint)[token], (shown, layout.params.lark)
        constraint.accept(token)
    assert may_end(constraint)


def test_most_formats_are_derived():
    templates = [ChatTemplate(path.read_text()) for path in need_templates()]
    assert sum(find_template_format(template).is_derived for template in templates) >= 0.88 * len(templates)


@EACH
def test_deriving_takes_little_time_once(path, tokenizer):
    need_templates()
    find_template_format(ChatTemplate("{{ messages }}"), tokenizer)  # imports what it needs
    template = ChatTemplate(path.read_text())
    start = time.thread_time()
    known = find_template_format(template, tokenizer)
    assert time.thread_time() - start < MAX_SECONDS
    assert find_template_format(template, tokenizer) is known
