"""Request bodies of Anthropic's API. Each field is supported, ignored or rejected."""

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
from woolly.serving.dialects.reasoning_terms import Thinking, read_thinking
from woolly.serving.dialects.sampling_parameters import Items, Sampling
from woolly.serving.errors import invalid_param

_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_HARMLESS = "Accepted without effect."


class ThinkingSpec(BaseModel):
    """Reasoning switch and budget."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: int | None = Field(None, ge=0, description="Maximum reasoning tokens.")
    display: str | None = Field(None, description="The value 'omitted' removes the reasoning text from the reply.")


class OutputConfig(BaseModel):
    """Effort and format of an answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    effort: str | None = None
    format: dict[str, Any] | None = Field(None, description="JSON schema of the answer.")


class CountBody(BaseModel):
    """Body of /v1/messages/count_tokens."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = Field(description="Model name; any name if only one model is served.")
    messages: Items[Message] = Field(min_length=1)
    system: str | Items[Block] | None = None
    tools: Items[ToolSpec] | None = None
    tool_choice: ToolChoiceSpec | None = None
    thinking: ThinkingSpec | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = Field(None, description="Same as output_config.format.")
    tell_schema: bool | None = Field(None, description="Also add the schema to the system message.")
    mcp_servers: list[Any] | None = None
    metadata: dict[str, Any] | None = Field(None, description=_HARMLESS)
    context_management: ContextManagement | None = Field(
        None, description="Parts to remove from the chat: results of older calls, older reasoning."
    )
    cache_control: dict[str, Any] | None = Field(None, description="Accepted; prefixes are always reused.")
    betas: list[str] | None = Field(None, description=_HARMLESS)
    service_tier: str | None = Field(None, description=_HARMLESS)
    speed: str | None = Field(None, description=_HARMLESS)
    inference_geo: str | None = Field(None, description=_HARMLESS)

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        """JSON schema of the answer; None for plain text."""
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
        """Return the ChatRequest for these messages; the default is the messages of the body."""
        if self.mcp_servers:
            raise invalid_param(
                "mcp_servers", "the server does not call tools itself; remove it, or send the tools in tools"
            )
        wanted = self._thinking()
        if wanted.budget is not None:
            params = replace(params, reasoning_budget=wanted.budget)
        talk = read_messages(self.system, self.messages if messages is None else messages)
        schema = self.answer_schema
        choice = read_choice(self.tools or (), self.tool_choice)
        last = talk[-1]
        return ChatRequest(
            talk,
            params,
            choice,
            schema,
            ReasoningOptions(wanted.effort),
            continue_final=last.role == "assistant" and not last.calls and bool(last.content or last.reasoning),
            tell_schema=bool(self.tell_schema),
        )

    def _thinking(self) -> Thinking:
        # Without the field, there is no reasoning, as with Anthropic's models.
        effort = None if self.output_config is None else self.output_config.effort
        if effort not in (None, *_EFFORTS):
            raise invalid_param(
                "output_config.effort", f"expected one of: {', '.join(_EFFORTS)}, but got {str(effort)[:40]!r}"
            )
        if self.thinking is None or self.thinking.type == "disabled":
            return read_thinking(False)
        return read_thinking(True, effort, self.thinking.budget_tokens)


class MessagesBody(CountBody):
    """Body of /v1/messages."""

    max_tokens: int = Field(
        ge=0,
        description="Maximum tokens of the answer; 0: only cache the prompt.",
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
