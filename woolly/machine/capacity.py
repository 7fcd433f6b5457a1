"""Estimate of whether a model of a given size fits this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Fit = Literal["yes", "tight", "too large"]

# Memory in addition to the weights: a cache for a few thousand tokens, buffers, the process.
_BESIDE, _SHARE = 400_000_000, 1.1
_EASE = 0.85  # share of the free memory to use; the rest is for other programs


@dataclass(frozen=True)
class Capacity:
    """Memory and disk space for models, in bytes."""

    memory: int  # free memory for this process, including GPUs
    total: int  # total memory of the machine, including GPUs
    disk: int  # free disk space in the models folder

    def fit(self, n_bytes: int, *, is_here: bool = False) -> Fit:
        """Return whether a file of this size fits; "tight" if little memory is left or other programs must free some.

        `is_here`: the file is already on the disk.
        """
        wanted = n_bytes * _SHARE + _BESIDE
        if wanted > self.total or (n_bytes > self.disk and not is_here):
            return "too large"
        return "yes" if wanted <= self.memory * _EASE else "tight"
