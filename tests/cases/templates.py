"""Chat templates of published models, in the folder that WOOLLY_TEST_TEMPLATES names, and the answers they show."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from woolly.chat import ChatRequest, Message, Tool, ToolCall, ToolChoice, Usage, format_chat, gather
from woolly.chat.template_format import find_template_format
from woolly.templates import ChatTemplate

FOLDER = "WOOLLY_TEST_TEMPLATES"
USAGE = Usage(1, 0, 1)
USER, TEXT, THOUGHT = "Rain in Rome?", "I will look that up.", "The user asks for the weather."

# End of a turn in a conversation: a control token that ends an answer, which no parser sees.
_END = re.compile(
    r"(\s*(<EOS>|<\|(im_end|eot_id|eom_id|eot|end|call|return|end_of_text|END_OF_TURN_TOKEN|message_sep|tool_response|"
    r"end_of_msg)\|>|<\|close\|>message<\|sep\|>|<｜end▁of▁sentence｜>|<｜hy_eos:opensource｜>|<seed:eos>|\[e~\[|"
    r"<turn\|>|<\|tool_response>|<end_of_turn>|<end_of_sentence>|<SPECIAL_12>|</assistant>|<sep>|<\|assistant_end\|>))+\s*\Z"
)
_ENDS = ("<SPECIAL_12>", "<｜end▁of▁sentence｜>")

PROPERTIES = {
    "city": {"type": "string", "description": "Its name."},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "exact": {"type": "boolean"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "place": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "lat": {"type": "number"}},
        "additionalProperties": {"type": "string"},
    },
    "code": {"type": "string"},
    "note": {"type": "string"},
}
WEATHER = Tool("weather", "The weather of a place.", {"type": "object", "properties": PROPERTIES, "required": ["city"]})
CLOCK = Tool("clock", "The time.", {"type": "object", "properties": {"zone": {"type": "string"}}, "required": []})
TOOLS = (WEATHER, CLOCK)

ROME = {"city": "Rome", "count": 3}
RICH = {
    "city": "Zürich 東京",
    "count": -3,
    "ratio": 1.5,
    "exact": True,
    "tags": ["a", "b c"],
    "place": {"name": "x", "lat": 4.25},
    "code": "0123",
    "note": "two\nlines with {braces}, [lists], a < b & c",
}
QUOTED = {"city": 'say "hi"', "code": "true", "note": "it's"}


def find_templates() -> list[Path]:
    """Every *.jinja of the folder; none without a folder."""
    folder = os.environ.get(FOLDER, "")
    return sorted(Path(folder).glob("*.jinja")) if folder else []


def need_templates() -> list[Path]:
    """`find_templates`; a folder that was named and has none fails the test, no folder skips it."""
    found = find_templates()
    if not found:
        if folder := os.environ.get(FOLDER, ""):
            pytest.fail(f"{FOLDER} is {folder!r}, which is not a folder of *.jinja")
        pytest.skip(f"{FOLDER} is not set; it may name a folder of chat templates, *.jinja")
    return found


def call(number: int, name: str, arguments: dict) -> ToolCall:
    return ToolCall(f"abcdefgh{number}", name, json.dumps(arguments, ensure_ascii=False))


@dataclass(frozen=True)
class ReadAnswer:
    """Text, reasoning and calls of an answer, as a client gets them."""

    text: str
    reasoning: str
    calls: list
    is_streamed: bool  # the same character by character


class TemplateModel:
    """A template, and a model that answers as the template shows past answers."""

    def __init__(self, source: str, tokenizer) -> None:
        self.template = ChatTemplate(source, bos_token="<BOS>", eos_token="<EOS>")
        self.tokenizer = tokenizer
        self.format = find_template_format(self.template, tokenizer)
        self.tools = ToolChoice.of(TOOLS, "auto")

    def layout(self, *messages: Message, tools: ToolChoice | None = None):
        request = ChatRequest((Message("user", USER), *messages), tools=tools or self.tools)
        return format_chat(request, self.template, self.tokenizer)

    def shown(self, message: Message) -> str | None:
        """Return the answer as the template shows it behind a prompt; None if it leaves a part out."""
        from woolly.chat import render_prompt

        request = ChatRequest((Message("user", USER), message), tools=self.tools)
        whole = render_prompt(request, self.template, self.tokenizer, begins_answer=False)
        layout = self.layout()
        n = next((i for i, (a, b) in enumerate(zip(whole, layout.text, strict=False)) if a != b), len(layout.text))
        if n < len(layout.text) and (at := whole.rfind("<", 0, n)) > whole.rfind(">", 0, n):
            n = at  # not within a tag
        answer = whole[n:].removesuffix(layout.text[layout.text.rfind(USER) + len(USER) :])
        answer = answer.removeprefix("<|CHATBOT_TOKEN|>").partition("<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>")[0]
        answer = _END.sub("", answer)
        if any(end in answer for end in _ENDS):
            return None  # two turns
        marks = self.format.reasoning
        if layout.is_reasoning and marks is not None and not message.reasoning and marks.end not in answer:
            answer = marks.end + answer.removeprefix(marks.start)
        elif n < len(layout.text) and marks is not None:
            # The conversation has another beginning than the prompt, such as reasoning that is empty, or none.
            is_shown = bool(message.reasoning) and message.reasoning in answer
            if not layout.is_reasoning and is_shown and marks.start not in answer:
                answer = marks.start + answer
            elif layout.is_reasoning:
                answer = answer.lstrip().removeprefix(marks.start)
        parts = [message.text, message.reasoning or "", *(call.name for call in message.calls)]
        return answer if all(part in answer for part in parts) else None

    def read(self, answer: str, tools: ToolChoice | None = None) -> ReadAnswer:
        layout = self.layout(tools=tools)
        outcomes = []
        for pieces in ([answer], answer):
            parser = layout.parser()
            events = [event for piece in pieces for event in parser.push(piece)]
            outcomes.append(gather(events + parser.finish("stop", USAGE)))
        whole, streamed = outcomes
        return ReadAnswer(
            whole.text,
            whole.reasoning,
            calls_of(whole),
            calls_of(whole) == calls_of(streamed)
            and (whole.text, whole.reasoning) == (streamed.text, streamed.reasoning),
        )


def calls_of(parts) -> list:
    found = []
    for made in parts.tool_calls:
        try:
            found.append((made.name, json.loads(made.arguments)))
        except ValueError:
            found.append((made.name, made.arguments))
    return found
