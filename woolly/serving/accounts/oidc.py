"""Verifies bearer tokens of an OIDC issuer, such as Keycloak, Entra or Dex. The server has no login pages.

The issuer's keys are fetched before the port is open, every hour, and after a token with an unknown key. Requests do
not wait for a fetch.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

import jwt

from woolly.errors import RequestError
from woolly.serving.accounts.account import Account
from woolly.serving.observability.logs import log

OIDC_OWNER = "oidc:"  # prefix of the names and owner ids of OIDC users; key names have no colon

# Asymmetric algorithms only. With HMAC, this server could issue tokens itself.
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_DISCOVERY = "/.well-known/openid-configuration"
_SECONDS = 10.0  # for one reply of the issuer
_MAX_BYTES = 1 << 20
_MAX_TOKEN_LENGTH = 16_384
_MAX_NAME_LENGTH = 200
_HOUR, _MINUTE, _LOOK = 3600.0, 60.0, 5.0
_LEEWAY = 30  # tolerated clock difference in seconds


def check_issuer(issuer: str, audience: str | None, admin: str | None) -> None:
    """Raise RequestError for invalid issuer settings, or if the package cryptography is missing."""
    if not _is_safe(issuer):
        raise RequestError(f"oidc_issuer is {issuer!r}; expected an address with https://", field="oidc_issuer")
    if not audience:
        raise RequestError(
            "oidc_issuer is set without oidc_audience, which would accept tokens of other services; set both",
            field="oidc_issuer",
            names=("oidc_audience",),
        )
    if admin is not None and not all(admin.partition("=")[::2]):
        raise RequestError(
            f"oidc_admin is {admin!r}; expected CLAIM=VALUE, such as groups=llm-admins", field="oidc_admin"
        )
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise RequestError(
            "oidc_issuer needs the package cryptography: pip install 'woolly-llm[oidc]'", field="oidc_issuer"
        ) from None


def _is_safe(url: str) -> bool:
    """Return True if replies cannot be tampered with on the network."""
    parts = urlsplit(url)
    is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    return parts.scheme == "https" or (parts.scheme == "http" and is_local)


def _fetch(url: str) -> Any:
    """Return the JSON at a URL. Raises OSError or ValueError on failure."""
    with urllib.request.urlopen(url, timeout=_SECONDS) as reply:
        return json.loads(reply.read(_MAX_BYTES))


class Issuer:
    """Verifies tokens with the issuer's keys. Use this class only on the event loop thread, except `refresh`."""

    def __init__(
        self, issuer: str, audience: str, admin: str | None = None, fetch: Callable[[str], Any] = _fetch
    ) -> None:
        """`admin` is CLAIM=VALUE; users with this claim may load models and see the usage of all keys."""
        self._issuer = issuer
        self._audience = audience
        self._admin = None if admin is None else (admin.partition("=")[0], admin.partition("=")[2])
        self._fetch = fetch
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._is_missing = False  # True if a token had an unknown key
        self._fetched = 0.0

    def refresh(self) -> None:
        """Fetch the issuer's keys. On failure, raises RequestError and leaves the current keys unchanged."""
        self._is_missing, self._fetched = False, time.monotonic()
        try:
            about = self._fetch(self._issuer.rstrip("/") + _DISCOVERY)
            if about["issuer"] != self._issuer:
                raise ValueError(f"its discovery document names the issuer {about['issuer']!r}")
            if not _is_safe(about["jwks_uri"]):
                raise ValueError(f"its jwks_uri is {about['jwks_uri']!r}; expected an address with https://")
            found = self._fetch(about["jwks_uri"])["keys"]
            keys = {one["kid"]: key for one in found if _can_sign(one) and (key := _key_of(one)) is not None}
        except (OSError, HTTPException, ValueError, LookupError, TypeError, AttributeError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise RequestError(
                f"the keys of oidc_issuer {self._issuer} cannot be fetched: {reason}", field="oidc_issuer"
            ) from None
        if not keys:
            raise RequestError(f"oidc_issuer {self._issuer} has no signing key", field="oidc_issuer")
        self._keys = keys

    async def run(self) -> None:
        """Refresh the keys every hour, or once a minute while a key is missing, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK)
            age = time.monotonic() - self._fetched
            if age > _HOUR or (self._is_missing and age > _MINUTE):
                try:
                    await asyncio.to_thread(self.refresh)
                except RequestError as error:
                    log.warning("keys not fetched", extra={"reason": str(error)})
                except Exception as error:  # an unexpected reply must not stop the refresh task
                    log.error("keys not fetched", exc_info=error)

    def identify(self, token: str) -> Account | None:
        """Return the account of a token's user, or None if the token is invalid."""
        claims = self._claims(token)
        if claims is None:
            return None
        user = claims["sub"]
        if not isinstance(user, str) or not 0 < len(user) <= _MAX_NAME_LENGTH or not user.isprintable() or " " in user:
            return None
        # The prefix separates the usage of a user and a key with the same name.
        return Account(f"{OIDC_OWNER}{user}", f"{OIDC_OWNER}{user}", self._is_admin(claims))

    def _claims(self, token: str) -> dict[str, Any] | None:
        if len(token) > _MAX_TOKEN_LENGTH or token.count(".") != 2:
            return None
        try:
            head = jwt.get_unverified_header(token)
            key = self._keys.get(head.get("kid", ""))
            if key is None or head.get("alg") not in _ALGORITHMS or "crit" in head:
                self._is_missing = self._is_missing or key is None
                return None
            return jwt.decode(
                token,
                key,
                algorithms=[head["alg"]],
                audience=self._audience,
                issuer=self._issuer,
                leeway=_LEEWAY,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            return None

    def _is_admin(self, claims: Mapping[str, Any]) -> bool:
        if self._admin is None:
            return False
        name, wanted = self._admin
        found = claims.get(name)
        return wanted in found if isinstance(found, list) else found == wanted


def _key_of(key: dict[str, Any]) -> jwt.PyJWK | None:
    """Return a published key, or None if its type is not supported."""
    try:
        return jwt.PyJWK(key)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, NotImplementedError) as error:
        log.warning("an unsupported key of oidc_issuer is ignored", extra={"kid": key["kid"], "reason": str(error)})
        return None


def _can_sign(key: Any) -> bool:
    if not isinstance(key, dict):
        return False
    return key.get("kty") in ("RSA", "EC", "OKP") and key.get("use", "sig") == "sig" and isinstance(key.get("kid"), str)
