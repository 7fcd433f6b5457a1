"""HeldRows: rows whose tokens are chosen in a later step, because slow grammars used up the time of this one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from woolly.sampling.top_logits import Row, copy_row

if TYPE_CHECKING:
    from woolly.engine.request import Request

# Time of a step for requests with grammars; 16 sound ones take 20 to 50 ms.
GRAMMAR_SECONDS = 0.1


class HeldRows:
    """Rows and drafts by request, first come, first served."""

    def __init__(self) -> None:
        self._rows: dict[Request, tuple[list[Row], Sequence[int]]] = {}
        self._seconds = 0.0  # that grammars took in this step

    def begin_step(self) -> bool:
        """Gives grammars the time of one step; returns whether rows are held."""
        self._seconds = 0.0
        return bool(self._rows)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Counts the time of the block, in which a grammar chooses."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._seconds += time.monotonic() - begin

    def must_wait(self, request: Request) -> bool:
        """Whether the choice for a request would delay the others, or is not wanted any more."""
        if request.sampler.constraint is None:
            return False
        return request.is_unwanted or self._seconds > GRAMMAR_SECONDS

    def hold(self, request: Request, rows: Sequence[Row], drafts: Sequence[int]) -> None:
        """Keeps a copy of the rows for the next step."""
        self._rows[request] = [copy_row(row) for row in rows], drafts

    def forget(self, request: Request) -> None:
        """Drops the rows of a request that has ended."""
        self._rows.pop(request, None)

    def take(self) -> Iterator[tuple[Request, Sequence[Row], Sequence[int]]]:
        """The rows that need not wait any longer; the caller chooses their tokens one by one."""
        for request in tuple(self._rows):
            if request.n_missing:
                del self._rows[request]  # preempted: they are computed again
            elif not self.must_wait(request):
                yield request, *self._rows.pop(request)
