"""Rates: middleware that limits the request rate of each client."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from woolly.serving.errors import ApiError
from woolly.serving.gate.exempt_paths import ExemptPaths

_WRONG_KEYS = 20  # per minute and address
_AHEAD = "/chat/completions/read_ahead"
_MAX_CLIENTS = 10_000  # remembered at once; the limiter forgets the longest quiet one first


class RateLimiter:
    """Token bucket per client with a minute's requests. Event loop thread only."""

    def __init__(
        self, per_minute: int, clock: Callable[[], float] = time.monotonic, may: str = "a client may ask"
    ) -> None:
        """`per_minute` 0 sets no limit. `may` begins the sentence of an error."""
        self._may = may
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client -> (requests left, when)

    def count(self, client: str) -> None:
        """Counts a request. ApiError 429 with the time to wait if the client has asked too often."""
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
                f"{self._may} {self._per_minute} times a minute here; try again later",
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
    """Slows down brute-force attacks on keys: an address that has sent too many wrong keys must wait.

    A key that was accepted from the address before stays valid, so that one bad client does not lock out its
    neighbours.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._wrong = RateLimiter(_WRONG_KEYS, clock, "an address may send a wrong key")
        self._right: OrderedDict[tuple[str, str], None] = OrderedDict()

    def record_failure(self, address: str) -> None:
        """Counts a wrong key. ApiError 429 if the address has sent too many."""
        self._wrong.count(address)

    def record_success(self, address: str, key: str) -> None:
        """Lets a right key pass. ApiError 429 if it may be the result of many attempts."""
        if (address, key) not in self._right and self._wrong.is_spent(address):
            self._wrong.count(address)
        self._right[address, key] = None
        self._right.move_to_end((address, key))
        if len(self._right) > _MAX_CLIENTS:
            self._right.popitem(last=False)


class RateLimitMiddleware:
    """Counts each request and each WebSocket by the bucket of its client."""

    def __init__(self, app: ASGIApp, rates: RateLimiter, paths: ExemptPaths) -> None:
        self._app = app
        self._rates = rates
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request or WebSocket."""
        if scope["type"] == "websocket" or (
            scope["type"] == "http" and not self._paths.is_unlimited(scope["method"], scope["path"])
        ):
            bucket = scope["state"]["bucket"]
            # Separate bucket: read-ahead does not count against requests.
            self._rates.count(f"{bucket} {_AHEAD}" if scope["path"].endswith(_AHEAD) else bucket)
        await self._app(scope, receive, send)
