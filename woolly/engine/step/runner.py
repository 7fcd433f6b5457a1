"""The Runner: runs the work of a step on the program, halting for hooks, until it is cancelled for good.

It gives Rows: whole rows of logits, or their heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from woolly.engine.drafts.mtp import MtpDraft
from woolly.engine.opening.hooks import call_hook
from woolly.engine.request import Request
from woolly.engine.step.batching import Work
from woolly.engine.step.scheduler import Scheduler
from woolly.errors import CallbackError
from woolly.runtime import (
    Batch,
    CancelledRun,
    Following,
    Program,
    Ranking,
    State,
    as_ranks,
    as_ranks_ahead,
    pages_for,
)
from woolly.sampling.head import Head, Row
from woolly.sampling.sampler import Sampler
from woolly.sampling.usual import choose_together

__all__ = ["RankedRows", "Rows", "Runner", "WholeRows", "read_values"]

Float32 = npt.NDArray[np.float32]

_MANY = 8  # tokens that are looked for one by one in all rows at once


class Rows(Protocol):
    """The rows of output of one step. They are overwritten by the next."""

    def whole(self, first: int, last: int) -> Float32:
        """Logits of some rows, [last - first, n_vocab]."""

    def row(self, i: int) -> Row:
        """One of them, as samplers take it."""

    def choose(self, samplers: Sequence[Sampler | None]) -> None:
        """Lets samplers choose together, each from the row of its place, which it must take next."""


class WholeRows:
    """Logits of the whole vocabulary."""

    def __init__(self, logits: Float32) -> None:
        self._logits = logits

    def whole(self, first: int, last: int) -> Float32:
        """A view."""
        return self._logits[first:last]

    def row(self, i: int) -> Row:
        """A view."""
        row: Float32 = self._logits[i]
        return row

    def choose(self, samplers: Sequence[Sampler | None]) -> None:
        """Nothing: each sampler takes its time over a whole row."""


class RankedRows:
    """The largest logits of each row. The others stay where they were computed until someone asks for them."""

    def __init__(self, ranking: Ranking, n_vocab: int) -> None:
        self._ranking = ranking
        self._n_vocab = n_vocab
        self._sums = ranking.sums.tolist()
        self._is_sound = ranking.is_sound.tolist()
        self._tokens: list[int | None] = [None] * len(self._sums)

    def whole(self, first: int, last: int) -> Float32:
        """A copy of what the program has."""
        return self._ranking.rows(first, last)

    def row(self, i: int) -> Row:
        """A token if it is chosen, else a head."""
        if (token := self._tokens[i]) is not None:
            return token
        ids, logits = self._ranking.ids[i], self._ranking.logits[i]
        return Head(ids, logits, self._n_vocab, self._sums[i], self._is_sound[i], partial(self._whole, i))

    def choose(self, samplers: Sequence[Sampler | None]) -> None:
        """Chooses for several rows in the time of a few."""
        ids, is_sound = self._ranking.ids, self._is_sound
        lowered = frozenset().union(*(sampler.lowered for sampler in samplers if sampler is not None))
        # Most rows have none of these tokens: one look at all rows finds out, unless there are many.
        is_lowered = [len(lowered) > _MANY] * len(samplers)
        if 0 < len(lowered) <= _MANY:
            is_lowered = np.logical_or.reduce([(ids == token).any(axis=1) for token in lowered]).tolist()
        chains = [
            None if sampler is None or not is_sound[i] else sampler.chooses_alike(ids[i], is_lowered[i])
            for i, sampler in enumerate(samplers)
        ]
        self._tokens = choose_together(chains, ids, self._ranking.logits, ids.shape[1] == self._n_vocab)

    def _whole(self, i: int) -> Float32:
        row: Float32 = self._ranking.rows(i, i + 1)[0]
        return row


class Runner:
    """One program with the state that it reads and writes."""

    def __init__(
        self, program: Program, state: State, check_file: Callable[[], None] | None, draft: MtpDraft | None = None
    ) -> None:
        """`check_file` raises if the weights have changed. `draft` reads the hidden states of each step."""
        self.program = program
        self.state = state
        self._check_file = check_file
        self._draft = draft
        self._ranks = as_ranks(program)
        self._ahead = as_ranks_ahead(program)
        self._n_vocab = program.plan.values[program.plan.steps[-1].outputs[-1]].width
        self._computing: tuple[Request, ...] = ()  # in the run under way
        self._is_aborted = False

    def run(
        self, work: Sequence[Work], batch: Batch, meanwhile: Callable[[], None], following: Following | None = None
    ) -> Rows | None:
        """The rows that tokens are chosen from, and those that are scored; None if the run was cancelled for good.

        `meanwhile` is called while a device computes, if there is one, else before; possibly several times. A device
        that can goes on with `following`.
        """
        draft = self._draft
        halts = sorted({step for item in work for step in item.request.hooks} | ({draft.step} if draft else set()))
        self._computing = tuple(item.request for item in work)
        try:
            while not (self._is_aborted or all(request.is_unwanted for request in self._computing)):
                try:
                    first = 0
                    if halts:
                        meanwhile()
                    while halts:
                        value = self.compute(batch, first, halts[0] + 1)
                        first = halts[0] + 1
                        if draft is not None and halts[0] == draft.step:
                            draft.keep(work, batch, value)
                        _call_hooks(work, batch, halts.pop(0), value)
                    return self._rows(work, batch, first, meanwhile, following)
                except CancelledRun:
                    pass  # a late cancel() aimed at the previous run: retry, skipping hooks that were already called
            return None
        finally:
            self._computing = ()

    def run_ahead(
        self,
        work: list[Work],
        batch: Batch,
        rows: Sequence[int],
        meanwhile: Callable[[], None],
        following: Following | None,
    ) -> Rows | None:
        """As `run`, of a batch that the device has gone on with; the work has these rows of it.

        Only work that was computed with the right tokens is left in the list.
        """
        if self._ahead is None or self._is_aborted:
            return None
        self._computing = tuple(item.request for item in work)
        try:
            self._check()
            ranking = self._ahead.rank(batch, self.state, 1, 0, meanwhile, following)
            self._check()
        except CancelledRun:
            return None  # the rows of requests that go on are computed anew
        finally:
            self._computing = ()
        tokens = [] if ranking.tokens is None else ranking.tokens.tolist()
        right = [(item, row) for item, row in zip(work, rows, strict=True) if tokens[row] == item.request.context[-1]]
        work[:] = [item for item, _ in right]
        return RankedRows(ranking.of([row for _, row in right]), self._n_vocab)

    def _rows(
        self,
        work: Sequence[Work],
        batch: Batch,
        first: int,
        meanwhile: Callable[[], None],
        following: Following | None,
    ) -> Rows:
        """Runs the steps that are left. Logits are ranked by the program, if it can, for samplers that want no more."""
        n_head = max((item.request.sampler.n_head for item in work if item.is_complete), default=0)
        if n_head == 0 or self._ranks is None:
            meanwhile()
            return WholeRows(self.compute(batch, first))
        self._check()
        if self._ahead is not None:
            ranking = self._ahead.rank(batch, self.state, n_head, first, meanwhile, following)
        else:
            ranking = self._ranks.rank(batch, self.state, n_head, first, meanwhile)
        self._check()
        return RankedRows(ranking, self._n_vocab)

    def compute(self, batch: Batch, first: int = 0, last: int | None = None) -> Float32:
        """The value of the last of some steps, as `Program.run` gives it."""
        self._check()
        value = self.program.run(batch, self.state, first, last)
        self._check()
        return value

    def _check(self) -> None:
        if self._check_file is not None:
            self._check_file()  # before a run it also puts the handler of lost pages in front of one that came later

    def abandon(self) -> None:
        """Stops the run under way if all of its requests are cancelled. Any thread may call it."""
        computing = self._computing
        if computing and all(request.is_unwanted for request in computing):
            self.program.cancel()

    def abort(self) -> None:
        """Stops the run under way and prevents later ones. Any thread may call it."""
        self._is_aborted = True
        self.program.cancel()


def read_values(runner: Runner, scheduler: Scheduler, ids: Sequence[int], step: int | None) -> npt.NDArray[np.float32]:
    """The value of one step of the running plan (None: the last) for every token, [len(ids), width].

    It is computed on pages that no request uses; requests may be preempted for them.
    """
    pages = scheduler.claim(pages_for(len(ids)))
    pool, sight, reader = scheduler.slots, scheduler.sight, object()
    slots = [pool.take(), pool.take()] if pool.n_slots else []
    chunk = scheduler.chunk if runner.program.plan.is_causal else len(ids)
    parts = []
    try:
        for i, first in enumerate(range(0, len(ids), chunk)):
            tokens = ids[first : first + chunk]
            # The two slots take turns: a run writes no slot that it reads.
            turn = [(slots[i % 2 - 1] if i else -1, slots[i % 2])] if slots else None
            sight.move(reader, pages, first, pages_for(first + len(tokens)))
            batch = Batch.of([(tokens, first, pages)], range(len(tokens)), slots=turn)
            batch = replace(batch, window_pages=sight.tables(batch.pages))
            parts.append(runner.compute(batch, 0, None if step is None else step + 1).copy())
    finally:
        sight.end(reader, pages)
        scheduler.pages.give_back(pages)
        for slot in slots:
            pool.give_back(slot)
    return np.concatenate(parts)


def _call_hooks(work: Sequence[Work], batch: Batch, step: int, value: Float32) -> None:
    for item, row in zip(work, batch.offsets.tolist(), strict=False):
        request = item.request
        # The hooks read rows that a preemption makes the program compute again the first time.
        skip = max(0, request.n_hooked - item.first)
        positions = np.arange(item.first + skip, item.first + item.n_rows, dtype=np.int32)
        for hook in request.hooks.get(step, ()):
            if request.error is None and len(positions):
                try:
                    call_hook(hook, step, positions, value[row + skip : row + item.n_rows].copy())
                except CallbackError as error:
                    request.error = error
