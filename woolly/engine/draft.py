"""The Draft: guesses at the tokens that come next, to be checked by the model several at a time.

A guess that the sampler then chooses anyway saves a step; one that it does not choose is dropped. What is chosen never
depends on the guesses, so the text is the same with and without.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from typing import Protocol

from woolly.engine.sequence import Sequence

__all__ = ["Draft", "DraftLength", "PromptLookup"]


class Draft(Protocol):
    """Makes guesses."""

    def propose(self, wanted: Seq[tuple[Sequence, int]]) -> list[list[int]]:
        """For each sequence at most so many tokens that may follow its context; none where it has no guess."""

    def forget(self, sequence: Sequence) -> None:
        """The sequence is over."""


class DraftLength:
    """How many guesses are worth checking, by how many of the last ones came true.

    With a share `a` of guesses that come true, the k-th of a draft does with a**k. It is checked where that is at
    least one half: a wrong guess costs a row, a right one saves a step. Where hardly any comes true, one guess in
    16 tokens finds out whether that has changed.
    """

    START = 0.75
    PACE = 0.15  # how fast the share follows what is seen
    RETRY = 16

    def __init__(self, most: int) -> None:
        self._most = most
        self._share = self.START
        self._since = 0

    def next(self) -> int:
        """Tokens to guess in the next step."""
        if self._share >= 0.999:
            return self._most
        n = int(math.log(0.5) / math.log(self._share)) if self._share > 0.0 else 0
        if n == 0:
            self._since += 1
            if self._since >= self.RETRY:
                self._since = 0
                n = 1
        return min(n, self._most)

    def saw(self, n_drafted: int, n_accepted: int) -> None:
        """Some guesses were checked; those after the first wrong one tell nothing."""
        for i in range(min(n_accepted + 1, n_drafted)):
            self._share += self.PACE * ((1.0 if i < n_accepted else 0.0) - self._share)


class PromptLookup:
    """Guesses that what followed the last few tokens before follows them again. Costs no model."""

    def __init__(self, longest: int = 4, shortest: int = 2) -> None:
        self._longest = longest
        self._shortest = shortest
        # For each sequence, where each run of tokens ended last: position after it, per length.
        self._seen: dict[Sequence, _Runs] = {}

    def propose(self, wanted: Seq[tuple[Sequence, int]]) -> list[list[int]]:
        """What followed the longest run of tokens that the context ends with, where it stood last before."""
        out = []
        for sequence, n in wanted:
            runs = self._seen.get(sequence)
            if runs is None or runs.n_shifts != sequence.n_shifts:
                runs = self._seen[sequence] = _Runs(sequence.n_shifts, self._longest, self._shortest)
            at = runs.find(sequence.context)
            out.append([] if at is None else sequence.context[at : at + n])
        return out

    def forget(self, sequence: Sequence) -> None:
        """Drops what was kept of it."""
        self._seen.pop(sequence, None)


class _Runs:
    """Every run of a few tokens in one context -> where it was followed last. Each token is looked at once."""

    def __init__(self, n_shifts: int, longest: int, shortest: int) -> None:
        self.n_shifts = n_shifts
        self._lengths = range(longest, shortest - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}
        self._n = 0  # tokens whose runs are in

    def find(self, context: list[int]) -> int | None:
        """Where the text that followed the context's end before begins."""
        for end in range(self._n + 1, len(context)):
            for length in self._lengths:
                if end >= length:
                    self._ends[tuple(context[end - length : end])] = end
        self._n = max(self._n, len(context) - 1)
        for length in self._lengths:
            if len(context) > length and (at := self._ends.get(tuple(context[-length:]))) is not None:
                return at
        return None
