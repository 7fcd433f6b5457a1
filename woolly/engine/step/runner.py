"""Runner: runs a step on the program and calls hooks in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.engine.loading.hooks import call_hook
from woolly.engine.step.output_rows import RankedRows, Rows, WholeRows
from woolly.errors import CallbackError
from woolly.runtime import Batch, CancelledRun, Program, Ranking, Ranks, State, as_ranks, pages_for

if TYPE_CHECKING:
    from woolly.engine.drafts.mtp import MtpProposer
    from woolly.engine.request import Request
    from woolly.engine.step.scheduler import Scheduler
    from woolly.engine.step.scheduler_output import SchedulerOutput

Float32 = npt.NDArray[np.float32]


class Runner:
    """Program with its state.

    Devices that support async scheduling use an `AsyncRunner` (async_runner.py) instead.
    """

    def __init__(
        self,
        program: Program,
        state: State,
        scheduler: Scheduler,
        check_file: Callable[[], None] | None = None,
        draft: MtpProposer | None = None,
    ) -> None:
        """`check_file` raises if the weights have changed. `draft` receives the hidden states of each step."""
        self.program = program
        self.state = state
        # Other host work, which overlaps with device computation or else runs before it. A step calls this at least
        # once.
        self.meanwhile: Callable[[], None] = _nothing
        self._scheduler = scheduler
        self._check_file = check_file
        self._draft = draft
        self._ranks = as_ranks(program)
        self._n_vocab = program.plan.values[program.plan.steps[-1].outputs[-1]].width
        self._computing: Sequence[Request] = ()  # requests in the current run
        self._is_aborted = False

    def swap(self, program: Program) -> None:
        """Switch to another program with the same state."""
        self.program = program
        self._ranks = as_ranks(program)

    def run(self, scheduled: SchedulerOutput) -> Rows | None:
        """Return the rows for sampling and scoring, or None if the run was cancelled."""
        draft, batch = self._draft, self._scheduler.batch(scheduled)
        stops = set() if draft is None else {draft.step}
        for span in scheduled.spans:
            stops.update(span.request.hooks)
        halts = sorted(stops)
        wanted: npt.NDArray[np.int32] | None = None
        if any(self._is_narrow(step) for step in halts):
            wanted, batch = batch.output_rows, replace(batch, output_rows=np.arange(batch.n_rows, dtype=np.int32))
        self._computing = scheduled.requests
        try:
            while not (self._is_aborted or _are_unwanted(self._computing)):
                try:
                    first = 0
                    if halts:
                        self.meanwhile()
                    while halts:
                        value = self.compute(batch, first, halts[0] + 1)
                        first = halts[0] + 1
                        if draft is not None and halts[0] == draft.step:
                            draft.keep(scheduled, batch, value)
                        _call_hooks(scheduled, batch, halts.pop(0), value)
                    if wanted is not None:
                        return WholeRows(self.compute(batch, first)[wanted])
                    return self._rows(scheduled, batch, first)
                except CancelledRun:
                    pass  # a late cancel() of the previous run: retry, but do not repeat hooks
            return None
        finally:
            self._computing = ()

    def _is_narrow(self, step: int) -> bool:
        """Return True if a step computes output rows only, so that hooks on it require all rows as output."""
        plan = self.program.running_plan
        return plan.values[plan.steps[step].outputs[-1]].rows == "output"

    def _rows(self, scheduled: SchedulerOutput, batch: Batch, first: int) -> Rows:
        """Run the remaining steps. The program ranks logits if the samplers need top logits only."""
        n_top_logits = 0
        for span in scheduled.spans:
            if span.is_complete and span.request.sampler.n_top_logits > n_top_logits:
                n_top_logits = span.request.sampler.n_top_logits
        if n_top_logits == 0 or self._ranks is None:
            self.meanwhile()
            return WholeRows(self.compute(batch, first))
        self._check()
        ranking = self._rank(self._ranks, scheduled, batch, n_top_logits, first)
        self._check()
        return RankedRows(ranking, self._n_vocab)

    def _rank(self, ranks: Ranks, scheduled: SchedulerOutput, batch: Batch, n: int, first: int) -> Ranking:
        return ranks.rank(batch, self.state, n, first, self.meanwhile)

    def compute(self, batch: Batch, first: int = 0, last: int | None = None) -> Float32:
        """Run steps `first` to `last` and return the output of the last one, like `Program.run`."""
        self._check()
        value = self.program.run(batch, self.state, first, last)
        self._check()
        return value

    def read(self, ids: Sequence[int], step: int | None) -> Float32:
        """Return the output of a step of the running plan (None: the last) for every token, [len(ids), width].

        The call uses free pages, and preempts requests if too few pages are free.
        """
        scheduler, reader = self._scheduler, object()
        pages = scheduler.claim(pages_for(len(ids)))
        pool, visible_pages = scheduler.slots, scheduler.visible_pages
        slots = [pool.take(), pool.take()] if pool.n_slots else []
        chunk = scheduler.chunk if self.program.plan.is_causal else len(ids)
        parts = []
        try:
            for i, first in enumerate(range(0, len(ids), chunk)):
                tokens = ids[first : first + chunk]
                # The two slots alternate: a run never writes a slot that it reads.
                turn = [(slots[i % 2 - 1] if i else -1, slots[i % 2])] if slots else None
                visible_pages.move(reader, pages, first, pages_for(first + len(tokens)))
                batch = Batch.of([(tokens, first, pages)], range(len(tokens)), slots=turn)
                batch = replace(batch, window_pages=visible_pages.tables(batch.pages))
                parts.append(self.compute(batch, 0, None if step is None else step + 1).copy())
        finally:
            visible_pages.end(reader, pages)
            scheduler.pages.give_back(pages)
            for slot in slots:
                pool.give_back(slot)
        return np.concatenate(parts)

    def _check(self) -> None:
        if self._check_file is not None:
            self._check_file()  # before a run, this also reinstalls the fault handler for mapped pages

    def abandon(self) -> None:
        """Stop the current run if all of its requests are cancelled. Any thread may call it."""
        computing = self._computing
        if computing and _are_unwanted(computing):
            self.program.cancel()

    def abort(self) -> None:
        """Stop the current run and prevent later runs. Any thread may call it."""
        self._is_aborted = True
        self.program.cancel()


def _are_unwanted(requests: Sequence[Request]) -> bool:
    for request in requests:  # noqa: SIM110 - avoids a generator per step
        if not request.is_unwanted:
            return False
    return True


def _nothing() -> None:
    pass


def _call_hooks(scheduled: SchedulerOutput, batch: Batch, step: int, value: Float32) -> None:
    for span, row in zip(scheduled.spans, batch.offsets.tolist(), strict=False):
        request = span.request
        # Hooks have already received rows that are recomputed after a preemption.
        skip = max(0, request.n_hooked - span.first)
        positions = np.arange(span.first + skip, span.first + span.n_rows, dtype=np.int32)
        for hook in request.hooks.get(step, ()):
            if request.error is None and len(positions):
                try:
                    call_hook(hook, step, positions, value[row + skip : row + span.n_rows].copy())
                except CallbackError as error:
                    request.error = error
