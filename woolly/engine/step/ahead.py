"""Ahead: a device goes on with the step that most likely comes next, while the host settles the one before.

Most samplers choose by a chain that a device can follow, too (`RanksAhead`). The device takes the next tokens itself
and computes them at once; the host chooses as ever, and its word counts: rows of tokens that it did not choose are
dropped, and so are those of requests that have ended. So an answer is the same with and without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from woolly.engine.drafts.expected import add_expected
from woolly.engine.drafts.guesses import Guesses
from woolly.engine.reading import Reader
from woolly.engine.request import Request
from woolly.engine.step.batching import Work, page_table
from woolly.engine.step.runner import Rows, Runner
from woolly.engine.step.scheduler import Scheduler
from woolly.runtime import PICK, Batch, Following, as_ranks_ahead
from woolly.sampling.choosers import Greedy
from woolly.sampling.usual import UsualChain

__all__ = ["Ahead"]

# A wrong guess costs two steps, as much as some ten right ones save. Exponential back-off: after each miss that comes
# soon after another, the device waits twice as many tokens for this request, at most 256.
_SOON, _LONGEST_PAUSE = 64, 256


@dataclass(frozen=True)
class _Step:
    """A step that the device has gone on with."""

    requests: Sequence[Request]
    positions: Sequence[int]
    tables: Sequence[npt.NDArray[np.int32]]
    batch: Batch


class Ahead:
    """The work of each step, and its run."""

    def __init__(self, runner: Runner, scheduler: Scheduler, guesses: Guesses, ctx: int, reader: Reader) -> None:
        """Steps with drafts, with recurrent state and with windows follow from more than the last token.

        What `reader` runs between two steps would waste what is ahead.
        """
        self._runner = runner
        self._scheduler = scheduler
        self._guesses = guesses
        self._ctx = ctx
        self._reader = reader
        self._program = as_ranks_ahead(runner.program)
        if guesses.draft is not None or scheduler.snapshots is not None or scheduler.sight.is_bounded:
            self._program = None
        self._step: _Step | None = None  # that the device has gone on with
        self._rows: list[int] = []  # of that step, for the work that was taken from it

    def work(self, meanwhile: Callable[[], None]) -> list[Work]:
        """What the device is at already, if it has gone ahead; else what the scheduler says. Empty: nothing to do."""
        if not (work := self._work_ahead()) and (work := self._scheduler.schedule()):
            add_expected(work, self._scheduler, self._ctx)
            self._guesses.add_to(work, self._scheduler, meanwhile)
        return work

    def _work_ahead(self) -> list[Work]:
        """What goes on as foreseen of the step that the device is at."""
        step = self._step
        if step is None or self._program is None:
            return []
        self._rows = [
            i
            for i, (request, position) in enumerate(zip(step.requests, step.positions, strict=True))
            if request.n_computed == position == len(request.context) - 1 and request.page_row is step.tables[i]
        ]
        if not self._rows or not self._program.is_ahead(step.batch):
            self._step = None
            return []
        return [Work(step.requests[i], 1) for i in self._rows]

    def run(self, work: list[Work], meanwhile: Callable[[], None]) -> Rows | None:
        """The rows of the step, as `Runner.run`; drops work that was foreseen wrong. The device goes on then."""
        step, self._step = self._step, None
        rows = range(len(work)) if step is None else self._rows
        following = None if self._program is None else self._following(work, rows)
        if step is None:
            return self._runner.run(work, self._scheduler.batch(work), meanwhile, following)
        foreseen = tuple(work)
        found = self._runner.run_ahead(work, step.batch, rows, meanwhile, following)
        if found is not None and len(work) < len(foreseen):
            for item in set(foreseen).difference(work):
                _pause(item.request)
        return found

    def _following(self, work: Sequence[Work], rows: Sequence[int]) -> Following | None:
        """The step that follows if nothing comes between; None if something must."""
        requests, picks = [], []
        # Those that run and are not in this step, as one that was foreseen wrong, must be in the next.
        if len(work) < len(self._scheduler.running) or not self._reader.is_idle:
            return None
        for item, row in zip(work, rows, strict=True):
            request = item.request
            chain = request.sampler.foreseen
            if not item.is_complete or item.n_outputs != 1 or chain is None or request.reads_rows:
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
        )
        self._step = _Step(requests, positions, tables, batch)
        return Following(batch, np.array(picks, PICK), max(request.sampler.n_head for request in requests))


def _pause(request: Request) -> None:
    """Lets the device wait for the next tokens of a request that was foreseen wrong: the longer, the more often."""
    is_soon = len(request.output) - request.n_waited < _SOON
    request.pause = min(2 * request.pause, _LONGEST_PAUSE) if is_soon else Request.pause
    request.n_waited = len(request.output) + request.pause


def _pick(chain: UsualChain | Greedy, row: int) -> tuple[float, float, float, float, int, int, int]:
    """A row of PICK."""
    if isinstance(chain, Greedy):
        return 0.0, 0.0, 0.0, 1.0, 0, 0, row
    return chain.random.peek64(), chain.p, chain.log_p, float(chain.temperature), chain.k, chain.min_keep, row
