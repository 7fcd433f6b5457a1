"""Bodies as OpenAI's clients send them: every field is supported, ignored without harm, or rejected by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from woolly import chat
from woolly.chat import ChatRequest, ReasoningOptions, ToolChoice
from woolly.sampling import SamplingParams
from woolly.serving.dialects.completions.messages import Message, read_messages
from woolly.serving.dialects.completions.tools import ChoiceSpec, FunctionName, FunctionSpec, ToolSpec, read_choice
from woolly.serving.dialects.sampling_parameters import Items, Sampling
from woolly.serving.errors import ApiError, invalid_param
from woolly.serving.generation.token_constraints import TokenConstraints
from woolly.serving.observability.logs import ignore

MAX_CHOICES = 128
MAX_PROMPTS = 256
MAX_TOP = 20  # alternatives per token, OpenAI's limit

_STRUCTURES = ("json_schema", "grammar", "regex", "choice", "lark")

_OPENAI_LIMIT = 16  # default max_tokens of a text completion, as in OpenAI's API and vLLM

_MAX_BAD_WORDS = 256  # each is compared with the answer at every token

TokenIds = Annotated[Items[int], Field(min_length=1)]


class StreamOptions(BaseModel):
    """Options of a stream besides text."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = Field(None, description="UsageReply so far in every chunk, as vLLM has it.")


class JsonSchema(BaseModel):
    """Schema of an answer; always enforced, regardless of `strict`."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    name: str | None = None  # llama-server's clients leave it out
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
            raise invalid_param("response_format.json_schema", "it is missing, but the type is 'json_schema'")
        if self.json_schema is not None and self.json_schema.schema_ is not None:
            return self.json_schema.schema_
        if self.json_schema is not None and self.schema_ is None:  # any JSON would ignore the schema
            raise invalid_param(
                "response_format.json_schema.schema", "it is missing; put the JSON schema into `schema`"
            )
        return {"type": "object"} if self.schema_ is None else self.schema_


class ReasoningSpec(BaseModel):
    """Reasoning effort."""

    model_config = ConfigDict(extra="forbid")

    effort: str | None = None
    enabled: bool | None = None
    summary: str | None = None
    max_tokens: int | None = Field(None, description="As reasoning_budget.")
    exclude: bool | None = Field(None, description="Accepted; reasoning is a field of its own.")


class ThinkingSpec(BaseModel):
    """Thinking on or off, in Anthropic's form."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = Field(None, description="As reasoning_budget.")


class OpenAIBody(Sampling):
    """Fields of chat and text completions."""

    model: str | None = Field(None, description="Name of a model; without it, the one that is loaded.")
    max_tokens: int | None = Field(None, description="Most tokens of the answer.")
    n: int | None = Field(None, description="How many answers.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="Accepted; nothing depends on it.")
    return_progress: bool | None = Field(
        None, description="Chunks of a stream that tell how much of the prompt is computed."
    )
    verbose: bool | None = Field(None, description="Adds __verbose to the reply: the prompt as the model reads it.")
    id_slot: int | None = Field(
        None, ge=-1, description="The slot that remembers the request's tokens, as /slots has it."
    )
    timings_per_token: bool | None = Field(None, description="Timings in every chunk of a stream.")

    # vLLM's fields.
    prompt_logprobs: int | None = Field(
        None, ge=0, le=MAX_TOP, description="Alternatives to each token of the prompt, in prompt_logprobs of the reply."
    )
    return_token_ids: bool | None = Field(None, description="Ids of the prompt and of the answer in the reply.")
    return_tokens_as_token_ids: bool | None = Field(None, description="Log-probabilities name tokens token_id:N.")
    allowed_token_ids: Items[int] | None = Field(None, min_length=1, description="The only tokens that may come.")
    bad_words: Items[str] | None = Field(None, max_length=_MAX_BAD_WORDS, description="Texts that may not come.")
    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, description="Tokens of the prompt that are kept, from its end; -1: as many as the context holds."
    )
    include_stop_str_in_output: bool | None = Field(None, description="The text of `stop` that ended the answer too.")

    @property
    def token_constraints(self) -> TokenConstraints:
        """Constraints on token ids, which need the vocabulary of the model."""
        allowed = None if self.allowed_token_ids is None else tuple(self.allowed_token_ids)
        return TokenConstraints(
            allowed, tuple(word for word in self.bad_words or () if word), self.truncate_prompt_tokens
        )

    @property
    def has_continuous_usage(self) -> bool:
        """True if every chunk of a stream has the usage so far."""
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)

    @property
    def includes_usage(self) -> bool:
        """True if a stream ends with a chunk of usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def check(self) -> None:
        """Raise ApiError for values that contradict each other."""
        if self.n is not None and not 1 <= self.n <= MAX_CHOICES:
            raise invalid_param("n", f"it is {self.n}; 1 to {MAX_CHOICES} were expected")
        if self.prompt_logprobs is not None and self.stream:
            raise invalid_param("prompt_logprobs", "a stream does not carry them; leave stream out")
        if self.truncate_prompt_tokens == 0:
            raise invalid_param(
                "truncate_prompt_tokens", "it is 0; a number of tokens, or -1 for all that fit, was expected"
            )
        if self.stream_options is not None:
            if not self.stream:
                raise invalid_param("stream_options", "it is given, but stream is not true")
            if self.stream_options.include_obfuscation:
                ignore("stream_options.include_obfuscation")

    def make(self, defaults: SamplingParams, **overrides: Any) -> SamplingParams:
        """Return the engine's parameters."""
        if self.seed is not None and not -1 <= self.seed < 2**32:
            overrides.setdefault("seed", self.seed % (2**32 - 1))  # OpenAI's have 64 bits
        return self.params(defaults, **overrides)


class ChatBody(OpenAIBody):
    """The body of /v1/chat/completions."""

    messages: Items[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, description="As max_tokens.")
    wants_logprobs: bool | None = Field(None, alias="logprobs")
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tell_schema: bool | None = Field(None, description="Whether the system message says the schema, too.")
    tools: Items[ToolSpec] | None = None
    tool_choice: str | ChoiceSpec | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = Field(None, description="For models whose template takes it, or can switch it off.")
    reasoning: ReasoningSpec | None = Field(None, description="As reasoning_effort, in the words of OpenRouter.")
    thinking: ThinkingSpec | bool | None = Field(None, description="Whether the model thinks, as others have it.")
    enable_thinking: bool | None = Field(None, description="As in chat_template_kwargs.")
    reasoning_format: Literal["auto", "none", "deepseek"] | None = Field(
        None, description="none leaves reasoning in the text."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Switches of the model's chat template.")
    continue_final_message: bool | None = Field(
        None, description="Whether the answer continues the assistant's last message; without it, as llama-server does."
    )
    add_generation_prompt: bool | None = Field(None, description="The opposite of continue_final_message, as in vLLM.")

    echo: bool | None = Field(None, description="The text that the answer continues before it, as vLLM has it.")

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
    functions: Items[FunctionSpec] | None = Field(None, description="As tools, in OpenAI's older words.")
    function_call: str | FunctionName | None = Field(None, description="As tool_choice, in OpenAI's older words.")

    def check(self) -> None:
        """Raise ApiError for unsupported values, by field name."""
        super().check()
        for name in ("audio", "prediction", "web_search_options", "moderation"):
            if getattr(self, name) is not None:
                raise invalid_param(name, "it is not supported; leave it out")
        for old, new in (("functions", self.tools), ("function_call", self.tool_choice)):
            if getattr(self, old) is not None and new is not None:
                raise invalid_param(
                    old, "it is given together with tools or tool_choice, which mean the same; send one of them"
                )
        if self.store:
            ignore("store")
        if self.service_tier not in (None, "auto", "default"):
            ignore("service_tier")
        if self.modalities is not None and self.modalities != ["text"]:
            raise invalid_param("modalities", "only ['text'] is supported")
        if self.verbosity not in (None, "medium"):
            ignore("verbosity")
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise invalid_param(
                "max_completion_tokens", "it differs from max_tokens, which means the same; give one of them"
            )
        if self.top_logprobs is not None:
            if not self.wants_logprobs:
                raise invalid_param("top_logprobs", "it is given, but logprobs is not true")
            if not 0 <= self.top_logprobs <= MAX_TOP:
                raise invalid_param("top_logprobs", f"it is {self.top_logprobs}; 0 to {MAX_TOP} were expected")

    def to_chat(
        self, defaults: SamplingParams, messages: Sequence[Message] | None = None, **overrides: Any
    ) -> ChatRequest:
        """Return the neutral request for these messages, by default the body's; `overrides` as in `params`."""
        self.check()
        schema = None if self.response_format is None else self.response_format.wanted
        own = [name for name in _STRUCTURES if getattr(self, name) is not None]
        if own and schema is not None:
            raise invalid_param(own[0], "it is given together with response_format; an answer can have one structure")
        for name in ("messages", "tools", "documents", "add_generation_prompt"):
            if name in (self.chat_template_kwargs or {}):
                raise invalid_param(f"chat_template_kwargs.{name}", "it is not a switch of a template; leave it out")
        logprobs = (self.top_logprobs or 0) if self.wants_logprobs else 0 if self.return_token_ids else None
        talk = read_messages(self.messages if messages is None else messages)
        choice = self._choice()
        return ChatRequest(
            talk,
            self.make(
                defaults,
                max_tokens=self.max_completion_tokens,
                logprobs=logprobs,
                reasoning_budget=self._budget(),
                **overrides,
            ),
            choice,
            schema,
            ReasoningOptions(
                self._effort(), None if self.reasoning_format is None else self.reasoning_format != "none"
            ),
            variables=self._variables(),
            continue_final=self._continues(talk[-1], is_bound=schema is not None or choice.is_enforced),
            tell_schema=bool(self.tell_schema),
        )

    def _choice(self) -> ToolChoice:
        """Return the allowed and the required tools; one call at a time in OpenAI's legacy function format."""
        if self.functions is None:
            if self.function_call not in (None, "none", "auto"):
                raise invalid_param("function_call", "it names a function, but there are no functions")
            return read_choice(self.tools, self.tool_choice, self.parallel_tool_calls)
        tools = [ToolSpec(type="function", function=function) for function in self.functions]
        wanted: str | ChoiceSpec | None = None
        if isinstance(self.function_call, FunctionName):
            wanted = ChoiceSpec(type="function", function=self.function_call)
        elif self.function_call not in (None, "none", "auto"):
            raise invalid_param("function_call", f"it is {self.function_call!r}; 'none', 'auto' or a name was expected")
        else:
            wanted = self.function_call
        try:
            return read_choice(tools, wanted, parallel=False)
        except ApiError as error:
            new = error.param or "tools"
            old = new.replace("tool_choice", "function_call").replace("tools", "functions").replace(".function.", ".")
            raise invalid_param(old, error.message.removeprefix(f"{new}: ")) from None

    def _effort(self) -> str | None:
        """Return the reasoning effort, from any of its field names."""
        if self.reasoning_effort is not None:
            return self.reasoning_effort
        if self.reasoning is not None and self.reasoning.enabled is not False:
            return self.reasoning.effort
        return "none" if self.reasoning is not None or self._thinks is False else None

    def _budget(self) -> int | None:
        """Return the maximum reasoning tokens, from any of its field names."""
        if self.reasoning_budget is not None:
            return self.reasoning_budget
        if self.reasoning is not None and self.reasoning.max_tokens is not None:
            return self.reasoning.max_tokens
        return self.thinking.budget_tokens if isinstance(self.thinking, ThinkingSpec) else None

    @property
    def _thinks(self) -> bool | None:
        """Return True or False if fields of other APIs switch reasoning on or off; None without them."""
        if self.enable_thinking is not None or self.thinking is None:
            return self.enable_thinking
        return self.thinking if isinstance(self.thinking, bool) else self.thinking.type != "disabled"

    def _variables(self) -> dict[str, Any]:
        """Return the template variables."""
        return ({"enable_thinking": True} if self._thinks else {}) | (self.chat_template_kwargs or {})

    def _continues(self, last: chat.Message, *, is_bound: bool) -> bool:
        """Return True if the answer continues the last message: on request, or after an assistant message."""
        wanted, begins = self.continue_final_message, self.add_generation_prompt
        if wanted is not None and wanted is begins:
            raise invalid_param(
                "continue_final_message", f"it and add_generation_prompt are both {str(begins).lower()}"
            )
        if wanted is None and begins is None:
            return last.role == "assistant" and not last.calls and bool(last.content or last.reasoning) and not is_bound
        return bool(wanted) or begins is False


class CompletionBody(OpenAIBody):
    """The body of /v1/completions."""

    prompt: str | Items[str] | TokenIds | Items[TokenIds]
    n_predict: int | None = Field(None, description="As max_tokens, in llama-server's words; -1: until it ends.")
    echo: bool | None = Field(None, description="The prompt before the answer; with logprobs, its tokens' too.")
    logprobs: int | None = Field(None, description="How many alternatives beside each token.")
    best_of: int | None = None
    suffix: str | None = Field(None, description="Text that follows the answer, for models with tokens for it.")

    def make(self, defaults: SamplingParams, **overrides: Any) -> SamplingParams:
        """Return the engine's parameters."""
        self.check_text()
        return super().make(defaults, **overrides)

    @property
    def prompts(self) -> list[str | tuple[int, ...]]:
        """Each prompt, as text or ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [tuple(token for token in self.prompt if isinstance(token, int))]
        return [one if isinstance(one, str) else tuple(one) for one in self.prompt if not isinstance(one, int)]

    @property
    def is_empty(self) -> bool:
        """True if no token is requested, only the scores of the prompt."""
        return 0 in (self.max_tokens, self.n_predict)

    def limit(self, defaults: SamplingParams) -> int | None:
        """Return the maximum tokens of the answer: the body's, else the server's, else OpenAI's; None: no limit."""
        asked = self.max_tokens if self.n_predict is None else self.n_predict
        if asked is None:
            return defaults.max_tokens or _OPENAI_LIMIT
        return None if asked < 0 and self.n_predict is not None else asked

    def check(self) -> None:
        """Raise ApiError for unsupported values, by field name."""
        super().check()
        if self.n_predict is not None and self.max_tokens not in (None, self.n_predict):
            raise invalid_param("n_predict", "it differs from max_tokens, which means the same; give one of them")
        if self.suffix and (self.echo or not all(isinstance(prompt, str) for prompt in self.prompts)):
            raise invalid_param(
                "suffix", "what is between a prompt and a suffix is filled in for texts, and without echo"
            )
        if self.best_of not in (None, self.n or 1):
            raise invalid_param("best_of", "the best of several answers is not chosen here; ask for them with n")
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_TOP:
            raise invalid_param("logprobs", f"it is {self.logprobs}; 0 to {MAX_TOP} were expected")
        if not 1 <= len(self.prompts) <= MAX_PROMPTS:
            raise invalid_param("prompt", f"there are {len(self.prompts)} prompts; 1 to {MAX_PROMPTS} were expected")
        if self.is_empty and not self.echo:
            raise invalid_param("max_tokens", "it is 0, which gives nothing without echo; at least 1 was expected")
