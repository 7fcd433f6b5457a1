"""Bodies as Anthropic's clients send them: every field is supported, ignored without harm, or rejected by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from woolly.chat import ChatRequest, ReasoningOptions
from woolly.sampling import SamplingParams
from woolly.serving.dialects.anthropic.context import ContextManagement
from woolly.serving.dialects.anthropic.messages import Block, Message, read_messages
from woolly.serving.dialects.anthropic.tools import ToolChoiceSpec, ToolSpec, read_choice
from woolly.serving.dialects.sampling_parameters import Items, Sampling
from woolly.serving.errors import invalid_param

# Anthropic's efforts, and the values that templates support.
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
_HARMLESS = "Accepted; nothing depends on it."


class Thinking(BaseModel):
    """Thinking: on or off, and its budget."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: int | None = Field(None, ge=0, description="Most tokens of its thoughts.")
    display: str | None = Field(None, description="omitted leaves the text out of the reply.")


class OutputConfig(BaseModel):
    """The form of an answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    effort: str | None = None
    format: dict[str, Any] | None = Field(None, description="A JSON schema that the answer follows.")


class CountBody(BaseModel):
    """The body of /v1/messages/count_tokens: fields of a prompt."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = Field(description="Name of a model; any name, if one model is served.")
    messages: Items[Message] = Field(min_length=1)
    system: str | Items[Block] | None = None
    tools: Items[ToolSpec] | None = None
    tool_choice: ToolChoiceSpec | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = Field(None, description="As output_config.format.")
    tell_schema: bool | None = Field(None, description="Whether the system message says the schema, too.")
    mcp_servers: list[Any] | None = None
    metadata: dict[str, Any] | None = Field(None, description=_HARMLESS)
    context_management: ContextManagement | None = Field(
        None, description="What is left out of the conversation: results of older calls, older thoughts."
    )
    cache_control: dict[str, Any] | None = Field(None, description="Accepted; prefixes are always reused.")
    betas: list[str] | None = Field(None, description=_HARMLESS)
    service_tier: str | None = Field(None, description=_HARMLESS)
    speed: str | None = Field(None, description=_HARMLESS)
    inference_geo: str | None = Field(None, description=_HARMLESS)

    @property
    def is_thinking(self) -> bool:
        """True if the client asks for thinking; without the field, Anthropic's models do not think."""
        return self.thinking is not None and self.thinking.type != "disabled"

    @property
    def schema_wanted(self) -> dict[str, Any] | None:
        """The JSON schema that the answer must follow; None: any text."""
        format = self.output_config.format if self.output_config is not None else None
        name = "output_config.format" if format is not None else "output_format"
        format = self.output_format if format is None else format
        if format is None:
            return None
        if format.get("type") != "json_schema" or not isinstance(format.get("schema"), dict):
            raise invalid_param(name, "expected {'type': 'json_schema', 'schema': {...}}")
        schema: dict[str, Any] = format["schema"]
        return schema

    def to_chat(self, params: SamplingParams, messages: Sequence[Message] | None = None) -> ChatRequest:
        """Return the neutral conversation of these messages, by default the body's."""
        if self.mcp_servers:
            raise invalid_param("mcp_servers", "the server calls no tools itself; leave it out, or offer its tools")
        if self.is_thinking and self.thinking is not None and self.thinking.budget_tokens is not None:
            params = replace(params, reasoning_budget=self.thinking.budget_tokens)
        talk = read_messages(self.system, self.messages if messages is None else messages)
        schema = self.schema_wanted
        choice = read_choice(self.tools or (), self.tool_choice)
        last = talk[-1]
        return ChatRequest(
            talk,
            params,
            choice,
            schema,
            ReasoningOptions(self._effort() if self.is_thinking else None),
            variables={} if self.is_thinking else {"enable_thinking": False},
            continue_final=last.role == "assistant" and not last.calls and bool(last.content or last.reasoning),
            tell_schema=bool(self.tell_schema),
        )

    def _effort(self) -> str:
        effort = (self.output_config.effort if self.output_config is not None else None) or "medium"
        if effort not in _EFFORTS:
            raise invalid_param(
                "output_config.effort", f"expected one of: {', '.join(_EFFORTS)}, but got {effort[:40]!r}"
            )
        return _EFFORTS[effort]


class MessagesBody(CountBody):
    """The body of /v1/messages."""

    max_tokens: int = Field(
        ge=0,
        description="Most tokens of the answer; the context may end it before. 0 computes the prompt for the cache.",
    )
    stop_sequences: Items[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool | None = None

    def params(self, defaults: SamplingParams) -> SamplingParams:
        """Return the engine's parameters."""
        sent = {name: getattr(self, name) for name in ("temperature", "top_p", "top_k")}
        return Sampling(**sent, stop=self.stop_sequences or None).params(defaults, max_tokens=self.max_tokens or None)
