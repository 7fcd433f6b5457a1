"""Middleware that limits the request rate of each client."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from woolly.serving.errors import ApiError
from woolly.serving.gate.exempt_paths import ExemptPaths

_WRONG_KEYS = 20  # per minute and IP address
_AHEAD = "/chat/completions/read_ahead"
_MAX_CLIENTS = 10_000  # beyond this, the client with the oldest request is forgotten


class RateLimiter:
    """Token bucket per client that holds the requests of one minute. Use this class only on the event loop thread."""

    def __init__(
        self, per_minute: int, clock: Callable[[], float] = time.monotonic, may: str = "a client may send a request"
    ) -> None:
        """`per_minute` 0 disables the limit. `may` is the beginning of the error message."""
        self._may = may
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client -> (requests left, when)

    def count(self, client: str) -> None:
        """Count a request. Raises ApiError 429 with the time to wait if the client exceeds its rate limit."""
        if not self._per_minute:
            return
        now, left = self._clock(), self._left(client)
        self._buckets.pop(client, None)
        allowed = left >= 1
        self._buckets[client] = (left - 1 if allowed else left, now)
        if len(self._buckets) > _MAX_CLIENTS:
            self._buckets.popitem(last=False)
        if not allowed:
            raise ApiError(
                429,
                "rate_limit_exceeded",
                f"{self._may} {self._per_minute} times a minute; try again later",
                retry_after=(1 - left) * 60 / self._per_minute,
            )

    def is_spent(self, client: str) -> bool:
        """Return True if the next request of a client would be rejected."""
        return bool(self._per_minute) and self._left(client) < 1

    def _left(self, client: str) -> float:
        now = self._clock()
        left, when = self._buckets.get(client, (float(self._per_minute), now))
        return min(float(self._per_minute), left + (now - when) * self._per_minute / 60)


class KeyGuessLimiter:
    """Limits brute-force attacks: an address that sent too many wrong keys must wait.

    Keys that were accepted from the address before stay valid, so an attacker does not lock out other clients behind
    the same address.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._wrong = RateLimiter(_WRONG_KEYS, clock, "an address may send a wrong key")
        self._right: OrderedDict[tuple[str, str], None] = OrderedDict()

    def record_failure(self, address: str) -> None:
        """Count a wrong key. Raises ApiError 429 if the address sent too many."""
        self._wrong.count(address)

    def record_success(self, address: str, key: str) -> None:
        """Accept a valid key. Raises ApiError 429 if the address may have guessed the key after many wrong keys."""
        if (address, key) not in self._right and self._wrong.is_spent(address):
            self._wrong.count(address)
        self._right[address, key] = None
        self._right.move_to_end((address, key))
        if len(self._right) > _MAX_CLIENTS:
            self._right.popitem(last=False)


class RateLimitMiddleware:
    """Counts each request and WebSocket toward the rate limit of its client."""

    def __init__(self, app: ASGIApp, rates: RateLimiter, paths: ExemptPaths) -> None:
        self._app = app
        self._rates = rates
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request or WebSocket."""
        if scope["type"] == "websocket" or (
            scope["type"] == "http" and not self._paths.is_unlimited(scope["method"], scope["path"])
        ):
            bucket = scope["state"]["bucket"]
            # Reading ahead has a separate limit, so it does not use up the client's requests.
            self._rates.count(f"{bucket} {_AHEAD}" if scope["path"].endswith(_AHEAD) else bucket)
        await self._app(scope, receive, send)
