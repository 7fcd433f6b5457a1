"""Keep-alive: how long a model stays loaded after its last use."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.serving.model_manager.loaded_model import ModelSlot


@dataclass(frozen=True)
class KeepAlive:
    """Keep-alive from a preset."""

    is_pinned: bool = False  # never unload the model
    seconds: float | None = None  # None: --keep-alive


class KeepAliveTimes:
    """Keep-alive of each model: of its preset, of the last client that set one, or of --keep-alive."""

    def __init__(self, default: float) -> None:
        """`default` is in seconds, 0 for no limit."""
        self._default = default or math.inf
        self._by_client: dict[str, float] = {}

    def set(self, name: str, seconds: float) -> None:
        """Set the keep-alive of a model that is not pinned."""
        self._by_client[name] = seconds

    def seconds(self, name: str, preset: KeepAlive) -> float:
        """Return the keep-alive of a model in seconds; infinite for a model that is never unloaded."""
        if preset.is_pinned:
            return math.inf
        return self._by_client.get(name, self._default if preset.seconds is None else preset.seconds)

    def expired(self, slots: Sequence[ModelSlot]) -> list[ModelSlot]:
        """Return the idle models to unload."""
        now = time.monotonic()
        return [s for s in slots if s.is_idle and now - s.last_used >= self.seconds(s.info.name, s.keep_alive)]
