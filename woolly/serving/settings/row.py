"""A row of the table of settings."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def setting(default: Any, flags: str, help: str, shown: str | None = None, *, group: str | None = None) -> Any:
    """Return a field with its flags and help; `shown` describes the default if the value itself does not.

    `group` is for tables that Settings inherits; otherwise the group is that of the row before it.
    """
    metadata = {"flags": tuple(flags.split()), "help": help, "shown": shown}
    return field(default=default, metadata=metadata | ({} if group is None else {"group": group}))
