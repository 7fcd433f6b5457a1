"""Field of a setting with its flags and help."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def setting(default: Any, flags: str, help: str, shown: str | None = None, *, group: str | None = None) -> Any:
    """Return a dataclass field with flags and help; `shown` describes the default if the value is not self-explanatory.

    Only inherited tables need `group`; other fields belong to the group of the preceding field.
    """
    metadata = {"flags": tuple(flags.split()), "help": help, "shown": shown}
    return field(default=default, metadata=metadata | ({} if group is None else {"group": group}))
