"""Proposer: proposes draft tokens, which the model verifies in one step.

A draft token that the sampler chooses too saves a step; the first that it does not choose ends verification. The
sampler does not depend on the drafts, so the text is the same with and without them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from woolly.engine.request import Request


class Proposer(Protocol):
    """Proposes tokens."""

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        """Return at most n draft tokens for each (request, n)."""

    def forget(self, request: Request) -> None:
        """Drop the state of a request that has ended."""


class DraftLength:
    """Draft length, adapted to the acceptance rate.

    At an acceptance rate `a`, the k-th token of a draft is accepted with probability a**k. It is worth its row while
    that is at least `worth`, one half: a rejected token costs a row, an accepted one saves a step; more if its cost was
    measured to be higher (`DraftCost`). While none is worth it, one proposal after 16 tokens detects a change, then
    after twice as many each time, at most 256: correct drafts that cost too much are no better than wrong ones.
    """

    WORTH = 0.5
    # With recurrent state a rejected token also costs the rows before it, which the next step computes again.
    WORTH_WITH_REPLAY = 0.7

    START = 0.75
    PACE = 0.15  # weight of the latest observation in the moving average
    RETRY, MAX_RETRY = 16, 256

    def __init__(self, most: int, worth: float = WORTH, share: float = START) -> None:
        """Start with the acceptance rate `share` of other answers."""
        self._max_tokens = most
        self._worth = worth
        self._share = share
        self._since = 0
        self._pause = self.RETRY

    def next(self, cost: float = 0.0) -> int:
        """Return the draft length of the next step; `cost` of a draft token is a share of a step."""
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

    def saw(self, n_drafted: int, n_accepted: int) -> None:
        """Update the acceptance rate; tokens after the first rejected one carry no information."""
        if n_accepted and self._share < self._worth:  # else accepted often enough, but too expensive
            self._pause = self.RETRY
        for i in range(min(n_accepted + 1, n_drafted)):
            self._share += self.PACE * ((1.0 if i < n_accepted else 0.0) - self._share)
