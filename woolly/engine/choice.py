"""The Choice: tokens and their text, from the rows of logits that a step computed for one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from woolly.engine.request import FinishReason, Request
from woolly.errors import RequestError
from woolly.sampling.head import Row
from woolly.sampling.logprobs import log_probabilities

__all__ = ["Choice", "End", "choose", "score"]

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class End:
    """Why a request ends after a token."""

    reason: FinishReason
    flush: bool = True  # whether text that was held back, as the beginning of a stop string, belongs to the answer


@dataclass(frozen=True)
class Choice:
    """What the rows of a step gave."""

    n_accepted: int  # drafts that the sampler chose too
    end: End | None  # None: the request goes on


def choose(request: Request, rows: Sequence[Row], drafts: Sequence[int]) -> Choice:
    """Chooses a token from each row until one differs from its draft or ends the request."""
    if request.max_tokens == 0:
        return Choice(0, End("length"))
    n_accepted = 0
    end: End | None = None
    for row, draft in zip(rows, (*drafts, None), strict=True):
        choice = request.sampler.next(row)
        if request.is_replaying:
            _check_expected(request, choice.token)
        request.context.append(choice.token)
        request.output.append(choice.token)
        if choice.logprob is not None:
            request.logprobs.append(choice.logprob)
        is_right = choice.token == draft
        n_accepted += is_right
        end = _show(request, choice.token)
        if not is_right or end is not None:
            break
    return Choice(n_accepted, end)


def score(request: Request, first: int, rows: Float32) -> None:
    """Appends log-probabilities of prompt tokens: the row of a token rates the token after it."""
    n_top = request.params.prompt_logprobs or 0
    last = min(first + len(rows), len(request.prompt) - 1)
    for position in range(len(request.prompt_logprobs), last):
        following = request.prompt[position + 1]
        request.prompt_logprobs.append(log_probabilities(rows[position - first], following, n_top))


def _check_expected(request: Request, token: int) -> None:
    """RequestError if an answer that is replayed goes another way than it went: nothing is spliced."""
    at = len(request.output)
    if token != request.expected[at]:
        raise RequestError(
            f"the answer cannot be resumed: its token {at} is {token}, but {request.expected[at]} was expected;"
            " the prompt, the parameters, the model or the identity of its bits differ",
            field="expected",
            code="not_resumed",
        )


def _show(request: Request, token: int) -> End | None:
    """Adds a token's text to the answer; returns the end if the token ends the request."""
    if token in request.stop_ids:
        request.stop_reason = token
        return End("stop")
    text, stopped = request.stop.push(request.detokenizer.push(token))
    request.show(text)
    if stopped:
        request.stop_reason = request.stop.found
        return End("stop", flush=False)
    return End("length") if len(request.output) == request.max_tokens else None
