"""SlotTable: the last tokens of each slot, for clients that use slots as in llama-server.

A slot is a number that a request names or is assigned. The cache belongs to all requests: a slot only records the
tokens of its last request, for saving, restoring and erasing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from woolly.serving.errors import invalid_param


@dataclass(frozen=True)
class SlotContents:
    """Tokens of a slot's last request."""

    model: str = ""
    owner: str = ""
    tokens: tuple[int, ...] = ()
    salt: bytes = b""  # cache salt of its request: part of the cache key of its tokens
    digests: tuple[bytes, ...] | None = None  # of its pages if it had images, whose tokens are placeholders
    has_source: bool = False  # the placeholders are encoder rows


class SlotTable:
    """Slots as in llama-server: as many as requests may run, of the model with the most. Event loop thread only."""

    def __init__(self, n_slots: Callable[[], int]) -> None:
        self._n_slots = n_slots
        self._contents: list[SlotContents] = []
        self._order: list[int] = []  # least recently used first

    def __len__(self) -> int:
        """Return the number of slots; it never decreases."""
        while len(self._contents) < self._n_slots():
            self._order.insert(0, len(self._contents))
            self._contents.append(SlotContents())
        return len(self._contents)

    def assign(self, wanted: int = -1) -> int:
        """Return the slot of a request: the one it wants, or the least recently used one. ApiError 400 beyond all."""
        if wanted >= len(self):
            raise invalid_param("id_slot", f"it is {wanted}; this server has slots up to {len(self) - 1}")
        slot = self._order[0] if wanted < 0 else wanted
        self._order.remove(slot)
        self._order.append(slot)
        return slot

    def record(
        self,
        slot: int,
        model: str,
        owner: str,
        tokens: Sequence[int],
        salt: bytes = b"",
        digests: Sequence[bytes] | None = None,
        *,
        has_source: bool = False,
    ) -> None:
        """Record the contents of a slot; `digests` of its pages are given if it had images or encoder rows."""
        named = None if digests is None else tuple(digests)
        self._contents[slot] = SlotContents(model, owner, tuple(tokens), salt, named, has_source)

    def contents(self, slot: int, owner: str) -> SlotContents:
        """Return the contents of a slot; empty if it is another client's. ApiError 400 for an unknown slot."""
        if not 0 <= slot < len(self):
            raise invalid_param("id_slot", f"it is {slot}; this server has slots 0 to {len(self) - 1}")
        contents = self._contents[slot]
        return contents if contents.owner == owner else SlotContents()
