"""Results of a request: Completion, streamed Chunks, or the Score of a text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from woolly.engine.cache_note import cache_note
from woolly.errors import RequestError

if TYPE_CHECKING:
    from woolly.engine.request import FinishReason, Request
    from woolly.sampling.logprobs import TokenLogprob


@dataclass(frozen=True)
class Chunk:
    """Chunk of a streamed answer. The last chunk has the finish reason. `str(chunk)` is its text."""

    text: str
    finish_reason: FinishReason | None = None
    index: int = 0  # index among the n answers
    logprobs: tuple[TokenLogprob, ...] = ()  # log-probabilities of the tokens since the previous chunk, if requested
    stop_reason: str | int | None = None
    error: Exception | None = None
    n_computed: int | None = None  # computed prompt tokens, if the request reports progress; None after the prompt

    def __str__(self) -> str:
        return self.text

    @classmethod
    def take(cls, request: Request) -> Chunk:
        """Return a chunk with all output since the last chunk."""
        n_output = len(request.output)
        is_progress = request.reports_progress and n_output <= 1 and request.finish_reason is None
        return cls(
            text=request.take_unread(),
            finish_reason=request.finish_reason,
            index=request.index,
            logprobs=_with_texts(request, request.take_logprobs()),
            stop_reason=request.stop_reason,
            error=request.error,
            n_computed=min(request.n_computed, len(request.prompt)) if is_progress else None,
        )


@dataclass(frozen=True)
class Completion:
    """Complete answer. `str(completion)` is its text.

    If params.n is more than 1, this is the first answer, and `choices` has all answers.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    n_prompt_tokens: int
    seed: int  # the same request with this seed gives the same answer
    stop_reason: str | int | None = None  # stop string or token that ended the answer; "timeout" after the deadline
    logprobs: tuple[TokenLogprob, ...] | None = None  # one per token, if params.logprobs is set
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None  # one per token; None for the first token
    n_cached_tokens: int = 0  # prompt tokens taken from the cache
    error: Exception | None = None  # set if finish_reason is "error"
    # Draft tokens and accepted draft tokens; both depend on concurrent requests.
    n_drafted_tokens: int = field(default=0, compare=False)
    n_accepted_tokens: int = field(default=0, compare=False)
    # Number of steps for which drafting was paused, and the last reason.
    draft_note: str | None = field(default=None, compare=False)
    # Prefix cache lookup: cached tokens, reason for the miss, and text at the divergence.
    cache_note: str | None = field(default=None, compare=False)
    others: tuple[Completion, ...] = ()

    def __str__(self) -> str:
        return self.text

    @property
    def choices(self) -> tuple[Completion, ...]:
        """All n answers, starting with this one."""
        return (self, *self.others)

    def checked(self) -> Completion:
        """Return the completion, or raise the error of a failed answer."""
        for choice in self.choices:
            if choice.error is not None:
                raise choice.error
        return self

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Completion:
        """Return the finished answers to a prompt."""
        first, *others = (cls._of_one(request) for request in requests)
        return replace(first, others=tuple(others))

    @classmethod
    def _of_one(cls, request: Request) -> Completion:
        assert request.finish_reason is not None
        params = request.params
        return cls(
            text=request.text,
            token_ids=tuple(request.output),
            finish_reason=request.finish_reason,
            n_prompt_tokens=len(request.prompt),
            seed=request.sampler.seed,
            stop_reason=request.stop_reason,
            logprobs=None if params.logprobs is None else _with_texts(request, request.logprobs),
            prompt_logprobs=None
            if params.prompt_logprobs is None
            else (None, *_with_texts(request, request.prompt_logprobs)),
            n_cached_tokens=0 if request.prefix is None else request.prefix.hit_tokens,
            error=request.error,
            n_drafted_tokens=request.n_drafted,
            n_accepted_tokens=request.n_accepted,
            draft_note=None
            if request.draft_pause is None
            else f"paused for {request.n_draft_pauses} tokens: {request.draft_pause}",
            cache_note=cache_note(request),
        )


@dataclass(frozen=True)
class Score:
    """Log-probabilities of a text."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]  # natural logarithms, one per token; None for the first token

    @classmethod
    def of(cls, request: Request) -> Score:
        """Return the score of a finished request with prompt_logprobs, or raise its error."""
        if request.error is not None:
            raise request.error
        if request.finish_reason == "cancelled":
            raise RequestError("scoring did not finish: the call was cancelled, or the LLM was closed")
        return cls(request.prompt, (None, *(token.logprob for token in request.prompt_logprobs)))

    @property
    def total(self) -> float:
        """Log-probability of the text after its first token."""
        return math.fsum(logprob for logprob in self.logprobs if logprob is not None)

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log-probability; 1 for a single token."""
        return math.exp(-self.total / max(1, len(self.token_ids) - 1))


def _with_texts(request: Request, logprobs: Sequence[TokenLogprob]) -> tuple[TokenLogprob, ...]:
    return tuple(replace(one, text=request.detokenizer.text_of(one.token)) for one in logprobs)
