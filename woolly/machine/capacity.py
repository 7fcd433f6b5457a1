"""MemoryEstimate of whether a model of some size fits this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Fit = Literal["yes", "tight", "too large"]

# What a model takes beside its weights: the cache of a few thousand tokens, buffers, the process.
_BESIDE, _SHARE = 400_000_000, 1.1
_EASE = 0.85  # of the memory that is free: the rest is for other programs


@dataclass(frozen=True)
class Capacity:
    """The memory and the disk that a model could take, in bytes."""

    memory: int  # free for this process, a GPU's included
    total: int  # of the machine, a GPU's included
    disk: int  # free where models are kept

    def fit(self, n_bytes: int, *, is_here: bool = False) -> Fit:
        """Returns how a file of this size fits: `tight` if other programs must give way, or little is left.

        `is_here` says that the file is on the disk already.
        """
        wanted = n_bytes * _SHARE + _BESIDE
        if wanted > self.total or (n_bytes > self.disk and not is_here):
            return "too large"
        return "yes" if wanted <= self.memory * _EASE else "tight"
