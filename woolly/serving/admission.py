"""Admission: how many answers may be on their way; one too many is told so at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from woolly.serving.errors import ApiError

__all__ = ["Admission"]

_STOPPING = 5.0  # seconds until another server may have taken over


class Admission:
    """Counts answers from the request's arrival to its end. Belongs to the event loop's thread."""

    def __init__(self, n_running: int, n_waiting: int) -> None:
        self._n_running = n_running
        self.n_most = n_running + n_waiting
        self.n_open = 0
        self.is_draining = False

    @property
    def n_waiting(self) -> int:
        """Answers that have no place among the running."""
        return max(0, self.n_open - self._n_running)

    @contextmanager
    def place(self, n: int, seconds_each: float) -> Iterator[None]:
        """Room for n answers of one request; `seconds_each` is what an answer takes, for Retry-After.

        ApiError 503 while the server stops, 429 where the queue is full, 400 where n is more than it could ever hold.
        """
        if self.is_draining:
            raise ApiError(503, "server_stopping", "the server is about to stop", retry_after=_STOPPING)
        if n > self.n_most:
            raise ApiError(
                400, "invalid_request", f"n is {n}; this server takes at most {self.n_most} answers", param="n"
            )
        if self.n_open + n > self.n_most:
            raise ApiError(
                429,
                "queue_full",
                f"{self.n_open} answers run or wait, and this server takes at most {self.n_most}; try again",
                retry_after=min(60.0, max(1.0, seconds_each * (self.n_waiting + 1) / self._n_running)),
            )
        self.n_open += n
        try:
            yield
        finally:
            self.n_open -= n
