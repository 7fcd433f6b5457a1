"""Request bodies of Ollama's API."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from woolly import chat
from woolly.chat import ChatRequest, ReasoningOptions
from woolly.sampling import SamplingParams
from woolly.serving.dialects.completions.tools import ChoiceSpec, ToolSpec, read_choice
from woolly.serving.dialects.files import seen_part
from woolly.serving.dialects.reasoning_terms import read_thinking
from woolly.serving.dialects.sampling_parameters import Items
from woolly.serving.errors import invalid_param
from woolly.serving.observability.logs import ignore

_MAX_TOP_LOGPROBS = 20  # Ollama's limit
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|)")  # Go's duration format: 1h30m
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Function(BaseModel):
    """The function of an earlier tool call."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    arguments: dict[str, Any] | str = Field(default_factory=dict)
    index: int | None = None


class MessageCall(BaseModel):
    """An earlier tool call."""

    model_config = ConfigDict(extra="forbid", strict=True)

    function: Function
    id: str | None = None
    type: str | None = None


class Message(BaseModel):
    """A message of a chat."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: Items[MessageCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class AnswerBody(BaseModel):
    """Fields of /api/chat and /api/generate."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    stream: bool | None = Field(None, description="Stream the answer; default true.")
    format: str | dict[str, Any] | None = Field(None, description="json, or a JSON schema.")
    tell_schema: bool | None = Field(None, description="Also add the schema to the system message.")
    think: bool | str | None = Field(None, description="Reasoning switch or effort.")
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = Field(
        None, description="How long the model stays loaded after its last use; 0 without a prompt unloads it."
    )
    truncate: bool | None = Field(None, description="Accepted; prompts are not truncated.")
    shift: bool | None = Field(None, description="Accepted; an answer ends when the context is full.")
    logprobs: bool | None = Field(None, description="Log-probabilities of the answer's tokens.")
    top_logprobs: int | None = Field(None, description="Number of top alternatives for each token, 0 to 20.")

    @property
    def kept(self) -> float | None:
        """Return the requested keep-alive in seconds; inf for no limit, None if not requested."""
        given = self.keep_alive
        if isinstance(given, str):
            parts = _DURATION.findall(given)
            if not given or "".join(number + unit for number, unit in parts) != given.lstrip("-+"):
                raise invalid_param(
                    "keep_alive", f"expected seconds or a duration such as '5m', but got {given[:40]!r}"
                )
            total = sum(float(number) * _UNITS[unit or "s"] for number, unit in parts)
            given = -total if given[0] == "-" else total
        return math.inf if given is not None and given < 0 else given

    @property
    def is_leaving(self) -> bool:
        """True if the model should be unloaded."""
        return self.kept == 0

    def check(self) -> None:
        """Raise ApiError for unsupported values, by field name."""
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= _MAX_TOP_LOGPROBS:
            raise invalid_param("top_logprobs", f"expected 0 to {_MAX_TOP_LOGPROBS}, but got {self.top_logprobs}")
        if self.top_logprobs and not self.logprobs:
            ignore("top_logprobs (without logprobs)")
        if isinstance(self.format, str) and self.format not in ("", "json"):
            raise invalid_param("format", f"expected 'json' or a JSON schema, but got {self.format[:40]!r}")

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        """JSON schema of the answer; None for plain text."""
        if isinstance(self.format, str):
            return {"type": "object"} if self.format else None
        return self.format

    def asked(self, talk: Sequence[chat.Message], params: SamplingParams, **more: Any) -> ChatRequest:
        """Return the request as a ChatRequest."""
        think = self.think
        wanted = read_thinking(think) if isinstance(think, bool) else read_thinking(None, think or None)
        return ChatRequest(
            tuple(talk),
            params,
            schema=self.answer_schema,
            reasoning=ReasoningOptions(wanted.effort),
            tell_schema=bool(self.tell_schema),
            **more,
        )


class ChatBody(AnswerBody):
    """Body of /api/chat."""

    messages: Items[Message] = Field(default_factory=list)
    tools: Items[ToolSpec] | None = None
    tool_choice: str | ChoiceSpec | None = Field(None, description="Same as in OpenAI's API.")

    def to_chat(self, params: SamplingParams) -> ChatRequest:
        """Return the body as a ChatRequest. Raises ApiError for unsupported fields."""
        self.check()
        talk = [_message(message, i) for i, message in enumerate(self.messages)]
        choice = read_choice(self.tools, self.tool_choice, None)
        last, is_bound = talk[-1], self.answer_schema is not None or choice.is_enforced
        begun = last.role == "assistant" and not last.calls and bool(last.content) and not is_bound
        return self.asked(talk, params, tools=choice, continue_final=begun)


class GenerateBody(AnswerBody):
    """Body of /api/generate."""

    prompt: str = ""
    suffix: str | None = Field(None, description="Text after the answer, for models with FIM tokens.")
    system: str | None = None
    template: str | None = None
    raw: bool | None = Field(None, description="Do not apply the chat template to the prompt.")
    images: list[Any] | None = None
    context: Items[int] | None = Field(None, description="Token ids of earlier turns, from the last line of a reply.")

    def check(self) -> None:
        """Raise ApiError for unsupported values, by field name."""
        super().check()
        for name in ("raw", "suffix", "context"):
            if self.images and getattr(self, name):
                raise invalid_param("images", f"cannot be combined with {name}; remove one of them")
            if self.tell_schema and getattr(self, name):
                raise invalid_param("tell_schema", f"cannot be combined with {name}, which has no system message")
        if self.template:
            raise invalid_param(
                "template", "only the template of the model's file is supported; remove this field, or set raw"
            )
        for name in ("system", "context"):
            if (self.raw or (self.suffix and name == "context")) and getattr(self, name):
                raise invalid_param(
                    name, f"cannot be combined with {'raw' if self.raw else 'suffix'}; remove one of them"
                )

    def to_chat(self, params: SamplingParams) -> ChatRequest:
        """Return the prompt as a chat."""
        system = [chat.Message("system", self.system)] if self.system else []
        return self.asked([*system, chat.Message("user", _content(self.prompt, self.images, "images"))], params)


def _message(message: Message, i: int) -> chat.Message:
    where, role = f"messages.{i}", message.role.lower()
    if role not in ("system", "user", "assistant", "tool"):
        raise invalid_param(f"{where}.role", f"expected system, user, assistant or tool, but got {message.role[:40]!r}")
    if message.images and role != "user":
        raise invalid_param(f"{where}.images", "images are only supported in user messages")
    return chat.Message(
        role,
        _content(message.content or "", message.images, f"{where}.images"),
        message.tool_name if role == "tool" else None,
        tuple(_call(call, f"call_{i}_{j}") for j, call in enumerate(message.tool_calls or ())),
        message.tool_call_id if role == "tool" else None,
        message.thinking if role == "assistant" else None,
    )


def _content(text: str, images: list[Any] | None, where: str) -> str | tuple[chat.Part, ...]:
    """Return the text, after its images, PDF files and videos."""
    if not images:
        return text
    parts: list[chat.Part] = []
    for i, image in enumerate(images):
        if not isinstance(image, str):
            raise invalid_param(f"{where}.{i}", "expected an image in base64")
        plain = image.partition(",")[2] if image.startswith("data:") else image
        parts.append(seen_part(plain, f"{where}.{i}"))
    return (*parts, chat.TextPart(text)) if text else tuple(parts)


def _call(call: MessageCall, id: str) -> chat.ToolCall:
    given = call.function.arguments
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return chat.ToolCall(call.id or id, call.function.name, text)
