"""The Reader: packs texts into batches and runs one batch between two steps of the answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.engine.reading.rows import add_rows
from woolly.errors import RequestError
from woolly.runtime import Batch, CancelledRun, LostState, Program, State, pages_for

if TYPE_CHECKING:
    from woolly.engine.reading.reading import Reading

_MAX_ROWS = 512  # of a batch of several texts: more would be no faster, and hold up answers for longer
_SLOTS = 16  # of recurrent state: most texts of a batch, if the model keeps such state
_MIN_PAGES = 128  # of the reader's own cache: short texts take a page each


@dataclass
class _Part:
    """Some rows of one text."""

    index: int  # of the text
    first: int
    n: int


class ReadingRunner:
    """Runs readings in turn, one batch of one of them at a time. Belongs to the engine's thread.

    It has a cache of its own, made for the first reading: answers keep their pages and their prefixes however many
    texts there are. A batch has at most `max_rows` rows, as a step of the answers. A text that is longer takes several
    batches, in which no other text is, or one if the model must see it whole.
    """

    def __init__(self, program: Program, ctx: int, max_rows: int, check_file: Callable[[], None] | None = None) -> None:
        self._program = program
        self._max_rows = min(max_rows, _MAX_ROWS)
        self._n_pages = max(pages_for(ctx), _MIN_PAGES)
        self._n_slots = _SLOTS if program.plan.slots else 0
        self._check_file = check_file
        self._state: State | None = None
        self._waiting: deque[Reading] = deque()
        self._sums: npt.NDArray[np.float64] | None = None  # of the text that the last batch left unfinished
        self._n_computed = 0  # tokens of that text
        self._n_parts = 0  # batches that it took so far
        self._computing: Reading | None = None
        self._is_aborted = False
        self.n_batches = 0

    def swap(self, program: Program) -> None:
        """Goes on with another program of the same model; no reading may be under way."""
        self._program = program

    @property
    def is_idle(self) -> bool:
        """Whether a turn would do nothing."""
        return not self._waiting

    def add(self, reading: Reading) -> None:
        """Queues a reading; one without texts, or made for a plan that is gone, ends at once."""
        if reading.source.plan not in (None, self._program.running_plan):
            reading.end(RequestError("adapters were changed meanwhile: ask again"))
        elif reading.texts:
            self._waiting.append(reading)
        else:
            reading.end()

    def cancel(self, reading: Reading) -> None:
        """Ends a reading that is not over."""
        if reading in self._waiting:
            self._drop(reading)
        reading.end()

    def end_all(self, error: BaseException | None = None) -> None:
        """Ends all readings and frees the cache."""
        for reading in tuple(self._waiting):
            self._drop(reading)
            reading.end(error)
        self._state = None

    def abandon(self) -> None:
        """Stops the run under way if its reading is cancelled. Any thread may call it."""
        computing = self._computing
        if computing is not None and computing.is_unwanted:
            self._program.cancel()

    def abort(self) -> None:
        """Prevents later runs; the engine stops the one under way. Any thread may call it."""
        self._is_aborted = True

    def turn(self) -> None:
        """Runs one batch of the reading whose turn it is. An error ends that reading, and no other."""
        if not self._waiting:
            return
        reading = self._waiting[0]
        try:
            self._read(reading)
        except Exception as error:
            self._drop(reading)
            reading.end(error)
        except BaseException as error:
            self.end_all(RuntimeError(f"the engine's thread was ended by {error!r}"))
            raise
        if reading.is_over:
            return
        if not reading.order or reading.is_unwanted:
            self.cancel(reading)
        elif self._n_computed == 0:
            self._waiting.rotate(-1)  # a text that is computed in parts keeps the turn, as it holds the cache

    def _read(self, reading: Reading) -> None:
        parts = self._pack(reading)
        n_pages = [pages_for(part.first + part.n) for part in parts]
        ends = np.cumsum([0, *n_pages]).tolist()
        sequences, wanted, at = [], [], 0
        for part, begin, end in zip(parts, ends, ends[1:], strict=False):
            text = reading.texts[part.index]
            tokens = text[part.first : part.first + part.n]
            sequences.append((tokens, part.first, range(begin, end)))
            is_end = part.first + part.n == len(text)
            wanted.append([at + row for row in reading.source.wanted(part.first, part.n, is_end)])
            at += part.n
        outputs = [row for rows in wanted for row in rows]
        batch = Batch.of(sequences, outputs, slots=self._slots(len(parts)))
        try:
            values = self._run(reading, batch)
        except LostState:  # the text whose first parts are lost begins again
            reading.tables.pop(reading.order[-1], None)
            self._forget()
            return
        if values is None:
            return
        self.n_batches += 1
        reading.n_batches += 1
        is_of_outputs = len(values) == len(batch.output_rows)
        picked = reading.source.finished(values if is_of_outputs else values[batch.output_rows])
        at = 0
        for part, rows in zip(parts, wanted, strict=True):
            self._take(reading, part, picked[at : at + len(rows)])
            at += len(rows)
        if reading.on_progress is not None:
            reading.on_progress(reading.n_done)

    def _slots(self, n: int) -> list[tuple[int, int]] | None:
        """Returns the slots of n texts. Parts of one text take turns with two: a run writes no slot that it reads."""
        if not self._n_slots:
            return None
        if self._n_parts:
            return [((self._n_parts - 1) % 2, self._n_parts % 2)]
        return [(-1, slot) for slot in range(n)]

    def _pack(self, reading: Reading) -> list[_Part]:
        """Returns the parts of the next batch: of one long text, or of as many texts as fit."""
        index = reading.order[-1]
        n_left = len(reading.texts[index]) - self._n_computed
        if self._n_computed or n_left > self._max_rows:
            n = n_left if reading.source.is_whole else min(n_left, self._max_rows)
            return [_Part(index, self._n_computed, n)]
        parts: list[_Part] = []
        rows = pages = 0
        for index in reversed(reading.order):
            n = len(reading.texts[index])
            rows, pages = rows + n, pages + pages_for(n)
            is_full = rows > self._max_rows or pages > self._n_pages or len(parts) == (self._n_slots or rows)
            if parts and is_full:
                break
            parts.append(_Part(index, 0, n))
        return parts

    def _run(self, reading: Reading, batch: Batch) -> npt.NDArray[np.float32] | None:
        """Returns the values of the last step, None if the run was cancelled for good."""
        if self._state is None:
            self._state = self._program.new_state(self._n_pages, self._n_slots)
        self._computing = reading
        try:
            while not (self._is_aborted or reading.is_unwanted):
                try:
                    if self._check_file is not None:
                        self._check_file()
                    values = self._program.run(batch, self._state, 0, reading.source.last)
                    if self._check_file is not None:
                        self._check_file()
                    return values
                except CancelledRun:
                    pass  # a late cancel() aimed at the run before: retry
            return None
        finally:
            self._computing = None

    def _take(self, reading: Reading, part: _Part, rows: npt.NDArray[np.float32]) -> None:
        """Adds the wanted rows of a part, and pools them if the text ends with it."""
        if reading.source.pooling == "none":
            table = reading.tables.get(part.index)
            reading.tables[part.index] = rows if table is None else np.concatenate([table, rows])
        elif len(rows):
            self._sums = add_rows(self._sums, rows)
        n_tokens = len(reading.texts[part.index])
        self._n_computed = part.first + part.n
        self._n_parts += 1
        if self._n_computed == n_tokens:
            if reading.source.pooling != "none":
                assert self._sums is not None
                reading.rows[part.index] = reading.source.pooled(self._sums, n_tokens)
            reading.order.pop()  # parts are in the order of the texts, the next one at the end
            reading.n_done += 1
            self._forget()

    def _drop(self, reading: Reading) -> None:
        if self._waiting[0] is reading:
            self._forget()
        self._waiting.remove(reading)

    def _forget(self) -> None:
        """Leaves the text that was computed in parts."""
        self._sums, self._n_computed, self._n_parts = None, 0, 0
