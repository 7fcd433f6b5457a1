"""SpeculationBudget: the time that guesses may take before they have spared any, request by request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from woolly.engine.drafts.draft_cost import CostEstimate

if TYPE_CHECKING:
    from woolly.engine.request import Request

_TIME_SHARE = 0.02  # the share of a request's own steps that guesses may cost it while they spare nothing
_TRIAL_TOKENS = 32  # tokens of a context that may be read on trust, before the first guess
_CREDIT_STEPS = 8  # steps that a request may owe while its drafts are accepted
_PACE = 0.25  # weight of the latest observation in a moving average
_ACCEPTANCE_PACE = 0.1  # and of the latest check in the share that usually comes true


@dataclass
class _RequestBudget:
    """What one request has to spend, in seconds."""

    own: float = 0.0  # a share of its steps and what guesses spared, less what they cost
    net: float = 0.0  # what guesses spared less what they cost
    n_checked: int = 0  # draft tokens that the model checked, up to the first rejected one of each draft
    n_accepted: int = 0


class SpeculationBudget:
    """Keeps what guesses cost and spare each request, and says what more they may cost it.

    A request can lose no more than `_TIME_SHARE` of its time: what guesses cost is taken from that share of its steps.
    What they spare comes on top. If guesses usually come true, the first of a request are made on trust, after a short
    part of its context; once one came true, as much may be spent as the latest answers gained. So a draft model reads a
    long prompt only if that pays, and answers where nothing comes true stay as fast as without.
    """

    def __init__(self, worth: float) -> None:
        """Guesses are trusted while a share of at least `worth` comes true."""
        self.acceptance_rate = 0.75  # the share of guesses that comes true, over all requests
        self._worth = worth
        self._budgets: dict[Request, _RequestBudget] = {}
        self._gain = 0.0  # seconds that an answer usually gains
        self._reading = CostEstimate()  # seconds per token of a context that a draft model reads
        self.plain_seconds = 0.0  # of a step without draft tokens

    def is_trial(self, request: Request) -> bool:
        """True if a request may draft before it has the time: until its first rejected token, if most are accepted."""
        budget = self._of(request)
        return self.acceptance_rate >= self._worth and budget.n_accepted == budget.n_checked

    def available_seconds(self, request: Request) -> float:
        """What guesses may cost a request now; none are made if it is not above 0."""
        budget = self._of(request)
        return budget.own + (max(0.0, self._gain) if budget.n_accepted else 0.0)

    def may_draft(self, request: Request) -> bool:
        """Whether a request has time for guesses."""
        if self.is_trial(request):
            return True
        # PoolingJob the context is paid back over many steps: a request whose drafts are mostly accepted may owe some.
        budget = self._of(request)
        is_trusted = budget.n_accepted > 0 and budget.n_accepted >= self._worth * budget.n_checked
        credit = _CREDIT_STEPS * self.plain_seconds if is_trusted else 0.0
        return self.available_seconds(request) + credit > 0.0

    def max_prefill_tokens(self, request: Request) -> int:
        """Tokens of its context that a draft model may read."""
        trusted = _TRIAL_TOKENS if self.is_trial(request) else 0
        if self._reading.value is None:
            return _TRIAL_TOKENS
        return max(trusted, int(self.available_seconds(request) / max(self._reading.value, 1e-9)))

    def add_step_time(self, requests: Sequence[Request], seconds: float) -> None:
        """Gives each request of a step its share of that step's time."""
        for request in requests:
            self._of(request).own += _TIME_SHARE * seconds / len(requests)

    def spend_prefill(self, request: Request, n_tokens: int, seconds: float) -> None:
        """Takes what reading a context cost."""
        self._reading.add(seconds / n_tokens)
        self.spend(request, min(seconds, n_tokens * (self._reading.value or 0.0)))

    def spend(self, request: Request, seconds: float) -> None:
        """Takes what guesses cost; what they spared is a negative number."""
        budget = self._of(request)
        budget.own -= seconds
        budget.net -= seconds

    def record(self, request: Request, n_drafted: int, n_accepted: int) -> None:
        """Learns what came true; tokens after the first rejected one carry no information."""
        budget = self._of(request)
        budget.n_checked += min(n_accepted + 1, n_drafted)
        budget.n_accepted += n_accepted
        for i in range(min(n_accepted + 1, n_drafted)):
            self.acceptance_rate += _ACCEPTANCE_PACE * ((1.0 if i < n_accepted else 0.0) - self.acceptance_rate)

    def forget(self, request: Request) -> None:
        """Drops the budget of a request that has ended, and learns what guesses gained it."""
        budget = self._budgets.pop(request, None)
        if budget is not None and budget.n_checked:
            self._gain = _moved(self._gain, budget.net)

    def _of(self, request: Request) -> _RequestBudget:
        return self._budgets.setdefault(request, _RequestBudget())


def _moved(before: float | None, value: float) -> float:
    return value if before is None else before + _PACE * (value - before)
