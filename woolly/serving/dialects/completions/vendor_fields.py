"""Request fields of other servers and clients: llama-server, vLLM, OpenRouter and Anthropic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from woolly import chat
from woolly.serving.dialects.reasoning_terms import Thinking, read_thinking
from woolly.serving.dialects.sampling_parameters import Items, Sampling
from woolly.serving.errors import invalid_param
from woolly.serving.generation.token_constraints import TokenConstraints

MAX_TOP = 20  # alternatives per token, OpenAI's limit

_MAX_BAD_WORDS = 256  # each is checked at every generated token


class VendorFields(Sampling):
    """Fields shared by chat and text completions."""

    # llama-server's fields.
    return_progress: bool | None = Field(None, description="Send the prompt progress in a stream.")
    verbose: bool | None = Field(None, description="Add the rendered prompt to the reply, as __verbose.")
    id_slot: int | None = Field(None, ge=-1, description="Slot that records the request's tokens; see /slots.")
    timings_per_token: bool | None = Field(None, description="Send timings in every chunk of a stream.")
    lora: Items[dict[str, Any]] | None = Field(None, description="Scales of adapters: objects with id and scale.")

    # vLLM's fields.
    prompt_logprobs: int | None = Field(
        None, ge=0, le=MAX_TOP, description="Number of alternatives to each prompt token, returned in prompt_logprobs."
    )
    return_token_ids: bool | None = Field(None, description="Return the token ids of the prompt and the answer.")
    return_tokens_as_token_ids: bool | None = Field(None, description="Name tokens as token_id:N in log-probabilities.")
    allowed_token_ids: Items[int] | None = Field(None, min_length=1, description="Token ids that may be generated.")
    bad_words: Items[str] | None = Field(
        None, max_length=_MAX_BAD_WORDS, description="Strings that must not be generated."
    )
    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, description="Number of last prompt tokens to keep; -1: as many as fit."
    )
    include_stop_str_in_output: bool | None = Field(None, description="Include the stop string in the answer.")

    @property
    def token_constraints(self) -> TokenConstraints:
        """Constraints on token ids, which need the model's vocabulary."""
        allowed = None if self.allowed_token_ids is None else tuple(self.allowed_token_ids)
        return TokenConstraints(
            allowed, tuple(word for word in self.bad_words or () if word), self.truncate_prompt_tokens
        )

    def check_vendor_fields(self, *, is_stream: bool) -> None:
        """Raise ApiError for contradictory values."""
        if self.prompt_logprobs is not None and is_stream:
            raise invalid_param("prompt_logprobs", "not supported in streams; remove stream")
        if self.truncate_prompt_tokens == 0:
            raise invalid_param(
                "truncate_prompt_tokens", "expected a number of tokens, or -1 for as many as fit, but got 0"
            )


class ReasoningSpec(BaseModel):
    """Reasoning effort."""

    model_config = ConfigDict(extra="forbid")

    effort: str | None = None
    enabled: bool | None = None
    summary: str | None = None
    max_tokens: int | None = Field(None, description="Same as reasoning_budget.")
    exclude: bool | None = Field(None, description="Accepted; reasoning is always a separate field.")


class ThinkingSpec(BaseModel):
    """Reasoning switch in Anthropic's format."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = Field(None, description="Same as reasoning_budget.")


@dataclass(frozen=True)
class ThinkingField:
    """A reasoning field with its name, type and conversion."""

    name: str
    kind: Any
    help: str
    read: Callable[[Any], Thinking]


def _read_reasoning(spec: ReasoningSpec) -> Thinking:
    return read_thinking(spec.enabled, spec.effort, spec.max_tokens)


def _read_thinking(spec: ThinkingSpec | bool) -> Thinking:
    return (
        read_thinking(spec)
        if isinstance(spec, bool)
        else read_thinking(spec.type != "disabled", None, spec.budget_tokens)
    )


# The first field in a body determines the effort.
THINKING_FIELDS = (
    ThinkingField("reasoning", ReasoningSpec, "Same as reasoning_effort (OpenRouter).", _read_reasoning),
    ThinkingField("enable_thinking", bool, "Same as in chat_template_kwargs.", read_thinking),
    ThinkingField("thinking", ThinkingSpec | bool, "Reasoning switch of other APIs.", _read_thinking),
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
    """Fields of chat completions from other servers."""

    reasoning_effort: str | None = Field(None, description="Reasoning effort, for models whose template supports it.")
    reasoning_format: Literal["auto", "none", "deepseek"] | None = Field(
        None, description="none leaves reasoning in the text."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Variables of the model's chat template.")
    continue_final_message: bool | None = Field(
        None, description="Continue the assistant's last message; default: as in llama-server."
    )
    add_generation_prompt: bool | None = Field(None, description="Opposite of continue_final_message (vLLM).")

    echo: bool | None = Field(None, description="Return the continued text before the answer (vLLM).")
    tell_schema: bool | None = Field(None, description="Also add the schema to the system message.")

    @property
    def effort(self) -> str | None:
        """Reasoning effort, from any reasoning field."""
        given = self._thinking()
        return self.reasoning_effort if self.reasoning_effort is not None or not given else given[0].effort

    @property
    def budget(self) -> int | None:
        """Maximum reasoning tokens, from any reasoning field."""
        budgets = (self.reasoning_budget, *(one.budget for one in self._thinking()))
        return next((budget for budget in budgets if budget is not None), None)

    @property
    def variables(self) -> dict[str, Any]:
        """Template variables."""
        return self.chat_template_kwargs or {}

    def _thinking(self) -> list[Thinking]:
        values = ((row, getattr(self, row.name)) for row in THINKING_FIELDS)
        return [row.read(value) for row, value in values if value is not None]

    def continues(self, last: chat.Message, *, is_bound: bool) -> bool:
        """Return True if the answer continues the last message: on request, or after an assistant message."""
        wanted, begins = self.continue_final_message, self.add_generation_prompt
        if wanted is not None and wanted is begins:
            raise invalid_param(
                "continue_final_message", f"contradicts add_generation_prompt, which is also {str(begins).lower()}"
            )
        if wanted is None and begins is None:
            return last.role == "assistant" and not last.calls and bool(last.content or last.reasoning) and not is_bound
        return bool(wanted) or begins is False
