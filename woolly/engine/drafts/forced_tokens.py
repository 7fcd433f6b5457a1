"""Forced tokens: the replayed tokens of an interrupted answer, and the tokens that end reasoning at its budget.

Forced tokens are appended to the context as draft tokens. The sampler must choose each replayed token again, which
restores the sampler state, including the grammar and the random number generator. If the sampler chooses a different
token, the request fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from woolly.errors import RequestError

if TYPE_CHECKING:
    from woolly.engine.step.scheduler import Scheduler
    from woolly.engine.step.scheduler_output import SchedulerOutput
    from woolly.sampling.params import SamplingParams


def add_forced_tokens(scheduled: SchedulerOutput, scheduler: Scheduler, ctx: int) -> None:
    """Add the next forced tokens to decoding requests, up to the free rows of the step."""
    left = None
    for span in scheduled.spans:
        request = span.request
        if span.n_tokens > 1 or not span.is_complete or request.hooks or not (forced := request.forced_tokens):
            continue
        left = scheduler.rows_for_drafts(scheduled) if left is None else left
        # The row of each forced token yields the choice of the next one.
        tokens = forced[: min(left, ctx - len(request.context) - 1)]
        if tokens and scheduler.room_for(request, len(tokens)):
            span.add(tokens)
            left -= len(tokens)


def check_replayable(replay_tokens: Sequence[int], params: SamplingParams, max_tokens: int | None) -> None:
    """Raise RequestError if the sampler could not reproduce the replay tokens."""
    if not replay_tokens:
        return
    if params.temperature > 0 and params.seed is None:
        raise RequestError(
            "replay_tokens needs the seed of the replayed answer; set seed, or set temperature to 0",
            field="replay_tokens",
        )
    if params.n > 1:
        raise RequestError(f"replay_tokens needs n = 1, but n is {params.n}", field="replay_tokens")
    if params.context_shift:
        raise RequestError(
            "replay_tokens and context_shift cannot be combined; remove one of them", field="replay_tokens"
        )
    if max_tokens is not None and len(replay_tokens) > max_tokens:
        raise RequestError(
            f"replay_tokens has {len(replay_tokens)} tokens, but max_tokens is {max_tokens}; raise max_tokens",
            field="replay_tokens",
        )
