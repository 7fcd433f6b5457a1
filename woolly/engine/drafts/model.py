"""The DraftModel: a small model of the same vocabulary proposes tokens for a large one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from woolly.cache.pages import PagePool
from woolly.cache.slots import SlotPool
from woolly.engine.drafts.likeliest import likeliest
from woolly.engine.request import Request
from woolly.errors import RequestError
from woolly.runtime import Batch, Program, pages_for
from woolly.tokens import Tokenizer

__all__ = ["DraftModel", "check_vocabulary"]


@dataclass
class _Track:
    """What the small model has computed for one request."""

    n_shifts: int
    pages: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)  # whose K and V are in the small model's cache
    n_sure: int = 0  # leading tokens that the request is known to have; the rest are proposals
    slots: list[int] = field(default_factory=list)  # three, if the small model has recurrent state
    at: int = 0  # index of the slot with the state after n_state tokens, all of them sure
    n_state: int = 0
    now: int = 0  # index of the slot with the state after all tokens


class DraftModel:
    """Proposes the most likely token each time. It has a cache of its own; rejected tokens are overwritten in place.

    It prefills at most `program.max_rows` tokens per step, so a long prompt does not delay others. A request gets no
    proposals until its context is fully prefilled, nor if the cache is full. If the small model has recurrent state,
    one slot keeps it after the tokens of the context, and proposals go on in two others.
    """

    def __init__(self, program: Program, kv_tokens: int, ctx: int, max_running: int = 16) -> None:
        self._program = program
        self._ctx = ctx
        self._pages = PagePool(pages_for(kv_tokens))
        self._slots = SlotPool(3 * max_running if program.plan.slots else 0, self._pages.index)
        self._state = program.new_state(self._pages.n_pages, self._slots.n_slots)
        self._tracks: dict[Request, _Track] = {}

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        """Prefills what is new, then proposes one token after another for all requests at once."""
        guesses: list[list[int]] = [[] for _ in wanted]
        rows: list[tuple[int, _Track, list[int]]] = []
        left = self._program.max_rows
        for i, (request, n) in enumerate(wanted):
            if len(request.context) > self._ctx:
                continue
            track = self._follow(request)
            unread = request.context[len(track.tokens) :]
            n_read = min(len(unread), left)
            if n_read == 0 or not self._make_room(track, min(len(request.context) + n - 1, self._ctx)):
                continue
            left -= n_read
            rows.append((i, track, unread[:n_read]))
        # Contexts that are not fully prefilled: prefill the next chunk, propose nothing yet.
        for item in [r for r in rows if len(r[1].tokens) + len(r[2]) < len(wanted[r[0]][0].context)]:
            self._run([item])
            rows.remove(item)
        while rows:
            for (i, _, _), token in zip(rows, self._run(rows, is_sure=not guesses[rows[0][0]]), strict=True):
                guesses[i].append(token)
            rows = [
                (i, track, [guesses[i][-1]])
                for i, track, _ in rows
                if len(guesses[i]) < wanted[i][1] and len(track.tokens) < self._ctx
            ]
        return guesses

    def forget(self, request: Request) -> None:
        """Frees the pages of a request that has ended."""
        track = self._tracks.pop(request, None)
        if track is not None:
            self._pages.give_back(track.pages)
            for slot in track.slots:
                self._slots.give_back(slot)

    def _follow(self, request: Request) -> _Track:
        """The request's track, truncated to what agrees with its context."""
        track = self._tracks.get(request)
        if track is None or track.n_shifts != request.n_shifts:
            self.forget(request)
            track = self._tracks[request] = _Track(request.n_shifts)
        # The last token is always computed again: its logits give the first proposal.
        n, most = track.n_sure, min(len(track.tokens), len(request.context) - 1)
        while n < most and track.tokens[n] == request.context[n]:
            n += 1
        if self._slots.n_slots:
            n, track.now = track.n_state, track.at  # tokens after the state are computed again
        del track.tokens[n:]
        track.n_sure = n
        return track

    def _make_room(self, track: _Track, n_tokens: int) -> bool:
        needed = pages_for(n_tokens) - len(track.pages)
        n_slots = 3 if self._slots.n_slots and not track.slots else 0
        if needed > self._pages.n_free or n_slots > self._slots.n_free:
            return False
        if needed > 0:
            track.pages += self._pages.take(needed)
        track.slots += [self._slots.take() for _ in range(n_slots)]
        return True

    def _run(self, rows: Sequence[tuple[int, _Track, list[int]]], is_sure: bool = True) -> list[int]:
        """Computes tokens of several tracks, of the contexts or proposals; returns the most likely token after each."""
        # From the slot of the present state to one that holds neither it nor the state of the context.
        turns = [(t.now, min({0, 1, 2} - {t.now, t.at})) for _, t, _ in rows] if self._slots.n_slots else None
        batch = Batch.of(
            [(tokens, len(track.tokens), track.pages) for _, track, tokens in rows],
            slots=turns
            and [
                (track.slots[now] if track.tokens else -1, track.slots[then])
                for (_, track, _), (now, then) in zip(rows, turns, strict=True)
            ],
        )
        chosen = likeliest(self._program, batch, self._state)
        for i, (_, track, tokens) in enumerate(rows):
            track.tokens += tokens
            if turns is not None:
                track.now = turns[i][1]
                if is_sure:
                    track.at, track.n_state = track.now, len(track.tokens)
        return chosen


def check_vocabulary(draft: Tokenizer, target: Tokenizer) -> None:
    """Refuses a draft model with another vocabulary: proposals are token ids."""
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
