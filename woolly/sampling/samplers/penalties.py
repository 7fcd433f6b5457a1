"""Repetition, frequency and presence penalties."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.sampling.registry import SamplerContext, sampler

if TYPE_CHECKING:
    from woolly.sampling.candidates import Candidates
    from woolly.sampling.history import History
    from woolly.sampling.params import SamplingParams

_F32_MAX = np.finfo(np.float32).max


@sampler("penalties")
class RepetitionPenalty:
    """Lowers the logits of recent tokens by the factor `repeat`, by `presence`, and by `frequency` per occurrence."""

    def __init__(self, history: History, last_n: int, repeat: float, frequency: float, presence: float) -> None:
        self._history = history
        self._last_n = last_n
        self._repeat = np.float32(repeat)
        self._frequency = np.float32(frequency)
        self._presence = np.float32(presence)

        self._counts: npt.NDArray[np.int32] | None = None  # occurrences of each token in the window
        self._window = 0, 0  # start and end of the counted window

    @property
    def only_lowers(self) -> bool:
        """True if no token becomes more likely."""
        return bool(self._repeat >= 1.0 and self._frequency >= 0.0 and self._presence >= 0.0)

    @classmethod
    def make(cls, params: SamplingParams, context: SamplerContext) -> RepetitionPenalty | None:
        """Return the sampler, or None if no penalty is set."""
        amounts = params.repeat_penalty, params.frequency_penalty, params.presence_penalty
        if params.repeat_last_n == 0 or amounts == (1.0, 0.0, 0.0):
            return None
        return cls(context.history, params.repeat_last_n, *amounts)

    def apply(self, candidates: Candidates) -> None:
        """Lower the tokens in the window."""
        window = self._history.last(self._last_n)
        counts = self._count(candidates.n_vocab)
        # A token that occurs twice in the window is written twice with the same value.
        places = window if candidates.ids is None else np.flatnonzero(counts[candidates.ids])
        n = counts[window] if candidates.ids is None else counts[candidates.ids[places]]
        logits = candidates.editable()
        values = logits[places]
        lowered = np.where(values <= 0.0, values * self._repeat, values / self._repeat)
        lowered -= n.astype(np.float32) * self._frequency + self._presence
        # Clip: a penalty that overflows to -inf would ban the token.
        logits[places] = np.where(np.isneginf(values), values, np.clip(lowered, -_F32_MAX, _F32_MAX))

    def _count(self, n_vocab: int) -> npt.NDArray[np.int32]:
        """Count the tokens in the window, updated with tokens that entered or left."""
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
