"""Admission: how many answers may be on their way; one too many is told so at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from woolly.serving.errors import ApiError

__all__ = ["Admission", "Place"]

_STOPPING = 5.0  # seconds until another server may have taken over


@dataclass(frozen=True)
class Place:
    """Room for the answers of one request, held while the block that took it runs."""

    n: int
    arrived: float  # by time.monotonic(): what a client waits for counts from here


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
    def place(self, n: int, seconds_each: float, *, n_prompts: int = 1) -> Iterator[Place]:
        """Room for n answers to each prompt of a request; `seconds_each` is what one takes, for Retry-After.

        ApiError 503 while the server stops, 429 where the queue is full, 400 where it could never hold so many.
        """
        if self.is_draining:
            raise ApiError(503, "server_stopping", "the server is about to stop", retry_after=_STOPPING)
        wanted = n * n_prompts
        if wanted > self.n_most:
            what = f"n is {n}" if n_prompts == 1 else f"{n_prompts} prompts with n={n} ask for {wanted} answers"
            raise ApiError(
                400,
                "invalid_request",
                f"{what}; this server takes at most {self.n_most} answers at once, so ask for fewer in one request",
                param="n" if n_prompts == 1 else "prompt",
            )
        if self.n_open + wanted > self.n_most:
            raise ApiError(
                429,
                "queue_full",
                f"{self.n_open} answers run or wait, and this server takes at most {self.n_most}; try again",
                retry_after=min(60.0, max(1.0, seconds_each * (self.n_waiting + 1) / self._n_running)),
            )
        self.n_open += wanted
        try:
            yield Place(wanted, time.monotonic())
        finally:
            self.n_open -= wanted
