"""ExemptPaths: requests exempt from checks of middleware."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ExemptPaths:
    """Exempt paths, exact matches, as the dialects name them."""

    health: frozenset[str]  # health: no checks
    tokens: frozenset[str]  # take a key or a token in the body: no key in the header
    metrics: frozenset[str]
    polled: frozenset[str]  # programs ask these every second: their lines would hide the others in the log
    query_key: Callable[[str], str | None]  # (path): query parameter for a key
    is_page: Callable[[str, str], bool]  # (method, path): a page of many files, which asks for the key itself
    is_reference: Callable[[str, str], bool]  # (method, path): describes the routes of any copy of this server

    def is_health(self, path: str) -> bool:
        """Return True if the path reports health."""
        return path in self.health

    def is_quiet(self, method: str, path: str) -> bool:
        """Return True if the path is not logged: it is polled, or is a file of the page."""
        is_polled = path in self.health or path in self.metrics or path in self.polled
        return is_polled or (self.is_page(method, path) and not path.endswith("/"))

    def is_unlimited(self, method: str, path: str) -> bool:
        """Return True if a request needs no key, counts for no rate limit and is served until the process ends."""
        return path in self.health or self.is_page(method, path)

    def needs_no_key(self, method: str, path: str) -> bool:
        """Return True if a request is served without a key; OPTIONS is a CORS preflight."""
        return method == "OPTIONS" or path in self.tokens or self.is_reference(method, path)

    def is_served_while_draining(self, path: str) -> bool:
        """Return True if a path is served while the server drains."""
        return path in self.tokens or path in self.metrics
