"""PrefillBudget: limits the prompt rows of a step, so that running answers keep receiving tokens."""

from __future__ import annotations

from woolly.engine.step.scheduler_output import SchedulerOutput

_MIN_ROWS = 16  # a prompt advances by at least this many rows per step
_FIRST_ROWS = 64  # before the first measurement


class PrefillBudget:
    """Number of prompt rows for which a step takes about `itl_target` seconds, the target inter-token latency.

    The number follows from the last step with prompt rows: if 512 rows took 2 s, 64 rows fit 0.25 s. Costs that do not
    depend on the rows make this estimate low for fewer rows, and the next steps correct it. Nothing else is modeled,
    because the cost of a row rises slowly along a prompt. Outputs do not depend on the number of rows.

    If a step without prompt rows already takes more than half of the target, prompts get as much time as answers.
    """

    def __init__(self, itl_target: float | None) -> None:
        self.itl_target = itl_target  # None: no limit
        self._rows_per_second: float | None = None  # of the last step with prompt rows
        self._decode_seconds = 0.0  # of the last step without prompt rows

    def n_rows(self, most: int) -> int:
        """Return the prompt rows of a step with running answers, at most `most`."""
        if self.itl_target is None:
            return most
        if self._rows_per_second is None:
            return min(most, _FIRST_ROWS)
        seconds = max(self.itl_target, 2 * self._decode_seconds)
        fitting = int(seconds * self._rows_per_second) // _MIN_ROWS * _MIN_ROWS  # CPU kernels compute blocks of rows
        return min(most, max(fitting, _MIN_ROWS))

    def ran(self, scheduled: SchedulerOutput) -> None:
        """Record the duration of a step."""
        if self.itl_target is None or scheduled.seconds <= 0:
            return
        n_rows = sum(span.n_tokens for span in scheduled.spans if span.n_tokens > 1)
        if n_rows:
            self._rows_per_second = n_rows / scheduled.seconds
        else:
            self._decode_seconds = scheduled.seconds
