"""Name, limits and permitted models of an API key."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class KeyLimits:
    """Maximum requests and tokens for a key; None means no limit. Days begin at midnight UTC."""

    requests_per_minute: int | None = None
    requests_per_day: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the limits, as used in the keys file."""
        return tuple(field.name for field in fields(cls))


NO_LIMITS = KeyLimits()


@dataclass(frozen=True)
class Account:
    """API key without its secret value."""

    name: str  # name in the log and the usage
    owner: str  # owner of sessions, files and cached prefixes; stable across restarts
    is_admin: bool = False  # True if the key may load, configure and unload models
    limits: KeyLimits = NO_LIMITS
    models: tuple[str, ...] = ()  # names of permitted models, with the wildcards * and ?; empty: all models

    def allows(self, names: Iterable[str]) -> bool:
        """Return True if the account may use a model with these names."""
        if not self.models:
            return True
        known = [name.lower() for name in names]
        return any(fnmatchcase(name, pattern.lower()) for pattern in self.models for name in known)


# Account of the current request; None outside of requests and if the server has no keys.
current_account: ContextVar[Account | None] = ContextVar("woolly_asking", default=None)


def is_model_allowed(names: Iterable[str]) -> bool:
    """Return True if the current request's account may use a model with these names."""
    account = current_account.get()
    return account is None or account.allows(names)
