"""Logits processors of Whisper: timestamp rules, suppressed tokens, language and silence of a window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from woolly.speech.whisper_tokens import WhisperTokens

Float32 = npt.NDArray[np.float32]

_LATEST_START = 50  # timestamp tokens of 20 ms; max_initial_timestamp is 1 s


class TimestampRules:
    """Logits processor of a window, which also sums the log-probabilities of the chosen tokens.

    Timestamps come in pairs around text and never decrease. A timestamp is forced if the total probability of
    timestamps exceeds the probability of every text token.
    """

    def __init__(self, tokens: WhisperTokens, n_prompt: int) -> None:
        self._tokens = tokens
        self._n_prompt = n_prompt
        self._row: Float32 | None = None  # log-probabilities of the latest step
        self._total = 0.0

    def __call__(self, ids: Sequence[int], row: Float32) -> None:
        """Mask forbidden tokens of the row in place."""
        tokens, written = self._tokens, ids[self._n_prompt :]
        self._count(written)
        row[tokens.suppress_tokens] = -np.inf
        row[tokens.no_timestamps] = -np.inf
        first = tokens.timestamp_begin
        if not written:
            row[tokens.suppress_blank] = -np.inf
            row[:first] = -np.inf
            row[first + _LATEST_START + 1 :] = -np.inf
        else:
            self._keep_pairs(written, row)
        likely = _log_softmax(row)
        times = likely[first:]
        peak = times.max()
        if np.isfinite(peak) and peak + np.log(np.exp(times - peak).sum()) > likely[:first].max():
            row[:first] = -np.inf
            likely = _log_softmax(row)
        self._row = likely

    def _keep_pairs(self, written: Sequence[int], row: Float32) -> None:
        first = self._tokens.timestamp_begin
        is_time = written[-1] >= first
        if is_time and (len(written) < 2 or written[-2] >= first):
            row[first:] = -np.inf
        elif is_time:
            row[: self._tokens.eot] = -np.inf
        times = [token for token in written if token >= first]
        if times:
            begins = is_time and not (len(written) < 2 or written[-2] >= first)
            row[first : times[-1] + (0 if begins else 1)] = -np.inf

    def avg_logprob(self, written: Sequence[int]) -> float:
        """Return the mean log-probability of the tokens of a complete text, including the end token."""
        self._count(written)
        return self._total / (len(written) + (self._tokens.eot not in written[-1:]))

    def _count(self, written: Sequence[int]) -> None:
        if self._row is not None and written:
            self._total += float(self._row[written[-1]])
        self._row = None


class StartProbe:
    """Logits processor that reads the language and the probability of no speech from the first row."""

    def __init__(self, tokens: WhisperTokens) -> None:
        self._tokens = tokens
        self.no_speech_prob = 0.0
        self.language: str | None = None

    def __call__(self, ids: Sequence[int], row: Float32) -> None:
        """Read the row without changing it."""
        self.no_speech_prob = float(np.exp(_log_softmax(row)[self._tokens.no_speech]))
        codes = self._tokens.languages
        if codes:
            self.language = max(codes, key=lambda code: float(row[codes[code]]))


def _log_softmax(row: Float32) -> Float32:
    shifted = row - row.max()
    out: Float32 = shifted - np.float32(np.log(np.exp(shifted).sum(dtype=np.float64)))
    return out
