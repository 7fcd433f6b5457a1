"""Admission control: limits running and waiting answers, and rejects further requests immediately."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from woolly.serving.errors import ApiError, server_stopping


@dataclass
class Admitted:
    """Reserved capacity for the answers of one request."""

    n: int
    arrived: float  # time.monotonic() at the arrival of the request
    is_counted: bool = False  # True if the usage ledger has counted the request


class Admission:
    """Counts answers from the arrival of their request to its end. Use this class only on the event loop thread."""

    def __init__(self, n_running: Callable[[], int], n_waiting: int) -> None:
        """`n_running` returns the current maximum of concurrent answers, which may depend on the loaded models."""
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
        """Return the number of queued answers."""
        return max(0, self.n_open - self._n_running())

    @contextmanager
    def admit(self, n: int, seconds_each: float, *, n_prompts: int = 1) -> Iterator[Admitted]:
        """Reserve capacity for n answers to each prompt. Retry-After assumes `seconds_each` per answer.

        Raises ApiError 503 if the server is stopping, 429 if the queue is full, and 400 if the request exceeds the
        total capacity.
        """
        if self.is_draining:
            raise server_stopping()
        wanted = n * n_prompts
        if wanted > self.max_open:
            what = f"n is {n}" if n_prompts == 1 else f"{n_prompts} prompts with n={n} need {wanted} answers"
            raise ApiError(
                400,
                "invalid_request",
                f"{what}, but this server allows at most {self.max_open} concurrent answers; request fewer answers",
                param="n" if n_prompts == 1 else "prompt",
            )
        if self.n_open + wanted > self.max_open:
            raise ApiError(
                429,
                "queue_full",
                f"all {self.max_open} places for answers are in use; try again later",
                retry_after=min(60.0, max(1.0, seconds_each * (self.n_waiting + 1) / self._n_running())),
            )
        self.n_open += wanted
        try:
            yield Admitted(wanted, time.monotonic())
        finally:
            self.n_open -= wanted
