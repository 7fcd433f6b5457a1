"""The Engine: a step is schedule, run, settle."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from woolly.cache.disk import PageFolder
from woolly.cache.pages import PagePool
from woolly.cache.prefix import PrefixStats
from woolly.cache.slots import SlotPool
from woolly.cache.tier import DiskStats, DiskTier
from woolly.cache.windows import WindowPool
from woolly.engine.checks import RequestChecks, too_long
from woolly.engine.drafts.draft import Draft
from woolly.engine.drafts.guesses import Guesses
from woolly.engine.drafts.mtp import MtpDraft
from woolly.engine.opening.hooks import Hook
from woolly.engine.opening.step_names import find_step
from woolly.engine.reading import Reader
from woolly.engine.request import FinishReason, Request
from woolly.engine.state.sight import Sight
from woolly.engine.step.ahead import Ahead
from woolly.engine.step.batching import Work, samplers_of
from woolly.engine.step.choice import choose, score, take
from woolly.engine.step.held import HeldRows
from woolly.engine.step.runner import Rows, Runner, read_values
from woolly.engine.step.scheduler import Scheduler
from woolly.errors import RequestError
from woolly.runtime import PAGE_SIZE, LostRows, LostState, PortableState, Program, State, pages_for
from woolly.sampling.head import Row
from woolly.sampling.params import SamplingParams
from woolly.tokens import Tokenizer

__all__ = ["Engine"]

Float32 = npt.NDArray[np.float32]

# Pools list every page, about 50 bytes each, also of a model that keeps nothing in pages: 210 MB for these.
_MOST_TOKENS = PAGE_SIZE << 22
_LOADING = 0.02  # seconds that a step without work waits for pages from disk; jobs of callers wait as long


class Engine:
    """Runs requests over one program. Not thread-safe: one thread at a time may call it."""

    def __init__(
        self,
        program: Program,
        tokenizer: Tokenizer,
        *,
        ctx: int,
        ctx_limit: int | None = None,
        kv_tokens: int | None = None,
        chunk: int | None = None,
        max_running: int = 16,
        n_snapshots: int = 16,
        draft: Draft | None = None,
        draft_tokens: int = 8,
        check_file: Callable[[], None] | None = None,
        adapters: Sequence[str] = (),
        disk: PageFolder | None = None,
        compute_rate: float = 0.0,
        salt: bytes = b"",
    ) -> None:
        """`ctx` bounds one request; `kv_tokens` is what the cache holds for all requests (None: one context).

        `ctx_limit` is the most that the model has (None: `ctx`). `chunk` bounds the rows of a step, `max_running` the
        requests that run at once, `n_snapshots` the recurrent states that are kept for later ones, `draft_tokens` the
        tokens of `draft` that one step checks for one request. `check_file` raises if the weights have changed.
        `adapters` are the names of those in the program's plan. `disk` keeps pages that leave the cache, if the state
        is one that can be copied (`has_disk`); `compute_rate` is a first measurement of prompts, in tokens per second.
        `salt` goes before that of each request.
        """
        self.program = program
        self.tokenizer = tokenizer
        self.ctx = ctx
        if kv_tokens is not None and kv_tokens < ctx:
            raise RequestError(
                f"kv_tokens is {kv_tokens}, but one request may take a context of {ctx}; at least that",
                field="kv_tokens",
            )
        n_pages = pages_for(ctx if kv_tokens is None else kv_tokens)
        chunk = min(chunk or program.max_rows, program.max_rows)
        # Each running request reads a slot and writes another; so does `logits`.
        n_slots = 2 * min(max_running, chunk) + 2 + n_snapshots if program.plan.slots else 0
        n_drafts = 1 if draft is None else draft_tokens
        # Rows that rejected drafts make a request compute again add up to a step of their own.
        n_rows = 2 * chunk if n_slots and draft is not None else chunk
        sizes = [WindowPool.size(window, max_running, n_rows, n_pages, n_drafts) for window in program.plan.windows]
        state = program.new_state(n_pages, n_slots, sizes)  # refuses more than memory holds, before pools list it
        for name, n_tokens in (("ctx", ctx), ("kv_tokens", kv_tokens or 0)):
            if n_tokens > _MOST_TOKENS:
                raise RequestError(f"{name} is {n_tokens}; a cache holds at most {_MOST_TOKENS} tokens", field=name)
        windows = [
            WindowPool(window, size, n_pages) if size < n_pages else None
            for window, size in zip(program.plan.windows, sizes, strict=True)
        ]
        mtp = draft if isinstance(draft, MtpDraft) else None
        if mtp is not None:
            mtp.attach(n_pages)
        self._runner = Runner(program, state, check_file, mtp)
        pages = PagePool(n_pages, n_slots > 0, [pool for pool in windows if pool is not None])
        slots = SlotPool(n_slots, pages.index)
        self.scheduler = Scheduler(pages, slots, Sight(windows), chunk=chunk, max_running=max_running)
        if disk is not None and isinstance(state, PortableState) and state.is_portable:
            self.scheduler.tier = DiskTier(disk, state, pages, slots, compute_rate)
        self._checks = RequestChecks(tokenizer, program, ctx, ctx_limit or ctx, adapters, salt)
        self.reader = Reader(program, ctx, chunk, check_file)
        self._guesses = Guesses(draft, draft_tokens, ctx)
        self._ahead = Ahead(self._runner, self.scheduler, self._guesses, ctx, self.reader)
        self._timed: set[Request] = set()
        self._held = HeldRows()
        self.n_steps = 0  # that computed something
        self._stepping = False
        self._to_cancel: list[Request] = []

    def new_request(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        index: int = 0,
        beside: Request | None = None,
        priority: int = 0,
        timeout: float | None = None,
        hooks: Mapping[str | int, Hook] | None = None,
        score_only: bool = False,
        shown: frozenset[int] = frozenset(),
        salt: bytes = b"",
        group: int | None = None,
        expected: Sequence[int] = (),
    ) -> Request:
        """Makes a request without queueing it; the error for one that cannot fit names both numbers.

        `index` says which of `params.n` answers this is; `beside` is another, whose grammar's time it shares. `timeout`
        is in seconds. `hooks` read named steps (step_names.py). `score_only` generates nothing. `shown`
        control tokens become text. Cached pages need an equal `salt`.
        Requests of one `group` (a `Request.group`; None: that of `beside`, or one of its own) share one turn.
        `expected` are the first tokens of the answer, known from one that was cut off (drafts/expected.py).
        """
        return self._checks.new_request(
            prompt,
            params,
            index=index,
            beside=beside,
            priority=priority,
            timeout=timeout,
            hooks=hooks,
            score_only=score_only,
            shown=shown,
            salt=salt,
            group=group,
            expected=expected,
        )

    def __repr__(self) -> str:
        return f"Engine(ctx={self.ctx}, {self.scheduler!r})"

    def add(self, request: Request) -> Request:
        """Queues a request."""
        self.scheduler.add(request)
        if request.deadline is not None:
            self._timed.add(request)
        return request

    @property
    def state(self) -> State:
        """The cache of all requests."""
        return self._runner.state

    @property
    def draft(self) -> Draft | None:
        """What guesses the next tokens."""
        return self._guesses.draft

    @property
    def is_idle(self) -> bool:
        """Whether a step would do nothing."""
        return not self.scheduler.running and not self.scheduler.waiting and self.reader.is_idle

    def step(self, meanwhile: Callable[[], None] = lambda: None) -> list[Request]:
        """Runs one step and returns the requests that got a token or ended; `take_unread` has their text.

        `meanwhile` may be called several times, and is at least once: while a device computes, or when the step begins.
        """
        self._stepping = True
        tier = self.scheduler.tier
        try:
            self._held.begin_step(meanwhile)
            touched = self._expire() + self._settle_held()
            if work := self._ahead.work(meanwhile):
                self.n_steps += 1
                begin = time.perf_counter()
                if (rows := self._run(work, meanwhile)) is not None:
                    if tier is not None:
                        tier.saw(sum(item.n_rows for item in work), time.perf_counter() - begin)
                    self.scheduler.ran(work)
                    touched += self._settle(work, rows)
                    self._guesses.ran()
            else:
                meanwhile()
                if tier is not None and tier.is_loading:
                    tier.wait(_LOADING)
            if tier is not None:
                tier.work()
            self.reader.turn()
        finally:
            self._stepping = False
            cancelled, self._to_cancel = self._to_cancel, []
            for request in cancelled:
                self.cancel(request)
        return touched + [request for request in cancelled if request not in touched]

    def cancel(self, request: Request) -> None:
        """Ends a request that has not finished and frees its pages; a call within a step does so at its end."""
        if self._stepping:
            self._to_cancel.append(request)
        elif request.finish_reason is None:
            self._finish(request, "cancelled")

    def abandon(self) -> None:
        """Stops the run under way if all of its requests are cancelled. Any thread may call it."""
        self._runner.abandon()

    def abort(self) -> None:
        """Stops the run under way and prevents later ones. Any thread may call it."""
        self.reader.abort()
        self._runner.abort()

    def fail(self, request: Request, error: Exception) -> None:
        """Ends a request with an error."""
        request.error = error
        self._finish(request, "error")

    def forget(self, tokens: Sequence[int], salt: bytes = b"") -> int:
        """Removes the pages of a text from the prefix index, but those in use, and from disk; returns their number."""
        return self.scheduler.forget(tokens, salt)

    def prefix_stats(self) -> PrefixStats:
        """Counts of prefix reuse since the start."""
        return self.scheduler.pages.index.stats()

    @property
    def has_disk(self) -> bool:
        """Whether pages that leave the cache are kept on disk."""
        return self.scheduler.tier is not None

    def disk_stats(self) -> DiskStats | None:
        """Counts of the disk tier since the start; None without one."""
        return None if self.scheduler.tier is None else self.scheduler.tier.stats()

    def close(self) -> None:
        """Writes to disk what is worth it. Requests must have ended."""
        if self.scheduler.tier is not None:
            self.scheduler.tier.flush()

    def logits(self, ids: Sequence[int]) -> Float32:
        """Logits after each id, float32 [len(ids), n_vocab]."""
        self._checks.check_writes()
        return self._read(ids, None)

    def hidden(self, ids: Sequence[int], step: str | int) -> Float32:
        """The value of a named step for each id, float32 [len(ids), width]."""
        return self._read(ids, find_step(self.program, step))

    def _read(self, ids: Sequence[int], step: int | None) -> Float32:
        """The value of one step (None: the last) for every token, computed on pages that no request uses."""
        self._checks.check_tokens(ids)
        if len(ids) > self.ctx:
            raise too_long(len(ids), self.ctx)
        while True:
            try:
                return read_values(self._runner, self.scheduler, ids, step)
            except LostState:
                self.scheduler.lose_all()

    def _run(self, work: list[Work], meanwhile: Callable[[], None]) -> Rows | None:
        """The rows that are needed; None if the run was cancelled, or begins again because state was lost."""
        try:
            return self._ahead.run(work, meanwhile)
        except LostState:
            self.scheduler.lose_all()
            return None

    def _expire(self) -> list[Request]:
        """Ends requests whose deadline has passed, and returns them."""
        if not self._timed:
            return []
        now = time.monotonic()
        late = [s for s in self._timed if s.deadline is not None and s.deadline <= now]
        for request in late:
            request.stop_reason = "timeout"
            self._finish(request, "cancelled")
        return late

    def _settle(self, work: list[Work], computed: Rows) -> list[Request]:
        """Chooses tokens and finishes requests; returns those that changed."""
        touched = []
        computed.choose(samplers_of(work))
        end = 0
        for item in work:
            request, begin, end = item.request, end, end + item.n_outputs
            is_held = False
            try:
                is_held = self._settle_one(item, computed, begin, end)
            except LostRows:  # computed again, by itself
                request.n_computed, request.reads_rows, is_held = item.first, True, True
            except BaseException as error:
                self._failed(request, error)
            if request.finish_reason is None:
                self._go_on(request, not is_held)
            is_progress = request.reports_progress and not request.output
            if (item.is_complete and not is_held) or is_progress or request.finish_reason is not None:
                touched.append(request)
        return touched

    def _settle_one(self, item: Work, computed: Rows, begin: int, end: int) -> bool:
        """Settles the rows of a request; whether they are held for a later step."""
        request, drafts = item.request, item.drafts
        first = request.n_computed
        request.n_computed += item.n_tokens
        if request.hooks:
            request.n_hooked = max(request.n_hooked, request.n_computed)
        if request.error is not None:
            raise request.error
        if request.n_unscored:
            score(request, first, computed.whole(begin, end))
        if not item.is_complete:
            return False
        rows = [computed.row(i) for i in range(end - 1 - len(drafts), end)] if drafts else (computed.row(end - 1),)
        if request.sampler.constraint is None:
            self._accept(request, rows, drafts)
            return False
        if self._held.must_wait(request):
            self._held.hold(request, rows, drafts)
            return True
        with self._held.timed():
            self._accept(request, rows, drafts)
        return False

    def _settle_held(self) -> list[Request]:
        """Chooses tokens for rows that the steps before held."""
        touched = []
        for request, rows, drafts in self._held.take():
            try:
                with self._held.timed():
                    self._accept(request, rows, drafts)
            except BaseException as error:
                self._failed(request, error)
            if request.finish_reason is None:
                self._go_on(request)
            touched.append(request)
        return touched

    def _failed(self, request: Request, error: BaseException) -> None:
        """Fails a request alone: an error of one, such as of a callback, does not affect the others."""
        if not isinstance(error, Exception):
            # This request's state is unknown. Those before it are settled, those after it unchanged.
            self.fail(request, RequestError(f"the choice of a token was interrupted by {error!r}"))
            raise error
        self.fail(request, error)

    def _go_on(self, request: Request, is_decided: bool = True) -> None:
        self.scheduler.advance(request, is_decided)
        if request.params.context_shift and len(request.context) >= self.ctx:
            # Drops the older half of a full context and queues the rest to be computed again.
            n_keep = request.params.n_keep
            self.scheduler.restart(request)
            request.shift(len(request.prompt) if n_keep < 0 else n_keep)

    def _accept(self, request: Request, rows: Sequence[Row], drafts: Sequence[int]) -> None:
        """Chooses tokens, and ends the request if one of them does."""
        if not drafts:
            end = take(request, rows[0])
        else:
            n_before, is_replaying = len(request.context), request.is_replaying
            n_accepted, end = choose(request, rows, drafts)
            # K and V of the accepted drafts are in the cache; of the last token they are not needed yet.
            request.n_computed += max(0, len(request.context) - n_before - 1)
            if not is_replaying:
                self._guesses.saw(request, len(drafts), n_accepted)
        if end is not None:
            self._finish(request, end.reason, flush=end.flush)

    def _finish(self, request: Request, reason: FinishReason, *, flush: bool = True) -> None:
        request.write()
        if flush:
            text, stopped = request.stop.push(request.detokenizer.finish())
            request.show(text if stopped else text + request.stop.finish())
            if stopped and reason == "length":
                reason, request.stop_reason = "stop", request.stop.found
        request.finish_reason = reason
        self._timed.discard(request)
        self._held.forget(request)
        self._guesses.forget(request)
        self.scheduler.release(request)
