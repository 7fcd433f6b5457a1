"""State slots of sequences, for measurements without an engine."""

from __future__ import annotations

from collections.abc import Iterable

from woolly.plan import Plan


class SlotRotation:
    """Two alternating slots per sequence, so a run never writes a slot that it reads."""

    def __init__(self, plan: Plan, n_sequences: int = 1) -> None:
        self.n_slots = 2 * n_sequences if plan.slots else 0
        self._latest = [0] * n_sequences  # slot that each sequence wrote last

    def next(self, sequences: Iterable[int], first: int) -> list[tuple[int, int]] | None:
        """Return (in, out) slots of sequences for rows from position `first` on, or None if the plan has no slots."""
        if not self.n_slots:
            return None
        out = []
        for s in sequences:
            before = self._latest[s]
            self._latest[s] = 1 - before
            out.append((2 * s + before if first else -1, 2 * s + 1 - before))
        return out
