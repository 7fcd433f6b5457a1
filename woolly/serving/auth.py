"""The Authority: who may ask. Keys are compared in constant time; tokens are signed and expire."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
import time
from dataclasses import dataclass
from typing import Any

from woolly.serving.errors import ApiError

__all__ = ["Authority", "Client"]

_ALGORITHM = "HS256"  # the only one: a token cannot choose how it is checked
_MAX_TOKEN = 4096
_NEVER = 253_402_300_800  # the year 10000, which no date can tell
_MAX_USER = 200
_OPEN = "open"  # stands for the key of tokens that were issued while none was needed


@dataclass(frozen=True)
class Client:
    """Who asks, without the key itself."""

    name: str  # for the log: which key or user
    key: str  # the key behind it: users of one key share its rate
    owner: str  # whose sessions it sees; outlives a restart


class Authority:
    """Knows keys by their digests alone. Without keys everybody may ask."""

    def __init__(self, keys: tuple[str, ...], secret: str | None, lifetime: int) -> None:
        """`secret` signs tokens; with None a random one does, and they end with the process."""
        self._secret = secret.encode() if secret is not None else secrets.token_bytes(32)
        # Keys are known by another secret than the one that signs tokens, which others may have to check them.
        self._pepper = hmac.new(self._secret, b"woolly: digests of keys", hashlib.sha256).digest()
        self._owners = {self._digest(key): _owner(key) for key in keys}
        self._digests = tuple(self._owners)
        self._lifetime = lifetime

    @property
    def is_open(self) -> bool:
        """Whether no key is needed."""
        return not self._digests

    def identify(self, credential: str | None) -> Client | None:
        """The client that a key or a token stands for, None where it stands for nobody.

        Its name says which key it was without giving it away. A user of one key is not that of another.
        """
        if credential is None or len(credential) > _MAX_TOKEN:
            return None
        digest = self._match(credential)
        if digest is not None:
            return Client(_name(digest), _name(digest), self._owners[digest])
        claims = self.validate(credential)
        if claims is None:
            return None
        user = f"user:{claims['sub']}"
        for digest, owner in self._owners.items():
            if digest.hex()[:16] == claims["key"]:
                return Client(user, _name(digest), f"{owner} {user}")
        return Client(user, _OPEN, "")

    def issue(self, user_id: str, api_key: str) -> tuple[str, int]:
        """A JSON Web Token for a user who shows a key, and the seconds that it holds. ApiError 401 for a wrong key."""
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
        body = ".".join(_encode(_json(part)) for part in ({"alg": _ALGORITHM, "typ": "JWT"}, claims))
        return f"{body}.{_encode(self._sign(body))}", self._lifetime

    def validate(self, token: str) -> dict[str, Any] | None:
        """The claims of a token that was signed with the secret, has not expired, and whose key still holds."""
        try:
            body, _, signature = token.rpartition(".")
            header, _, payload = body.partition(".")
            if len(token) > _MAX_TOKEN or not token.isascii():
                return None
            if not hmac.compare_digest(self._sign(body), _decode(signature)):
                return None
            head, claims = json.loads(_decode(header)), json.loads(_decode(payload))
        except (ValueError, RecursionError, binascii.Error):
            return None
        # What "crit" names must be understood, and nothing is.
        if not isinstance(head, dict) or head.get("alg") != _ALGORITHM or "crit" in head:
            return None
        return claims if isinstance(claims, dict) and self._holds(claims) else None

    def _holds(self, claims: dict[str, Any]) -> bool:
        key, user, now = claims.get("key"), claims.get("sub"), time.time()
        begin: Any = claims.get("nbf", 0)
        end: Any = claims.get("exp")
        if not isinstance(user, str) or not user or not _is_time(begin) or not _is_time(end):
            return False
        if not begin <= now < end < _NEVER:
            return False
        return (key == _OPEN and self.is_open) or any(digest.hex()[:16] == key for digest in self._digests)

    def _match(self, key: str) -> bytes | None:
        """Looks at every key whatever it finds, so that time tells nothing."""
        wanted = self._digest(key)
        found = None
        for digest in self._digests:
            if hmac.compare_digest(digest, wanted):
                found = digest
        return found

    def _digest(self, key: str) -> bytes:
        return hmac.new(self._pepper, key.encode("utf-8", "surrogatepass"), hashlib.sha256).digest()

    def _sign(self, body: str) -> bytes:
        return hmac.new(self._secret, body.encode(), hashlib.sha256).digest()


def _name(digest: bytes) -> str:
    return f"key:{digest.hex()[:8]}"


def _owner(key: str) -> str:
    """A digest that does not depend on the secret, which may be of this process alone."""
    data = key.encode("utf-8", "surrogatepass")
    return "key:" + hashlib.blake2b(data, digest_size=16, person=b"woolly session").hexdigest()


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    """Strict: one text for one value, so that a signature cannot be written in two ways."""
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _encode(data) != text:
        raise ValueError("not canonical")
    return data
