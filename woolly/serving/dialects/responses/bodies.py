"""Request bodies of OpenAI's Responses API. Each field is supported, ignored or rejected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from woolly.chat import ChatRequest, Message, ReasoningOptions
from woolly.sampling import SamplingParams
from woolly.serving.dialects.responses.items import read_items
from woolly.serving.dialects.responses.tools import RequestTools, read_choice, read_tools
from woolly.serving.dialects.sampling_parameters import Items, Sampling
from woolly.serving.errors import invalid_param
from woolly.serving.observability.logs import ignore

_HARMLESS = "Accepted without effect."
_MAX_TOP = 20  # alternatives per token, OpenAI's limit
_LOGPROBS = "message.output_text.logprobs"
_SEALED = "reasoning.encrypted_content"


class ResponseReasoning(BaseModel):
    """Reasoning effort and summary options. Reasoning is always returned in full."""

    model_config = ConfigDict(extra="forbid")

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: Any = Field(None, description=_HARMLESS)
    mode: Any = Field(None, description=_HARMLESS)


class ResponseText(BaseModel):
    """Format of an answer."""

    model_config = ConfigDict(extra="forbid")

    format: dict[str, Any] | None = Field(None, description="text, json_object, or json_schema with a schema.")
    verbosity: str | None = None


class ConversationChoice(BaseModel):
    """Conversation by id."""

    model_config = ConfigDict(extra="forbid")

    id: str


class ResponseBody(Sampling):
    """Body of /v1/responses."""

    model: str | None = Field(None, description="Model name; any name if only one model is served.")
    input: str | Items[dict[str, Any]] | None = Field(None, description="User message, or items.")
    instructions: str | None = Field(None, description="System prompt.")
    tools: Items[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ResponseReasoning | None = None
    text: ResponseText | None = None
    tell_schema: bool | None = Field(None, description="Also add the schema to the system message.")
    max_output_tokens: int | None = Field(None, description="Maximum tokens of the answer, including reasoning.")
    top_logprobs: int | None = None
    include: Items[str] | None = None
    stream: bool | None = None
    store: bool | None = Field(
        None, description="Store the response, so that it can be fetched and continued; default true."
    )
    previous_response_id: str | None = Field(None, description="Stored response to continue.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Variables of the model's chat template.")

    metadata: dict[str, Any] | None = Field(None, description="Returned with the response.")
    truncation: Literal["auto", "disabled"] | None = Field(None, description="Accepted; items are never dropped.")
    stream_options: dict[str, Any] | None = Field(None, description=_HARMLESS)
    user: str | None = Field(None, description=_HARMLESS)
    safety_identifier: str | None = Field(None, description=_HARMLESS)
    service_tier: str | None = Field(None, description=_HARMLESS)
    prompt_cache_key: str | None = Field(None, description="Accepted; prefixes are cached without it.")
    prompt_cache_retention: str | None = Field(None, description=_HARMLESS)
    prompt_cache_options: dict[str, Any] | None = Field(None, description=_HARMLESS)
    client_metadata: dict[str, Any] | None = Field(None, description=_HARMLESS)
    access_programs: dict[str, Any] | None = Field(None, description=_HARMLESS)
    background: bool | None = Field(None, description="Answer in the background; poll with GET /v1/responses/{id}.")
    conversation: str | ConversationChoice | None = Field(None, description="Conversation to continue.")
    prompt: Any = None
    moderation: Any = None
    context_management: Any = None
    max_tool_calls: int | None = None

    @property
    def items(self) -> list[dict[str, Any]]:
        """Input as a list of items."""
        if isinstance(self.input, str):
            return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": self.input}]}]
        return self.input or []

    @property
    def conversation_id(self) -> str | None:
        """Id of the conversation to continue."""
        chosen = self.conversation
        return chosen.id if isinstance(chosen, ConversationChoice) else chosen

    @property
    def has_summary(self) -> bool:
        """True if reasoning is sent as a summary, which is all that some clients show."""
        reasoning = self.reasoning
        return reasoning is not None and (reasoning.summary or reasoning.generate_summary) is not None

    @property
    def has_sealed(self) -> bool:
        """True if encrypted reasoning is requested."""
        return _SEALED in (self.include or ())

    @property
    def has_logprobs(self) -> bool:
        """True if log-probabilities are requested."""
        return _LOGPROBS in (self.include or ()) or self.top_logprobs is not None

    def check(self) -> None:
        """Raise ApiError for unsupported values, and record ignored fields."""
        if self.background and self.store is False:
            raise invalid_param("background", "a background response must be stored; remove store")
        if self.conversation is not None and self.previous_response_id is not None:
            raise invalid_param("conversation", "cannot be combined with previous_response_id; send one of them")
        for name in ("prompt", "moderation", "context_management", "max_tool_calls"):
            if getattr(self, name) is not None:
                raise invalid_param(name, "not supported; remove it")
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= _MAX_TOP:
            raise invalid_param("top_logprobs", f"expected 0 to {_MAX_TOP}, but got {self.top_logprobs}")
        if self.max_output_tokens is not None and self.max_output_tokens < 1 and self.max_output_tokens != -1:
            raise invalid_param("max_output_tokens", f"expected at least 1, but got {self.max_output_tokens}")
        for name in self.include or ():
            if name not in (_LOGPROBS, _SEALED):
                ignore(f"include ({name[:60]})")
        if self.text is not None and self.text.verbosity not in (None, "medium"):
            ignore("text.verbosity")

    def toolbox(self) -> RequestTools:
        """Return the callable tools."""
        return read_tools(self.tools or ())

    def to_chat(self, defaults: SamplingParams, items: Sequence[dict[str, Any]], toolbox: RequestTools) -> ChatRequest:
        """Return the ChatRequest for these items."""
        self.check()
        talk = read_items(items)
        if self.instructions:
            talk.insert(0, Message("system", self.instructions))
        if not talk:
            raise invalid_param("input", "empty; expected a string or items")
        schema, choice = self._schema(), read_choice(toolbox, self.tool_choice, self.parallel_tool_calls)
        seed = None if self.seed is None or -1 <= self.seed < 2**32 else self.seed % (2**32 - 1)
        logprobs = (self.top_logprobs or 0) if self.has_logprobs else None
        params = self.params(defaults, max_tokens=self.max_output_tokens, logprobs=logprobs, seed=seed)
        last, is_bound = talk[-1], schema is not None or choice.is_enforced
        return ChatRequest(
            tuple(talk),
            params,
            choice,
            schema,
            ReasoningOptions(self.reasoning.effort if self.reasoning is not None else None),
            variables=self.chat_template_kwargs or {},
            continue_final=last.role == "assistant" and not last.calls and bool(last.content) and not is_bound,
            tell_schema=bool(self.tell_schema),
        )

    def _schema(self) -> dict[str, Any] | None:
        format = None if self.text is None else self.text.format
        kind = "text" if format is None else format.get("type")
        if format is None or kind == "text":
            return None
        if kind == "json_object":
            return {"type": "object"}
        if kind == "json_schema" and isinstance(schema := format.get("schema"), dict):
            return schema
        raise invalid_param("text.format", "expected 'text', 'json_object', or 'json_schema' with a schema")
