"""Access: middleware that checks the origin and the credentials of a request."""

from __future__ import annotations

from collections.abc import MutableMapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, QueryParams
from starlette.types import ASGIApp, Receive, Scope, Send

from woolly.serving.accounts.account import current_account
from woolly.serving.errors import ApiError
from woolly.serving.gate.authenticator import Authenticator, Client
from woolly.serving.gate.exempt_paths import ExemptPaths
from woolly.serving.gate.origins import AllowedOrigins
from woolly.serving.gate.rate_limits import KeyGuessLimiter, RateLimiter
from woolly.serving.settings.table import Settings

_READING = ("GET", "HEAD", "OPTIONS")


class AccessMiddleware:
    """Rejects a wrong Host or Origin with 403 and an invalid key with 401. Stores the client in `scope["state"]`."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        authenticator: Authenticator,
        rates: RateLimiter,
        key_guesses: KeyGuessLimiter,
        paths: ExemptPaths,
    ) -> None:
        self._app = app
        self._authenticator = authenticator
        self._rates = rates
        self._key_guesses = key_guesses
        self._paths = paths
        self._origins = AllowedOrigins(settings)
        self._hosts = settings.allowed_hosts
        # Web pages could reach a local server without keys through a host name that resolves to this machine.
        self._checks_host = settings.is_local and authenticator.is_open and not settings.trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request or WebSocket."""
        if scope["type"] in ("http", "websocket"):
            self._check(scope)
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        is_socket = scope["type"] == "websocket"
        method, path = scope.get("method", ""), scope["path"]
        if is_socket:
            self._check_origin(headers)
        elif self._paths.is_health(path):
            return
        if self._checks_host:
            self._check_host(scope, headers)
        if self._paths.is_unlimited(method, path):
            return
        if self._authenticator.is_open:
            scope["state"]["is_admin"] = True
            if not is_socket and method not in _READING:
                self._check_origin(headers)  # HTML forms of any page can post to routes without a key
        elif not self._paths.needs_no_key(method, path):
            self._identify(scope, headers)

    def _identify(self, scope: Scope, headers: Headers) -> None:
        state = scope["state"]
        credential = _credential(headers) or self._query_key(scope)
        client = self._authenticator.identify(credential)
        if client is None:
            self._rates.count(state["bucket"])
            self._key_guesses.record_failure(state["bucket"])
            raise ApiError(
                401,
                "authentication_failed",
                "missing or invalid API key; send `Authorization: Bearer KEY` or `X-API-Key: KEY`",
                suggestion="ask the administrator of this server for a key",
            )
        self._key_guesses.record_success(state["bucket"], client.key)
        state["credential"] = credential
        _enter(state, client)

    def _query_key(self, scope: Scope) -> str | None:
        """Return the API key in the query string, for dialects whose clients send the key there."""
        name = self._paths.query_key(scope["path"])
        return None if name is None else QueryParams(scope.get("query_string", b"")).get(name)

    def _check_host(self, scope: Scope, headers: Headers) -> None:
        """Reject DNS rebinding, where a page's host name resolves to this machine and appears in the Host header."""
        if "host" not in headers and scope["http_version"] == "1.0":  # browsers always send it
            return
        host = (_split(f"//{headers.get('host', '')}").hostname or "").rstrip(".")
        known = ("localhost", (scope.get("server") or ("",))[0], *self._hosts)
        if host in known or host.endswith(".localhost"):
            return
        try:
            ip_address(host)
        except ValueError:
            raise ApiError(
                403,
                "access_denied",
                "the Host header names another server; use 127.0.0.1, or add the name to --allowed-hosts",
            ) from None

    def _check_origin(self, headers: Headers) -> None:
        """Reject other origins, because browsers let any page open a WebSocket or post a form."""
        origin = headers.get("origin")
        if origin is None or self._origins.allows(origin):
            return
        if _split(origin).netloc != headers.get("host"):
            raise ApiError(403, "access_denied", "this origin may not call the server; add it to --cors-origins")


def revalidate(authenticator: Authenticator, state: MutableMapping[str, Any]) -> bool:
    """Return True if the credential of an open connection is still valid. Updates the client's limits and rights."""
    if authenticator.is_open:
        return True
    client = authenticator.identify(state.get("credential"))
    if client is not None:
        _enter(state, client)
    return client is not None


def _enter(state: MutableMapping[str, Any], client: Client) -> None:
    state["client"], state["bucket"], state["owner"] = client.name, client.key, client.owner
    state["is_admin"], state["account"] = client.is_admin, client.account
    current_account.set(client.account)


def _split(address: str) -> SplitResult:
    """Return the parts of an address; all are empty if the address cannot be parsed, such as `[`."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


def _credential(headers: Headers) -> str | None:
    kind, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if kind.lower() == "bearer" else headers.get("x-api-key") or headers.get("x-goog-api-key")
