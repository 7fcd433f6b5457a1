"""ModelSlot: the slot of one model in memory."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field

from woolly.engine.loading.memory_estimate import MemoryEstimate
from woolly.llm import LLM
from woolly.serving.errors import answer_cancelled
from woolly.serving.model_manager.model_info import ModelInfo
from woolly.serving.model_manager.served_names import KeepAlive
from woolly.serving.settings.table import Settings


@dataclass(eq=False)
class ModelSlot:
    """A model that is loading, loaded or unloading."""

    info: ModelInfo
    settings: Settings
    state: str = "loading"  # loading, ready, unloading
    stage: str = "waiting"  # of loading: waiting for another model, reading its file, freeing others, opening
    llm: LLM | None = None
    needs: MemoryEstimate | None = None
    users: int = 0  # requests that hold it, or wait for it to load
    keep_alive: KeepAlive = field(default_factory=KeepAlive)
    has_scales: bool = False  # its adapters are those of --lora; adapters of a preset or a name have scale 1
    requested_at: float = field(default_factory=time.monotonic)  # when the first request came
    last_used: float = field(default_factory=time.monotonic)
    drain_deadline: float = math.inf  # of unloading: when answers that still run are cut off
    task: asyncio.Task[None] | None = None  # loads or unloads the model, even if its caller is cancelled

    @property
    def model(self) -> LLM:
        """Return the model. ApiError 503 if it was freed, as after the grace period."""
        if self.llm is None:
            raise answer_cancelled()
        return self.llm

    @property
    def progress(self) -> float | None:
        """Return the share of the weights that a device has; None if all are there, or nobody knows."""
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
        """Return the memory that unloading frees, 0 if it is not estimated yet."""
        return 0 if self.needs is None else self.needs.total

    @property
    def is_idle(self) -> bool:
        """True if the model is loaded and no request uses it."""
        return self.state == "ready" and self.users == 0
