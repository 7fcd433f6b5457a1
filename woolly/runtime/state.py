"""State of a plan between runs: pages in a pool shared by all sequences, and one slot per sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from woolly import _native

# Tokens per page: small, because a sequence wastes half a page at its end; large enough for streaming reads.
PAGE_SIZE: int = _native.PAGE_SIZE


def pages_for(n_tokens: int) -> int:
    """Return the number of pages for n tokens."""
    return -(-n_tokens // PAGE_SIZE)


def pages_for_window(window: int, max_running: int, n_rows: int, n_pages: int, n_drafts: int = 1) -> int:
    """Return the pages for the windows of `max_running` concurrent requests and `logits`, and two resume points.

    The requests together store the `n_rows` of one step, and each up to `n_drafts` unverified tokens. The result is at
    most `n_pages`, the pages of entries without a window.
    """
    # A request has up to two partial pages in addition to its window and its drafts.
    seen = (max_running + 1) * (pages_for(window) + 2 + pages_for(n_drafts)) + pages_for(n_rows)
    return min(n_pages, seen + 2 * pages_for(window))


class State(Protocol):
    """Cache of one program. Other programs cannot read it."""

    @property
    def n_pages(self) -> int:
        """Number of pages, used or not."""

    @property
    def page_bytes(self) -> int:
        """Size of one page over all entries of the plan's state."""

    @property
    def n_slots(self) -> int:
        """Number of slots, used or not. A slot stores the recurrent state of a sequence."""

    @property
    def slot_bytes(self) -> int:
        """Size of one slot over all entries of the plan's state."""

    @property
    def n_bytes(self) -> int:
        """Size of all pages and slots, used or not."""


@runtime_checkable
class PortableState(State, Protocol):
    """State whose pages and slots can be copied out as bytes, and into another state of an equal program.

    The bytes are valid only for programs with the same result bits. Entries of one table share page numbers: table 0 is
    for entries that attend to all tokens, the others are for `Plan.windows`.
    """

    @property
    def is_portable(self) -> bool:
        """True if pages can be copied. A state in another process may be lost during the copy."""

    @property
    def page_sizes(self) -> Sequence[int]:
        """Size of one page by table. `page_bytes` is their sum."""

    def read_page(self, page: int, table: int = 0) -> npt.NDArray[np.uint8]:
        """Return a copy of a page of one table."""

    def write_page(self, page: int, data: npt.NDArray[np.uint8], table: int = 0) -> None:
        """Overwrite a page of one table with the bytes of `read_page`."""

    def read_slot(self, slot: int) -> npt.NDArray[np.uint8]:
        """Return a copy of a slot, `slot_bytes` long."""

    def write_slot(self, slot: int, data: npt.NDArray[np.uint8]) -> None:
        """Overwrite a slot with the bytes of `read_slot`."""
