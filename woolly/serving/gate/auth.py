"""The Authority: which API key or token stands for which client."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from dataclasses import dataclass
from typing import Any

import jwt

from woolly.serving.errors import ApiError

__all__ = ["Authority", "Client"]

_ALGORITHM = "HS256"  # the only one: a token cannot choose how it is checked
_MAX_TOKEN = 4096
# PyJWT reads base64 loosely. The last character of an HS256 signature has two unused bits, which must be 0, so that
# one signature has one spelling.
_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{42}[AEIMQUYcgkosw048]")
_NEVER = 253_402_300_800  # the year 10000, which datetime cannot represent
_MAX_USER = 200
_OPEN = "open"  # in place of the key in tokens that were issued while the server had no keys


@dataclass(frozen=True)
class Client:
    """A client, without its key."""

    name: str  # for the log: which key or user
    key: str  # the key behind it: users of one key share its rate
    owner: str  # whose sessions it sees; the same after a restart
    is_admin: bool  # whether it may load, configure and unload models


class Authority:
    """Keeps digests of the keys, and compares them in constant time. Without keys, every client may ask."""

    def __init__(
        self, keys: tuple[str, ...], secret: str | None, lifetime: int, admin_keys: tuple[str, ...] = ()
    ) -> None:
        """`secret` signs tokens; None takes a random one, so that tokens end with the process."""
        self._secret = secret.encode() if secret is not None else secrets.token_bytes(32)
        # Other programs may have the secret, to check tokens: digests of keys need another one.
        self._pepper = hmac.new(self._secret, b"woolly: digests of keys", hashlib.sha256).digest()
        self._owners = {self._digest(key): _owner(key) for key in keys}
        self._digests = tuple(self._owners)
        self._admins = frozenset(self._digest(key) for key in admin_keys)
        self._lifetime = lifetime

    @property
    def is_open(self) -> bool:
        """Whether no key is needed."""
        return not self._digests

    @property
    def has_admins(self) -> bool:
        """Whether some keys may do more than others."""
        return bool(self._admins)

    def identify(self, credential: str | None) -> Client | None:
        """Returns the client of a key or a token, None if it is not valid.

        The name identifies the key and does not reveal it. Users of different keys are different users.
        """
        if credential is None or len(credential) > _MAX_TOKEN:
            return None
        digest = self._match(credential)
        if digest is not None:
            return Client(_name(digest), _name(digest), self._owners[digest], digest in self._admins)
        claims = self.validate(credential)
        if claims is None:
            return None
        user = f"user:{claims['sub']}"
        for digest, owner in self._owners.items():
            if digest.hex()[:16] == claims["key"]:
                return Client(user, _name(digest), f"{owner} {user}", digest in self._admins)
        return Client(user, _OPEN, "", True)

    def issue(self, user_id: str, api_key: str) -> tuple[str, int]:
        """Returns a JSON Web Token for a user with a key, and its lifetime in seconds. ApiError 401 for a wrong key."""
        digest = self._match(api_key)
        if digest is None and not self.is_open:
            raise ApiError(
                401, "authentication_failed", "the API key is not known", suggestion="ask the operator for a key"
            )
        if not user_id or len(user_id) > _MAX_USER or not user_id.isprintable():
            raise ApiError(
                400,
                "invalid_request",
                f"user_id must be a name of 1 to {_MAX_USER} printable characters",
                param="user_id",
            )
        now = int(time.time())
        claims = {
            "sub": user_id,
            "iat": now,
            "exp": now + self._lifetime,
            "jti": secrets.token_hex(8),
            "key": _OPEN if digest is None else digest.hex()[:16],
        }
        return jwt.encode(claims, self._secret, algorithm=_ALGORITHM), self._lifetime

    def validate(self, token: str) -> dict[str, Any] | None:
        """Returns the claims of a token, None unless the secret signed it, it has not expired and its key is valid."""
        if len(token) > _MAX_TOKEN or not _TOKEN.fullmatch(token):
            return None
        try:
            parts = jwt.decode_complete(
                token, self._secret, algorithms=[_ALGORITHM], options={"require": ["exp", "sub", "key"]}
            )
        except (jwt.InvalidTokenError, ValueError, TypeError, OverflowError, RecursionError):
            return None
        # "crit" lists extensions that a reader must understand, and this server understands none.
        claims: dict[str, Any] = parts["payload"]
        return claims if "crit" not in parts["header"] and self._holds(claims) else None

    def _holds(self, claims: dict[str, Any]) -> bool:
        """Whether claims that PyJWT accepts name a user, real times (PyJWT also takes text) and a valid key."""
        key, user = claims["key"], claims["sub"]
        if not isinstance(user, str) or not user or not _is_time(claims["exp"]) or not _is_time(claims.get("nbf", 0)):
            return False
        if claims["exp"] >= _NEVER:
            return False
        return (key == _OPEN and self.is_open) or any(digest.hex()[:16] == key for digest in self._digests)

    def _match(self, key: str) -> bytes | None:
        """Compares all keys, also after a match, so that the time reveals nothing."""
        wanted = self._digest(key)
        found = None
        for digest in self._digests:
            if hmac.compare_digest(digest, wanted):
                found = digest
        return found

    def _digest(self, key: str) -> bytes:
        return hmac.new(self._pepper, key.encode("utf-8", "surrogatepass"), hashlib.sha256).digest()


def _name(digest: bytes) -> str:
    return f"key:{digest.hex()[:8]}"


def _owner(key: str) -> str:
    """Returns a digest that does not depend on the secret, which may end with this process."""
    data = key.encode("utf-8", "surrogatepass")
    return "key:" + hashlib.blake2b(data, digest_size=16, person=b"woolly session").hexdigest()


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
