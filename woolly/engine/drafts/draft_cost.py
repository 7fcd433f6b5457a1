"""DraftCost: measured cost of a draft token, as a share of the step that it may save."""

from __future__ import annotations

from dataclasses import dataclass, field

_PACE = 0.25  # weight of the latest observation in a moving average
_FIRST = 3  # first measurements: the minimum counts
_EVERY = 64  # steps with draft tokens between two steps without, which are measured; the first has none


@dataclass
class CostEstimate:
    """Seconds of one kind of work: minimum of the first measurements (may be cold), then a moving average."""

    value: float | None = None
    n: int = 0  # measurements

    @property
    def is_settled(self) -> bool:
        """True if no cold measurement counts any more."""
        return self.n >= _FIRST

    def add(self, seconds: float) -> None:
        """Count one measurement."""
        self.n += 1
        if self.value is None or (self.n <= _FIRST and seconds < self.value):
            self.value = seconds
        elif self.n > _FIRST:
            self.value += _PACE * (seconds - self.value)


@dataclass
class _Steps:
    """Times of steps with similar batch sizes."""

    plain: CostEstimate = field(default_factory=CostEstimate)  # a step without draft tokens
    row: CostEstimate = field(default_factory=CostEstimate)  # each draft token in a step
    n_since: int = 0  # steps with draft tokens since the last one without


class DraftCost:
    """Cost of a draft token, learned from steps that decode only; prefill would hide it.

    A draft token accepted with probability p saves p of a step, and costs the time to propose it and its row.
    A draft model as large as the model itself is always right and never pays: acceptance alone cannot tell that.
    """

    def __init__(self) -> None:
        self._guess = CostEstimate()  # seconds to propose one token
        self._steps: dict[int, _Steps] = {}  # by batch size, in powers of two

    def is_due(self, n_answers: int) -> bool:
        """True if the next step is to have no draft tokens, so that both kinds are measured."""
        known = self._known(n_answers)
        return known.plain.value is None or known.n_since >= _EVERY

    def is_settled(self, n_answers: int) -> bool:
        """True if enough drafts were measured: the first ones of a process load weights and start threads."""
        return self._guess.is_settled and self._known(n_answers).row.is_settled

    def plain(self, n_answers: int) -> float | None:
        """Return seconds of a step without draft tokens, if one was measured."""
        return self._known(n_answers).plain.value

    def share(self, n_answers: int) -> float:
        """Return the cost of a draft token as a share of a plain step; 0 until it is settled."""
        known = self._known(n_answers)
        if not self.is_settled(n_answers) or not known.plain.value:
            return 0.0
        return ((self._guess.value or 0.0) + (known.row.value or 0.0)) / known.plain.value

    def guessed(self, n_guesses: int, seconds: float) -> None:
        """Count the time that proposing tokens took."""
        if n_guesses:
            self._guess.add(seconds / n_guesses)

    def stepped(self, n_answers: int, n_guesses: int, seconds: float) -> None:
        """Count the time of a step of answers."""
        known = self._known(n_answers)
        if n_guesses == 0:
            known.plain.add(seconds)
            known.n_since = 0
            return
        known.n_since += 1
        if known.plain.value is not None:
            known.row.add(max(0.0, seconds - known.plain.value) / n_guesses)

    def _known(self, n_answers: int) -> _Steps:
        return self._steps.setdefault(n_answers.bit_length(), _Steps())
