"""DRY (don't repeat yourself): a penalty on repeated passages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly._native import repeat_lengths
from woolly.sampling.bias import find
from woolly.sampling.dry_breakers import sequence_breakers
from woolly.sampling.registry import SamplerContext, sampler

if TYPE_CHECKING:
    from woolly.sampling.candidates import Candidates
    from woolly.sampling.history import History
    from woolly.sampling.params import SamplingParams

_F32_MAX = np.finfo(np.float32).max


@sampler("dry")
class Dry:
    """Lowers the logits of tokens that would continue a repetition. Longer repetitions get higher penalties.

    The penalty is multiplier * base ** (length - allowed length). A repetition ends at a sequence breaker.
    """

    only_lowers = True

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
        self._breakers = breakers  # first token -> tails that may follow it
        self._is_first = np.zeros(max(breakers, default=-1) + 2, bool)  # the last entry represents all other tokens
        self._is_first[list(breakers)] = True
        # keeps the power below the largest float32
        self._max_power = int(88.7228391 / math.log(self._base)) if self._base > 1.000001 else 2**31

    @classmethod
    def make(cls, params: SamplingParams, context: SamplerContext) -> Dry | None:
        """Return the sampler, or None if the multiplier or the window is 0."""
        if params.dry_multiplier <= 0.0 or params.dry_penalty_last_n == 0:
            return None
        tokenizer = context.tokenizer
        breakers = {} if tokenizer is None else sequence_breakers(tokenizer, params.dry_sequence_breakers)
        growth = params.dry_multiplier, params.dry_base, params.dry_allowed_length
        return cls(context.history, params.dry_penalty_last_n, *growth, breakers)

    def apply(self, candidates: Candidates) -> None:
        """Lower tokens that follow an earlier copy of the last tokens."""
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
            power = np.minimum(longest[keep][which] - self._allowed, self._max_power)
            logits = candidates.editable()
            values = logits[places]
            lowered = np.maximum(values - (self._multiplier * self._base**power).astype(np.float32), -_F32_MAX)
            logits[places] = np.where(np.isneginf(values), values, lowered)

    def _limit(self, tokens: npt.NDArray[np.int32]) -> int:
        """Return the length of the window after the last sequence breaker."""
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
    """Return the indices of candidates that are in the sorted tokens, and the token index for each."""
    if candidates.ids is None:
        inside = np.flatnonzero(tokens < len(candidates))
        return tokens[inside], inside
    return find(candidates.ids, tokens)
