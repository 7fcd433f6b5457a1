"""AdaptiveBatchSize: adapts the number of concurrent requests to the measured throughput."""

from __future__ import annotations

import time
from collections.abc import Callable

_GAIN = 1.1  # minimum throughput gain for doubling the batch size
_STEPS = 24  # steps per measurement
_PAUSE = 64  # measurements before a rejected size is retried
_LATE = 2.0  # seconds in the queue after which a request may exceed the measured size


class AdaptiveBatchSize:
    """Doubles the batch size while requests wait and throughput rises, up to the memory limit `most`.

    To bound latency, requests that wait longer than `_LATE` seconds are admitted up to `most`, except background
    requests (priority below 0). Outputs do not depend on the batch size.
    """

    def __init__(self, first: int, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self._clock = clock
        self._limit = min(first, most)
        self._before: tuple[int, float] | None = None  # previous size and its tokens per second
        self._rates: list[float] = []  # tokens per second of consecutive full steps
        self._last: float | None = None  # end time of the last full step
        self._pause = 0

    def limit(self, queued: float | None) -> int:
        """Return the maximum number of running requests. `queued`: when the first waiting request was queued."""
        return self._limit if queued is None or self._clock() - queued < _LATE else self.most

    def ran(self, n_running: int, n_rows: int, n_waiting: int) -> None:
        """Record a step. Only full decode steps with one row per request are measured.

        Larger steps (late requests, or a reverted doubling) and steps with draft tokens would distort the rate.
        """
        now = self._clock()
        is_full = n_waiting > 0 and n_running == n_rows == self._limit
        if is_full and self._last is not None and now > self._last:
            self._rates.append(n_rows / (now - self._last))
        self._last = now if is_full else None
        if len(self._rates) >= _STEPS:
            import statistics  # imports fractions and random; only a busy server needs it

            rate = statistics.median(self._rates)
            self._rates.clear()
            self._judge(rate)

    def _judge(self, rate: float) -> None:
        """Revert the last doubling if it gained too little, otherwise double again."""
        if self._before is not None and rate < _GAIN * self._before[1]:
            self._limit, self._before, self._pause = self._before[0], None, _PAUSE
        elif self._pause:
            self._pause -= 1
        elif self._limit < self.most:
            self._before = self._limit, rate
            self._limit = min(2 * self._limit, self.most)
        else:
            self._before = None
