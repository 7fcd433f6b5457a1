"""Slot of a model in memory."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field

from woolly.engine.loading.memory_estimate import MemoryEstimate
from woolly.llm import LLM
from woolly.serving.errors import answer_cancelled
from woolly.serving.model_manager.keep_alive import KeepAlive
from woolly.serving.model_manager.model_info import ModelInfo
from woolly.serving.settings.table import Settings


@dataclass(eq=False)
class ModelSlot:
    """A model that is loading, loaded or unloading."""

    info: ModelInfo
    settings: Settings
    state: str = "loading"  # loading, ready, unloading
    stage: str = "waiting"  # stage of loading: waiting, reading, freeing or opening
    llm: LLM | None = None
    needs: MemoryEstimate | None = None
    users: int = 0  # requests that use the model or wait until it is loaded
    keep_alive: KeepAlive = field(default_factory=KeepAlive)
    has_scales: bool = False  # True for adapters of --lora; adapters of presets and names have scale 1
    requested_at: float = field(default_factory=time.monotonic)  # arrival of the first request
    last_used: float = field(default_factory=time.monotonic)
    drain_deadline: float = math.inf  # when running answers are interrupted to unload the model
    task: asyncio.Task[None] | None = None  # loads or unloads the model, even if the caller is cancelled

    @property
    def model(self) -> LLM:
        """Return the model. Raises ApiError 503 if the model was unloaded, for example after the grace period."""
        if self.llm is None:
            raise answer_cancelled()
        return self.llm

    @property
    def progress(self) -> float | None:
        """Return the loaded share of the weights, or None if all weights are loaded or the share is unknown."""
        if self.llm is None or self.llm.is_closed:
            return None
        stats = self.llm.engine.program.weight_stats()
        return 1 - stats.n_missing / stats.n_bytes if stats.n_missing else None

    @property
    def is_speculative(self) -> bool:
        """True if the model uses speculative decoding."""
        return self.llm is not None and self.llm.engine.draft is not None

    @property
    def n_bytes(self) -> int:
        """Return the memory that unloading frees, or 0 before it is estimated."""
        return 0 if self.needs is None else self.needs.total

    @property
    def is_idle(self) -> bool:
        """True if the model is loaded and no request uses it."""
        return self.state == "ready" and self.users == 0
