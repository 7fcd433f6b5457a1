"""Proposer: proposes draft tokens, which the model verifies in one step.

Each draft token that the sampler also chooses saves a step. The first mismatch ends verification. The sampler ignores
the drafts, so the output is identical with and without speculation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from woolly.engine.request import Request


class Proposer(Protocol):
    """Interface of draft token proposers."""

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        """Return at most n draft tokens for each (request, n)."""

    def forget(self, request: Request) -> None:
        """Drop the state of a finished request."""


class DraftLength:
    """Draft length, adapted to the acceptance rate.

    At an acceptance rate `a`, the k-th token of a draft is accepted with probability a**k. A token is drafted if this
    probability is at least `worth` (0.5: a rejected token costs a row, an accepted one saves a step) and at least its
    measured cost (`DraftCost`). If no token meets this threshold, drafting pauses for 16 steps, then tries one token to
    detect a change. Each failed try doubles the pause, up to 256 steps.
    """

    WORTH = 0.5
    # With recurrent state, a rejected token also forces the next step to recompute the rows before it.
    WORTH_WITH_REPLAY = 0.7

    START = 0.75
    PACE = 0.15  # weight of the latest observation in the moving average
    RETRY, MAX_RETRY = 16, 256

    def __init__(self, most: int, worth: float = WORTH, share: float = START) -> None:
        """`most` is the maximum draft length; `share` is the initial acceptance rate."""
        self._max_tokens = most
        self._worth = worth
        self._share = share
        self._since = 0
        self._pause = self.RETRY

    def next(self, cost: float = 0.0) -> int:
        """Return the draft length of the next step. `cost` is the cost of a draft token as a share of a step."""
        worth = max(self._worth, cost)
        if worth >= 1.0 or self._share <= 0.0:
            n = 0
        elif self._share >= 0.999:
            n = self._max_tokens
        else:
            n = int(math.log(worth) / math.log(self._share))
        if n == 0:
            self._since += 1
            if self._since >= self._pause:
                self._since, self._pause = 0, min(2 * self._pause, self.MAX_RETRY)
                n = 1
        else:
            self._since, self._pause = 0, self.RETRY
        return min(n, self._max_tokens)

    def pause_reason(self, cost: float) -> str:
        """Return why `next` returned 0."""
        if cost > self._worth and cost >= self._share:
            return f"a guessed token was measured to cost {cost:.1f} steps"
        return f"about {self._share:.0%} of the guessed tokens were right"

    def observe(self, n_drafted: int, n_accepted: int) -> None:
        """Update the acceptance rate. Tokens after the first rejected one carry no information."""
        if n_accepted and self._share < self._worth:  # otherwise drafts were accepted often enough but cost too much
            self._pause = self.RETRY
        for i in range(min(n_accepted + 1, n_drafted)):
            self._share += self.PACE * ((1.0 if i < n_accepted else 0.0) - self._share)
