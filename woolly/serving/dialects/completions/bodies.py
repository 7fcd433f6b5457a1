"""Request bodies of OpenAI's API. Each field is supported, ignored or rejected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from woolly.chat import ChatRequest, ReasoningOptions, ToolChoice
from woolly.sampling import SamplingParams
from woolly.serving.dialects.adapter_scales import adapter_scales
from woolly.serving.dialects.completions.messages import Message, read_messages
from woolly.serving.dialects.completions.tools import ChoiceSpec, FunctionName, FunctionSpec, ToolSpec, read_choice
from woolly.serving.dialects.completions.vendor_fields import MAX_TOP, ChatVendorFields, VendorFields
from woolly.serving.dialects.sampling_parameters import Items
from woolly.serving.errors import ApiError, invalid_param
from woolly.serving.observability.logs import ignore

MAX_CHOICES = 128
MAX_PROMPTS = 256
_STRUCTURES = ("json_schema", "grammar", "regex", "choice", "lark")

_OPENAI_LIMIT = 16  # default max_tokens of a text completion, as in OpenAI's API and vLLM

TokenIds = Annotated[Items[int], Field(min_length=1)]


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = Field(None, description="Current usage in every chunk (vLLM).")


class JsonSchema(BaseModel):
    """Schema of an answer, which is always enforced, regardless of `strict`."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    name: str | None = None  # llama-server's clients omit it
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """Format of an answer."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema", description="Schema (llama-server).")

    @property
    def wanted(self) -> dict[str, Any] | None:
        """JSON schema of the answer; None for plain text."""
        if self.type == "text":
            return None
        if self.type == "json_schema" and self.json_schema is None and self.schema_ is None:
            raise invalid_param("response_format.json_schema", "missing; type 'json_schema' needs a schema")
        if self.json_schema is not None and self.json_schema.schema_ is not None:
            return self.json_schema.schema_
        if self.json_schema is not None and self.schema_ is None:  # do not fall back to any JSON object
            raise invalid_param("response_format.json_schema.schema", "missing; put the JSON schema into `schema`")
        return {"type": "object"} if self.schema_ is None else self.schema_


class OpenAIBody(VendorFields):
    """Fields shared by chat and text completions."""

    model: str | None = Field(None, description="Model name; default: the loaded model.")
    max_tokens: int | None = Field(None, description="Maximum tokens of the answer.")
    n: int | None = Field(None, description="Number of answers.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="Accepted without effect.")

    @property
    def has_continuous_usage(self) -> bool:
        """True if every chunk of a stream has the current usage."""
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)

    @property
    def includes_usage(self) -> bool:
        """True if a stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def check(self) -> None:
        """Raise ApiError for contradictory values."""
        if self.n is not None and not 1 <= self.n <= MAX_CHOICES:
            raise invalid_param("n", f"expected 1 to {MAX_CHOICES}, but got {self.n}")
        self.check_vendor_fields(is_stream=bool(self.stream))
        if self.stream_options is not None:
            if not self.stream:
                raise invalid_param("stream_options", "needs stream true")
            if self.stream_options.include_obfuscation:
                ignore("stream_options.include_obfuscation")

    def make(self, defaults: SamplingParams, **overrides: Any) -> SamplingParams:
        """Return the engine's parameters."""
        if self.seed is not None and not -1 <= self.seed < 2**32:
            overrides.setdefault("seed", self.seed % (2**32 - 1))  # OpenAI's seeds have 64 bits
        if self.lora is not None:
            overrides["adapters"] = adapter_scales(self.lora, "lora")
        return self.params(defaults, **overrides)


class ChatBody(ChatVendorFields, OpenAIBody):
    """Body of /v1/chat/completions. Fields of other servers are in vendor_fields.py."""

    messages: Items[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, description="Same as max_tokens.")
    wants_logprobs: bool | None = Field(None, alias="logprobs")
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: Items[ToolSpec] | None = None
    tool_choice: str | ChoiceSpec | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = Field(None, description="Reasoning effort, for models whose template supports it.")
    store: bool | None = None
    metadata: dict[str, str] | None = Field(None, description="Accepted without effect.")
    service_tier: str | None = None
    safety_identifier: str | None = Field(None, description="Accepted without effect.")
    prompt_cache_key: str | None = Field(None, description="Accepted; prefixes are cached without it.")
    prompt_cache_retention: str | None = Field(None, description="Accepted without effect.")
    prompt_cache_options: dict[str, Any] | None = Field(None, description="Accepted without effect.")
    modalities: Items[str] | None = None
    verbosity: str | None = None
    audio: Any = None
    prediction: Any = Field(None, description="Accepted without effect: a hint about the answer, for speed.")
    web_search_options: Any = None
    moderation: Any = None
    functions: Items[FunctionSpec] | None = Field(None, description="Same as tools (legacy).")
    function_call: str | FunctionName | None = Field(None, description="Same as tool_choice (legacy).")

    def check(self) -> None:
        """Raise ApiError for unsupported values."""
        super().check()
        for name in ("audio", "web_search_options", "moderation"):
            if getattr(self, name) is not None:
                raise invalid_param(name, "not supported; remove it")
        for old, new in (("functions", self.tools), ("function_call", self.tool_choice)):
            if getattr(self, old) is not None and new is not None:
                raise invalid_param(old, "cannot be combined with tools or tool_choice; send one of them")
        if self.store:
            ignore("store")
        if self.service_tier not in (None, "auto", "default"):
            ignore("service_tier")
        if self.modalities is not None and self.modalities != ["text"]:
            raise invalid_param("modalities", "only ['text'] is supported")
        if self.verbosity not in (None, "medium"):
            ignore("verbosity")
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise invalid_param("max_completion_tokens", "differs from max_tokens; send one of them")
        if self.top_logprobs is not None:
            if not self.wants_logprobs:
                raise invalid_param("top_logprobs", "needs logprobs true")
            if not 0 <= self.top_logprobs <= MAX_TOP:
                raise invalid_param("top_logprobs", f"expected 0 to {MAX_TOP}, but got {self.top_logprobs}")

    def to_chat(
        self, defaults: SamplingParams, messages: Sequence[Message] | None = None, **overrides: Any
    ) -> ChatRequest:
        """Return the ChatRequest for these messages, by default the body's; `overrides` are those of `params`."""
        self.check()
        schema = None if self.response_format is None else self.response_format.wanted
        own = [name for name in _STRUCTURES if getattr(self, name) is not None]
        if own and schema is not None:
            raise invalid_param(own[0], "cannot be combined with response_format; send one of them")
        for name in ("messages", "tools", "documents", "add_generation_prompt"):
            if name in (self.chat_template_kwargs or {}):
                raise invalid_param(f"chat_template_kwargs.{name}", "not a template variable; remove it")
        logprobs = (self.top_logprobs or 0) if self.wants_logprobs else 0 if self.return_token_ids else None
        talk = read_messages(self.messages if messages is None else messages)
        choice = self._choice()
        return ChatRequest(
            talk,
            self.make(
                defaults,
                max_tokens=self.max_completion_tokens,
                logprobs=logprobs,
                reasoning_budget=self.budget,
                **overrides,
            ),
            choice,
            schema,
            ReasoningOptions(self.effort, None if self.reasoning_format is None else self.reasoning_format != "none"),
            variables=self.variables,
            continue_final=self.continues(talk[-1], is_bound=schema is not None or choice.is_enforced),
            tell_schema=bool(self.tell_schema),
        )

    def _choice(self) -> ToolChoice:
        """Return the allowed and required tools. OpenAI's legacy format allows one call at a time."""
        if self.functions is None:
            if self.function_call not in (None, "none", "auto"):
                raise invalid_param("function_call", "needs at least one function")
            return read_choice(self.tools, self.tool_choice, self.parallel_tool_calls)
        tools = [ToolSpec(type="function", function=function) for function in self.functions]
        wanted: str | ChoiceSpec | None = None
        if isinstance(self.function_call, FunctionName):
            wanted = ChoiceSpec(type="function", function=self.function_call)
        elif self.function_call not in (None, "none", "auto"):
            raise invalid_param(
                "function_call", f"expected 'none', 'auto' or a function, but got {self.function_call!r}"
            )
        else:
            wanted = self.function_call
        try:
            return read_choice(tools, wanted, parallel=False)
        except ApiError as error:
            new = error.param or "tools"
            old = new.replace("tool_choice", "function_call").replace("tools", "functions").replace(".function.", ".")
            raise invalid_param(old, error.message.removeprefix(f"{new}: ")) from None


class CompletionBody(OpenAIBody):
    """Body of /v1/completions."""

    prompt: str | Items[str] | TokenIds | Items[TokenIds]
    n_predict: int | None = Field(None, description="Same as max_tokens (llama-server); -1: no limit.")
    echo: bool | None = Field(
        None, description="Return the prompt before the answer; with logprobs, also its log-probabilities."
    )
    logprobs: int | None = Field(None, description="Number of alternatives for each token.")
    best_of: int | None = None
    suffix: str | None = Field(None, description="Text after the answer, for models with FIM tokens.")

    def make(self, defaults: SamplingParams, **overrides: Any) -> SamplingParams:
        """Return the engine's parameters."""
        self.check_text()
        return super().make(defaults, **overrides)

    @property
    def prompts(self) -> list[str | tuple[int, ...]]:
        """List of prompts, each a string or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [tuple(token for token in self.prompt if isinstance(token, int))]
        return [one if isinstance(one, str) else tuple(one) for one in self.prompt if not isinstance(one, int)]

    @property
    def is_empty(self) -> bool:
        """True if only the scores of the prompt are requested, but no tokens."""
        return 0 in (self.max_tokens, self.n_predict)

    def limit(self, defaults: SamplingParams) -> int | None:
        """Return the token limit of the body, else the server's, else OpenAI's default; None means no limit."""
        asked = self.max_tokens if self.n_predict is None else self.n_predict
        if asked is None:
            return defaults.max_tokens or _OPENAI_LIMIT
        return None if asked < 0 and self.n_predict is not None else asked

    def check(self) -> None:
        """Raise ApiError for unsupported values."""
        super().check()
        if self.n_predict is not None and self.max_tokens not in (None, self.n_predict):
            raise invalid_param("n_predict", "differs from max_tokens; send one of them")
        if self.suffix and (self.echo or not all(isinstance(prompt, str) for prompt in self.prompts)):
            raise invalid_param("suffix", "supported only for string prompts without echo")
        if self.best_of not in (None, self.n or 1):
            raise invalid_param("best_of", "ranking answers is not supported; request several answers with n")
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_TOP:
            raise invalid_param("logprobs", f"expected 0 to {MAX_TOP}, but got {self.logprobs}")
        if not 1 <= len(self.prompts) <= MAX_PROMPTS:
            raise invalid_param("prompt", f"expected 1 to {MAX_PROMPTS} prompts, but got {len(self.prompts)}")
        if self.is_empty and not self.echo:
            raise invalid_param("max_tokens", "expected at least 1 without echo, but got 0")
