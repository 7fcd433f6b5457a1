"""A Gpu that was found, before a program is on it."""

from __future__ import annotations

from dataclasses import dataclass

from woolly.runtime.gpu.measure import RESERVE


@dataclass(frozen=True)
class Gpu:
    """A GPU that programs can run on."""

    number: int
    name: str
    level: str  # its generation, such as sm_90
    free: int  # bytes
    total: int
    bandwidth: float | None  # bytes per second, by its memory's clock and width

    @property
    def usable(self) -> int:
        """Bytes for weights and cache: a program keeps some for itself."""
        return max(0, self.free - RESERVE)
