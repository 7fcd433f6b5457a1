"""Scheduler: selects the requests of the next step and the rows of each request."""

from __future__ import annotations

import itertools
import time
from bisect import insort
from collections.abc import Iterable, Sequence

from woolly import cache
from woolly.cache.pages import PagePool
from woolly.cache.prefix import page_digest
from woolly.cache.slots import SlotPool
from woolly.engine.request import Request
from woolly.engine.state.recurrent_snapshots import RecurrentSnapshots
from woolly.engine.state.visible_pages import VisiblePages
from woolly.engine.step.adaptive_batch_size import AdaptiveBatchSize
from woolly.engine.step.batch_builder import build_batch
from woolly.engine.step.fair_order import request_to_displace, requests_in_turn
from woolly.engine.step.prefill_budget import PrefillBudget
from woolly.engine.step.prefill_shares import share_rows
from woolly.engine.step.scheduler_output import SchedulerOutput, Span
from woolly.runtime import PAGE_SIZE, Batch, pages_for

# Maximum length of trailing template tokens, such as <think>, that the next turn omits. If these tokens cross the last
# page boundary, the next turn branches off at the boundary before it.
_TAIL = 8
_LOADING = 0.02  # seconds that an idle step waits for pages from disk; calls from other threads wait too


class Scheduler:
    """Schedules requests by priority, then first come, first served.

    Decoding requests get one row each before prompts, and `PrefillBudget` limits the rows of prompts if there are
    decoding requests. Half of these rows goes to the first prompt, so that it always advances. The other half goes to
    the prompts with the fewest missing tokens, so that short prompts do not wait for long ones. A step that completes a
    short prompt is not filled with rows of the long prompt, which would delay the first token of the short one.

    Groups, such as the n answers to a prompt, run round-robin. A group without a running request preempts a request of
    a group with several running requests.

    A request is admitted when the cache has pages for its context, and then allocates pages one by one. If no page is
    free, the last running request is preempted: its pages are freed, and it is recomputed later. Every request
    finishes, because the first request is never preempted and each request fits the cache.
    """

    def __init__(
        self, pages: PagePool, slots: SlotPool, visible_pages: VisiblePages, *, chunk: int, max_running: int
    ) -> None:
        """`slots` is empty for models without recurrent state; `RecurrentSnapshots` needs several slots per request."""
        self.visible_pages = visible_pages
        self.pages = pages
        self.chunk = chunk  # maximum rows per step
        self.max_running = min(max_running, chunk)  # each decoding request needs a row
        self.slots = slots
        self.snapshots = RecurrentSnapshots(slots, pages.index, self.max_running) if slots.n_slots else None
        self.waiting: list[Request] = []  # both lists are sorted by rank
        self.running: list[Request] = []
        self.n_preemptions = 0
        self._ranks: dict[Request, tuple[int, int]] = {}
        self._arrivals = itertools.count()
        self._promised: dict[bytes, Request] = {}  # digests of pages that a running request will fill
        self._awaited: dict[Request, bytes] = {}  # last such page that a waiting request needs
        self.tier: cache.DiskTier | None = None
        self._asked: set[Request] = set()  # waiting requests with a query to the disk tier
        self.batch_size = AdaptiveBatchSize(self.max_running, self.max_running)
        self.prefill_budget = PrefillBudget(None)

    def __repr__(self) -> str:
        free = f"{self.pages.n_free} of {self.pages.n_pages} pages free"
        return f"{len(self.running)} running, {len(self.waiting)} waiting, {free}"

    @property
    def requests(self) -> Iterable[Request]:
        """All waiting and running requests."""
        return tuple(self._ranks)

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._ranks[request] = (-request.priority, next(self._arrivals))
        request.queued = time.monotonic()
        self._queue(self.waiting, request)

    def schedule(self) -> SchedulerOutput:
        """Return the work of the next step, which has no spans if there is no work."""
        if self.tier is not None:
            self.tier.settle(len(self.running))
        self._admit()
        spans: list[Span] = []
        filling: list[Request] = []
        left = self.chunk
        for request in tuple(self.running):
            n_missing = len(request.context) - request.n_computed
            if not n_missing or not request.pages:
                continue  # deferred by the engine, or preempted in this loop by an earlier request
            if n_missing > 1:
                filling.append(request)
            elif 1 + request.n_replay <= left and request.n_open and self._grow(request):
                spans.append(Span(request, 1))
                left -= 1 + request.n_replay
        if filling and left:
            n_rows = left if len(self.running) == len(filling) else self.prefill_budget.n_rows(left)
            spans += share_rows(n_rows, [s for s in filling if s.pages and s.n_open], left)
        return SchedulerOutput(spans)

    @property
    def may_admit(self) -> bool:
        """True if a waiting request may be admitted."""
        return bool(self._by_priority())

    def rows_for_drafts(self, scheduled: SchedulerOutput) -> int:
        """Return the free rows of a step; with recurrent state, running requests outside the step reserve rows."""
        computed = {span.request for span in scheduled.spans}
        others = sum(1 + request.n_replay for request in self.running if request not in computed)
        return self.chunk - scheduled.n_rows - (others if self.snapshots is not None else 0)

    def batch(self, scheduled: SchedulerOutput) -> Batch:
        """Return the batch of a step, with its slots and window pages."""
        self.visible_pages.prepare(scheduled)
        slots = None if self.snapshots is None else self.snapshots.prepare(scheduled)
        return build_batch(scheduled, slots, self.visible_pages.tables)

    def ran(self, scheduled: SchedulerOutput) -> None:
        """Record that the step was computed."""
        if self.snapshots is not None:
            self.snapshots.ran(scheduled)
        if self.tier is not None:
            self.tier.observe(scheduled.n_rows, scheduled.seconds)
        self.prefill_budget.ran(scheduled)
        self.batch_size.ran(len(self.running), scheduled.n_rows, len(self.waiting))

    def wait(self) -> None:
        """Wait briefly for pages that are loading from disk, if there is no other work."""
        if self.tier is not None and self.tier.is_loading:
            self.tier.wait(_LOADING)

    def advance(self, request: Request, is_decided: bool = True) -> None:
        """Advance the recurrent state after a step and publish full pages; `is_decided`: acceptance is known."""
        if self.snapshots is None and not self.visible_pages.is_bounded:
            if request.n_computed // PAGE_SIZE > request.n_published:  # rare: most steps fill no page
                self.publish(request)
            return
        self._settle(request, is_decided)
        n_state = request.n_computed if self.snapshots is None else self.snapshots.n_state(request)
        self.visible_pages.trim(request, n_state, is_decided)

    def publish(self, request: Request) -> None:
        """Add full pages to the prefix index, so that other requests can share them."""
        n_full = request.n_computed // PAGE_SIZE
        if n_full > request.n_published:
            self._publish(request, n_full)
        if self.snapshots is not None:
            self.snapshots.save(request)

    def _settle(self, request: Request, is_decided: bool = True) -> None:
        if self.snapshots is not None:
            self.snapshots.advance(request, is_decided)
        self.publish(request)

    def _publish(self, request: Request, n_full: int) -> None:
        digests = request.digests_to(n_full)
        for i in range(request.n_published, n_full):
            parent = digests[i - 1] if i else request.salt
            tokens, _ = request.named(i * PAGE_SIZE, (i + 1) * PAGE_SIZE)
            if self.tier is not None and self.pages.index.was_evicted(digests[i]):
                self.tier.want(digests[i : i + 1], i, request.n_shared // PAGE_SIZE)
            self.pages.publish(request.pages[i], parent, digests[i], tokens)
            self._keep_promise(digests[i], request)
        request.n_published = n_full

    def room_for(self, request: Request, n_drafts: int) -> bool:
        """Allocate pages for drafts; return False if too few are free. Drafts never preempt a request."""
        needed = pages_for(request.n_computed + 1 + n_drafts) - len(request.pages)
        if needed > 0:
            # Reserve a page for each running request.
            if needed > self.pages.n_free - len(self.running):
                return False
            request.pages += self.pages.take(needed)
        return True

    def claim(self, n: int) -> list[int]:
        """Allocate pages for other uses than requests; preempt the last running requests if needed."""
        while n > self.pages.n_free and self.running:
            self._preempt(self.running[-1])
        return self.pages.take(n)

    def release(self, request: Request) -> None:
        """Remove a request and free its pages, which stay in the prefix index."""
        if self._ranks.pop(request, None) is None:
            return
        self._awaited.pop(request, None)
        self._asked.discard(request)
        if self.tier is not None:
            self.tier.forget(request)
        (self.running if request in self.running else self.waiting).remove(request)
        self._vacate(request)

    def restart(self, request: Request) -> None:
        """Return a running request to the queue and free its pages."""
        self.running.remove(request)
        self._vacate(request)
        self._queue(self.waiting, request)

    def lose_all(self) -> None:
        """Drop all pages and slots after their content was lost, and recompute running requests from their tokens."""
        for request in tuple(self.running):
            self._preempt(request)
        self.pages.forget(range(self.pages.n_pages))

    def forget(self, tokens: Sequence[int], salt: bytes, digests: Sequence[bytes] | None = None) -> int:
        """Remove the unused pages of a prompt from the index and from disk; return their number.

        Without `digests`, digests are computed from the tokens, which must not include images.
        """
        if digests is None:
            made: list[bytes] = []
            for start in range(0, len(tokens) - PAGE_SIZE + 1, PAGE_SIZE):
                made.append(page_digest(made[-1] if made else salt, tokens[start : start + PAGE_SIZE]))
            digests = made
        if self.tier is not None:
            self.tier.erase(digests)
        return self.pages.forget(self.pages.index.known(digests))

    def _admit(self) -> None:
        """Start waiting requests while `max_running` and the free pages allow it."""
        for request in self._by_priority():
            limit = max(self._limit(), len(self.running))  # at the limit, a request must preempt another one
            if len(self.running) >= limit and request_to_displace(self.running, request) is None:
                return
            if self._awaits(self._awaited.get(request), request):
                continue
            n_reusable = request.n_reusable // PAGE_SIZE
            digests = request.digests_to(n_reusable)
            found = self.pages.index.find(digests)
            n_known = n_coming = len(self.pages.index.known(digests))
            while n_coming < n_reusable and self._awaits(digests[n_coming], request):
                n_coming += 1
            if n_coming > n_known:
                self._await(request, n_coming)
                continue
            if self._waits_for_disk(request, digests):
                continue
            needed = pages_for(len(request.context)) - len(found)
            while len(self.running) >= limit or not self._has_room(found, needed):
                if (other := request_to_displace(self.running, request)) is None:
                    return
                self._preempt(other)
                found = self.pages.index.find(digests)
                needed = pages_for(len(request.context)) - len(found)
            self._start(request, found, needed)
            if n_known > len(found):
                request.marks.add(n_known * PAGE_SIZE)  # other requests diverged here, so more may follow

    def _limit(self) -> int:
        """Return the maximum number of running requests, which rises while a new foreground request waits too long."""
        queued = (r.queued for r in self.waiting if r.prefix is None and r.priority >= 0)
        return min(self.max_running, self.batch_size.limit(next(queued, None)))

    def _waits_for_disk(self, request: Request, digests: Sequence[bytes]) -> bool:
        """Return True if pages of a request are loading from disk. The tier is queried once per start."""
        if self.tier is None or request.is_early:
            return False
        if self.tier.is_fetching(request, digests):
            return True
        if request in self._asked:
            return False
        self._asked.add(request)
        n_spare = self.pages.n_free - len(self.running) - 1
        tokens, _ = request.named(0, len(request.context))
        return self.tier.fetch(request, tokens, digests, request.salt, n_spare, request.n_shared // PAGE_SIZE)

    def _has_room(self, found: list[int], needed: int) -> bool:
        """Return True if the found and needed pages leave a free page for each running request."""
        idle = sum(self.pages.n_users(page) == 0 for page in found)
        return not self.running or needed + idle + len(self.running) <= self.pages.n_free

    def _by_priority(self) -> list[Request]:
        if not self.waiting:
            return []
        return requests_in_turn(self.waiting, self.running, is_full=len(self.running) >= self._limit())

    def _await(self, request: Request, n_pages: int) -> None:
        """Make a request wait until another request has filled their shared pages."""
        self._awaited[request] = digest = request.digests[n_pages - 1]
        self._promised[digest].marks.add(n_pages * PAGE_SIZE)

    def _awaits(self, digest: bytes | None, request: Request) -> bool:
        """Return True if a running request will fill this page soon, which is cheaper than recomputing it."""
        other = None if digest is None else self._promised.get(digest)
        return other is not None and other.priority >= request.priority

    def _start(self, request: Request, found: list[int], needed: int) -> None:
        self._awaited.pop(request, None)
        self._asked.discard(request)
        if self.tier is not None:
            is_first = request.prefix is None and request.index == 0  # neither preempted nor one of several answers
            self.tier.want(request.digests_to(len(found)), n_shared=is_first * request.n_shared // PAGE_SIZE)
        if request.prefix is None:
            request.begun = time.monotonic()
            whole = (len(request.context) - 1) // PAGE_SIZE
            reuse = request.n_reusable == len(request.context) - 1
            known, (tokens, _) = request.digests_to(whole), request.named(0, len(request.prompt))
            request.prefix = self.pages.index.report(tokens, known, len(found), reuse, request.salt)
        self.pages.share(found, request.is_early)
        request.pages = found + self.pages.take(needed, request.is_early)
        request.n_computed = len(found) * PAGE_SIZE
        request.n_published = len(found)
        request.n_filled = len(request.context)
        request.marks = _marks(request.n_filled, request.n_shared)
        self.visible_pages.start(request)
        if self.snapshots is not None:
            self.snapshots.start(request)
        for digest in request.digests_to(len(request.context) // PAGE_SIZE)[len(found) :]:
            self._promised.setdefault(digest, request)
        self.waiting.remove(request)
        self._queue(self.running, request)

    def _grow(self, request: Request) -> bool:
        """Allocate a page for the next token if the last page is full. Return False if the request was preempted."""
        if request.n_computed >= PAGE_SIZE * len(request.pages):
            while self.pages.n_free == 0:
                last = self.running[-1]
                self._preempt(last)
                if last is request:
                    return False
            request.pages += self.pages.take(1)
        return True

    def _preempt(self, request: Request) -> None:
        self.n_preemptions += 1
        request.n_preemptions += 1
        self.restart(request)

    def _vacate(self, request: Request) -> None:
        if request.pages:
            self._settle(request)
            self.visible_pages.end(request, request.pages)
            if self.snapshots is not None:
                self.snapshots.end(request)
            for digest in request.digests:
                self._keep_promise(digest, request)
            self.pages.give_back(request.drop_pages())

    def _keep_promise(self, digest: bytes, request: Request) -> None:
        if self._promised.get(digest) is request:
            del self._promised[digest]

    def _queue(self, queue: list[Request], request: Request) -> None:
        insort(queue, request, key=self._ranks.__getitem__)


def _marks(n_tokens: int, n_shared: int) -> set[int]:
    """Return the token counts of a prompt at which other requests are likely to branch off."""
    last = (n_tokens - 1) // PAGE_SIZE * PAGE_SIZE
    marks = {last, last - PAGE_SIZE} if n_tokens - last < _TAIL else {last}
    return {mark for mark in (*marks, n_shared // PAGE_SIZE * PAGE_SIZE) if mark > 0}
