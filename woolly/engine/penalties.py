"""Penalties: the samplers that lower the logits of what was there before."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from woolly._native import repeat_lengths
from woolly.engine.candidates import Candidates

__all__ = ["Dry", "History", "RepetitionPenalty"]

_LARGEST = np.finfo(np.float32).max


class History:
    """The tokens of a sequence so far, prompt first, as one array that grows."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._tokens = np.empty(len(prompt) + 256, np.int32)
        self._tokens[: len(prompt)] = prompt
        self._n = len(prompt)

    def __len__(self) -> int:
        return self._n

    def append(self, token: int) -> None:
        """Adds a token."""
        if self._n == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
        self._tokens[self._n] = token
        self._n += 1

    def last(self, n: int) -> npt.NDArray[np.int32]:
        """The last n tokens, or all for -1; a view."""
        return self._tokens[0 if n < 0 else max(0, self._n - n) : self._n]


class RepetitionPenalty:
    """Lowers each token of the last n: divided by `repeat`, less `frequency` for each time and `presence` once."""

    def __init__(self, history: History, last_n: int, repeat: float, frequency: float, presence: float) -> None:
        self._history = history
        self._last_n = last_n
        self._repeat = np.float32(repeat)
        self._frequency = np.float32(frequency)
        self._presence = np.float32(presence)

        self._counts: npt.NDArray[np.int32] | None = None  # of each token in the window
        self._window = 0, 0  # start and end of what is counted

    def apply(self, candidates: Candidates) -> None:
        """Touches the tokens of the window alone."""
        window = self._history.last(self._last_n)
        counts = self._count(candidates.n_vocab)
        # A token that stands twice in the window is written twice, with the same value.
        places = window if candidates.ids is None else np.flatnonzero(counts[candidates.ids])
        n = counts[window] if candidates.ids is None else counts[candidates.ids[places]]
        logits = candidates.editable()
        values = logits[places]
        lowered = np.where(values <= 0.0, values * self._repeat, values / self._repeat)
        lowered -= n.astype(np.float32) * self._frequency + self._presence
        # A token is ruled out by those who may, never by an overflow.
        logits[places] = np.where(np.isneginf(values), values, np.clip(lowered, -_LARGEST, _LARGEST))

    def _count(self, n_vocab: int) -> npt.NDArray[np.int32]:
        """How often each token stands in the window, brought up to date by what entered and left it."""
        end = len(self._history)
        start = 0 if self._last_n < 0 else max(0, end - self._last_n)
        tokens = self._history.last(-1)
        if self._counts is None:
            self._counts = np.bincount(tokens[start:], minlength=n_vocab).astype(np.int32)
        else:
            for token in tokens[self._window[1] :].tolist():
                self._counts[token] += 1
            for token in tokens[self._window[0] : start].tolist():
                self._counts[token] -= 1
        self._window = start, end
        return self._counts


class Dry:
    """Lowers the tokens that would continue a repetition, the more the longer it is (don't repeat yourself).

    The penalty is multiplier * base ** (length - allowed length). A repetition ends at a sequence breaker.
    """

    def __init__(
        self,
        history: History,
        last_n: int,
        multiplier: float,
        base: float,
        allowed_length: int,
        breakers: Mapping[int, Sequence[tuple[int, ...]]],
    ) -> None:
        self._history = history
        self._last_n = last_n
        self._multiplier = float(np.float32(multiplier))
        self._base = float(np.float32(base))
        self._allowed = allowed_length
        self._breakers = breakers  # first token -> the tails that may follow it
        self._is_first = np.zeros(max(breakers, default=-1) + 2, bool)  # the last entry stands for all others
        self._is_first[list(breakers)] = True
        # The power stays below the largest float32.
        self._longest = int(88.7228391 / math.log(self._base)) if self._base > 1.000001 else 2**31

    def apply(self, candidates: Candidates) -> None:
        """Touches only tokens that follow an earlier copy of the last ones."""
        tokens = self._history.last(self._last_n)
        if len(tokens) <= self._allowed or (limit := self._limit(tokens)) < self._allowed:
            return
        lengths = np.empty_like(tokens)
        repeat_lengths(tokens, limit, lengths)
        ends = np.flatnonzero(lengths[:-1] >= self._allowed)
        candidates.sorted = False
        if not len(ends):
            return
        continued, which = np.unique(tokens[ends + 1], return_inverse=True)
        longest = np.zeros(len(continued), np.int64)
        np.maximum.at(longest, which, lengths[ends])
        keep = np.array([() not in self._breakers.get(token, ()) for token in continued.tolist()], bool)
        places, which = _find(candidates, continued[keep])
        if len(places):
            power = np.minimum(longest[keep][which] - self._allowed, self._longest)
            logits = candidates.editable()
            values = logits[places]
            lowered = np.maximum(values - (self._multiplier * self._base**power).astype(np.float32), -_LARGEST)
            logits[places] = np.where(np.isneginf(values), values, lowered)

    def _limit(self, tokens: npt.NDArray[np.int32]) -> int:
        """How far back a repetition may reach: to the end of the last sequence breaker."""
        n = len(tokens)
        for start in np.flatnonzero(self._is_first[np.minimum(tokens, len(self._is_first) - 1)])[::-1].tolist():
            after = n - start - 1
            matching = (
                len(tail)
                for tail in self._breakers[int(tokens[start])]
                if len(tail) <= after and tail == tuple(tokens[start + 1 : start + 1 + len(tail)].tolist())
            )
            if (longest := max(matching, default=-1)) >= 0:
                return int(after - longest)
        return n


def _find(
    candidates: Candidates, tokens: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.integer], npt.NDArray[np.intp]]:
    """Places of the candidates that are among the tokens (ascending), and which token stands at each."""
    if candidates.ids is None:
        inside = np.flatnonzero(tokens < len(candidates))
        return tokens[inside], inside
    if not len(tokens):
        return np.empty(0, np.intp), np.empty(0, np.intp)
    which = np.minimum(np.searchsorted(tokens, candidates.ids), len(tokens) - 1)
    places = np.flatnonzero(tokens[which] == candidates.ids)
    return places, which[places]
