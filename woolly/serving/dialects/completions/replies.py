"""Response models for the OpenAPI schema; replies themselves are built as plain JSON."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Reply(BaseModel):
    """Base class of all replies."""

    model_config = ConfigDict(extra="forbid")


class ReplyModel(Reply):
    """Model with OpenAI's fields, and fields that Anthropic's clients read."""

    id: str
    object: Literal["model"]
    type: Literal["model"]
    display_name: str
    created: int
    created_at: str
    max_input_tokens: int
    max_tokens: int
    owned_by: str
    aliases: list[str]
    architecture: dict[str, list[str]]
    meta: dict[str, int | str | bool | None]


class ReplyModels(Reply):
    """List of models."""

    object: Literal["list"]
    data: list[ReplyModel]
    models: list[dict[str, Any]]  # llama-server's fields: name, model, capabilities
    has_more: bool
    first_id: str | None
    last_id: str | None


class UsageDetails(Reply):
    """Prompt tokens that were cached."""

    cached_tokens: int


class AnswerDetails(Reply):
    """Reasoning tokens of the answer."""

    reasoning_tokens: int


class UsageReply(Reply):
    """Prompt and completion tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: UsageDetails
    completion_tokens_details: AnswerDetails | None = None


class ReplyFunction(Reply):
    """Name and JSON arguments of a function."""

    name: str
    arguments: str


class ReplyCustom(Reply):
    """Name and input of a custom tool."""

    name: str
    input: str


class ReplyCall(Reply):
    """Tool call of the model."""

    id: str
    type: Literal["function", "custom"]
    function: ReplyFunction | None = None
    custom: ReplyCustom | None = None


class ReplyMessage(Reply):
    """Message of the assistant."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[ReplyCall] | None = None
    function_call: ReplyFunction | None = None


class TokenAlternative(Reply):
    """Token with its log-probability and exact bytes."""

    token: str
    logprob: float
    bytes: list[int]


class TokenEntry(TokenAlternative):
    """Token with its top alternatives."""

    top_logprobs: list[TokenAlternative]


class PromptToken(Reply):
    """Log-probability of a prompt token, in vLLM's format."""

    logprob: float
    rank: int | None
    decoded_token: str


class ChatLogprobs(Reply):
    """Log-probabilities of an answer."""

    content: list[TokenEntry]
    refusal: None


class ChatChoice(Reply):
    """Single answer of a request."""

    index: int
    message: ReplyMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"]
    token_ids: list[int] | None = None


class ChatReply(Reply):
    """Reply of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageReply
    timings: dict[str, float]
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, PromptToken] | None] | None = None


class CompletionLogprobs(Reply):
    """Log-probabilities of a text, including the prompt with echo."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Reply):
    """Single completion of a prompt."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, PromptToken] | None] | None = None


class CompletionReply(Reply):
    """Reply of /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: UsageReply
    timings: dict[str, float]
