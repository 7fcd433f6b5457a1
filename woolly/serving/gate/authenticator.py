"""Authenticator: maps API keys and tokens to clients."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jwt

from woolly.errors import RequestError
from woolly.serving.accounts.account import Account
from woolly.serving.accounts.keys_file import NamedKey, hash_key
from woolly.serving.accounts.oidc import OIDC_OWNER, Issuer
from woolly.serving.errors import ApiError

_ALGORITHM = "HS256"  # tokens with any other algorithm are invalid
_MAX_TOKEN = 4096
# PyJWT decodes base64 loosely. The two unused bits of an HS256 signature's last character must be 0, so that each
# signature has only one encoding.
_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{42}[AEIMQUYcgkosw048]")
_NEVER = 253_402_300_800  # the year 10000; datetime cannot represent it
_MAX_USER = 200
_OPEN = "open"  # replaces the key digest in tokens issued while the server had no keys


@dataclass(frozen=True)
class Client:
    """An authenticated client, without its key."""

    name: str  # name of the key or user in the log
    key: str  # rate limit key; users of one API key share it
    owner: str  # owner of the client's sessions; stable across restarts
    is_admin: bool  # True if the client may load, configure and unload models
    account: Account | None = None  # account with its limits; None without keys


class Authenticator:
    """Stores digests of the keys and compares them in constant time. Accepts every client if there are no keys."""

    def __init__(
        self,
        keys: Sequence[str],
        secret: str | None,
        lifetime: int,
        admin_keys: Sequence[str] = (),
        named: Sequence[NamedKey] = (),
        issuer: Issuer | None = None,
    ) -> None:
        """`secret` signs tokens.

        If `secret` is None, a random secret is generated, so tokens become invalid when the process ends.
        """
        self._secret = secret.encode() if secret is not None else secrets.token_bytes(32)
        # Other programs may know the secret to verify tokens, so digests of keys use a different secret.
        self._pepper = hmac.new(self._secret, b"woolly: digests of keys", hashlib.sha256).digest()
        self._lifetime = lifetime
        self.issuer = issuer  # issuer of external tokens
        self._accounts: dict[bytes, Account] = {}
        self._began_open = not (keys or named) and issuer is None
        self.set_keys(keys, admin_keys, named)

    def set_keys(self, keys: Sequence[str], admin_keys: Sequence[str], named: Sequence[NamedKey]) -> None:
        """Replace the keys; tokens of removed keys become invalid.

        Raises RequestError if the server requires keys and there are no new keys.
        """
        if not (keys or named or self._began_open or self.issuer):
            raise RequestError("no key is left, so no client could connect; add at least one key")
        plain = {hash_key(key): _owner(key) for key in keys}
        admins = {hash_key(key) for key in admin_keys}
        accounts = {
            self._peppered(digest): Account(owner[: len("key:") + 8], owner, digest in admins)
            for digest, owner in plain.items()
        }
        accounts |= {self._peppered(one.digest): one.account for one in named}
        self._accounts = accounts

    @property
    def is_open(self) -> bool:
        """True if no key is needed."""
        return self._began_open and not self._accounts

    @property
    def has_admins(self) -> bool:
        """True if admin keys or an OIDC issuer exist."""
        return self.issuer is not None or any(account.is_admin for account in self._accounts.values())

    def account_of(self, owner: str) -> Account | None:
        """Return the account of an owner (a key or a user of a key), or None if the account was removed."""
        if owner.startswith(OIDC_OWNER) and self.issuer is not None:
            return Account(owner, owner)
        key = owner.partition(" ")[0]
        return next((account for account in self._accounts.values() if account.owner == key), None)

    def identify(self, credential: str | None) -> Client | None:
        """Return the client of a key or token, or None if the credential is invalid.

        The client's name identifies the key without revealing it. Users of different keys are different clients.
        """
        if credential is None:
            return None
        if self.issuer is not None and (known := self.issuer.identify(credential)) is not None:
            return Client(known.owner, known.owner, known.owner, known.is_admin, known)
        if len(credential) > _MAX_TOKEN:
            return None
        digest = self._match(credential)
        if digest is not None:
            account = self._accounts[digest]
            return Client(_name(digest, account), _bucket(digest, account), account.owner, account.is_admin, account)
        claims = self.validate(credential)
        if claims is None:
            return None
        user = f"user:{claims['sub']}"
        for digest, account in self._accounts.items():
            if digest.hex()[:16] == claims["key"]:
                owner = f"{account.owner} {user}"
                return Client(user, _bucket(digest, account), owner, account.is_admin, account)
        return Client(user, _OPEN, "", True)

    def issue(self, user_id: str, api_key: str) -> tuple[str, int]:
        """Return a JSON Web Token for a user of a key, and its lifetime in seconds.

        Raises ApiError 401 for a wrong key.
        """
        digest = self._match(api_key)
        if digest is None and not self.is_open:
            raise ApiError(
                401, "authentication_failed", "unknown API key", suggestion="ask the administrator for a key"
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
        """Return the claims of a token, or None if its signature, expiry or key is invalid."""
        if len(token) > _MAX_TOKEN or not _TOKEN.fullmatch(token):
            return None
        try:
            parts = jwt.decode_complete(
                token, self._secret, algorithms=[_ALGORITHM], options={"require": ["exp", "sub", "key"]}
            )
        except (jwt.InvalidTokenError, ValueError, TypeError, OverflowError, RecursionError):
            return None
        # "crit" lists extensions that a verifier must support; this server supports none.
        claims: dict[str, Any] = parts["payload"]
        return claims if "crit" not in parts["header"] and self._holds(claims) else None

    def _holds(self, claims: dict[str, Any]) -> bool:
        """Return True if the claims have a user, numeric times (not strings) and a valid key."""
        key, user = claims["key"], claims["sub"]
        if not isinstance(user, str) or not user or not _is_time(claims["exp"]) or not _is_time(claims.get("nbf", 0)):
            return False
        if claims["exp"] >= _NEVER:
            return False
        return (key == _OPEN and self.is_open) or any(digest.hex()[:16] == key for digest in self._accounts)

    def _match(self, key: str) -> bytes | None:
        """Compare all keys, even after a match, so that the time reveals nothing."""
        wanted = self._peppered(hash_key(key))
        found = None
        for digest in self._accounts:
            if hmac.compare_digest(digest, wanted):
                found = digest
        return found

    def _peppered(self, digest: bytes) -> bytes:
        """Return the HMAC of a key's hash.

        Tokens contain its first bytes, which must not reveal a hash from the keys file.
        """
        return hmac.new(self._pepper, digest, hashlib.sha256).digest()


def _is_named(account: Account) -> bool:
    return account.owner == f"name:{account.name}"


def _name(digest: bytes, account: Account) -> str:
    return account.name if _is_named(account) else f"key:{digest.hex()[:8]}"


def _bucket(digest: bytes, account: Account) -> str:
    return account.owner if _is_named(account) else f"key:{digest.hex()[:8]}"


def _owner(key: str) -> str:
    """Return a digest independent of the secret, which may change with each process."""
    data = key.encode("utf-8", "surrogatepass")
    return "key:" + hashlib.blake2b(data, digest_size=16, person=b"woolly session").hexdigest()


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
