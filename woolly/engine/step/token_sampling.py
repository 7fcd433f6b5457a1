"""The Choice: tokens and their text, from the rows of logits that a step computed for one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.errors import RequestError
from woolly.sampling.logprobs import log_probabilities

if TYPE_CHECKING:
    from woolly.engine.request import FinishReason, Request
    from woolly.sampling.top_logits import Row

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Finish:
    """Why a request ends after a token."""

    reason: FinishReason
    flush: bool = True  # whether text that was held back, as the beginning of a stop string, belongs to the answer


def accept_drafts(request: Request, rows: Sequence[Row], drafts: Sequence[int]) -> tuple[int, Finish | None]:
    """Chooses a token from each row until one differs from its draft or ends the request.

    Gives the number of drafts that the sampler chose too, and the end; None if the request goes on.
    """
    n_accepted = 0
    for row, draft in zip(rows, (*drafts, None), strict=True):
        end = sample_token(request, row)
        is_right = request.output[-1:] == [draft]
        n_accepted += is_right
        if not is_right or end is not None:
            break
    return n_accepted, end


def sample_token(request: Request, row: Row) -> Finish | None:
    """Chooses a token; returns the end if the token ends the request."""
    if request.max_tokens == 0:
        return Finish("length")
    token, logprob = request.sampler.next(row)
    if request.replay_tokens and request.is_replaying:
        _check_replayed(request, token)
    request.context.append(token)
    output = request.output
    output.append(token)
    if logprob is not None:
        request.logprobs.append(logprob)
    if token in request.stop_ids:
        request.stop_reason = token
        return Finish("stop")
    request.unwritten.append(token)
    if request.params.stop and request.write():
        request.stop_reason = request.stop.found
        return Finish("stop", flush=False)
    return Finish("length") if len(output) == request.max_tokens else None


def score_prompt(request: Request, first: int, rows: Float32) -> None:
    """Appends log-probabilities of prompt tokens: the row of a token rates the token after it."""
    n_top = request.params.prompt_logprobs or 0
    last = min(first + len(rows), len(request.prompt) - 1)
    for position in range(len(request.prompt_logprobs), last):
        following = request.prompt[position + 1]
        request.prompt_logprobs.append(log_probabilities(rows[position - first], following, n_top))


def _check_replayed(request: Request, token: int) -> None:
    """Raise RequestError if a replayed token differs."""
    at = len(request.output)
    if token != request.replay_tokens[at]:
        raise RequestError(
            f"the answer cannot be resumed: token {at} is {token}, but replay_tokens has {request.replay_tokens[at]};"
            " give the same prompt, parameters, seed, model and backend",
            field="replay_tokens",
            code="not_resumed",
        )
