"""Async scheduling: the device runs the predicted next step while the host samples the current one.

The device predicts the sampled tokens (`AsyncRanks`) and runs the next step immediately. The host then samples as
usual, and drops rows of mispredicted tokens and of finished requests. Outputs are identical with and without async
scheduling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.engine import drafts
from woolly.engine.request import Request
from woolly.engine.step.batch_builder import page_table, rope_positions_after
from woolly.engine.step.output_rows import RankedRows, Rows
from woolly.engine.step.runner import Runner
from woolly.runtime import (
    PICK,
    AsyncRanks,
    Batch,
    CancelledRun,
    NextStep,
    Program,
    Ranking,
    Ranks,
    State,
    as_async_ranks,
)
from woolly.sampling.choosers import Greedy

if TYPE_CHECKING:
    from woolly.engine.drafts.proposer import Proposer
    from woolly.engine.pooling import PoolingRunner
    from woolly.engine.step.scheduler import Scheduler
    from woolly.engine.step.scheduler_output import SchedulerOutput, Span
    from woolly.sampling.fast_chain import FastChain

# A mispredicted token costs two steps, the gain of about ten correct ones. Exponential back-off: each miss within _SOON
# tokens of the last one doubles the pause of the request, in tokens.
_SOON, _MAX_PAUSE = 64, 256


def new_runner(
    program: Program,
    state: State,
    scheduler: Scheduler,
    pooling: PoolingRunner,
    ctx: int,
    draft: Proposer | None,
    check_file: Callable[[], None] | None,
) -> Runner:
    """Return an AsyncRunner if the device supports it, otherwise a Runner.

    Async scheduling supports neither drafts nor recurrent state nor sliding windows, because their next step depends on
    more than the last token.
    """
    device = as_async_ranks(program)
    if device is None or draft is not None or scheduler.snapshots is not None or scheduler.visible_pages.is_bounded:
        own = draft if draft is not None and isinstance(draft, drafts.MtpProposer) else None
        return Runner(program, state, scheduler, check_file, own)
    return AsyncRunner(program, state, scheduler, check_file, device=device, pooling=pooling, ctx=ctx)


@dataclass(frozen=True)
class _QueuedStep:
    """Step that is queued on the device."""

    places: Mapping[Request, int]  # row index of each request
    positions: Sequence[int]
    tables: Sequence[npt.NDArray[np.int32]]
    batch: Batch

    def row(self, span: Span) -> int | None:
        """Return the row that computes a span, or None if the step does not contain it."""
        request = span.request
        if (i := self.places.get(request)) is None or not span.is_complete or span.n_rows != 1:
            return None
        is_same = request.n_computed == self.positions[i] and request.page_row is self.tables[i]
        return i if is_same else None


class AsyncRunner(Runner):
    """Runs a step and queues the next one on the device if the batch cannot change in between."""

    def __init__(
        self,
        program: Program,
        state: State,
        scheduler: Scheduler,
        check_file: Callable[[], None] | None,
        *,
        device: AsyncRanks,
        pooling: PoolingRunner,
        ctx: int,
    ) -> None:
        """`device` is the program. No step is queued while `pooling` has work, which would discard the step."""
        super().__init__(program, state, scheduler, check_file)
        self._device = device
        self._pooling = pooling
        self._ctx = ctx
        self._step: _QueuedStep | None = None  # step queued on the device

    def run(self, scheduled: SchedulerOutput) -> Rows | None:
        """Run all spans like `Runner.run`, or return the rows of a queued step that computed some of them.

        The other spans are left for the next step.
        """
        step, self._step = self._step, None
        if step is not None and self._device.has_queued(step.batch):
            found = {row: span for span in scheduled.spans if (row := step.row(span)) is not None}
            if found:
                rows = sorted(found)  # the scheduler may change the order between steps
                scheduled.spans = [found[row] for row in rows]
                return self._run_queued(scheduled, step.batch, rows)
        return super().run(scheduled)

    def _run_queued(self, scheduled: SchedulerOutput, batch: Batch, rows: Sequence[int]) -> Rows | None:
        """Return the rows of correctly predicted tokens, and remove the other spans."""
        if self._is_aborted:
            return None
        self._computing = scheduled.requests
        next_step = self._find_next_step(scheduled, rows)
        try:
            self._check()
            ranking = self._device.rank(batch, self.state, 1, 0, self.meanwhile, next_step)
            self._check()
        except CancelledRun:
            return None  # the rows of continuing requests are recomputed
        finally:
            self._computing = ()
        tokens = [] if ranking.tokens is None else ranking.tokens.tolist()
        right: list[tuple[Span, int]] = []
        for span, row in zip(scheduled.spans, rows, strict=True):
            if tokens[row] == span.request.context[-1]:
                right.append((span, row))
            else:
                _pause(span.request)
        scheduled.spans = [span for span, _ in right]
        return RankedRows(ranking.of([row for _, row in right]), self._n_vocab)

    def _rank(self, ranks: Ranks, scheduled: SchedulerOutput, batch: Batch, n: int, first: int) -> Ranking:
        next_step = self._find_next_step(scheduled, range(len(scheduled.spans)))
        return self._device.rank(batch, self.state, n, first, self.meanwhile, next_step)

    def _find_next_step(self, scheduled: SchedulerOutput, rows: Sequence[int]) -> NextStep | None:
        """Return the next step if the batch cannot change before it, otherwise None."""
        requests, picks = [], []
        # Other running requests, such as mispredicted ones, must run in the next step.
        if len(scheduled.spans) < len(self._scheduler.running) or not self._pooling.is_idle:
            return None
        for span, row in zip(scheduled.spans, rows, strict=True):
            request = span.request
            chain = request.sampler.device_chain
            if not span.is_complete or span.n_outputs != 1 or chain is None or request.needs_full_logits:
                return None
            if request.hooks or request.is_unwanted or request.is_replaying or len(request.context) >= self._ctx:
                return None
            if len(request.output) < request.async_from:
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
            rope_positions=rope_positions_after(requests, positions),
        )
        self._step = _QueuedStep({request: i for i, request in enumerate(requests)}, positions, tables, batch)
        return NextStep(batch, np.array(picks, PICK), max(request.sampler.n_top_logits for request in requests))


def _pause(request: Request) -> None:
    """Pause async scheduling of a mispredicted request, with exponential back-off."""
    is_soon = len(request.output) - request.async_from < _SOON
    request.async_pause = min(2 * request.async_pause, _MAX_PAUSE) if is_soon else Request.async_pause
    request.async_from = len(request.output) + request.async_pause


def _pick(chain: FastChain | Greedy, row: int) -> tuple[float, float, float, float, int, int, int]:
    """Return a row of type PICK."""
    if isinstance(chain, Greedy):
        return 0.0, 0.0, 0.0, 1.0, 0, 0, row
    return chain.random.peek64(), chain.p, chain.log_p, float(chain.temperature), chain.k, chain.min_keep, row
