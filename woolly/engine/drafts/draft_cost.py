"""DraftCost: measured cost of a draft token, as a share of a step without drafts."""

from __future__ import annotations

from dataclasses import dataclass, field

_PACE = 0.25  # weight of the latest observation in a moving average
_FIRST = 3  # number of warm-up measurements; the estimate starts with their minimum
_EVERY = 64  # steps with draft tokens between two measured steps without draft tokens


@dataclass
class CostEstimate:
    """Cost estimate in seconds: minimum of the warm-up measurements, then a moving average."""

    value: float | None = None
    n: int = 0  # number of measurements

    @property
    def is_settled(self) -> bool:
        """True if the warm-up measurements are complete."""
        return self.n >= _FIRST

    def add(self, seconds: float) -> None:
        """Add a measurement."""
        self.n += 1
        if self.value is None or (self.n <= _FIRST and seconds < self.value):
            self.value = seconds
        elif self.n > _FIRST:
            self.value += _PACE * (seconds - self.value)


@dataclass
class _Steps:
    """Measured times of steps with similar batch sizes."""

    plain: CostEstimate = field(default_factory=CostEstimate)  # step without draft tokens
    row: CostEstimate = field(default_factory=CostEstimate)  # additional time per draft token in a step
    n_since: int = 0  # steps with draft tokens since the last step without draft tokens


class DraftCost:
    """Cost of a draft token, learned from decode-only steps because prefill would hide the cost.

    A draft token accepted with probability p saves p of a step, but costs the time of its proposal and of its row in
    the step. Acceptance alone does not show whether drafts pay off: a draft model as large as the target model is
    always accepted and never faster.
    """

    def __init__(self) -> None:
        self._guess = CostEstimate()  # seconds per proposed token
        self._steps: dict[int, _Steps] = {}  # keyed by batch size, in powers of two

    def is_due(self, n_answers: int) -> bool:
        """True if the next step should run without draft tokens, to measure its time."""
        known = self._known(n_answers)
        return known.plain.value is None or known.n_since >= _EVERY

    def is_settled(self, n_answers: int) -> bool:
        """True if enough drafts were measured.

        The first drafts of a process are slow: they load weights and start threads.
        """
        return self._guess.is_settled and self._known(n_answers).row.is_settled

    def plain(self, n_answers: int) -> float | None:
        """Return the seconds of a step without draft tokens, or None if no such step was measured."""
        return self._known(n_answers).plain.value

    def share(self, n_answers: int) -> float:
        """Return the cost of a draft token as a share of a step without drafts; 0 during warm-up."""
        known = self._known(n_answers)
        if not self.is_settled(n_answers) or not known.plain.value:
            return 0.0
        return ((self._guess.value or 0.0) + (known.row.value or 0.0)) / known.plain.value

    def guessed(self, n_guesses: int, seconds: float) -> None:
        """Record the time that a proposal took."""
        if n_guesses:
            self._guess.add(seconds / n_guesses)

    def stepped(self, n_answers: int, n_guesses: int, seconds: float) -> None:
        """Record the time that a decode-only step took."""
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
