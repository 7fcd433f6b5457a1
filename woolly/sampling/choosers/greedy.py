"""The likeliest token."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.sampling.candidates import Candidates


class Greedy:
    """Takes the likeliest, the first of equals."""

    def choose(self, candidates: Candidates) -> int:
        """No randomness."""
        return candidates.id(candidates.peak())
