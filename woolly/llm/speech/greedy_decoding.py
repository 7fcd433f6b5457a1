"""Spelling: from rows of an encoder to tokens with their frames, by the likeliest token at each step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from woolly.engine.multimodal import TransducerDecoder

Float32 = npt.NDArray[np.float32]

_AHEAD = 8  # frames that a transducer without durations scores at once: blanks come in runs


@dataclass(frozen=True)
class TimedToken:
    """A token that is no blank, and the frames that it takes: from `first` to before `last`."""

    token: int
    first: int
    last: int
    logprob: float


class GreedyDecoding:
    """Text of one audio clip so far. Rows come in order, in as many parts as there are."""

    def __init__(self, decoder: TransducerDecoder) -> None:
        self._decoder = decoder
        self._at = 0  # frames that came before
        self._skips = 0  # frames of the next rows that the last duration reached over
        self._open: TimedToken | None = None  # of CTC: the token of the last frame, which the next may go on with
        self.reset()

    def reset(self) -> None:
        """Goes on in time as if no text had come before: frames that a token takes stay taken."""
        decoder = self._decoder
        self._n_here = 0  # tokens of the present frame
        if decoder.kind != "ctc":
            self._added, self._state = decoder.predict(decoder.blank, decoder.new_state())

    def decode(self, rows: Float32, *, is_end: bool = True) -> list[TimedToken]:
        """The tokens of these rows; `is_end`: no rows come after them."""
        found = list(self._collapse(rows, is_end) if self._decoder.kind == "ctc" else self._transduce(rows))
        self._at += len(rows)
        return found

    def _collapse(self, rows: Float32, is_end: bool) -> Iterator[TimedToken]:
        """CTC: a token for each run of equal ones, blanks left out."""
        scores, blank = self._decoder.logits(rows), self._decoder.blank
        best = scores.argmax(axis=1)
        for i, (token, row) in enumerate(zip(best.tolist(), scores, strict=True)):
            at, before = self._at + i, self._open
            if before is not None and before.token == token:
                self._open = TimedToken(token, before.first, at + 1, before.logprob)
                continue
            if before is not None:
                yield before
            self._open = None if token == blank else TimedToken(token, at, at + 1, _logprob(row, token))
        if is_end and self._open is not None:
            yield self._open
            self._open = None

    def _transduce(self, rows: Float32) -> Iterator[TimedToken]:
        """RNN-T and TDT: blanks go on in time, other tokens in the text; durations say how far in time."""
        decoder, n = self._decoder, self._decoder.blank + 1
        durations, ahead = decoder.durations, 1 if decoder.durations else _AHEAD
        at, scored, scores = self._skips, -1, np.zeros((0, 0), np.float32)
        while at < len(rows):
            if not scored <= at < scored + len(scores):
                scored, scores = at, decoder.logits(rows[at : at + ahead] + self._added)
            row = scores[at - scored]
            token = int(row[:n].argmax())
            steps = durations[int(row[n:].argmax())] if durations else int(token == decoder.blank)
            if token != decoder.blank:
                frame = self._at + at
                yield TimedToken(token, frame, frame + (steps if durations else 1), _logprob(row[:n], token))
                self._added, self._state = decoder.predict(token, self._state)
                scored, scores = -1, scores[:0]
                self._n_here += 1
            if steps == 0 and (token == decoder.blank or self._n_here >= decoder.max_symbols):
                steps = 1
            self._n_here = 0 if steps else self._n_here
            at += steps
        self._skips = at - len(rows)


def _logprob(row: Float32, token: int) -> float:
    peak = float(row.max())
    return float(row[token]) - peak - float(np.log(np.exp(row - peak).sum(dtype=np.float64)))
