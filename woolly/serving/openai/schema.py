"""What OpenAI's clients send: every field is honoured, harmless, or refused by its name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from woolly.engine import SamplingParams
from woolly.errors import RequestError
from woolly.serving.errors import ApiError
from woolly.serving.openai.messages import Message
from woolly.serving.openai.tools import ChoiceSpec, ToolSpec
from woolly.serving.parameters import Items, Sampling

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "JsonSchema",
    "OpenAIRequest",
    "ResponseFormat",
    "StreamOptions",
    "refuse",
]

MAX_CHOICES = 128
MAX_PROMPTS = 256
MAX_TOP = 20  # alternatives to a token, as OpenAI has it

TokenIds = Annotated[Items[int], Field(min_length=1)]


class StreamOptions(BaseModel):
    """What a stream carries beside text."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class JsonSchema(BaseModel):
    """A schema that an answer must follow; it always does, whatever `strict` says."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    name: str
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """The form of an answer."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema", description="As llama-server has it.")

    @property
    def wanted(self) -> dict[str, Any] | None:
        """The schema that the answer must follow; None: any text."""
        if self.type == "text":
            return None
        if self.type == "json_schema" and self.json_schema is None and self.schema_ is None:
            raise ApiError(
                400,
                "invalid_request",
                "response_format.json_schema: it is missing, but the type is 'json_schema'",
                param="response_format.json_schema",
            )
        if self.json_schema is not None and self.json_schema.schema_ is not None:
            return self.json_schema.schema_
        return {"type": "object"} if self.schema_ is None else self.schema_


class OpenAIRequest(Sampling):
    """What both kinds of completion take."""

    model: str | None = Field(None, description="Name of a model; without it, the one that is loaded.")
    max_tokens: int | None = Field(None, description="Most tokens of the answer.")
    n: int | None = Field(None, description="How many answers.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="Accepted; nothing depends on it.")
    timings_per_token: bool | None = Field(None, description="Timings in every chunk of a stream.")

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def check(self) -> None:
        """Refuses what fits no field of its own."""
        if self.n is not None and not 1 <= self.n <= MAX_CHOICES:
            raise refuse("n", f"it is {self.n}; 1 to {MAX_CHOICES} were expected")
        if self.stream_options is not None:
            if not self.stream:
                raise refuse("stream_options", "it is given, but stream is not true")
            if self.stream_options.include_obfuscation:
                raise refuse("stream_options.include_obfuscation", "obfuscation is not supported; leave it out")

    def make(self, defaults: SamplingParams, **overrides: Any) -> SamplingParams:
        """What the engine takes; an error names the field that it is about."""
        if self.seed is not None and not -1 <= self.seed < 2**32:
            overrides.setdefault("seed", self.seed % (2**32 - 1))  # OpenAI's have 64 bits
        try:
            return self.params(defaults, **overrides)
        except RequestError as error:
            field = str(error).split(" ", 1)[0]
            raise ApiError(
                400, "invalid_request", str(error), param=field if field in type(self).model_fields else None
            ) from error


class ChatRequest(OpenAIRequest):
    """The body of /v1/chat/completions."""

    messages: Items[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, description="As max_tokens.")
    wants_logprobs: bool | None = Field(None, alias="logprobs")
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: Items[ToolSpec] | None = None
    tool_choice: str | ChoiceSpec | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = Field(None, description="For models whose template takes it, or can switch it off.")
    reasoning_format: Literal["auto", "none", "deepseek"] | None = Field(
        None, description="none leaves reasoning in the text."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Switches of the model's chat template.")

    store: bool | None = None
    metadata: dict[str, str] | None = Field(None, description="Accepted; nothing depends on it.")
    service_tier: str | None = None
    safety_identifier: str | None = Field(None, description="Accepted; nothing depends on it.")
    prompt_cache_key: str | None = Field(None, description="Accepted; prefixes are found without it.")
    prompt_cache_retention: str | None = Field(None, description="Accepted; nothing depends on it.")
    prompt_cache_options: dict[str, Any] | None = Field(None, description="Accepted; nothing depends on it.")
    modalities: Items[str] | None = None
    verbosity: str | None = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    moderation: Any = None
    functions: Any = None
    function_call: Any = None

    def check(self) -> None:
        """Refuses what cannot be done, by its name."""
        super().check()
        for name in ("audio", "prediction", "web_search_options", "moderation"):
            if getattr(self, name) is not None:
                raise refuse(name, "it is not supported; leave it out")
        for name in ("functions", "function_call"):
            if getattr(self, name) is not None:
                raise refuse(name, "it is not supported; use tools and tool_choice")
        if self.store:
            raise refuse("store", "answers are not stored; leave it out")
        if self.service_tier not in (None, "auto", "default"):
            raise refuse("service_tier", f"there is no tier {self.service_tier[:40]!r}; leave it out, or 'auto'")
        if self.modalities is not None and self.modalities != ["text"]:
            raise refuse("modalities", "only ['text'] is supported")
        if self.verbosity not in (None, "medium"):
            raise refuse("verbosity", "it is not supported; leave it out, or 'medium'")
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise refuse("max_completion_tokens", "it differs from max_tokens, which means the same; give one of them")
        if self.top_logprobs is not None:
            if not self.wants_logprobs:
                raise refuse("top_logprobs", "it is given, but logprobs is not true")
            if not 0 <= self.top_logprobs <= MAX_TOP:
                raise refuse("top_logprobs", f"it is {self.top_logprobs}; 0 to {MAX_TOP} were expected")


class CompletionRequest(OpenAIRequest):
    """The body of /v1/completions."""

    prompt: str | Items[str] | TokenIds | Items[TokenIds]
    echo: bool | None = Field(None, description="The prompt before the answer; with logprobs, its tokens' too.")
    logprobs: int | None = Field(None, description="How many alternatives beside each token.")
    best_of: int | None = None
    suffix: str | None = None

    @property
    def prompts(self) -> list[str | tuple[int, ...]]:
        """Each prompt, as text or ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [tuple(token for token in self.prompt if isinstance(token, int))]
        return [one if isinstance(one, str) else tuple(one) for one in self.prompt if not isinstance(one, int)]

    def check(self) -> None:
        """Refuses what cannot be done, by its name."""
        super().check()
        if self.suffix:
            raise refuse("suffix", "text cannot be filled in here; leave it out")
        if self.best_of not in (None, self.n or 1):
            raise refuse("best_of", "the best of several answers is not chosen here; ask for them with n")
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_TOP:
            raise refuse("logprobs", f"it is {self.logprobs}; 0 to {MAX_TOP} were expected")
        if not 1 <= len(self.prompts) <= MAX_PROMPTS:
            raise refuse("prompt", f"there are {len(self.prompts)} prompts; 1 to {MAX_PROMPTS} were expected")
        if self.max_tokens == 0 and not self.echo:
            raise refuse("max_tokens", "it is 0, which gives nothing without echo; at least 1 was expected")


def refuse(param: str, message: str) -> ApiError:
    """A 400 that names a field."""
    return ApiError(400, "invalid_request", f"{param}: {message}", param=param)
