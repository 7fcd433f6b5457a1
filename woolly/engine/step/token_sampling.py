"""Sampling of tokens for a request from the rows of a step."""

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
    """Reason for finishing a request after a token."""

    reason: FinishReason
    flush: bool = True  # include text that was deferred as a possible stop string


def accept_drafts(request: Request, rows: Sequence[Row], drafts: Sequence[int]) -> tuple[int, Finish | None]:
    """Sample a token from each row until a token differs from its draft or ends the request.

    Return the number of accepted draft tokens, and the finish reason, or None if the request continues.
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
    """Sample a token; return the finish reason if the token ends the request, otherwise None."""
    if request.max_tokens == 0:
        return Finish("length")
    token, logprob = request.sampler.next(row)
    if request.replay_tokens and request.is_replaying:
        _check_replayed(request, token)
    if logprob is not None:
        request.logprobs.append(logprob)
    return _append(request, token)


def append_tokens(request: Request, tokens: Sequence[int]) -> Finish | None:
    """Append tokens in order, up to one that ends the request; return the finish reason, if any."""
    for token in tokens:
        if (end := _append(request, token)) is not None:
            return end
    return None


def _append(request: Request, token: int) -> Finish | None:
    output = request.output
    request.context.append(token)
    output.append(token)
    if token in request.stop_ids:
        request.stop_reason = token
        return Finish("stop")
    request.unwritten.append(token)
    if request.params.stop and request.write():
        request.stop_reason = request.stop.found
        return Finish("stop", flush=False)
    return Finish("length") if len(output) == request.max_tokens else None


def score_prompt(request: Request, first: int, rows: Float32) -> None:
    """Append log-probabilities of prompt tokens. The row of a token scores the next token."""
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
            " use the same prompt, parameters, seed, model and backend",
            field="replay_tokens",
            code="not_resumed",
        )
