"""Request fields that OpenAI's API lacks: of llama-server, vLLM, OpenRouter and Anthropic's clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from woolly import chat
from woolly.serving.dialects.sampling_parameters import Items, Sampling
from woolly.serving.errors import invalid_param
from woolly.serving.generation.token_constraints import TokenConstraints

MAX_TOP = 20  # alternatives per token, OpenAI's limit

_MAX_BAD_WORDS = 256  # each is compared with the answer at every token


class VendorFields(Sampling):
    """Fields of chat and text completions."""

    # llama-server's fields.
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

    def check_vendor_fields(self, *, is_stream: bool) -> None:
        """Raise ApiError for values that contradict each other."""
        if self.prompt_logprobs is not None and is_stream:
            raise invalid_param("prompt_logprobs", "a stream does not carry them; leave stream out")
        if self.truncate_prompt_tokens == 0:
            raise invalid_param(
                "truncate_prompt_tokens", "it is 0; a number of tokens, or -1 for all that fit, was expected"
            )


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


@dataclass(frozen=True)
class Thinking:
    """Meaning of one field about reasoning."""

    effort: str | None = None
    budget: int | None = None  # most tokens of reasoning
    thinks: bool | None = None  # the template's variable enable_thinking


@dataclass(frozen=True)
class ThinkingField:
    """A field about reasoning: its name, type and meaning."""

    name: str
    kind: Any
    help: str
    read: Callable[[Any], Thinking]


def _switched(thinks: bool, budget: int | None = None) -> Thinking:
    return Thinking(None if thinks else "none", budget, thinks)


def _read_reasoning(spec: ReasoningSpec) -> Thinking:
    return Thinking("none" if spec.enabled is False else spec.effort, spec.max_tokens)


def _read_thinking(spec: ThinkingSpec | bool) -> Thinking:
    return _switched(spec) if isinstance(spec, bool) else _switched(spec.type != "disabled", spec.budget_tokens)


# The first that a body has decides on the effort. A further field is one row here.
THINKING_FIELDS = (
    ThinkingField("reasoning", ReasoningSpec, "As reasoning_effort, in the words of OpenRouter.", _read_reasoning),
    ThinkingField("enable_thinking", bool, "As in chat_template_kwargs.", _switched),
    ThinkingField("thinking", ThinkingSpec | bool, "Whether the model thinks, as others have it.", _read_thinking),
)

if TYPE_CHECKING:
    _ThinkingFields = Sampling
else:
    _ThinkingFields = create_model(
        "ThinkingFields",
        __base__=Sampling,
        **{row.name: (row.kind | None, Field(None, description=row.help)) for row in THINKING_FIELDS},
    )


class ChatVendorFields(_ThinkingFields):
    """Fields of chat completions."""

    reasoning_effort: str | None = Field(None, description="For models whose template takes it, or can switch it off.")
    reasoning_format: Literal["auto", "none", "deepseek"] | None = Field(
        None, description="none leaves reasoning in the text."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Switches of the model's chat template.")
    continue_final_message: bool | None = Field(
        None, description="Whether the answer continues the assistant's last message; without it, as llama-server does."
    )
    add_generation_prompt: bool | None = Field(None, description="The opposite of continue_final_message, as in vLLM.")

    echo: bool | None = Field(None, description="The text that the answer continues before it, as vLLM has it.")
    tell_schema: bool | None = Field(None, description="Whether the system message says the schema, too.")

    @property
    def effort(self) -> str | None:
        """Reasoning effort, from any of its fields."""
        given = self._thinking()
        return self.reasoning_effort if self.reasoning_effort is not None or not given else given[0].effort

    @property
    def budget(self) -> int | None:
        """Maximum reasoning tokens, from any of its fields."""
        budgets = (self.reasoning_budget, *(one.budget for one in self._thinking()))
        return next((budget for budget in budgets if budget is not None), None)

    @property
    def variables(self) -> dict[str, Any]:
        """Template variables."""
        thinks = next((one.thinks for one in self._thinking() if one.thinks is not None), None)
        return ({"enable_thinking": True} if thinks else {}) | (self.chat_template_kwargs or {})

    def _thinking(self) -> list[Thinking]:
        values = ((row, getattr(self, row.name)) for row in THINKING_FIELDS)
        return [row.read(value) for row, value in values if value is not None]

    def continues(self, last: chat.Message, *, is_bound: bool) -> bool:
        """Return True if the answer continues the last message: on request, or after an assistant message."""
        wanted, begins = self.continue_final_message, self.add_generation_prompt
        if wanted is not None and wanted is begins:
            raise invalid_param(
                "continue_final_message", f"it and add_generation_prompt are both {str(begins).lower()}"
            )
        if wanted is None and begins is None:
            return last.role == "assistant" and not last.calls and bool(last.content or last.reasoning) and not is_bound
        return bool(wanted) or begins is False
