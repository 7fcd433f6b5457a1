"""PoolingRunner: packs texts into batches and runs one batch between two engine steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.engine.pooling.pooler import add_rows
from woolly.errors import RequestError
from woolly.runtime import Batch, CancelledRun, LostState, Program, State, pages_for

if TYPE_CHECKING:
    from woolly.engine.pooling.job import PoolingJob

_MAX_ROWS = 512  # maximum rows of a batch of texts; more rows would not be faster and would delay generation
_SLOTS = 16  # recurrent state slots: maximum texts per batch for recurrent models
_MIN_PAGES = 128  # minimum pages of the runner's cache; each short text takes one page


@dataclass
class _Part:
    """Rows of a text in a batch."""

    index: int  # index of the text
    first: int
    n: int


class PoolingRunner:
    """Runs jobs round-robin, one batch at a time. Only the engine thread may call it.

    The runner has a separate cache, allocated for the first job, so that texts do not evict pages of generating
    requests. A batch has at most `max_rows` rows, like an engine step. A longer text takes several batches, or a single
    batch if attention is bidirectional.
    """

    def __init__(self, program: Program, ctx: int, max_rows: int, check_file: Callable[[], None] | None = None) -> None:
        self._program = program
        self._max_rows = min(max_rows, _MAX_ROWS)
        self._n_pages = max(pages_for(ctx), _MIN_PAGES)
        self._n_slots = _SLOTS if program.plan.slots else 0
        self._check_file = check_file
        self._state: State | None = None
        self._waiting: deque[PoolingJob] = deque()
        self._sums: npt.NDArray[np.float64] | None = None  # sum of the rows of the unfinished text
        self._n_computed = 0  # computed tokens of the unfinished text
        self._n_parts = 0  # batches of the unfinished text
        self._computing: PoolingJob | None = None
        self._is_aborted = False
        self.n_batches = 0

    def swap(self, program: Program) -> None:
        """Switch to another program of the same model; no job may be in progress."""
        self._program = program

    @property
    def is_idle(self) -> bool:
        """True if no job is queued."""
        return not self._waiting

    def add(self, job: PoolingJob) -> None:
        """Queue a job. A job without texts or for an old plan ends immediately."""
        if job.pooler.plan not in (None, self._program.running_plan):
            job.end(RequestError("the adapters were changed; send the request again"))
        elif job.texts:
            self._waiting.append(job)
        else:
            job.end()

    def cancel(self, job: PoolingJob) -> None:
        """End an unfinished job."""
        if job in self._waiting:
            self._drop(job)
        job.end()

    def end_all(self, error: BaseException | None = None) -> None:
        """End all jobs and free the cache."""
        for job in tuple(self._waiting):
            self._drop(job)
            job.end(error)
        self._state = None

    def abandon(self) -> None:
        """Stop the current run if its job is cancelled. Any thread may call it."""
        computing = self._computing
        if computing is not None and computing.is_unwanted:
            self._program.cancel()

    def abort(self) -> None:
        """Prevent later runs; the engine stops the current run. Any thread may call it."""
        self._is_aborted = True

    def turn(self) -> None:
        """Run one batch of the next job. An error ends only this job."""
        if not self._waiting:
            return
        job = self._waiting[0]
        try:
            self._read(job)
        except Exception as error:
            self._drop(job)
            job.end(error)
        except BaseException as error:
            self.end_all(RuntimeError(f"the engine thread was ended by {error!r}"))
            raise
        if job.is_over:
            return
        if not job.order or job.is_unwanted:
            self.cancel(job)
        elif self._n_computed == 0:
            self._waiting.rotate(-1)  # a text in several parts is finished first, because it occupies the cache

    def _read(self, job: PoolingJob) -> None:
        parts = self._pack(job)
        n_pages = [pages_for(part.first + part.n) for part in parts]
        ends = np.cumsum([0, *n_pages]).tolist()
        sequences, wanted, at = [], [], 0
        for part, begin, end in zip(parts, ends, ends[1:], strict=False):
            text = job.texts[part.index]
            tokens = text[part.first : part.first + part.n]
            sequences.append((tokens, part.first, range(begin, end)))
            is_end = part.first + part.n == len(text)
            wanted.append([at + row for row in job.pooler.wanted(part.first, part.n, is_end)])
            at += part.n
        outputs = [row for rows in wanted for row in rows]
        batch = Batch.of(sequences, outputs, slots=self._slots(len(parts)))
        try:
            values = self._run(job, batch)
        except LostState:  # restart a text whose first parts are lost
            job.tables.pop(job.order[-1], None)
            self._forget()
            return
        if values is None:
            return
        self.n_batches += 1
        job.n_batches += 1
        is_of_outputs = len(values) == len(batch.output_rows)
        picked = job.pooler.finished(values if is_of_outputs else values[batch.output_rows])
        at = 0
        for part, rows in zip(parts, wanted, strict=True):
            self._take(job, part, picked[at : at + len(rows)])
            at += len(rows)
        if job.on_progress is not None:
            job.on_progress(job.n_done)

    def _slots(self, n: int) -> list[tuple[int, int]] | None:
        """Return the slots of n texts.

        Parts of one text alternate between two slots: a run never writes a slot that it reads.
        """
        if not self._n_slots:
            return None
        if self._n_parts:
            return [((self._n_parts - 1) % 2, self._n_parts % 2)]
        return [(-1, slot) for slot in range(n)]

    def _pack(self, job: PoolingJob) -> list[_Part]:
        """Return the parts of the next batch: a part of one long text, or several complete texts."""
        index = job.order[-1]
        n_left = len(job.texts[index]) - self._n_computed
        if self._n_computed or n_left > self._max_rows:
            n = n_left if job.pooler.is_whole else min(n_left, self._max_rows)
            return [_Part(index, self._n_computed, n)]
        parts: list[_Part] = []
        rows = pages = 0
        for index in reversed(job.order):
            n = len(job.texts[index])
            rows, pages = rows + n, pages + pages_for(n)
            is_full = rows > self._max_rows or pages > self._n_pages or len(parts) == (self._n_slots or rows)
            if parts and is_full:
                break
            parts.append(_Part(index, 0, n))
        return parts

    def _run(self, job: PoolingJob, batch: Batch) -> npt.NDArray[np.float32] | None:
        """Return the output of the last step, or None if the run was cancelled."""
        if self._state is None:
            self._state = self._program.new_state(self._n_pages, self._n_slots)
        self._computing = job
        try:
            while not (self._is_aborted or job.is_unwanted):
                try:
                    if self._check_file is not None:
                        self._check_file()
                    values = self._program.run(batch, self._state, 0, job.pooler.last)
                    if self._check_file is not None:
                        self._check_file()
                    return values
                except CancelledRun:
                    pass  # a late cancel() of the previous run: retry
            return None
        finally:
            self._computing = None

    def _take(self, job: PoolingJob, part: _Part, rows: npt.NDArray[np.float32]) -> None:
        """Add the needed rows of a part; pool them if it is the last part of the text."""
        if job.pooler.pooling == "none":
            table = job.tables.get(part.index)
            job.tables[part.index] = rows if table is None else np.concatenate([table, rows])
        elif len(rows):
            self._sums = add_rows(self._sums, rows)
        n_tokens = len(job.texts[part.index])
        self._n_computed = part.first + part.n
        self._n_parts += 1
        if self._n_computed == n_tokens:
            if job.pooler.pooling != "none":
                assert self._sums is not None
                job.rows[part.index] = job.pooler.pooled(self._sums, n_tokens)
            job.order.pop()  # parts are in text order, with the next one last
            job.n_done += 1
            self._forget()

    def _drop(self, job: PoolingJob) -> None:
        if self._waiting[0] is job:
            self._forget()
        self._waiting.remove(job)

    def _forget(self) -> None:
        """Reset the state of the unfinished text."""
        self._sums, self._n_computed, self._n_parts = None, 0, 0
