"""The RequestTimeouts of requests: those with a `timeout` end when their time has passed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.engine.request import Request


class RequestTimeouts:
    """Open requests that have a deadline."""

    def __init__(self) -> None:
        self._requests: set[Request] = set()

    def add(self, request: Request) -> None:
        """Watches a request, if it has a deadline."""
        if request.deadline is not None:
            self._requests.add(request)

    def forget(self, request: Request) -> None:
        """Drops a request that has ended."""
        self._requests.discard(request)

    def passed(self) -> list[Request]:
        """The requests whose deadline has passed."""
        if not self._requests:
            return []
        now = time.monotonic()
        return [request for request in self._requests if request.deadline is not None and request.deadline <= now]
