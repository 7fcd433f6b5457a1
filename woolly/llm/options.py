"""Options of a request, by keyword."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from woolly.chat import Tool
from woolly.engine import Hook

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["ChatOptions", "GenerateOptions", "SamplingOptions", "SharedOptions"]


class SamplingOptions(TypedDict, total=False):
    """The fields of SamplingParams, for type checkers; a test keeps the two in step."""

    max_tokens: int | None
    temperature: float
    seed: int | None
    stop: tuple[str, ...]
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    min_keep: int
    dynatemp_range: float
    dynatemp_exponent: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    repeat_last_n: int
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: tuple[str, ...]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    min_tokens: int
    ignore_eos: bool
    context_shift: bool
    n_keep: int
    samplers: tuple[str, ...]
    logit_bias: Mapping[int | str, float]
    stop_token_ids: tuple[int, ...]
    n: int
    logprobs: int | None
    prompt_logprobs: int | None
    post_sampling_probs: bool
    json_schema: Mapping[str, Any] | str | type | None
    json_object: bool
    regex: str | None
    choice: tuple[str, ...]
    lark: str | None
    grammar: str | None
    logits_processors: tuple[Callable[[Sequence[int], npt.NDArray[np.float32]], npt.NDArray[np.float32] | None], ...]
    custom_sampler: Callable[[Sequence[int], npt.NDArray[np.float32]], int] | None
    adapters: Mapping[str | int, float] | None


class SharedOptions(SamplingOptions, total=False):
    """Options of `generate` and `chat`; a sampling option replaces that of `params`."""

    timeout: float | None  # seconds after which the request ends with what it has, as cancelled
    priority: int  # a higher one goes first
    expected: Sequence[int]  # token ids that the answer begins with: those of one that was cut off


class GenerateOptions(SharedOptions, total=False):
    """Options of `generate`."""

    hooks: Mapping[str | int, Hook] | None  # called with (positions, values) of the named steps, see `LLM.hidden`


class ChatOptions(SharedOptions, total=False):
    """Options of `chat`."""

    schema: Mapping[str, Any] | type | None  # JSON schema or pydantic class of the answer; reasoning may precede it
    tools: Sequence[Tool | Mapping[str, Any]] | None  # functions that the model may call
    tool_choice: str | None  # none, auto (default), required, or the name of the tool that must be called
    parallel_tool_calls: bool  # False: at most one call
    reasoning_effort: str | None  # "none", or a word that the template knows
    split_reasoning: bool  # False: reasoning stays in the text, with its marks
    continue_final: bool  # True: the answer continues the last message, which is the assistant's
    documents: Sequence[Mapping[str, Any]] | None  # for templates that show them
    variables: Mapping[str, Any] | None  # the template's own switches, such as enable_thinking
