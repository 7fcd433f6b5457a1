"""Greedy choice."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.sampling.candidates import Candidates


class Greedy:
    """Chooses the most likely token, the first of ties."""

    def choose(self, candidates: Candidates) -> int:
        """Return the token with the largest logit."""
        return candidates.id(candidates.peak())
