"""SplitState: the states of a program's parts as one state."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from woolly.runtime.state import PortableState, State

Bytes = npt.NDArray[np.uint8]


class SplitState:
    """Pages and slots of all parts, with the same numbers in every part. Each part stores its own state entries."""

    def __init__(self, parts: Sequence[State], n_pages: int, n_slots: int) -> None:
        self.parts = tuple(parts)
        self.n_pages = n_pages
        self.n_slots = n_slots

    @property
    def page_bytes(self) -> int:
        """Size of one page, over all parts."""
        return sum(part.page_bytes for part in self.parts)

    @property
    def page_sizes(self) -> tuple[int, ...]:
        """Size of one page by table, over all parts."""
        return tuple(map(sum, zip(*(part.page_sizes for part in self._portable()), strict=True)))

    @property
    def slot_bytes(self) -> int:
        """Size of one slot, over all parts."""
        return sum(part.slot_bytes for part in self.parts)

    @property
    def n_bytes(self) -> int:
        """Size of all pages and slots, used or not."""
        return sum(part.n_bytes for part in self.parts)

    @property
    def is_portable(self) -> bool:
        """True if the pages and slots of all parts can be copied."""
        return all(isinstance(part, PortableState) and part.is_portable for part in self.parts)

    def read_page(self, page: int, table: int = 0) -> Bytes:
        """Return a copy of a page of one table, concatenated over the parts."""
        return np.concatenate([part.read_page(page, table) for part in self._portable()])

    def write_page(self, page: int, data: Bytes, table: int = 0) -> None:
        """Overwrite a page of one table with a copy."""
        sizes = [part.page_sizes[table] for part in self._portable()]
        for part, own in zip(self._portable(), _pieces(data, sizes), strict=True):
            part.write_page(page, own, table)

    def read_slot(self, slot: int) -> Bytes:
        """Return a copy of a slot, concatenated over the parts."""
        return np.concatenate([part.read_slot(slot) for part in self._portable()])

    def write_slot(self, slot: int, data: Bytes) -> None:
        """Overwrite a slot with a copy."""
        for part, own in zip(self._portable(), _pieces(data, [p.slot_bytes for p in self.parts]), strict=True):
            part.write_slot(slot, own)

    def _portable(self) -> list[PortableState]:
        return [cast(PortableState, part) for part in self.parts]


def _pieces(data: Bytes, sizes: Sequence[int]) -> list[Bytes]:
    """Return the bytes of each part. ValueError, before any write, if the total size is wrong."""
    if len(data) != sum(sizes):
        raise ValueError("the bytes are not as many as the cache keeps there")
    return [data[end - size : end] for end, size in zip(itertools.accumulate(sizes), sizes, strict=True)]
