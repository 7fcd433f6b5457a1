"""MtpProposer: proposes tokens with the multi-token prediction (MTP) block of the model file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.engine.drafts.greedy_tokens import greedy_tokens
from woolly.runtime import Batch, CancelledRun, DraftProgram, Program, State

if TYPE_CHECKING:
    from woolly.engine.request import Request
    from woolly.engine.step.scheduler_output import SchedulerOutput
    from woolly.plan import Plan

Float32 = npt.NDArray[np.float32]
Pages = Sequence[int] | npt.NDArray[np.int32]
Rows = tuple[Sequence[int], int, Pages, Float32]  # tokens, first position, pages, hidden states


@dataclass(frozen=True)
class _Kept:
    """Rows of a request in the current step."""

    request: Request
    n_shifts: int
    first: int  # position of the first row
    rows: slice  # rows in the batch
    n_known: int  # leading rows whose next token is in the context
    pages: npt.NDArray[np.int32]


@dataclass(frozen=True)
class _Waiting:
    """Hidden states of the last context token and later draft tokens, not yet processed by the MTP block."""

    n_shifts: int
    n_preemptions: int
    first: int
    hidden: Float32


class MtpProposer:
    """Proposes the most likely tokens from the model's hidden states.

    A row of the MTP block combines the hidden state of a position with the token after it. The block and the model use
    the same page numbers, so prefix cache hits cover both. Prompt rows only store K and V. The first draft token is
    computed from the model's hidden state, later ones from the block's hidden state. Rows of draft tokens are
    overwritten after verification.

    The last row of a shared prefix was computed with the next token of another request. This may lower acceptance but
    never changes the output.
    """

    def __init__(self, program: Program, ids: npt.NDArray[np.int64] | None = None) -> None:
        """`ids` maps draft tokens to the model's tokens; None if they are identical."""
        self._ids = ids
        self._max_rows = program.max_rows
        self.swap(program)
        width = program.running_plan.values[program.running_plan.steps[self.step].outputs[-1]].width
        self._hidden: Float32 = np.empty((self._max_rows, width), np.float32)
        self._kept: list[_Kept] = []
        self._waiting: dict[Request, _Waiting] = {}
        self._state: State | None = None

    def swap(self, program: Program) -> None:
        """Switch to another program of the same model; keep hidden states and pages."""
        assert program.draft is not None
        self._draft: DraftProgram = program.draft
        self.step = _read(program.running_plan)  # step of the running plan that computes the hidden states
        steps = self._draft.running_plan.steps
        self._n_hidden = _read(self._draft.running_plan) + 1  # number of steps up to the hidden state
        self._n_stored = 1 + max((i for i, step in enumerate(steps) if step.kind.writes), default=-1)

    def attach(self, n_pages: int) -> None:
        """Allocate as many pages as the model's state has."""
        self._state = self._draft.new_state(n_pages)

    def keep(self, scheduled: SchedulerOutput, batch: Batch, hidden: Float32) -> None:
        """Copy the hidden states of a step before the program overwrites them."""
        self._hidden[: len(hidden)] = hidden
        self._kept.clear()
        for span, begin, pages in zip(scheduled.spans, batch.offsets.tolist(), batch.pages, strict=False):
            request = span.request
            n_known = span.n_rows - len(span.drafts) - span.is_complete
            rows = slice(begin, begin + span.n_rows)
            self._kept.append(_Kept(request, request.n_shifts, span.first, rows, n_known, pages))

    def settled(self) -> None:
        """Store the rows whose next tokens are known, including rows pending from earlier steps."""
        unread: list[Rows] = []
        for kept in self._kept:
            request, first = kept.request, kept.first
            before = self._take(request)
            if request.n_shifts != kept.n_shifts:
                continue
            hidden = self._hidden[kept.rows]
            waiting, known = hidden[kept.n_known :], hidden[: kept.n_known]
            if before is not None and before.first < first <= before.first + len(before.hidden):
                known = np.concatenate([before.hidden[: first - before.first], known])
                first = before.first
            if len(known):
                unread.append((request.context[first + 1 : first + 1 + len(known)], first, kept.pages, known))
            if len(waiting) and request.finish_reason is None:
                at = kept.first + kept.n_known
                self._waiting[request] = _Waiting(request.n_shifts, request.n_preemptions, at, waiting.copy())
        self._kept.clear()
        self._store(unread)

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        """Store the pending rows, then propose tokens one by one for all requests in a batch."""
        guesses: list[list[int]] = [[] for _ in wanted]
        rows: list[tuple[int, Rows]] = []
        left = self._max_rows
        for i, (request, _) in enumerate(wanted):
            waiting = self._waiting.get(request)
            n = 0 if waiting is None else len(request.context) - 1 - waiting.first
            if n > left or (waiting := self._take(request)) is None or not 0 < n <= len(waiting.hidden):
                continue
            left -= n
            after = request.context[waiting.first + 1 :]
            rows.append((i, (after, waiting.first, request.pages, waiting.hidden[:n])))
        is_own = False
        try:
            while rows:
                batch = _batch([one for _, one in rows], is_own)
                hidden = self._run(batch, 0, self._n_hidden)[batch.output_rows].copy()
                chosen = greedy_tokens(self._draft, batch, self._pages, self._n_hidden)
                if self._ids is not None:
                    chosen = self._ids[chosen].tolist()
                following: list[tuple[int, Rows]] = []
                for (i, (tokens, first, pages, _)), token, row in zip(rows, chosen, hidden, strict=True):
                    guesses[i].append(token)
                    if len(guesses[i]) < wanted[i][1]:
                        following.append((i, ([token], first + len(tokens), pages, row[None])))
                rows, is_own = following, True
        except CancelledRun:
            pass  # keep the tokens proposed before the cancellation
        return guesses

    def forget(self, request: Request) -> None:
        """Drop the hidden states of a finished request."""
        self._waiting.pop(request, None)

    def _take(self, request: Request) -> _Waiting | None:
        """Remove and return the pending hidden states; None if the request has lost pages or context since."""
        found = self._waiting.pop(request, None)
        same = found is not None and (found.n_shifts, found.n_preemptions) == (request.n_shifts, request.n_preemptions)
        return found if same else None

    def _store(self, unread: list[Rows]) -> None:
        """Store K and V of rows, in batches."""
        batch: list[Rows] = []
        left = self._max_rows
        try:
            for tokens, first, pages, hidden in unread:
                at = 0
                while at < len(tokens):
                    n = min(left, len(tokens) - at)
                    batch.append((tokens[at : at + n], first + at, pages, hidden[at : at + n]))
                    at, left = at + n, left - n
                    if left == 0:
                        self._run(_batch(batch, False), 0, self._n_stored)
                        batch, left = [], self._max_rows
            if batch:
                self._run(_batch(batch, False), 0, self._n_stored)
        except CancelledRun:
            pass  # a missing row lowers acceptance but never changes the output

    @property
    def _pages(self) -> State:
        assert self._state is not None
        return self._state

    def _run(self, batch: Batch, first: int, last: int) -> Float32:
        return self._draft.run(batch, self._pages, first, last)


def _batch(rows: Sequence[Rows], is_own: bool) -> Batch:
    batch = Batch.of([(tokens, first, pages) for tokens, first, pages, _ in rows])
    hidden = np.ascontiguousarray(np.concatenate([hidden for *_, hidden in rows]))
    return replace(batch, hidden=hidden, is_hidden_normed=is_own)


def _read(plan: Plan) -> int:
    """Return the index of the step whose output the draft block reads."""
    value = plan.features
    if value is None:
        (value,) = (step.inputs[0] for step in plan.steps if step.op == "output_rows")
    return next(i for i, step in enumerate(plan.steps) if step.outputs[-1] == value)
