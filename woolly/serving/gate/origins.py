"""Origins of web pages that may call this server."""

from __future__ import annotations

import re

from woolly.serving.settings.table import Settings

_LOCAL = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?"


class AllowedOrigins:
    """Origins of --cors-origins; `localhost` allows all pages of this machine.

    Without --cors-origins, pages of this machine are allowed if the server listens only on localhost.
    """

    def __init__(self, settings: Settings) -> None:
        self.listed = settings.cors_origins
        is_local = settings.is_local and not settings.cors_origins
        self.pattern = _LOCAL if is_local or "localhost" in settings.cors_origins else None

    def allows(self, origin: str) -> bool:
        """Return True if pages of an origin may send requests."""
        is_local = self.pattern is not None and re.fullmatch(self.pattern, origin) is not None
        return is_local or "*" in self.listed or origin in self.listed
