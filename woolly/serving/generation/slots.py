"""The SlotTable: what each slot last contents, for clients that keep to a slot as llama-server's do.

A slot is a number that a request names or is given. The cache itself belongs to all requests: a slot only remembers the
tokens of its last request, which is what saving, restoring and erasing are about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from woolly.serving.errors import invalid_param


@dataclass(frozen=True)
class SlotContents:
    """The tokens that a slot last contents."""

    model: str = ""
    owner: str = ""
    tokens: tuple[int, ...] = ()
    salt: bytes = b""  # of its request: the cache finds the tokens under it alone
    digests: tuple[bytes, ...] | None = None  # of its pages if it had images, whose tokens are fillers
    has_source: bool = False  # the fillers are of an encoder's rows


class SlotTable:
    """Slots as in llama-server: as many as requests may run, of the model with the most. Event loop thread only."""

    def __init__(self, n_slots: Callable[[], int]) -> None:
        self._n_slots = n_slots
        self._contents: list[SlotContents] = []
        self._order: list[int] = []  # least recently used first

    def __len__(self) -> int:
        """Returns the number of slots; one that was there stays."""
        while len(self._contents) < self._n_slots():
            self._order.insert(0, len(self._contents))
            self._contents.append(SlotContents())
        return len(self._contents)

    def assign(self, wanted: int = -1) -> int:
        """Returns the slot of a request: the one it wants, or the least recently used one. ApiError 400 beyond all."""
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
        """Remembers what a slot holds; `digests` of its pages are given if it had images, or an encoder's rows."""
        named = None if digests is None else tuple(digests)
        self._contents[slot] = SlotContents(model, owner, tuple(tokens), salt, named, has_source)

    def contents(self, slot: int, owner: str) -> SlotContents:
        """Returns what a slot holds; nothing if it is another client's. ApiError 400 for a slot that is not there."""
        if not 0 <= slot < len(self):
            raise invalid_param("id_slot", f"it is {slot}; this server has slots 0 to {len(self) - 1}")
        contents = self._contents[slot]
        return contents if contents.owner == owner else SlotContents()
