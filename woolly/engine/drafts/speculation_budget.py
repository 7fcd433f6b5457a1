"""SpeculationBudget: time that each request may spend on drafts before they have saved any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from woolly.engine.drafts.draft_cost import CostEstimate

if TYPE_CHECKING:
    from woolly.engine.request import Request

_TIME_SHARE = 0.02  # share of a request's step time that drafts may cost while they save nothing
_TRIAL_TOKENS = 32  # context tokens that may be prefilled before the first draft
_CREDIT_STEPS = 8  # maximum debt in steps while drafts are accepted
_PACE = 0.25  # weight of the latest observation in a moving average
_ACCEPTANCE_PACE = 0.1  # weight of the latest check in the acceptance rate


@dataclass
class _RequestBudget:
    """Budget of one request, in seconds."""

    own: float = 0.0  # share of its steps, plus time saved by drafts, minus their cost
    net: float = 0.0  # time saved by drafts, minus their cost
    n_checked: int = 0  # draft tokens that the model checked, up to the first rejected one of each draft
    n_accepted: int = 0


class SpeculationBudget:
    """Accounts the cost and gain of drafts per request, and bounds their further cost.

    A request can lose at most `_TIME_SHARE` of its time: drafts are paid from that share of its steps, and from the
    time that they save. If drafts are usually accepted, the first ones of a request are made in advance, after a short
    part of its context; once one is accepted, a request may spend the mean gain of the latest answers. So a draft model
    prefills a long prompt only if that pays, and answers with rejected drafts stay as fast as without drafts.
    """

    def __init__(self, worth: float) -> None:
        """Drafts are made in advance while the acceptance rate is at least `worth`."""
        self.acceptance_rate = 0.75  # over all requests
        self._worth = worth
        self._budgets: dict[Request, _RequestBudget] = {}
        self._gain = 0.0  # mean seconds saved per answer
        self._reading = CostEstimate()  # prefill seconds per context token of a draft model
        self.plain_seconds = 0.0  # of a step without draft tokens

    def is_trial(self, request: Request) -> bool:
        """True if a request may draft before it has the time: until its first rejected token, if most are accepted."""
        budget = self._of(request)
        return self.acceptance_rate >= self._worth and budget.n_accepted == budget.n_checked

    def available_seconds(self, request: Request) -> float:
        """Return the seconds that drafts may cost a request now; no drafts are made at 0 or below."""
        budget = self._of(request)
        return budget.own + (max(0.0, self._gain) if budget.n_accepted else 0.0)

    def may_draft(self, request: Request) -> bool:
        """Return True if a request has time for drafts."""
        if self.is_trial(request):
            return True
        # Prefill of the context is paid back over many steps: a request whose drafts are mostly accepted may owe some.
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
        """Credit each request of a step with its share of the step's time."""
        for request in requests:
            self._of(request).own += _TIME_SHARE * seconds / len(requests)

    def spend_prefill(self, request: Request, n_tokens: int, seconds: float) -> None:
        """Charge the prefill of a context."""
        self._reading.add(seconds / n_tokens)
        self.spend(request, min(seconds, n_tokens * (self._reading.value or 0.0)))

    def spend(self, request: Request, seconds: float) -> None:
        """Charge the cost of drafts; negative for time saved."""
        budget = self._of(request)
        budget.own -= seconds
        budget.net -= seconds

    def record(self, request: Request, n_drafted: int, n_accepted: int) -> None:
        """Record acceptance; tokens after the first rejected one carry no information."""
        budget = self._of(request)
        budget.n_checked += min(n_accepted + 1, n_drafted)
        budget.n_accepted += n_accepted
        for i in range(min(n_accepted + 1, n_drafted)):
            self.acceptance_rate += _ACCEPTANCE_PACE * ((1.0 if i < n_accepted else 0.0) - self.acceptance_rate)

    def forget(self, request: Request) -> None:
        """Drop the budget of a request that has ended, and record its gain."""
        budget = self._budgets.pop(request, None)
        if budget is not None and budget.n_checked:
            self._gain = _moved(self._gain, budget.net)

    def _of(self, request: Request) -> _RequestBudget:
        return self._budgets.setdefault(request, _RequestBudget())


def _moved(before: float | None, value: float) -> float:
    return value if before is None else before + _PACE * (value - before)
