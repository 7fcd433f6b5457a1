"""ExemptPaths: requests exempt from checks of middleware."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ExemptPaths:
    """Exempt paths (exact matches), from the dialects."""

    health: frozenset[str]  # health routes; not checked
    tokens: frozenset[str]  # routes that take a key or token in the body; no key in the headers
    metrics: frozenset[str]
    polled: frozenset[str]  # routes polled every second; not logged
    query_key: Callable[[str], str | None]  # (path): name of the query parameter for a key
    is_page: Callable[[str, str], bool]  # (method, path): True for files of the web page
    is_reference: Callable[[str, str], bool]  # (method, path): True for the API reference

    def is_health(self, path: str) -> bool:
        """Return True if the path reports health."""
        return path in self.health

    def is_quiet(self, method: str, path: str) -> bool:
        """Return True if successful requests are logged only at debug level: polled routes and files of the page."""
        is_polled = path in self.health or path in self.metrics or path in self.polled
        return is_polled or (self.is_page(method, path) and not path.endswith("/"))

    def is_unlimited(self, method: str, path: str) -> bool:
        """Return True if a request needs no key, counts toward no rate limit and is always served."""
        return path in self.health or self.is_page(method, path)

    def needs_no_key(self, method: str, path: str) -> bool:
        """Return True if a request is served without a key; OPTIONS is a CORS preflight."""
        return method == "OPTIONS" or path in self.tokens or self.is_reference(method, path)

    def is_served_while_draining(self, path: str) -> bool:
        """Return True if a path is served while the server drains."""
        return path in self.tokens or path in self.metrics
