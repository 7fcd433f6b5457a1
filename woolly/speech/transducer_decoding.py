"""Greedy decoding of CTC, RNN-T and TDT: tokens with their encoder frames."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from woolly.engine.multimodal import TransducerDecoder

Float32 = npt.NDArray[np.float32]

_AHEAD = 8  # frames per run of the joint network for RNN-T, because most frames are blank


@dataclass(frozen=True)
class TimedToken:
    """Non-blank token with its frames: `first` to `last`, exclusive."""

    token: int
    first: int
    last: int
    logprob: float


class TransducerDecoding:
    """Decoding state of an audio clip. Encoder frames arrive in order, in any number of parts."""

    def __init__(self, decoder: TransducerDecoder) -> None:
        self._decoder = decoder
        self._at = 0  # decoded frames
        self._n_skipped = 0  # frames of the next part that the last duration covers
        self._pending: TimedToken | None = None  # CTC token of the last frame, which the next frame may repeat
        self.reset()

    def reset(self) -> None:
        """Reset the prediction network, but not the time."""
        decoder = self._decoder
        self._n_symbols = 0  # tokens of the current frame
        if decoder.kind != "ctc":
            self._prediction, self._state = decoder.predict(decoder.blank, decoder.new_state())

    def decode(self, rows: Float32, *, is_end: bool = True) -> list[TimedToken]:
        """Return the tokens of the given frames. `is_end` is true for the last frames."""
        found = list(self._collapse(rows, is_end) if self._decoder.kind == "ctc" else self._transduce(rows))
        self._at += len(rows)
        return found

    def _collapse(self, rows: Float32, is_end: bool) -> Iterator[TimedToken]:
        """Yield CTC tokens, with repeats merged and blanks removed."""
        scores, blank = self._decoder.logits(rows), self._decoder.blank
        best = scores.argmax(axis=1)
        for i, (token, row) in enumerate(zip(best.tolist(), scores, strict=True)):
            at, before = self._at + i, self._pending
            if before is not None and before.token == token:
                self._pending = TimedToken(token, before.first, at + 1, before.logprob)
                continue
            if before is not None:
                yield before
            self._pending = None if token == blank else TimedToken(token, at, at + 1, _logprob(row, token))
        if is_end and self._pending is not None:
            yield self._pending
            self._pending = None

    def _transduce(self, rows: Float32) -> Iterator[TimedToken]:
        """Yield RNN-T or TDT tokens. A blank advances one frame; a TDT duration advances several."""
        decoder, n = self._decoder, self._decoder.blank + 1
        durations, ahead = decoder.durations, 1 if decoder.durations else _AHEAD
        at, scored, scores = self._n_skipped, -1, np.zeros((0, 0), np.float32)
        while at < len(rows):
            if not scored <= at < scored + len(scores):
                scored, scores = at, decoder.logits(rows[at : at + ahead] + self._prediction)
            row = scores[at - scored]
            token = int(row[:n].argmax())
            steps = durations[int(row[n:].argmax())] if durations else int(token == decoder.blank)
            if token != decoder.blank:
                frame = self._at + at
                yield TimedToken(token, frame, frame + (steps if durations else 1), _logprob(row[:n], token))
                self._prediction, self._state = decoder.predict(token, self._state)
                scored, scores = -1, scores[:0]
                self._n_symbols += 1
            if steps == 0 and (token == decoder.blank or self._n_symbols >= decoder.max_symbols):
                steps = 1
            self._n_symbols = 0 if steps else self._n_symbols
            at += steps
        self._n_skipped = at - len(rows)


def _logprob(row: Float32, token: int) -> float:
    peak = float(row.max())
    return float(row[token]) - peak - float(np.log(np.exp(row - peak).sum(dtype=np.float64)))
