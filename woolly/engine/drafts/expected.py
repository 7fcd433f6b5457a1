"""Known tokens: those of an answer that was cut off and is replayed, and those that end a thought at its limit.

The tokens that the answer is known to have are put behind its context as drafts. The sampler walks over them as it does
over any draft and must choose each of them again, so that its state, a grammar's and a seed's among them, is the one
that it had. A token that differs from an expected one is an error: nothing is ever spliced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from woolly.errors import RequestError

if TYPE_CHECKING:
    from woolly.engine.step.scheduler import Scheduler
    from woolly.engine.step.work import Work
    from woolly.sampling.params import SamplingParams


def add_known(work: Work, scheduler: Scheduler, ctx: int) -> None:
    """Adds the next known tokens to requests that generate, as many as the step has rows for."""
    left = None
    for span in work.spans:
        request = span.request
        if span.n_tokens > 1 or not span.is_complete or request.hooks or not (known := request.known):
            continue
        left = scheduler.rows_for_drafts(work) if left is None else left
        # The last one is chosen from the row of the one before it.
        tokens = known[: min(left, ctx - len(request.context) - 1)]
        if tokens and scheduler.room_for(request, len(tokens)):
            span.add(tokens)
            left -= len(tokens)


def check_resumable(expected: Sequence[int], params: SamplingParams, max_tokens: int | None) -> None:
    """Refuses an answer that could not be chosen again."""
    if not expected:
        return
    if params.temperature > 0 and params.seed is None:
        raise RequestError(
            "expected replays an answer, which needs the seed that it had: give seed, or temperature 0",
            field="expected",
        )
    if params.n > 1:
        raise RequestError(f"expected is one answer, but n is {params.n}", field="expected")
    if params.context_shift:
        raise RequestError("expected cannot be replayed over a context that is shifted", field="expected")
    if max_tokens is not None and len(expected) > max_tokens:
        raise RequestError(
            f"expected has {len(expected)} tokens, but the answer has at most {max_tokens}", field="expected"
        )
