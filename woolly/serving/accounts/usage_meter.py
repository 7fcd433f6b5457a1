"""UsageMeter: counts the usage of each account, for its limits and for the ledger."""

from __future__ import annotations

from collections.abc import Mapping

from woolly.serving.accounts.account import Account
from woolly.serving.accounts.quotas import Quotas
from woolly.serving.accounts.usage_ledger import KeyUsage, UsageLedger

ANYONE = "-"  # key of requests without a key


class UsageMeter:
    """Quotas and, if usage is kept, a ledger. Belongs to the event loop's thread."""

    def __init__(self, quotas: Quotas | None = None, ledger: UsageLedger | None = None) -> None:
        self.quotas = Quotas() if quotas is None else quotas
        self.ledger = ledger
        if ledger is not None:
            for name, used in ledger.of_today().items():
                self.quotas.restore(name, used.requests, used.tokens)

    def check(self, account: Account | None) -> None:
        """ApiError 429 if a limit of the account is reached; counts nothing."""
        self.quotas.check(account)

    def has_left(self, account: Account | None) -> bool:
        """Return True if no limit of the account is reached."""
        return self.quotas.has_left(account)

    def admit(self, account: Account | None) -> None:
        """Counts a request. ApiError 429 if a limit of the account is reached."""
        self.quotas.admit(account)

    def charge(self, account: Account | None, model: str, usage: Mapping[str, int], n_requests: int = 1) -> None:
        """Count the usage of a prompt of a request; `usage` comes from `RunningRequest.usage`.

        `n_requests` is 1 for one prompt of a request, 0 for the others.
        """
        used = KeyUsage(
            n_requests, usage["prompt_tokens"], usage.get("cached_tokens", 0), usage.get("completion_tokens", 0)
        )
        self.quotas.charge(account, used.tokens)
        if self.ledger is not None:
            self.ledger.note(ANYONE if account is None else account.name, model, used)
