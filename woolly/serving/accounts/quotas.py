"""Usage of each account in the current time windows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from math import ceil

from woolly.serving.accounts.account import Account
from woolly.serving.errors import ApiError

_SECONDS = {"minute": 60, "day": 86_400}


@dataclass(frozen=True)
class _Standing:
    """Current state of one limit of an account."""

    what: str  # requests or tokens
    window: str  # minute or day
    most: int
    used: int
    ends: float  # end of the window, in seconds since 1970

    @property
    def left(self) -> int:
        return max(0, self.most - self.used)


class Quotas:
    """Request and token counters per account, in fixed windows of a minute and a day (UTC).

    Use this class only on the event loop thread. An account with tokens left may finish an answer of any length,
    because the length is known only at the end. A token bucket could not tell clients when a day's tokens are available
    again.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._used: dict[tuple[str, str, str], tuple[int, int]] = {}  # (name, kind, window): (window number, count)

    def has_left(self, account: Account | None) -> bool:
        """Return True if the account has reached none of its limits."""
        return account is None or all(one.left for one in self._standings(account))

    def check(self, account: Account | None) -> None:
        """Raise ApiError 429 with the retry time if the account has reached a limit."""
        if account is None:
            return
        spent = [one for one in self._standings(account) if one.left == 0]
        if spent:
            last = max(spent, key=lambda one: one.ends)
            free = datetime.fromtimestamp(last.ends, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            raise ApiError(
                429,
                "rate_limit_exceeded",
                f"the key {account.name} has reached its limit of {last.most} {last.what} per {last.window};"
                f" retry after {free}",
                retry_after=float(ceil(last.ends - self._clock())),
            )

    def admit(self, account: Account | None) -> None:
        """Check the limits and count a request."""
        self.check(account)
        if account is not None:
            self._add(account.name, "requests", 1)

    def charge(self, account: Account | None, n_tokens: int) -> None:
        """Count the tokens of a prompt and its answers."""
        if account is not None:
            self._add(account.name, "tokens", n_tokens)

    def restore(self, name: str, n_requests: int, n_tokens: int) -> None:
        """Set today's usage of an account, as counted by an earlier process."""
        number = int(self._clock()) // _SECONDS["day"]
        self._used[name, "requests", "day"] = (number, n_requests)
        self._used[name, "tokens", "day"] = (number, n_tokens)

    def headers(self, account: Account) -> Iterator[tuple[bytes, bytes]]:
        """Yield OpenAI's rate limit headers for the request limit and the token limit with the fewest remaining."""
        for what in ("requests", "tokens"):
            standings = [one for one in self._standings(account) if one.what == what]
            if standings:
                least = min(standings, key=lambda one: one.left)
                values = {"limit": least.most, "remaining": least.left, "reset": _duration(least.ends - self._clock())}
                for name, value in values.items():
                    yield f"x-ratelimit-{name}-{what}".encode(), str(value).encode()

    def _standings(self, account: Account) -> Iterator[_Standing]:
        now = self._clock()
        for what in ("requests", "tokens"):
            for window, seconds in _SECONDS.items():
                most = getattr(account.limits, f"{what}_per_{window}")
                if most is not None:
                    number = int(now) // seconds
                    found, used = self._used.get((account.name, what, window), (number, 0))
                    yield _Standing(what, window, most, used if found == number else 0, (number + 1) * seconds)

    def _add(self, name: str, what: str, n: int) -> None:
        now = int(self._clock())
        for window, seconds in _SECONDS.items():
            number = now // seconds
            found, used = self._used.get((name, what, window), (number, 0))
            self._used[name, what, window] = (number, n + (used if found == number else 0))


def _duration(seconds: float) -> str:
    """Format a duration as in OpenAI's headers, such as 59s or 7h3m1s."""
    minutes, rest = divmod(max(1, ceil(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{f'{hours}h' if hours else ''}{f'{minutes}m' if hours or minutes else ''}{rest}s"
