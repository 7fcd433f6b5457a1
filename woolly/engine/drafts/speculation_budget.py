"""SpeculationBudget: time that each request may spend on drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from woolly.engine.drafts.draft_cost import CostEstimate

if TYPE_CHECKING:
    from woolly.engine.request import Request

_TIME_SHARE = 0.02  # share of a request's step time that drafts may cost
_TRIAL_TOKENS = 32  # context tokens that a draft model may prefill on trust
_CREDIT_STEPS = 8  # maximum debt, in steps, while drafts are mostly accepted
_PACE = 0.25  # weight of the latest observation in a moving average
_ACCEPTANCE_PACE = 0.1  # weight of the latest observation in the acceptance rate


@dataclass
class _RequestBudget:
    """Speculation budget of a request, in seconds."""

    own: float = 0.0  # share of the request's steps, plus time saved by drafts, minus their cost
    net: float = 0.0  # time saved by drafts, minus their cost
    n_checked: int = 0  # draft tokens that the model verified, up to the first rejected one of each draft
    n_accepted: int = 0


class SpeculationBudget:
    """Accounts for the cost and gain of drafts per request, and bounds the loss.

    A request pays for drafts with `_TIME_SHARE` of its step time and with the time that drafts save; without credit, it
    can lose no more than this share. Credit extends this bound in three cases. While drafts are accepted in general, a
    request drafts on trust until its first rejected token; on trust, a draft model prefills at most `_TRIAL_TOKENS`
    tokens. After its first accepted token, a request may also spend the mean gain of finished requests. While at least
    `worth` of its draft tokens are accepted, it may owe another `_CREDIT_STEPS` steps. When the credit is used up,
    drafting stops until steps have paid the debt. The draft that reaches the limit may overrun it.
    """

    def __init__(self, worth: float) -> None:
        """Requests draft on trust while the acceptance rate is at least `worth`."""
        self.acceptance_rate = 0.75  # average over all requests
        self._worth = worth
        self._budgets: dict[Request, _RequestBudget] = {}
        self._gain = 0.0  # mean seconds saved per answer
        self._reading = CostEstimate()  # prefill seconds per context token of a draft model
        self.plain_seconds = 0.0  # duration of a step without draft tokens

    def is_trial(self, request: Request) -> bool:
        """True if a request may draft on trust: drafts are mostly accepted, and the request had no rejected token."""
        budget = self._of(request)
        return self.acceptance_rate >= self._worth and budget.n_accepted == budget.n_checked

    def available_seconds(self, request: Request) -> float:
        """Return the seconds that a request may spend on drafts, without credit for steps."""
        budget = self._of(request)
        return budget.own + (max(0.0, self._gain) if budget.n_accepted else 0.0)

    def may_draft(self, request: Request) -> bool:
        """Return True if a request may spend time on drafts."""
        if self.is_trial(request):
            return True
        # Prefill of the context takes many steps to pay off, so a request with mostly accepted drafts may go into debt.
        budget = self._of(request)
        is_trusted = budget.n_accepted > 0 and budget.n_accepted >= self._worth * budget.n_checked
        credit = _CREDIT_STEPS * self.plain_seconds if is_trusted else 0.0
        return self.available_seconds(request) + credit > 0.0

    def max_prefill_tokens(self, request: Request) -> int:
        """Return the number of context tokens that a draft model may prefill."""
        trusted = _TRIAL_TOKENS if self.is_trial(request) else 0
        if self._reading.value is None:
            return _TRIAL_TOKENS
        return max(trusted, int(self.available_seconds(request) / max(self._reading.value, 1e-9)))

    def add_step_time(self, requests: Sequence[Request], seconds: float) -> None:
        """Credit each request with its share of the step time."""
        for request in requests:
            self._of(request).own += _TIME_SHARE * seconds / len(requests)

    def spend_prefill(self, request: Request, n_tokens: int, seconds: float) -> None:
        """Charge the prefill time of a context."""
        self._reading.add(seconds / n_tokens)
        self.spend(request, min(seconds, n_tokens * (self._reading.value or 0.0)))

    def spend(self, request: Request, seconds: float) -> None:
        """Charge the cost of drafts. A negative cost is time saved."""
        budget = self._of(request)
        budget.own -= seconds
        budget.net -= seconds

    def record(self, request: Request, n_drafted: int, n_accepted: int) -> None:
        """Record acceptance. Tokens after the first rejected one carry no information."""
        budget = self._of(request)
        budget.n_checked += min(n_accepted + 1, n_drafted)
        budget.n_accepted += n_accepted
        for i in range(min(n_accepted + 1, n_drafted)):
            self.acceptance_rate += _ACCEPTANCE_PACE * ((1.0 if i < n_accepted else 0.0) - self.acceptance_rate)

    def forget(self, request: Request) -> None:
        """Drop the budget of a finished request and record its gain."""
        budget = self._budgets.pop(request, None)
        if budget is not None and budget.n_checked:
            self._gain = _moved(self._gain, budget.net)

    def _of(self, request: Request) -> _RequestBudget:
        return self._budgets.setdefault(request, _RequestBudget())


def _moved(before: float | None, value: float) -> float:
    return value if before is None else before + _PACE * (value - before)
