"""The DraftModel: a small model of the same vocabulary guesses what a large one will say."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np

from woolly.engine.pages import PagePool
from woolly.engine.sequence import Sequence
from woolly.errors import RequestError
from woolly.runtime import Batch, Program, pages_for
from woolly.text import Tokenizer

__all__ = ["DraftModel", "check_vocabulary"]


@dataclass
class _Track:
    """What the small model has computed of one sequence."""

    n_shifts: int
    pages: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)  # whose K and V are in its cache
    n_sure: int = 0  # of these, known to be the sequence's own; what follows are guesses


class DraftModel:
    """Guesses the likeliest token each time. Its cache is its own; wrong guesses are overwritten in place.

    It reads at most `program.max_rows` tokens of contexts per step, so that a long prompt does not delay others; a
    sequence that it has not read to the end yet gets no guesses. The same where its cache is full.
    """

    def __init__(self, program: Program, kv_tokens: int, ctx: int) -> None:
        self._program = program
        self._ctx = ctx
        self._pages = PagePool(pages_for(kv_tokens))
        self._state = program.new_state(self._pages.n_pages)
        self._tracks: dict[Sequence, _Track] = {}

    def propose(self, wanted: Seq[tuple[Sequence, int]]) -> list[list[int]]:
        """Reads what is new, then guesses one token after another for all sequences at once."""
        guesses: list[list[int]] = [[] for _ in wanted]
        rows: list[tuple[int, _Track, list[int]]] = []
        left = self._program.max_rows
        for i, (sequence, n) in enumerate(wanted):
            if len(sequence.context) > self._ctx:
                continue
            track = self._follow(sequence)
            unread = sequence.context[len(track.tokens) :]
            n_read = min(len(unread), left)
            if n_read == 0 or not self._make_room(track, min(len(sequence.context) + n - 1, self._ctx)):
                continue
            left -= n_read
            rows.append((i, track, unread[:n_read]))
        # Those that are not read to the end are read on, but guessed at only when they are.
        for item in [r for r in rows if len(r[1].tokens) + len(r[2]) < len(wanted[r[0]][0].context)]:
            self._run([item])
            rows.remove(item)
        while rows:
            for (i, _, _), token in zip(rows, self._run(rows), strict=True):
                guesses[i].append(token)
            rows = [
                (i, track, [guesses[i][-1]])
                for i, track, _ in rows
                if len(guesses[i]) < wanted[i][1] and len(track.tokens) < self._ctx
            ]
        return guesses

    def forget(self, sequence: Sequence) -> None:
        """Frees its pages."""
        track = self._tracks.pop(sequence, None)
        if track is not None:
            self._pages.give_back(track.pages)

    def _follow(self, sequence: Sequence) -> _Track:
        """The sequence's track, cut back to what agrees with its context."""
        track = self._tracks.get(sequence)
        if track is None or track.n_shifts != sequence.n_shifts:
            self.forget(sequence)
            track = self._tracks[sequence] = _Track(sequence.n_shifts)
        # At least the last token is read again: its logits make the first guess.
        n, most = track.n_sure, min(len(track.tokens), len(sequence.context) - 1)
        while n < most and track.tokens[n] == sequence.context[n]:
            n += 1
        del track.tokens[n:]
        track.n_sure = n
        return track

    def _make_room(self, track: _Track, n_tokens: int) -> bool:
        needed = pages_for(n_tokens) - len(track.pages)
        if needed > self._pages.n_free:
            return False
        if needed > 0:
            track.pages += self._pages.take(needed)
        return True

    def _run(self, rows: Seq[tuple[int, _Track, list[int]]]) -> list[int]:
        """Computes tokens of several tracks; gives the likeliest token after each."""
        batch = Batch.of([(tokens, len(track.tokens), track.pages) for _, track, tokens in rows])
        logits = self._program.run(batch, self._state)
        for _, track, tokens in rows:
            track.tokens += tokens
        return [int(token) for token in np.argmax(logits, axis=1)]


def check_vocabulary(draft: Tokenizer, target: Tokenizer) -> None:
    """Guesses are token ids, so both models must mean the same by them."""
    if draft.n_vocab != target.n_vocab:
        raise RequestError(
            f"the draft model has {draft.n_vocab} tokens and the model {target.n_vocab}; speculation needs two models"
            " of one vocabulary"
        )
    for token in range(target.n_vocab):
        if draft.token_text(token) != target.token_text(token):
            raise RequestError(
                f"token {token} is {draft.token_text(token)!r} to the draft model and {target.token_text(token)!r} to"
                " the model; speculation needs two models of one vocabulary"
            )
