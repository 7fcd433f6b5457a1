"""Gpu: a detected GPU and its memory."""

from __future__ import annotations

from dataclasses import dataclass

from woolly.runtime.gpu.memory_requirements import RESERVE


@dataclass(frozen=True)
class Gpu:
    """A detected GPU that can run programs."""

    number: int
    name: str
    level: str  # architecture, such as sm_90
    free: int  # bytes
    total: int
    bandwidth: float | None  # bytes per second, computed from memory clock and bus width

    @property
    def usable(self) -> int:
        """Bytes for weights and cache, without the reserve of a program."""
        return max(0, self.free - RESERVE)
