"""The Breadth: how many requests run at once if nobody said, by what more of them gain."""

from __future__ import annotations

import time
from collections.abc import Callable

_GAIN = 1.1  # what twice as many requests must gain in tokens per second
_STEPS = 24  # steps of one measurement
_PAUSE = 64  # measurements until a number that did not pay is tried again
_LATE = 2.0  # seconds that a request waits for a place because more at once would not pay


class Breadth:
    """Doubles the number while requests wait and each doubling pays by the clock, up to `most`, which memory allows.

    No request waits for its first token because the engine is faster without it: after `_LATE` seconds, requests get
    places up to `most`, but for background work (a priority below 0). Answers do not depend on the number.
    """

    def __init__(self, first: int, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self._clock = clock
        self._limit = min(first, most)
        self._before: tuple[int, float] | None = None  # the number that is left for the present one, and its rate
        self._rates: list[float] = []  # tokens per second of full steps, one after the other
        self._last: float | None = None  # when the last full step ended
        self._pause = 0

    def limit(self, queued: float | None) -> int:
        """How many may run, if the first request that counts as waiting was queued at that time; None: none does."""
        return self._limit if queued is None or self._clock() - queued < _LATE else self.most

    def ran(self, n_running: int, n_rows: int, n_waiting: int) -> None:
        """Notes a step; it is measured if answers alone have exactly the places of the number, with one row each.

        More run if requests were late or a doubling was taken back: their rate is not that of the number. Of steps with
        drafts it is not known how many tokens they will have gained.
        """
        now = self._clock()
        is_full = n_waiting > 0 and n_running == n_rows == self._limit
        if is_full and self._last is not None and now > self._last:
            self._rates.append(n_rows / (now - self._last))
        self._last = now if is_full else None
        if len(self._rates) >= _STEPS:
            import statistics  # with fractions and random: only a busy server comes here

            rate = statistics.median(self._rates)
            self._rates.clear()
            self._judge(rate)

    def _judge(self, rate: float) -> None:
        """Goes back to the number before if this one gains too little, else on to the next."""
        if self._before is not None and rate < _GAIN * self._before[1]:
            self._limit, self._before, self._pause = self._before[0], None, _PAUSE
        elif self._pause:
            self._pause -= 1
        elif self._limit < self.most:
            self._before = self._limit, rate
            self._limit = min(2 * self._limit, self.most)
        else:
            self._before = None
