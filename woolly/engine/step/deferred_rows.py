"""DeferredRows: rows deferred to a later step because slow grammars used up the time of the current step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from woolly.sampling.top_logits import Row, copy_row

if TYPE_CHECKING:
    from woolly.engine.request import Request

# Maximum grammar time per step in seconds; 16 typical requests take 20 to 50 ms.
GRAMMAR_SECONDS = 0.1


class DeferredRows:
    """Deferred rows and drafts of requests, in FIFO order."""

    def __init__(self) -> None:
        self._rows: dict[Request, tuple[list[Row], Sequence[int]]] = {}
        self._seconds = 0.0  # grammar time in the current step

    def begin_step(self) -> bool:
        """Reset the grammar time of the step; return True if rows are deferred."""
        self._seconds = 0.0
        return bool(self._rows)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure the time of the block as grammar time."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._seconds += time.monotonic() - begin

    def must_wait(self, request: Request) -> bool:
        """Return True if sampling would exceed the grammar time of the step, or if the request is cancelled."""
        if request.sampler.constraint is None:
            return False
        return request.is_unwanted or self._seconds > GRAMMAR_SECONDS

    def defer(self, request: Request, rows: Sequence[Row], drafts: Sequence[int]) -> None:
        """Defer a copy of the rows to the next step."""
        self._rows[request] = [copy_row(row) for row in rows], drafts

    def forget(self, request: Request) -> None:
        """Drop the rows of a finished request."""
        self._rows.pop(request, None)

    def take(self) -> Iterator[tuple[Request, Sequence[Row], Sequence[int]]]:
        """Yield the deferred rows that can be sampled now. The caller samples each item before taking the next."""
        for request in tuple(self._rows):
            if request.n_missing:
                del self._rows[request]  # preempted: the rows are recomputed
            elif not self.must_wait(request):
                yield request, *self._rows.pop(request)
