"""DraftModelProposer: a small draft model with the vocabulary of the target model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from woolly.cache.pages import PagePool
from woolly.cache.slots import SlotPool
from woolly.engine.drafts.greedy_tokens import greedy_tokens
from woolly.errors import RequestError
from woolly.runtime import PAGE_SIZE, Batch, Program, pages_for

if TYPE_CHECKING:
    from woolly.engine.drafts.speculation_budget import SpeculationBudget
    from woolly.engine.request import Request
    from woolly.tokens import Tokenizer

_HEAD = 4  # leading tokens of a shortened context, which serve as attention sinks
_FEW = 16  # tokens that are always prefilled: about the number that a draft leaves unprocessed


@dataclass
class _Track:
    """Draft model state of a request."""

    n_shifts: int
    n_skipped: int = 0  # tokens skipped after the leading ones to save prefill time
    is_reading: bool = False  # True while the selected part of the context is being prefilled
    n_published: int = 0  # pages in the prefix index
    pages: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)  # tokens whose K and V are in the draft model's cache
    n_sure: int = 0  # leading tokens that belong to the context; the rest are draft tokens
    slots: list[int] = field(default_factory=list)  # three if the draft model has recurrent state
    at: int = 0  # index of the slot with the state after the first n_state context tokens
    n_state: int = 0
    now: int = 0  # index of the slot with the state after all tokens

    def unread(self, context: list[int]) -> list[int]:
        """Return the tokens that the draft model has not processed."""
        n = len(self.tokens)
        if self.n_skipped and n < _HEAD:
            return context[n:_HEAD] + context[_HEAD + self.n_skipped :]
        return context[n + self.n_skipped :]


_Rows = tuple[int, _Track, list[int]]  # index into `wanted`, track, tokens to compute


class DraftModelProposer:
    """Proposes the most likely tokens of a draft model, which has its own KV cache.

    The KV cache shares full pages between requests with a common prefix and overwrites rejected tokens in place. When
    the first draft token is wanted, the proposer prefills the first and last tokens of the context, as far as `budget`
    allows. A shortened context lowers acceptance but never changes the output. The complete context is prefilled once
    that pays off, or if there is no budget.

    Each step prefills at most `program.max_rows` tokens, so a long prompt does not delay other requests. A request gets
    no draft tokens until its context is prefilled, or if the cache is full. For a draft model with recurrent state, one
    slot holds the state after the context, and two other slots alternate for draft tokens.
    """

    def __init__(self, program: Program, kv_tokens: int, ctx: int, max_running: int = 16) -> None:
        self._program = program
        self._ctx = ctx
        self._pages = PagePool(pages_for(kv_tokens))
        self._slots = SlotPool(3 * max_running if program.plan.slots else 0, self._pages.index)
        self._state = program.new_state(self._pages.n_pages, self._slots.n_slots)
        self._tracks: dict[Request, _Track] = {}
        self.budget: SpeculationBudget | None = None
        self.read_seconds = 0.0  # prefill time of the latest call of `propose`

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        """Prefill new tokens, then propose tokens one by one for all requests in a batch."""
        guesses: list[list[int]] = [[] for _ in wanted]
        self.read_seconds = 0.0
        rows: list[_Rows] = []
        unfinished: list[_Rows] = []
        left = self._program.max_rows
        for i, (request, n) in enumerate(wanted):
            if len(request.context) > self._ctx or (track := self._choose(request)) is None:
                continue
            unread = track.unread(request.context)
            n_read = min(len(unread), left)
            n_tokens = len(track.tokens) + len(unread) + n - 1
            if n_read == 0 or not self._make_room(track, min(n_tokens, self._ctx)):
                continue
            left -= n_read
            (rows if n_read == len(unread) else unfinished).append((i, track, unread[:n_read]))
        for item in unfinished:  # long contexts continue with the next chunk and get no draft tokens yet
            self._read([item], wanted)
        is_first = True
        while rows:
            chosen = self._read(rows, wanted) if is_first else self._run(rows, is_sure=False)
            for (i, _, _), token in zip(rows, chosen, strict=True):
                guesses[i].append(token)
            rows = [
                (i, track, [guesses[i][-1]])
                for i, track, _ in rows
                if len(guesses[i]) < wanted[i][1] and len(track.tokens) < self._ctx
            ]
            is_first = False
        return guesses

    def forget(self, request: Request) -> None:
        """Free the pages and slots of a finished request."""
        track = self._tracks.pop(request, None)
        if track is not None:
            self._pages.give_back(track.pages)
            for slot in track.slots:
                self._slots.give_back(slot)

    def _choose(self, request: Request) -> _Track | None:
        """Return the request's track, shortened to its budget, or None if the budget is too small."""
        track = self._follow(request)
        n_unread = len(request.context) - track.n_skipped - len(track.tokens)
        if self.budget is None or track.is_reading:
            return track
        n_may = self.budget.max_prefill_tokens(request)
        if track.n_skipped and len(request.context) <= n_may:  # prefill the complete context
            return self._begin(request)
        if n_unread <= max(n_may, _FEW):
            return track
        if n_may < _FEW:
            return None
        n_skipped = max(0, len(request.context) - _HEAD - n_may)
        # A shortened context lowers acceptance, so it is used only if it is cheaper to prefill.
        return self._begin(request, n_skipped) if n_skipped and n_unread > n_may + _HEAD else track

    def _begin(self, request: Request, n_skipped: int = 0) -> _Track:
        """Return a new track. It uses pages of the prefix index if no tokens are skipped."""
        self.forget(request)
        track = self._tracks[request] = _Track(request.n_shifts, n_skipped)
        if not n_skipped and not self._slots.n_slots:
            found = self._pages.index.find(request.digests_to((len(request.context) - 1) // PAGE_SIZE))
            self._pages.share(found)
            track.pages, track.n_published = found, len(found)
            track.tokens = request.context[: len(found) * PAGE_SIZE]
            track.n_sure = len(track.tokens)
        return track

    def _follow(self, request: Request) -> _Track:
        """Return the request's track, truncated to the common prefix with its context."""
        track = self._tracks.get(request)
        if track is None or track.n_shifts != request.n_shifts:
            track = self._begin(request)
        # Always recompute the last token: its logits yield the first draft token.
        most = min(len(track.tokens), len(request.context) - track.n_skipped - 1)
        n = min(track.n_sure, most)
        while n < most and track.tokens[n] == request.context[n + track.n_skipped]:
            n += 1
        if self._slots.n_slots:
            n, track.now = track.n_state, track.at  # tokens after the saved state are recomputed
        del track.tokens[n:]
        track.n_sure = n
        return track

    def _read(self, rows: Sequence[_Rows], wanted: Sequence[tuple[Request, int]]) -> list[int]:
        """Prefill context tokens, record the time and publish full pages."""
        begin = time.perf_counter()
        chosen = self._run(rows)
        seconds = (time.perf_counter() - begin) / sum(len(tokens) for _, _, tokens in rows)
        for i, track, tokens in rows:
            request = wanted[i][0]
            track.n_sure = len(track.tokens)
            track.is_reading = bool(track.unread(request.context))
            if self.budget is not None and len(tokens) > _FEW:
                self.budget.spend_prefill(request, len(tokens), seconds * len(tokens))
                self.read_seconds += seconds * len(tokens)
            if not track.n_skipped and not self._slots.n_slots:
                self._publish(request, track)
        return chosen

    def _publish(self, request: Request, track: _Track) -> None:
        """Publish the full pages of a context, except its last token, which is always recomputed."""
        n_full = (len(track.tokens) - 1) // PAGE_SIZE
        digests = request.digests_to(n_full)
        for i in range(track.n_published, n_full):
            tokens, _ = request.named(i * PAGE_SIZE, (i + 1) * PAGE_SIZE)
            self._pages.publish(track.pages[i], digests[i - 1] if i else request.salt, digests[i], tokens)
        track.n_published = max(track.n_published, n_full)

    def _make_room(self, track: _Track, n_tokens: int) -> bool:
        needed = pages_for(n_tokens) - len(track.pages)
        n_slots = 3 if self._slots.n_slots and not track.slots else 0
        if needed > self._pages.n_free or n_slots > self._slots.n_free:
            return False
        if needed > 0:
            track.pages += self._pages.take(needed)
        track.slots += [self._slots.take() for _ in range(n_slots)]
        return True

    def _run(self, rows: Sequence[_Rows], is_sure: bool = True) -> list[int]:
        """Compute context or draft tokens of several tracks; return the most likely next token of each."""
        # Read the slot of the current state; write a slot that holds neither this state nor the state after the
        # context.
        turns = [(t.now, min({0, 1, 2} - {t.now, t.at})) for _, t, _ in rows] if self._slots.n_slots else None
        batch = Batch.of(
            [(tokens, len(track.tokens), track.pages) for _, track, tokens in rows],
            slots=turns
            and [
                (track.slots[now] if track.tokens else -1, track.slots[then])
                for (_, track, _), (now, then) in zip(rows, turns, strict=True)
            ],
        )
        chosen = greedy_tokens(self._program, batch, self._state)
        for i, (_, track, tokens) in enumerate(rows):
            track.tokens += tokens
            if turns is not None:
                track.now = turns[i][1]
                if is_sure:
                    track.at, track.n_state = track.now, len(track.tokens)
        return chosen


def check_vocabulary(draft: Tokenizer, target: Tokenizer) -> None:
    """Raise RequestError if a draft model has a different vocabulary, because draft tokens are target token ids."""
    if draft.n_vocab != target.n_vocab:
        raise RequestError(
            f"the draft model has {draft.n_vocab} tokens but the model has {target.n_vocab}; use a draft model with the"
            " same vocabulary"
        )
    for token in range(target.n_vocab):
        if draft.token_text(token) != target.token_text(token):
            raise RequestError(
                f"token {token} is {draft.token_text(token)!r} in the draft model but {target.token_text(token)!r} in"
                " the model; use a draft model with the same vocabulary"
            )
