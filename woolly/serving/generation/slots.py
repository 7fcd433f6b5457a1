"""Slots as in llama-server: the last tokens of each slot.

A request names a slot or is assigned one. All requests share the cache, so a slot only records the tokens of its last
request, for save, restore and erase.
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
    salt: bytes = b""  # cache salt of the request, which is part of its cache keys
    digests: tuple[bytes, ...] | None = None  # page digests if the request had images, whose token ids are placeholders
    has_source: bool = False  # True if the placeholders are encoder output


class SlotTable:
    """Table with a slot for each concurrent request of the largest model.

    Use this class only on the event loop thread.
    """

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
        """Return the requested slot, or the least recently used slot for -1.

        Raises ApiError 400 for an unknown slot.
        """
        if wanted >= len(self):
            raise invalid_param("id_slot", f"expected at most {len(self) - 1}, but got {wanted}")
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
        """Record the contents of a slot; `digests` of its pages are required for images and encoder output."""
        named = None if digests is None else tuple(digests)
        self._contents[slot] = SlotContents(model, owner, tuple(tokens), salt, named, has_source)

    def contents(self, slot: int, owner: str) -> SlotContents:
        """Return the contents of a slot, empty if they belong to another client.

        Raises ApiError 400 for an unknown slot.
        """
        if not 0 <= slot < len(self):
            raise invalid_param("id_slot", f"expected 0 to {len(self) - 1}, but got {slot}")
        contents = self._contents[slot]
        return contents if contents.owner == owner else SlotContents()
