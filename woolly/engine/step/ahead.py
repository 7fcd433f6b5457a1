"""The AheadRunner: a device goes on with the step that most likely comes next, while the host settles the one before.

Most samplers choose by a chain that a device can follow, too (`RanksAhead`). The device takes the next tokens itself
and computes them at once; the host chooses as ever, and its word counts: rows of tokens that it did not choose are
dropped, and so are those of requests that have ended. So an answer is the same with and without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.engine import drafts
from woolly.engine.request import Request
from woolly.engine.step.batching import page_table, turns_after
from woolly.engine.step.rows import RankedRows, Rows
from woolly.engine.step.runner import Runner
from woolly.runtime import (
    PICK,
    Batch,
    CancelledRun,
    Following,
    Program,
    Ranking,
    Ranks,
    RanksAhead,
    State,
    as_ranks_ahead,
)
from woolly.sampling.choosers import Greedy

if TYPE_CHECKING:
    from woolly.engine.drafts.draft import Draft
    from woolly.engine.reading import ReadingRunner
    from woolly.engine.step.scheduler import Scheduler
    from woolly.engine.step.work import Span, Work
    from woolly.sampling.usual import UsualChain

# A wrong guess costs two steps, as much as some ten right ones save. Exponential back-off: after each miss that comes
# soon after another, the device waits twice as many tokens for this request, at most 256.
_SOON, _MAX_PAUSE_SECONDS = 64, 256


def new_runner(
    program: Program,
    state: State,
    scheduler: Scheduler,
    reader: ReadingRunner,
    ctx: int,
    draft: Draft | None,
    check_file: Callable[[], None] | None,
) -> Runner:
    """A runner that goes ahead if the program's device can, else a plain one.

    Steps with drafts, with recurrent state and with windows follow from more than the last token.
    """
    device = as_ranks_ahead(program)
    if device is None or draft is not None or scheduler.snapshots is not None or scheduler.visible_pages.is_bounded:
        own = draft if draft is not None and isinstance(draft, drafts.MtpDraft) else None
        return Runner(program, state, scheduler, check_file, own)
    return AheadRunner(program, state, scheduler, check_file, device=device, reader=reader, ctx=ctx)


@dataclass(frozen=True)
class _Step:
    """A step that the device has gone on with."""

    places: Mapping[Request, int]  # the row of each request
    positions: Sequence[int]
    tables: Sequence[npt.NDArray[np.int32]]
    batch: Batch

    def row(self, span: Span) -> int | None:
        """The row that has the work of a span; None if there is none."""
        request = span.request
        if (i := self.places.get(request)) is None or not span.is_complete or span.n_rows != 1:
            return None
        is_same = request.n_computed == self.positions[i] and request.page_row is self.tables[i]
        return i if is_same else None


class AheadRunner(Runner):
    """Runs a step, and has the device go on with the next one if nothing can come between."""

    def __init__(
        self,
        program: Program,
        state: State,
        scheduler: Scheduler,
        check_file: Callable[[], None] | None,
        *,
        device: RanksAhead,
        reader: ReadingRunner,
        ctx: int,
    ) -> None:
        """`device` is the program. What `reader` runs between two steps would waste what is ahead."""
        super().__init__(program, state, scheduler, check_file)
        self._device = device
        self._reader = reader
        self._ctx = ctx
        self._step: _Step | None = None  # that the device has gone on with

    def run(self, work: Work) -> Rows | None:
        """As `Runner.run`. If the device is at a part of the work, gives what it found.

        The rest of the work waits for the next step.
        """
        step, self._step = self._step, None
        if step is not None and self._device.is_ahead(step.batch):
            found = {row: span for span in work.spans if (row := step.row(span)) is not None}
            if found:
                rows = sorted(found)  # the scheduler may give them in another order than the step before
                work.spans = [found[row] for row in rows]
                return self._run_foreseen(work, step.batch, rows)
        return super().run(work)

    def _run_foreseen(self, work: Work, batch: Batch, rows: Sequence[int]) -> Rows | None:
        """The rows that the device computed with the right tokens; takes the other spans out of the work."""
        if self._is_aborted:
            return None
        self._computing = work.requests
        following = self._following(work, rows)
        try:
            self._check()
            ranking = self._device.rank(batch, self.state, 1, 0, self.meanwhile, following)
            self._check()
        except CancelledRun:
            return None  # the rows of requests that go on are computed anew
        finally:
            self._computing = ()
        tokens = [] if ranking.tokens is None else ranking.tokens.tolist()
        right: list[tuple[Span, int]] = []
        for span, row in zip(work.spans, rows, strict=True):
            if tokens[row] == span.request.context[-1]:
                right.append((span, row))
            else:
                _pause(span.request)
        work.spans = [span for span, _ in right]
        return RankedRows(ranking.of([row for _, row in right]), self._n_vocab)

    def _rank(self, ranks: Ranks, work: Work, batch: Batch, n: int, first: int) -> Ranking:
        following = self._following(work, range(len(work.spans)))
        return self._device.rank(batch, self.state, n, first, self.meanwhile, following)

    def _following(self, work: Work, rows: Sequence[int]) -> Following | None:
        """The step that follows if nothing comes between; None if something must."""
        requests, picks = [], []
        # Those that run and are not in this step, as one that was foreseen wrong, must be in the next.
        if len(work.spans) < len(self._scheduler.running) or not self._reader.is_idle:
            return None
        for span, row in zip(work.spans, rows, strict=True):
            request = span.request
            chain = request.sampler.foreseen
            if not span.is_complete or span.n_outputs != 1 or chain is None or request.reads_rows:
                return None
            if request.hooks or request.is_unwanted or request.is_replaying or len(request.context) >= self._ctx:
                return None
            if len(request.output) < request.n_waited:
                return None
            if request.max_tokens is None or len(request.output) + 1 < request.max_tokens:
                requests.append(request)
                picks.append(_pick(chain, row))
        if not requests or self._scheduler.may_admit:
            return None
        if not all(self._scheduler.room_for(request, request.n_missing) for request in requests):
            return None
        positions = [len(request.context) for request in requests]
        tables, n = [request.page_row for request in requests], len(requests)
        scales = [request.adapters for request in requests]
        batch = Batch(
            tokens=np.zeros(n, np.int32),
            positions=np.array(positions, np.int32),
            offsets=np.arange(n + 1, dtype=np.int32),
            pages=page_table(tables),
            output_rows=np.arange(n, dtype=np.int32),
            adapters=np.array(scales, np.float32) if scales[0] else None,
            turns=turns_after(requests, positions),
        )
        self._step = _Step({request: i for i, request in enumerate(requests)}, positions, tables, batch)
        return Following(batch, np.array(picks, PICK), max(request.sampler.n_head for request in requests))


def _pause(request: Request) -> None:
    """Lets the device wait for the next tokens of a request that was foreseen wrong: the longer, the more often."""
    is_soon = len(request.output) - request.n_waited < _SOON
    request.pause = min(2 * request.pause, _MAX_PAUSE_SECONDS) if is_soon else Request.pause
    request.n_waited = len(request.output) + request.pause


def _pick(chain: UsualChain | Greedy, row: int) -> tuple[float, float, float, float, int, int, int]:
    """A row of PICK."""
    if isinstance(chain, Greedy):
        return 0.0, 0.0, 0.0, 1.0, 0, 0, row
    return chain.random.peek64(), chain.p, chain.log_p, float(chain.temperature), chain.k, chain.min_keep, row
