"""PrefillBudget: limits the prompt rows of a step, so that running answers keep receiving tokens."""

from __future__ import annotations

from woolly.engine.step.scheduler_output import SchedulerOutput

_MIN_ROWS = 16  # a prompt advances by at least this many rows per step
_FIRST_ROWS = 64  # before the first measurement
_ROOM = 0.7  # a step that takes less of the target is followed by a larger one


class PrefillBudget:
    """Number of prompt rows for which a step takes about `itl_target` seconds, the target inter-token latency.

    The number follows from the last step with prompt rows, without the time of decoding: if 512 rows took 2 s, 64 rows
    fit 0.25 s. Nothing else is modeled, because the cost of a row rises slowly along a prompt. Other costs that do not
    depend on the rows make the estimate low, so a step well below the target is followed by a larger one. Outputs do
    not depend on the number of rows.

    If decoding alone takes more than half of the target, prompts get as much time as decoding.
    """

    def __init__(self, itl_target: float | None) -> None:
        self.itl_target = itl_target  # None: no limit
        self._rows_per_second: float | None = None  # of the last step with prompt rows
        self._last = (0, 0.0)  # rows and seconds of this step
        self._decode_seconds = 0.0  # of the last step without prompt rows

    def n_rows(self, most: int) -> int:
        """Return the prompt rows of a step with running answers, at most `most`."""
        if self.itl_target is None:
            return most
        if self._rows_per_second is None:
            return min(most, _FIRST_ROWS)
        seconds = max(self.itl_target - self._decode_seconds, self._decode_seconds)
        fitting = int(seconds * self._rows_per_second) // _MIN_ROWS * _MIN_ROWS  # CPU kernels compute blocks of rows
        last_rows, last_seconds = self._last
        if last_seconds < _ROOM * (seconds + self._decode_seconds):
            fitting = max(fitting, last_rows // _MIN_ROWS * _MIN_ROWS + _MIN_ROWS)
        return min(most, max(fitting, _MIN_ROWS))

    def ran(self, scheduled: SchedulerOutput) -> None:
        """Record the duration of a step. The last few rows of a prompt say little about the cost of a row."""
        seconds = scheduled.seconds
        if self.itl_target is None or seconds <= 0:
            return
        n_rows = sum(span.n_tokens for span in scheduled.spans if span.n_tokens > 1)
        if not n_rows:
            self._decode_seconds = seconds
        elif n_rows >= _MIN_ROWS or self._rows_per_second is None:
            self._rows_per_second = n_rows / max(seconds - self._decode_seconds, seconds / 8)
            self._last = n_rows, seconds
