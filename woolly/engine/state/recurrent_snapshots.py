"""RecurrentSnapshots: recurrent state slots of requests, and snapshots for prefix reuse.

Each step of a request reads one slot and writes another. The slot that was read stays valid for rejected drafts,
repeated runs, and other requests that continue from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from woolly.engine.step.batch_builder import Slots
from woolly.runtime import PAGE_SIZE

if TYPE_CHECKING:
    from woolly.cache.prefix import PrefixIndex
    from woolly.cache.slots import SlotPool
    from woolly.engine.request import Request
    from woolly.engine.step.scheduler_output import SchedulerOutput

# Token interval between snapshots of a prompt, and maximum snapshots per prompt; a longer prompt has larger intervals.
_STEP = 2048
_MAX_STEPS = 8


@dataclass
class _Track:
    """Slots of a running request."""

    slot: int  # slot with the state after n_state tokens; -1: zeros
    n_state: int
    ahead: int = -1  # slot that the current step writes; -1: no slot
    n_ahead: int = 0  # token count of the state in `ahead`
    kept: list[tuple[int, int]] = field(default_factory=list)  # (tokens, slot) of intermediate states in the step
    has_run: bool = False  # True if the step that writes these slots has run
    last: tuple[bytes, int] = (b"", -1)  # digest and slot of the answer's latest snapshot, which the next one replaces


class RecurrentSnapshots:
    """Assigns slots to requests, and saves snapshots in the prefix index.

    A snapshot, keyed by page digest, exists until its slot is needed or its page is evicted. Snapshots are taken:
    - after the last full page of a prompt, and every 2,048 tokens of a long prompt;
    - after the latest full page of an answer, for the next turn of the chat;
    - after the page at which two requests diverge, for later requests.
    """

    def __init__(self, pool: SlotPool, index: PrefixIndex, max_running: int) -> None:
        """The pool needs two slots per running request, and two for `Engine.logits`."""
        self.pool = pool
        self._index = index
        self._spare = pool.n_slots - 2 * max_running - 2  # maximum number of slots for pending snapshots
        self._n_keeping = 0
        self._tracks: dict[Request, _Track] = {}

    def start(self, request: Request) -> None:
        """Start a request from the snapshot after its computed pages."""
        n_pages = request.n_computed // PAGE_SIZE
        saved = self._index.state_after(request.digests_to(n_pages)[-1]) if n_pages else None
        assert (saved is None) == (n_pages == 0)  # PrefixIndex.find ends in a page with a snapshot
        slot = -1 if saved is None else saved
        if n_pages:
            self.pool.share(slot)
        self._tracks[request] = _Track(slot, request.n_computed)
        request.n_replay = 0

    def prepare(self, scheduled: SchedulerOutput) -> Slots:
        """Return the slots that a step reads and writes."""
        for span in scheduled.spans:
            track = self._tracks[span.request]
            self._drop(track)
            track.ahead, track.n_ahead = self.pool.take(), span.first + span.n_rows
        slots = Slots([], [], [])
        row = 0
        for span in scheduled.spans:
            track = self._tracks[span.request]
            self._keep(span.request, track)
            slots.read.append(track.slot)
            slots.written.append(track.ahead)
            slots.snapshots.extend((row + n_tokens - span.first - 1, slot) for n_tokens, slot in track.kept)
            row += span.n_rows
        return slots

    def ran(self, scheduled: SchedulerOutput) -> None:
        """Mark the step as computed, which makes its written slots valid."""
        for span in scheduled.spans:
            self._tracks[span.request].has_run = True

    def advance(self, request: Request, is_decided: bool) -> None:
        """Advance a request to the state after its step, unless the state includes rejected drafts.

        After rejected drafts, the next step recomputes the accepted tokens (`n_replay`). Until acceptance is decided,
        both slots are retained.
        """
        track = self._tracks[request]
        if track.has_run and track.n_ahead == request.n_computed:
            if track.slot >= 0:
                self.pool.give_back(track.slot)
            track.slot, track.n_state, track.ahead = track.ahead, track.n_ahead, -1
        elif not is_decided:
            return
        request.n_replay = request.n_computed - track.n_state

    def n_state(self, request: Request) -> int:
        """Return the number of tokens that a request's state includes."""
        return self._tracks[request].n_state

    def save(self, request: Request) -> None:
        """Save the wanted snapshots of indexed pages."""
        track = self._tracks[request]
        if track.has_run:
            for n_tokens, slot in track.kept:
                if n_tokens <= request.n_computed:
                    self._save(request, track, n_tokens, slot)
        if track.ahead < 0:
            self._drop(track)
        n_tokens = track.n_state
        if n_tokens == request.n_computed and n_tokens and n_tokens % PAGE_SIZE == 0 and _is_wanted(request, n_tokens):
            self._save(request, track, n_tokens, track.slot)

    def end(self, request: Request) -> None:
        """Free the slots of a request. Its snapshots remain."""
        track = self._tracks.pop(request)
        self._drop(track)
        if track.slot >= 0:
            self.pool.give_back(track.slot)
        request.n_replay = 0

    def _keep(self, request: Request, track: _Track) -> None:
        """Allocate slots for intermediate states of a step; the state after the last row always has a slot."""
        for n_tokens in range((track.n_state // PAGE_SIZE + 1) * PAGE_SIZE, track.n_ahead, PAGE_SIZE):
            if not _is_wanted(request, n_tokens) or self._n_keeping >= self._spare or not self.pool.n_free:
                continue
            if n_tokens <= len(request.context):
                digest = request.digests_to(n_tokens // PAGE_SIZE)[-1]
                if self._index.state_after(digest) is not None:
                    continue
            self._n_keeping += 1
            track.kept.append((n_tokens, self.pool.take()))

    def _save(self, request: Request, track: _Track, n_tokens: int, slot: int) -> None:
        digest = request.digests_to(n_tokens // PAGE_SIZE)[-1]
        if not self._index.save(digest, slot) or n_tokens < request.n_filled:
            return
        before, its_slot = track.last
        if its_slot >= 0 and self._index.state_after(before) == its_slot:  # else it was evicted
            self.pool.discard(its_slot)
        track.last = digest, slot

    def _drop(self, track: _Track) -> None:
        """Release the slots allocated for a step; saved states remain as snapshots."""
        if track.ahead >= 0:
            self.pool.give_back(track.ahead)
        for _, slot in track.kept:
            self.pool.give_back(slot)
        self._n_keeping -= len(track.kept)
        track.ahead, track.kept, track.has_run = -1, [], False


def _is_wanted(request: Request, n_tokens: int) -> bool:
    """Return True if the state after `n_tokens`, at a page boundary, should be saved."""
    step = _STEP * -(-request.n_filled // (_STEP * _MAX_STEPS))
    return n_tokens in request.marks or n_tokens >= request.n_filled or n_tokens % step == 0
