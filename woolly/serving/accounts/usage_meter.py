"""Counts the usage of each account, for its limits and the usage ledger."""

from __future__ import annotations

from collections.abc import Mapping

from woolly.serving.accounts.account import Account
from woolly.serving.accounts.quotas import Quotas
from woolly.serving.accounts.usage_ledger import KeyUsage, UsageLedger

ANYONE = "-"  # key name of requests without a key


class UsageMeter:
    """Quotas and an optional ledger. Use this class only on the event loop thread."""

    def __init__(self, quotas: Quotas | None = None, ledger: UsageLedger | None = None) -> None:
        self.quotas = Quotas() if quotas is None else quotas
        self.ledger = ledger
        if ledger is not None:
            for name, used in ledger.usage_today().items():
                self.quotas.restore(name, used.requests, used.tokens)

    def check(self, account: Account | None) -> None:
        """Raise ApiError 429 if the account has reached a limit. The check counts no request."""
        self.quotas.check(account)

    def has_left(self, account: Account | None) -> bool:
        """Return True if the account has reached none of its limits."""
        return self.quotas.has_left(account)

    def admit(self, account: Account | None) -> None:
        """Count a request. Raises ApiError 429 if the account has reached a limit."""
        self.quotas.admit(account)

    def charge(self, account: Account | None, model: str, usage: Mapping[str, int], n_requests: int = 1) -> None:
        """Count the usage of one prompt; `usage` comes from `RunningRequest.usage`.

        `n_requests` is 1 for the first prompt of a request, 0 for the others.
        """
        used = KeyUsage(
            n_requests, usage["prompt_tokens"], usage.get("cached_tokens", 0), usage.get("completion_tokens", 0)
        )
        self.quotas.charge(account, used.tokens)
        if self.ledger is not None:
            self.ledger.note(ANYONE if account is None else account.name, model, used)
