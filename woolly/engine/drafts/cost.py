"""The DraftCost: what a guess costs on this machine, as a share of the step that it may spare."""

from __future__ import annotations

from dataclasses import dataclass

_PACE = 0.25  # weight of the latest observation in a moving average
_EVERY = 64  # steps with guesses after which one without is measured; the first has none


@dataclass
class _Seconds:
    """What steps with about the same number of answers take."""

    plain: float | None = None  # a step without guesses
    row: float | None = None  # a guess more in a step
    n_since: int = 0  # steps with guesses since the last one without


class DraftCost:
    """Learns from steps that compute answers alone; prompts would hide what a guess costs.

    A guess that comes true with probability p spares p of a step, and costs the time to make it and its row.
    A draft model as large as the model itself is always right and never pays: acceptance alone cannot tell that.
    """

    def __init__(self) -> None:
        self._guess: float | None = None  # seconds that one guess takes to be made
        self._steps: dict[int, _Seconds] = {}  # by the number of answers, doubled each time

    def is_due(self, n_answers: int) -> bool:
        """Whether the next step is to have no guesses, so that both kinds are known."""
        known = self._known(n_answers)
        return known.plain is None or known.n_since >= _EVERY

    def plain(self, n_answers: int) -> float | None:
        """Seconds of a step without guesses, if one was measured."""
        return self._known(n_answers).plain

    def share(self, n_answers: int) -> float:
        """What a guess costs, as a share of a step without any; 0 while that is not known."""
        known = self._known(n_answers)
        if known.plain is None or known.row is None or known.plain <= 0.0:
            return 0.0
        return ((self._guess or 0.0) + known.row) / known.plain

    def guessed(self, n_guesses: int, seconds: float) -> None:
        """Learns how long guesses took to be made."""
        if n_guesses:
            self._guess = _moved(self._guess, seconds / n_guesses)

    def stepped(self, n_answers: int, n_guesses: int, seconds: float) -> None:
        """Learns how long a step of answers took."""
        known = self._known(n_answers)
        if n_guesses == 0:
            known.plain, known.n_since = _moved(known.plain, seconds), 0
            return
        known.n_since += 1
        if known.plain is not None:
            known.row = _moved(known.row, max(0.0, seconds - known.plain) / n_guesses)

    def _known(self, n_answers: int) -> _Seconds:
        return self._steps.setdefault(n_answers.bit_length(), _Seconds())


def _moved(before: float | None, value: float) -> float:
    return value if before is None else before + _PACE * (value - before)
