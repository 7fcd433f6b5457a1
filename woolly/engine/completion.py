"""What a request gives: a Completion as a whole, Chunks piece by piece, a Score of a text that is given."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from woolly.engine.logprobs import TokenLogprob
from woolly.engine.sequence import FinishReason, Sequence
from woolly.errors import RequestError

__all__ = ["Chunk", "Completion", "Score"]


@dataclass(frozen=True)
class Chunk:
    """A piece of a streamed answer; the last one carries the finish reason. `str(chunk)` is its text."""

    text: str
    finish_reason: FinishReason | None = None
    index: int = 0  # which of the n answers
    logprobs: tuple[TokenLogprob, ...] = ()  # of the tokens since the chunk before, where asked for
    stop_reason: str | int | None = None
    error: Exception | None = None

    def __str__(self) -> str:
        return self.text

    @classmethod
    def take(cls, sequence: Sequence) -> Chunk:
        """All that no chunk has carried yet."""
        return cls(
            text=sequence.take_unread(),
            finish_reason=sequence.finish_reason,
            index=sequence.index,
            logprobs=tuple(sequence.take_logprobs()),
            stop_reason=sequence.stop_reason,
            error=sequence.error,
        )


@dataclass(frozen=True)
class Completion:
    """A whole answer. `str(completion)` is its text.

    Where n answers to one prompt were asked for, this is the first of them, and `choices` holds all.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    n_prompt_tokens: int
    seed: int  # asking again with it gives the same answer
    stop_reason: str | int | None = None  # the stop string or token that ended it; "timeout" where it was too late
    logprobs: tuple[TokenLogprob, ...] | None = None  # one per token, where params.logprobs asks for them
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None  # one per token; the first has none before it
    n_cached_tokens: int = 0  # of the prompt, that did not have to be computed
    error: Exception | None = None  # of finish_reason "error"
    others: tuple[Completion, ...] = ()

    def __str__(self) -> str:
        return self.text

    @property
    def choices(self) -> tuple[Completion, ...]:
        """All n answers, this one first."""
        return (self, *self.others)

    def checked(self) -> Completion:
        """Itself, unless one of its answers failed: then that error is raised."""
        for choice in self.choices:
            if choice.error is not None:
                raise choice.error
        return self

    @classmethod
    def of(cls, sequences: Seq[Sequence]) -> Completion:
        """The answers to one prompt, which must have finished."""
        first, *others = (cls._of_one(sequence) for sequence in sequences)
        return replace(first, others=tuple(others))

    @classmethod
    def _of_one(cls, sequence: Sequence) -> Completion:
        assert sequence.finish_reason is not None
        params = sequence.params
        return cls(
            text=sequence.text,
            token_ids=tuple(sequence.output),
            finish_reason=sequence.finish_reason,
            n_prompt_tokens=len(sequence.prompt),
            seed=sequence.sampler.seed,
            stop_reason=sequence.stop_reason,
            logprobs=None if params.logprobs is None else tuple(sequence.logprobs),
            prompt_logprobs=None if params.prompt_logprobs is None else (None, *sequence.prompt_logprobs),
            n_cached_tokens=0 if sequence.prefix is None else sequence.prefix.hit_tokens,
            error=sequence.error,
        )


@dataclass(frozen=True)
class Score:
    """How likely a model finds a text."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]  # natural logarithms, one per token; the first has nothing before it

    @classmethod
    def of(cls, sequence: Sequence) -> Score:
        """Of a request with prompt_logprobs that has finished; where it failed, its error is raised."""
        if sequence.error is not None:
            raise sequence.error
        if sequence.finish_reason == "cancelled":
            raise RequestError("the text was not scored to its end: it was cancelled, or the LLM was closed")
        return cls(sequence.prompt, (None, *(token.logprob for token in sequence.prompt_logprobs)))

    @property
    def total(self) -> float:
        """Log-probability of all tokens but the first, given the first."""
        return math.fsum(logprob for logprob in self.logprobs if logprob is not None)

    @property
    def perplexity(self) -> float:
        """exp of the mean surprise; 1 where there is one token alone."""
        return math.exp(-self.total / max(1, len(self.token_ids) - 1))
