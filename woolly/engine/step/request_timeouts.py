"""RequestTimeouts: deadlines of requests with a `timeout`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.engine.request import Request


class RequestTimeouts:
    """Unfinished requests with a deadline."""

    def __init__(self) -> None:
        self._requests: set[Request] = set()

    def add(self, request: Request) -> None:
        """Track a request if it has a deadline."""
        if request.deadline is not None:
            self._requests.add(request)

    def forget(self, request: Request) -> None:
        """Stop tracking a finished request."""
        self._requests.discard(request)

    def passed(self) -> list[Request]:
        """Return the requests whose deadline has passed."""
        if not self._requests:
            return []
        now = time.monotonic()
        return [request for request in self._requests if request.deadline is not None and request.deadline <= now]
