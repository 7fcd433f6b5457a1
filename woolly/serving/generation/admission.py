"""Admission: limits running and waiting answers; rejects further ones immediately."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from woolly.serving.errors import ApiError, server_stopping


@dataclass
class Admitted:
    """Capacity for the answers of one request, held while the block that took it runs."""

    n: int
    arrived: float  # by time.monotonic(): the client waits from here on
    is_counted: bool = False  # in the ledger, which counts a request with many prompts once


class Admission:
    """Counts answers from the arrival of their request to its end. Belongs to the event loop's thread."""

    def __init__(self, n_running: Callable[[], int], n_waiting: int) -> None:
        """`n_running` returns the current maximum of concurrent answers, which may depend on models."""
        self._n_running = n_running
        self._n_waiting = n_waiting
        self.n_open = 0
        self.is_draining = False

    @property
    def max_open(self) -> int:
        """Return the maximum number of running and waiting answers."""
        return self._n_running() + self._n_waiting

    @property
    def n_waiting(self) -> int:
        """Return the number of answers that wait for one of the running ones to end."""
        return max(0, self.n_open - self._n_running())

    @contextmanager
    def admit(self, n: int, seconds_each: float, *, n_prompts: int = 1) -> Iterator[Admitted]:
        """Reserve capacity for n answers to each prompt; an answer takes about `seconds_each`, for Retry-After.

        ApiError 503 while the server stops, 429 if the queue is full, 400 if it could never have the capacity.
        """
        if self.is_draining:
            raise server_stopping()
        wanted = n * n_prompts
        if wanted > self.max_open:
            what = f"n is {n}" if n_prompts == 1 else f"{n_prompts} prompts with n={n} ask for {wanted} answers"
            raise ApiError(
                400,
                "invalid_request",
                f"{what}; this server takes at most {self.max_open} answers at once, so ask for fewer in one request",
                param="n" if n_prompts == 1 else "prompt",
            )
        if self.n_open + wanted > self.max_open:
            raise ApiError(
                429,
                "queue_full",
                f"{self.n_open} answers run or wait, and this server takes at most {self.max_open}; try again",
                retry_after=min(60.0, max(1.0, seconds_each * (self.n_waiting + 1) / self._n_running())),
            )
        self.n_open += wanted
        try:
            yield Admitted(wanted, time.monotonic())
        finally:
            self.n_open -= wanted
