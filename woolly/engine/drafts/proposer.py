"""The Draft: proposes the next tokens, which the model then checks several at a time.

A proposed token that the sampler chooses anyway saves a step; the first that it does not choose ends the check. The
sampler never sees the proposals, so the text is the same with and without them.
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
        """For each (request, n): at most n tokens that may follow its context; none if there is no good guess."""

    def forget(self, request: Request) -> None:
        """Drops what was kept for a request that has ended."""


class DraftLength:
    """How many tokens are worth proposing, by how many of the last ones were accepted.

    If a share `a` of proposals is accepted, the k-th of a draft is with probability a**k. It is worth its row while
    that is at least `worth`, one half: a rejected token costs a row, an accepted one saves a step; more, if a guess was
    measured to cost more (`DraftCost`). While none is worth it, one proposal after 16 tokens detects a change, and
    after twice as many each time, at most 256: a draft that is right and too dear is no better than one that is wrong.
    """

    WORTH = 0.5
    # With recurrent state a rejected token also costs the rows before it, which the next step computes again.
    WORTH_WITH_REPLAY = 0.7

    START = 0.75
    PACE = 0.15  # weight of the latest observation in the moving average
    RETRY, MAX_RETRY = 16, 256

    def __init__(self, most: int, worth: float = WORTH, share: float = START) -> None:
        """Begins with the `share` that is accepted of other answers."""
        self._max_tokens = most
        self._worth = worth
        self._share = share
        self._since = 0
        self._pause = self.RETRY

    def next(self, cost: float = 0.0) -> int:
        """The number of tokens to propose in the next step; `cost` is that of one, as a share of a step."""
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

    def saw(self, n_drafted: int, n_accepted: int) -> None:
        """Updates the share after a check; tokens after the first rejected one carry no information."""
        if n_accepted and self._share < self._worth:  # else it is right often enough, and too dear
            self._pause = self.RETRY
        for i in range(min(n_accepted + 1, n_drafted)):
            self._share += self.PACE * ((1.0 if i < n_accepted else 0.0) - self._share)
